"""`bellringer bench drain --dispatch kafka` prints what it saw, of both ways and with each number of workers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tools.servers import Kafka

from bellringer.bench.commands import bench


@pytest.mark.cluster
def test_both_ways_are_measured_with_each_number_of_workers(kafka_server: Kafka, bellringer_dsn: str) -> None:
    words = ["drain", "--dispatch", "kafka", "--runs", "600", "--slots", "20", "--json"]
    environment = {"BELLRINGER_DSN": bellringer_dsn, "BELLRINGER_DISPATCH": kafka_server.address}
    done = CliRunner().invoke(bench, words, env=environment)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert (figures["runs"], figures["kafka_published"], figures["broker"]) == (600, 600, kafka_server.address)
    for engine in ("postgresql", "kafka"):
        rates = figures[f"{engine}_per_second"]
        assert rates.keys() == {"1", "2", "4"}
        assert min(rates.values()) > 0
    assert figures["kafka_published_per_second"] > 0
