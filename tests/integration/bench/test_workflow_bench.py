"""`bellringer bench workflow` prints what it saw of a map, of as many plain runs, and of a chain."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bellringer.bench import workflow
from bellringer.bench.commands import bench


def test_a_map_and_a_chain_are_measured(bellringer_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "TRIES", 2)
    monkeypatch.setattr(workflow, "WARM", 5)
    words = ["workflow", "--nodes", "150", "--chain", "12", "--slots", "20", "--json"]
    done = CliRunner().invoke(bench, words, env={"BELLRINGER_DSN": bellringer_dsn})
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert (figures["nodes"], figures["chain"], figures["slots"]) == (150, 12, 20)
    for name in ("map_seconds", "plain_seconds", "plain_birth_seconds"):
        assert len(figures[name]) == 2
        assert min(figures[name]) > 0, name
    assert 0 < figures["ratio_with_births"] < figures["ratio"]
    assert 0 < figures["hop_ms"]["p50"] <= figures["hop_ms"]["p99"] <= figures["hop_ms"]["max"]
    assert figures["hop_ms"]["max"] <= figures["chain_seconds"] * 1000 + 1, "it is one of the times between its nodes"


def test_the_hop_is_the_time_between_two_starts() -> None:
    assert workflow._hops([1.0, 1.002, 1.003, 1.007]) == {"p50": 2.0, "p99": 2.0, "max": 4.0}


@pytest.mark.parametrize("words", [["--chain", "1"], ["--chain", "2001"], ["--nodes", "0"], ["--nodes", "100001"]])
def test_what_the_engine_would_refuse_is_refused_at_once(words: list[str]) -> None:
    done = CliRunner().invoke(bench, ["workflow", *words, "--json"])
    assert done.exit_code == 2
    assert "not in the range" in done.output
