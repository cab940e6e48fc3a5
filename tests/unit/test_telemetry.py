"""Log lines for people: a value can neither begin another line nor steer the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bellringer import telemetry
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey, Spec
from bellringer.dev import live_output
from bellringer.telemetry import MeasuredGauge, escape_control_characters, log
from bellringer.worker.attempt import LogLine, Work

FORGED = "x\n  12:00:00.000  ✕ forged\r\x1b[2J\x1b]0;title\x07\x9b31m\u2028\u202e\x7f"


@pytest.fixture
def text_logs(capsys: pytest.CaptureFixture[str]) -> Any:
    telemetry.configure("text", "info")
    yield capsys
    telemetry.configure("json", "info")


def test_a_value_cannot_forge_a_line(text_logs: pytest.CaptureFixture[str]) -> None:
    log.warning(f"event {FORGED}", name=FORGED, **{f"k{FORGED}": 1})
    written = text_logs.readouterr().err
    assert written.count("\n") == 1
    assert written.endswith("\n")
    assert not [sign for sign in written[:-1] if not sign.isprintable()], written
    assert "\\n  12:00:00.000  ✕ forged\\r\\x1b[2J" in written


def test_a_trace_keeps_its_lines_and_nothing_else(text_logs: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        log.error("failed", exc_info=error)
    written = text_logs.readouterr().err
    assert "\x1b" not in written
    assert "Traceback" in written
    # Lines of a trace are indented, so none of them looks like a line of its own.
    assert all(line.startswith("    | ") for line in written.splitlines()[1:]), written


def test_visible_leaves_what_can_be_read() -> None:
    assert escape_control_characters("Grüße, 東京 → ✓") == "Grüße, 東京 → ✓"
    assert escape_control_characters("a\tb\nc\\n") == "a\\tb\\nc\\n"


def test_live_output_of_a_handler_is_one_safe_line_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    work = Work(key=RunKey(UUID(int=1), at), attempt=1, spent=1, task="shop.export", spec=Spec(), claimed_at=at)
    observer = live_output.LineObserver(SystemClock())
    for level, source, message in (("info", "stdout", "two\nlines"), ("error", "logging:shop", f"bad{FORGED}")):
        observer.print_output(work, LogLine(work.key, 1, at, level, message, {"n": 1}, source))
    written = capsys.readouterr().out.splitlines()
    assert [line[15:] for line in written[:2]] == ["│ export           two", "│ export           lines  n=1"]
    assert written[2][15:].startswith("✕ export           logging:shop: badx")
    assert all(line.isprintable() for line in written)


def test_context_fields_are_added_and_do_not_replace_those_of_the_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_context", {})
    telemetry.configure("json", "info")
    telemetry.set_context_fields(lambda: {"run_id": "context", "task": "t"})
    log.info("event", run_id="own")
    line = json.loads(capsys.readouterr().err)
    assert (line["run_id"], line["task"]) == ("own", "t")


@pytest.mark.parametrize(
    ("level", "log_attempts", "expected"),
    [("info", False, None), ("debug", False, "debug"), ("info", True, "info"), ("warning", True, None)],
)
def test_succeeded_attempts_are_logged_as_configured(level: str, log_attempts: bool, expected: str | None) -> None:
    telemetry.configure("json", level, log_attempts=log_attempts)
    try:
        assert telemetry.level_of_succeeded_attempts() == expected
    finally:
        telemetry.configure()


def test_live_lines_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert live_output.format_value(FORGED).isprintable()
    assert live_output.format_value({"a": FORGED}).isprintable()
    assert live_output.format_error({"type": FORGED, "message": FORGED}).isprintable()
    live_output.print_welcome([], [FORGED])
    assert capsys.readouterr().out.count("\n") == 1


def test_a_measured_gauge_is_exported_once_it_is_set() -> None:
    registry = CollectorRegistry()
    gauge = MeasuredGauge("measured", "A measurement", registry=registry, multiprocess_mode="livemostrecent")
    assert registry.get_sample_value("measured") is None
    assert b"# TYPE measured gauge" in generate_latest(registry)
    gauge.set(12)
    assert registry.get_sample_value("measured") == 12
    gauge.set(0)
    assert registry.get_sample_value("measured") == 0


def test_a_measured_gauge_of_several_processes_is_exported_once_it_is_set(tmp_path: Path) -> None:
    """The mode is chosen by a variable when prometheus_client is imported, so this needs a process of its own."""
    program = """
from bellringer.core.loop_progress import create_registry
from bellringer.telemetry import DEAD_LETTERS_STORED as gauge, FIRES
print(create_registry().get_sample_value("bellringer_fires_total"))
print(create_registry().get_sample_value(gauge._name))
gauge.set(3)
print(create_registry().get_sample_value(gauge._name))
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.0", "None", "3.0"]
