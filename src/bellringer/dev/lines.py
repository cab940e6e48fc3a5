"""Live lines for a person who watches: one when a run starts, one when it ends."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TextIO

from bellringer.clock import Clock
from bellringer.runs import Outcome, State
from bellringer.store.queue import Settled
from bellringer.worker.work import Work

MOST: Final = 60  # lines a second; beyond it they are counted, for nobody reads faster
WIDTH: Final = 16
LONGEST: Final = 100
MOST_NAMED: Final = 8
_COLOURS: Final = {"▶": "36", "✓": "32", "↻": "33", "☠": "31", "⊘": "33", "⏾": "36", "dim": "2", "bold": "1"}


class Paint:
    """Colour where there is a terminal that wants it, plain text otherwise."""

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


def say(text: str = "") -> None:
    """Print at once; a terminal that went away is no reason to stop."""
    with suppress(OSError, ValueError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class Lines:
    """A worker's observer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paint = Paint(sys.stdout)
        self._second = 0
        self._said = 0

    def __call__(self, _kind: str, work: Work, settled: Settled | None) -> None:
        now = self._clock.now()
        if not self._may_speak(int(now.timestamp())):
            return
        sign, text = started(work) if settled is None else finished(work, settled)
        name = self._paint(f"{name_of(work):<{WIDTH}}", "bold")
        moment = self._paint(f"{now.astimezone():%H:%M:%S}.{now.microsecond // 1000:03}", "dim")
        say(f"  {moment} {self._paint(sign, sign)} {name} {text}".rstrip())

    def _may_speak(self, second: int) -> bool:
        if second != self._second:
            if self._said > MOST:
                say(self._paint(f"  … and {self._said - MOST} more lines in that second", "dim"))
            self._second, self._said = second, 0
        self._said += 1
        return self._said <= MOST


def name_of(work: Work) -> str:
    """The name of the job, or of the node, or the task's own without its module."""
    return work.job or work.spec.node or work.task.rpartition(".")[2]


def started(work: Work) -> tuple[str, str]:
    due = f"{work.key.scheduled_for.astimezone():%H:%M:%S}"
    if work.attempt > 1:
        return "▶", f"attempt {work.attempt}"
    lag = max(work.claimed_at - (work.due_at or work.key.scheduled_for), timedelta(0))
    return "▶", f"due {due}  lag {length(lag)}"


def finished(work: Work, settled: Settled) -> tuple[str, str]:
    ending, verdict = settled.ending, settled.verdict
    ran = length(timedelta(seconds=ending.ran))
    if ending.opened:
        return "▶", "its nodes begin"
    if ending.snooze is not None:
        return "⏾", f"not now, again in {length(ending.snooze)}"
    if verdict.ends_as is State.SUCCEEDED:
        return "✓", f"{ran} → {shown(ending.result)}" if ending.result is not None else ran
    if verdict.ends_as is State.CANCELLED:
        return "⊘", f"cancelled: {verdict.reason}"
    if verdict.ends_as is State.DEAD:
        return "☠", f"is dead: {problem(ending.error)} ({verdict.reason})"
    how = "timed out" if ending.outcome is Outcome.TIMED_OUT else "failed"
    again = f"next try in {length(verdict.wait)}" if verdict.wait else "next try now"
    return "↻", f"attempt {work.attempt} {how}: {problem(ending.error)}, {again}"


def problem(error: dict[str, Any] | None) -> str:
    error = error or {}
    message = " ".join(str(error.get("message", "")).split())
    kind = str(error.get("type", "")).rpartition(".")[2]
    return clipped(f"{kind}: {message}" if kind and message else message or kind or "no reason given")


def shown(value: Any) -> str:
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def length(value: timedelta) -> str:
    """A length of time with about two digits that matter."""
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


def greet(tasks: list[str], jobs: list[str]) -> None:
    """Say what there is to run."""
    paint = Paint(sys.stdout)
    listed = ", ".join(jobs[:MOST_NAMED]) + (", …" if len(jobs) > MOST_NAMED else "")
    named = f" ({listed})" if jobs else ""
    say(f"  {paint('✓', '✓')} {counted(len(tasks), 'task')}, {counted(len(jobs), 'job')}{named}")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
