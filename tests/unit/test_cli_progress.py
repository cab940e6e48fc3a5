"""The progress of long commands, without a terminal: plain lines on stderr."""

from __future__ import annotations

import pytest

from bellringer.cli.progress import show_progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the progress sees; a test moves it."""
    now = [0.0]
    monkeypatch.setattr("bellringer.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_a_fast_command_prints_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("exporting", "runs", 100) as progress:
        for _ in range(100):
            progress.advance()
    assert capsys.readouterr() == ("", "")


def test_a_long_command_prints_a_line_every_five_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress("exporting", "runs", 20_000) as progress:
        for _ in range(12):
            clock[0] += 1
            progress.advance(500)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "  exporting: 2,500 of 20,000 runs (12%), 500/s, 35 s left",
        "  exporting: 5,000 of 20,000 runs (25%), 500/s, 30 s left",
    ]


def test_an_unknown_total_has_a_rate_and_no_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("importing", "jobs") as progress:
        clock[0] = 60
        progress.advance(30)
    assert capsys.readouterr().err == "  importing: 30 jobs, 30 a minute\n"


def test_a_total_in_bytes_counts_items(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("sending", "tasks", 4_000_000) as progress:
        clock[0] = 10
        progress.advance(10_000, size=1_000_000)
    assert capsys.readouterr().err == "  sending: 10,000 tasks (25%), 1,000/s, 30 s left\n"


def test_the_text_and_the_total_may_change(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("bf_7", "occurrences") as progress:
        clock[0] = 5
        progress.update(5, total=10, what="bf_7 running,\x1b[31m 2 under way")
    assert (
        capsys.readouterr().err
        == "  bf_7 running,·[31m 2 under way: 5 of 10 occurrences (50%), 60 a minute, 5 s left\n"
    )
