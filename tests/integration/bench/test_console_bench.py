"""`python -m bench console` makes every request of every page and prints how long each response took."""

from __future__ import annotations

import json

from bench.__main__ import bench
from bench.console import PAGES
from click.testing import CliRunner


def test_every_request_of_every_page_is_timed(bellringer_dsn: str) -> None:
    words = ["console", "--jobs", "500", "--runs", "5000", "--rounds", "2", "--json"]
    done = CliRunner().invoke(bench, words, env={"BELLRINGER_DSN": bellringer_dsn})
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert {page: set(told) for page, told in figures["pages"].items()} == {p: set(paths) for p, paths in PAGES.items()}
    times = [one for told in figures["pages"].values() for one in told.values()]
    assert all(0 < one["p50_ms"] <= one["max_ms"] for one in times)
    assert figures["slowest_ms"] == max(one["max_ms"] for one in times)
    assert (figures["slowest"] in figures["over_bar"]) == (figures["slowest_ms"] > figures["bar_ms"])
