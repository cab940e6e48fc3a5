"""The small words of the command line: times, values, addresses, exit codes, live lines."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bellringer.cli.command_groups import print_error
from bellringer.cli.connect import find_url
from bellringer.cli.options import read_arguments, read_value
from bellringer.cli.output import format_relative, format_seconds, sanitize
from bellringer.core.runs import Ending, Outcome, RunEvent, RunKey, SettleDecision, Spec, State
from bellringer.dev import state_dir
from bellringer.dev.live_output import format_end, format_length, format_start
from bellringer.errors import (
    BellringerError,
    ConfigError,
    Conflict,
    InvalidInput,
    NotFound,
    RunFailed,
    SchemaMismatch,
    Unavailable,
)
from bellringer.store.queue import EndedRun
from bellringer.worker.attempt import Work

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "12 ms"), (3.0, "3 s"), (2.345, "2.3 s"), (252, "4m 12s"), (3600, "1h"), (93_780, "1d 2h")],
)
def test_a_span_is_shown_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert format_seconds(seconds) == said


def test_times_are_reported_from_now() -> None:
    assert format_relative(NOON + timedelta(seconds=252), NOON) == "in 4m 12s"
    assert format_relative(NOON - timedelta(seconds=3), NOON) == "3 s ago"
    assert format_relative(NOON, NOON) == "now"
    assert format_relative(None, NOON) == "–"


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("true", True), ("seven", "seven"), ('"7"', "7"), ("[1, 2]", [1, 2]), ("", "")],
)
def test_a_value_is_json_or_else_text(text: str, value: object) -> None:
    assert read_value(text) == value


def test_arguments_come_by_name_or_in_order() -> None:
    assert read_arguments(["a=1", "b=x=y"], None) == (None, {"a": 1, "b": "x=y"})
    assert read_arguments(["a=2"], '{"a": 1, "b": 3}') == (None, {"a": 2, "b": 3})
    assert read_arguments([], "[1, 2]") == ([1, 2], None)


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    assert sanitize("a\x1b[31mb\u202ec") == "a·[31mb·c"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("x"), 2),
        (RunFailed("x", state="dead"), 3),
        (NotFound("x"), 4),
        (Conflict("x"), 5),
        (Unavailable("x"), 6),
        (TimeoutError("x"), 6),
        (ConfigError("x"), 1),
        (SchemaMismatch("x"), 1),
        (BellringerError("x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_error(error) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_the_url_is_the_flag_then_the_environment_then_the_nearest_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BELLRINGER_URL", raising=False)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_url(None, inner) == "http://127.0.0.1:8700"
    state_dir.prepare(tmp_path / state_dir.DEV_FOLDER)
    state_dir.write(
        tmp_path / state_dir.DEV_FOLDER,
        state_dir.DevState(dsn="postgresql://x", url="http://127.0.0.1:9999", pid=os.getpid()),
    )
    assert find_url(None, inner) == "http://127.0.0.1:9999"
    monkeypatch.setenv("BELLRINGER_URL", "http://env")
    assert find_url(None, inner) == "http://env"
    assert find_url("http://flag", inner) == "http://flag"


def test_a_dev_that_was_killed_is_refused(tmp_path: Path) -> None:
    state_dir.prepare(tmp_path / state_dir.DEV_FOLDER)
    gone = 2**22 + 1  # beyond the largest pid that Linux gives
    state_dir.write(tmp_path / state_dir.DEV_FOLDER, state_dir.DevState(dsn="postgresql://x", url="http://x", pid=gone))
    with pytest.raises(ConfigError, match="the dev server of this folder is not running") as refused:
        state_dir.find(tmp_path, instead="name a server with --url")
    assert refused.value.hint == "start it with `bellringer dev`, or name a server with --url"
    (tmp_path / "src").mkdir()
    with pytest.raises(ConfigError, match=f"the dev server of the folder {tmp_path} is not running"):
        find_url(None, tmp_path / "src")


def test_a_folder_that_no_dev_has_used_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BELLRINGER_URL", raising=False)
    (tmp_path / state_dir.DEV_FOLDER).mkdir()
    assert find_url(None, tmp_path) == "http://127.0.0.1:8700"


def test_a_stopped_cluster_is_refused(tmp_path: Path) -> None:
    with state_dir.alone(tmp_path / state_dir.CLUSTER_FOLDER):
        pass
    with pytest.raises(ConfigError, match="the cluster of this folder is not running; start it with `bellringer clu"):
        state_dir.find(tmp_path, instead="name a server with --url")


WORK = Work(
    key=RunKey(UUID(int=7), NOON),
    attempt=1,
    spent=1,
    task="shop.reports.build",
    spec=Spec(),
    claimed_at=NOON + timedelta(milliseconds=41),
    job="nightly",
)


def ended(verdict: dict[str, Any], **ending: Any) -> tuple[str, str]:
    return format_end(WORK, EndedRun(WORK.key, 1, Ending(**ending), SettleDecision(**verdict)))


def test_a_start_shows_how_late_it_is() -> None:
    sign, text = format_start(WORK)
    assert sign == "▶"
    assert text.endswith("lag 41 ms")


def test_an_end_shows_what_came_of_it() -> None:
    succeeded = {"event": RunEvent.SUCCEEDED, "ends_as": State.SUCCEEDED}
    assert ended(succeeded, outcome=Outcome.OK, ran=0.862, result=17) == ("✓", "862 ms → 17")
    assert ended(succeeded, outcome=Outcome.OK, ran=1.5) == ("✓", "1.5 s")
    error = {"type": "shop.Busy", "message": "503\nagain"}
    again = {"event": RunEvent.FAILED, "wait": timedelta(seconds=3)}
    assert ended(again, outcome=Outcome.FAILED, error=error) == (
        "↻",
        "attempt 1 failed: Busy: 503 again, next try in 3 s",
    )
    dead = {"event": RunEvent.EXHAUSTED, "ends_as": State.DEAD, "reason": "no retries left"}
    assert ended(dead, outcome=Outcome.FAILED, error=error) == (
        "☠",
        "is dead: Busy: 503 again (no retries left)",
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0004, "0.4 ms"),
        (0.041, "41 ms"),
        (3, "3 s"),
        (3.25, "3.2 s"),
        (42, "42 s"),
        (252, "4 min 12 s"),
        (7200, "2 h"),
    ],
)
def test_lengths_in_live_lines_have_about_two_digits(seconds: float, said: str) -> None:
    assert format_length(timedelta(seconds=seconds)) == said
