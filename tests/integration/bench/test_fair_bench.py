"""`python -m bench fair` prints its figures; the number of rows that a claim reads does not grow with the backlog."""

from __future__ import annotations

import json

import pytest
from bench import fair
from bench.__main__ import bench
from bench.fair import BATCH
from click.testing import CliRunner

from bellringer.engine.claim import MAX_TENANTS_PER_CLAIM


def test_a_claim_among_ten_thousand_tenants_reads_as_much_as_it_may_and_no_more(
    bellringer_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair, "TRIES", 5)
    words = ["fair", "--herd", "500", "--task-ms", "5", "--rows", "20000", "--json"]
    done = CliRunner().invoke(bench, words, env={"BELLRINGER_DSN": bellringer_dsn})
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert {"ratio", "ratio_p50", "arriving_ms"} <= figures.keys()
    assert 0 < figures["alone_p50_ms"] <= figures["alone_ms"]
    assert 0 < figures["beside_p50_ms"] <= figures["beside_ms"]
    assert 0 <= figures["machine"]["p50_ms"] <= figures["machine"]["p99_ms"] <= figures["machine"]["max_ms"]
    reads = {(cost["rows"], cost["tenants"]): cost["index_reads"] for cost in figures["claims"]}
    assert reads.keys() == {(1000, 1), (1000, 100), (20000, 1), (20000, 100), (20000, 10000)}
    assert all(count <= 3 * BATCH + 8 * MAX_TENANTS_PER_CLAIM for count in reads.values()), reads
    assert abs(reads[1000, 100] - reads[20000, 100]) < BATCH, "it does not matter how much is ready"
