"""`bellringer simulate`: its exit codes, its words and its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bellringer.cli import cli
from bellringer.simulate.report import collect_results
from bellringer.testing.postgres import TEST_DSN_VARIABLE, TestServer

APP = """
from bellringer import App, cron, every

app = App()

@app.schedule(cron("30 2 * * *", tz="Europe/Berlin"))
@app.task
def nightly() -> None:
    raise AssertionError("handlers are not called")

@app.schedule(every("1h"))
@app.task
def hourly() -> None:
    pass
"""
Call = Callable[..., Result]


@pytest.fixture
def call(bellringer_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    (tmp_path / "simulated.py").write_text(APP)
    monkeypatch.setenv(TEST_DSN_VARIABLE, bellringer_server.dsn)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "simulated", raising=False)

    def call(*arguments: str, end: str = "2025-01-08") -> Result:
        given = ["simulate", "simulated.py", "--from", "2025-01-01", "--to", end, *arguments]
        return CliRunner().invoke(cli, given)

    return call


def test_it_shows_what_was_injected_and_ends_with_the_verdict(call: Call) -> None:
    result = call()

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "2 outages and 5 crashes (the default), seed 0" in result.output
    assert [line.split()[:2] for line in lines if line.startswith("simulated.")] == [
        ["simulated.hourly", "168"],
        ["simulated.nightly", "7"],
    ]
    assert sum(line.startswith("outage ") for line in lines) == 2
    assert sum(line.startswith("crash ") for line in lines) == 5
    assert lines[-1].startswith("clean: 175 occurrences of 2 jobs in 7 days, 2 outages, 5 crashes, simulated in ")


def test_what_verify_expects_is_the_sum_of_what_became_of_it(call: Call) -> None:
    result = call("--outage", "2025-01-02T00:30Z/5h", "--duration", "hourly=70m")

    assert result.exit_code == 0, result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("verify ")]
    said = {key: int(count.replace(",", "")) for key, count in re.findall(r"(\w+) ([0-9,]*[0-9])", line)}
    assert said["skipped"] > 70
    assert said["expected"] == sum(said[key] for key in ("created", "skipped", "gaps", "pending", "missing"))


def test_json_holds_the_whole_report(call: Call) -> None:
    result = call("--outage", "2025-01-02T00:30Z/5h", "--duration", "2s", "--duration", "hourly=70m", "-o", "json")

    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    hourly, nightly = told["jobs"]
    assert told["outages"] == [{"from": "2025-01-02T00:30:00Z", "to": "2025-01-02T05:30:00Z"}]
    assert (told["crashes"], told["findings"], told["summary"]["clean"]) == ([], [], True)
    assert (nightly["ran"], nightly["late"], nightly["skipped"]) == (7, 1, {})
    assert hourly["missed"] == 4
    assert hourly["skipped"]["overlap"] > 70


def test_a_finding_exits_with_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    async def falsified(stage: Any, *window: Any) -> Any:
        await stage.store.pool.execute("delete from runs where scheduled_for = '2025-01-01T07:00:00Z'")
        return await collect_results(stage, *window)

    monkeypatch.setattr("bellringer.simulate.simulation.collect_results", falsified)
    result = call("--crashes", "0", end="2025-01-02")

    assert result.exit_code == 1
    assert "missing    2025-01-01T07:00:00Z  simulated.hourly  neither a run nor a gap" in result.output
    assert result.output.splitlines()[-1].startswith("not clean, 1 finding: 25 occurrences")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--outage", "2025-01-02"], 2, "has no end"),
        (["--duration", "hurly=5m"], 2, "did you mean 'hourly'?"),
        (["--duration", "long"], 2, "cannot be read"),
        (["--crashes", "-1"], 2, "is not in the range"),
        (["--from", "2025-02-01"], 2, "there is no time"),
    ],
)
def test_a_wrong_call_is_reported(call: Call, arguments: list[str], code: int, says: str) -> None:
    result = call(*arguments)

    assert result.exit_code == code
    assert says in result.output


def test_it_estimates_first_and_shows_progress(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bellringer.cli.simulate.PROGRESS_SECONDS", 0.0)
    answer = call()
    first, *lines = answer.stderr.splitlines()
    assert re.fullmatch(r"175 occurrences, about \d+ s", first), answer.stderr  # 7 days of one nightly and 24 hourly
    assert lines
    shares = [int(line.split("%")[0]) for line in lines]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 100
    assert all(re.fullmatch(r" +\d+%  2025-01-0\d \d\d:\d\dZ  about .+ left", line) for line in lines), lines
    assert "occurrences, about" not in answer.stdout


def test_it_says_that_a_span_takes_long(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise click.Abort  # as by Ctrl-C: it is not lived through

    monkeypatch.setattr("bellringer.simulate.simulate", stopped)
    answer = call(end="2055-01-01")
    assert "273,925 occurrences, about 13m" in answer.stderr, answer.stderr
    assert "this takes long" in answer.stderr
