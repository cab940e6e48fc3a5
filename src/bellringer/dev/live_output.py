"""Prints live lines for a person at a terminal: one when a run starts, one when it ends."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TextIO

from bellringer.clock import Clock
from bellringer.core.runs import Outcome, State
from bellringer.store.queue import EndedRun
from bellringer.telemetry import escape_control_characters, uncaptured
from bellringer.worker.attempt import LogLine, Work

MAX_LINES_PER_SECOND: Final = 60  # further lines are only counted
NAME_WIDTH: Final = 16
MAX_TEXT_LENGTH: Final = 100
MAX_JOBS_LISTED: Final = 8
_SIGNS: Final = {"debug": "│", "info": "│", "warning": "!", "error": "✕"}  # of lines that handlers log
_COLOURS: Final = {"▶": "36", "✓": "32", "↻": "33", "☠": "31", "⊘": "33", "⏾": "36", "dim": "2", "bold": "1"}


class Painter:
    """Colours text if the stream is a terminal that supports it."""

    def __init__(self, stream: TextIO) -> None:
        self._wanted = wants_colour(stream)

    def __call__(self, text: str, colour: str) -> str:
        code = _COLOURS.get(colour)
        return f"\x1b[{code}m{text}\x1b[0m" if self._wanted and code else text


def wants_colour(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    with suppress(ValueError, OSError):
        return stream.isatty()
    return False


def print_line(text: str = "") -> None:
    """Prints and flushes a line. Errors of a closed terminal are ignored."""
    with suppress(OSError, ValueError):
        stream = uncaptured(sys.stdout)  # a line about a run is not part of its output
        stream.write(f"{text}\n")
        stream.flush()


class LineObserver:
    """A worker observer that prints a line when a run starts and when it ends, and the output of handlers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paint = Painter(sys.stdout)
        self._second = 0
        self._said = 0

    def __call__(self, _kind: str, work: Work, settled: EndedRun | None) -> None:
        now = self._clock.now()
        if not self._may_speak(int(now.timestamp())):
            return
        sign, text = format_start(work) if settled is None else format_end(work, settled)
        name = self._paint(f"{escape_control_characters(name_of(work)):<{NAME_WIDTH}}", "bold")
        moment = self._paint(f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}", "dim")
        print_line(f"  {moment} {self._paint(sign, sign)} {name} {escape_control_characters(text)}".rstrip())

    def print_output(self, work: Work, line: LogLine) -> None:
        """Print a line that a handler logged or printed. Handler threads call it."""
        name = self._paint(f"{escape_control_characters(name_of(work)):<{NAME_WIDTH}}", "bold")
        source = "" if line.source in {None, "stdout"} else self._paint(f"{line.source}: ", "dim")
        fields = "".join(f"  {key}={format_value(value)}" for key, value in (line.fields or {}).items())
        for text in f"{line.message}{fields}".splitlines() or [""]:
            now = self._clock.now()
            if self._may_speak(int(now.timestamp())):
                moment = self._paint(f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}", "dim")
                print_line(f"  {moment} {_SIGNS[line.level]} {name} {source}{escape_control_characters(text)}".rstrip())

    def _may_speak(self, second: int) -> bool:
        if second != self._second:
            if self._said > MAX_LINES_PER_SECOND:
                print_line(self._paint(f"  … and {self._said - MAX_LINES_PER_SECOND} more lines in that second", "dim"))
            self._second, self._said = second, 0
        self._said += 1
        return self._said <= MAX_LINES_PER_SECOND


def name_of(work: Work) -> str:
    """Returns the name of the job or node, or the task name without its module."""
    return work.job or work.spec.node or work.task.rpartition(".")[2]


def format_start(work: Work) -> tuple[str, str]:
    due = f"{work.key.scheduled_for.astimezone():%H:%M:%S}"
    if work.attempt > 1:
        return "▶", f"attempt {work.attempt}"
    lag = max(work.claimed_at - (work.due_at or work.key.scheduled_for), timedelta(0))
    return "▶", f"due {due}  lag {format_length(lag)}"


def format_end(work: Work, settled: EndedRun) -> tuple[str, str]:
    ending, verdict = settled.ending, settled.decision
    ran = format_length(timedelta(seconds=ending.ran))
    if ending.opened:
        return "▶", "its nodes begin"
    if ending.snooze is not None:
        return "⏾", f"not now, again in {format_length(ending.snooze)}"
    if verdict.ends_as is State.SUCCEEDED:
        return "✓", f"{ran} → {format_value(ending.result)}" if ending.result is not None else ran
    if verdict.ends_as is State.CANCELLED:
        return "⊘", f"cancelled: {verdict.reason}"
    if verdict.ends_as is State.DEAD:
        return "☠", f"is dead: {format_error(ending.error)} ({verdict.reason})"
    how = "timed out" if ending.outcome is Outcome.TIMED_OUT else "failed"
    again = f"next try in {format_length(verdict.wait)}" if verdict.wait else "next try now"
    return "↻", f"attempt {work.attempt} {how}: {format_error(ending.error)}, {again}"


def format_error(error: dict[str, Any] | None) -> str:
    error = error or {}
    message = " ".join(str(error.get("message", "")).split())
    kind = str(error.get("type", "")).rpartition(".")[2]
    return truncate(f"{kind}: {message}" if kind and message else message or kind or "no reason given")


def format_value(value: Any) -> str:
    return truncate(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def truncate(text: str) -> str:
    text = escape_control_characters(text[: MAX_TEXT_LENGTH + 1])
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def format_length(value: timedelta) -> str:
    """Formats a duration with about two significant digits."""
    seconds = value.total_seconds()
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def print_welcome(tasks: list[str], jobs: list[str]) -> None:
    """Prints the number of tasks and jobs."""
    paint = Painter(sys.stdout)
    listed = escape_control_characters(", ".join(jobs[:MAX_JOBS_LISTED])) + (
        ", …" if len(jobs) > MAX_JOBS_LISTED else ""
    )
    named = f" ({listed})" if jobs else ""
    print_line(f"  {paint('✓', '✓')} {format_count(len(tasks), 'task')}, {format_count(len(jobs), 'job')}{named}")


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
