"""`python -m bench scale` measures the same operations at each size, and checks what each call did."""

from __future__ import annotations

import asyncio

import pytest
from bench.__main__ import bench
from bench.scale import ScaleFigures, least_size, print_scale, scale
from click.testing import CliRunner

from bellringer.testing.postgres import TestServer

ROUNDS = 1
HISTORY = 10_000


@pytest.fixture(scope="module")
def figures(bellringer_server: TestServer) -> ScaleFigures:
    least = least_size(ROUNDS)
    return asyncio.run(scale(bellringer_server.dsn, [20 * least, least], [HISTORY], ROUNDS, 2.0))


def test_every_operation_is_measured_at_each_size_smallest_first(figures: ScaleFigures) -> None:
    least = least_size(ROUNDS)
    assert [one.size for one in figures.sizes] == [least, 20 * least]
    few, many = (one.costs for one in figures.sizes)
    assert set(few) == set(many)
    assert len(few) == 12
    (history,) = (one.costs for one in figures.history)
    assert all(cost.cpu_ms > 0 and cost.wall_ms > 0 for costs in (few, many, history) for cost in costs.values())


def test_the_history_is_in_daily_partitions(figures: ScaleFigures) -> None:
    assert [one.gigabytes > 0 for one in figures.history] == [True]  # counted by the partitions of days


def test_the_scheduler_runs_on_the_largest_database(figures: ScaleFigures) -> None:
    assert figures.scheduler is not None
    assert figures.scheduler.size == max(one.size for one in figures.sizes)
    assert figures.scheduler.fired >= figures.scheduler.size // 2
    assert 10 < figures.scheduler.rss_mb <= figures.scheduler.peak_rss_mb


def test_the_table_has_a_row_per_operation_and_ratios_to_the_smallest_size(
    figures: ScaleFigures, capsys: pytest.CaptureFixture[str]
) -> None:
    print_scale(figures)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| claim of 1 |")]
    few, many = (one.costs["claim of 1"].cpu_ms for one in figures.sizes)
    assert [row[-1].rstrip(" |") for row in rows] == [f"{many / few:.2f}"]


@pytest.mark.parametrize("words", [["--sizes", "10"], ["--history", "10"], ["--sizes", "many"]])
def test_unusable_sizes_are_refused_before_a_server_is_started(words: list[str]) -> None:
    done = CliRunner().invoke(bench, ["scale", *words])
    assert done.exit_code == 2, done.output
