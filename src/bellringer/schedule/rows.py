"""Schedules as rows of plain values: equal schedules give equal rows, so a table can hold each one once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.schedule.crontab import Cron, cron
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at

Schedule = Cron | Every | Delay | At


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A schedule for storage; a column without meaning for its kind is empty or false, never null."""

    kind: str
    expression: str
    timezone: str = ""
    anchor: str = ""
    seconds: bool = False
    dst: str = ""


def to_row(schedule: Schedule) -> Row:
    """Write a schedule as plain values."""
    match schedule:
        case Cron(expression=text, timezone=zone, seconds=seconds, dst=dst):
            return Row(kind="cron", expression=text, timezone=zone, seconds=seconds, dst=dst.value)
        case Every(interval=interval, anchor=anchor):
            start = "" if anchor == EPOCH else write_instant(anchor)
            return Row(kind="every", expression=format_duration(interval), anchor=start)
        case Delay(interval=interval):
            return Row(kind="delay", expression=format_duration(interval))
        case At(instant=instant):
            return Row(kind="at", expression=write_instant(instant))
    assert_never(schedule)


@lru_cache(maxsize=65_536)
def from_row(kind: str, expression: str, timezone: str, anchor: str, seconds: bool, dst: str) -> Schedule:
    """Read a schedule back; kept, because the same few rows are read at every tick."""
    match kind:
        case "cron":
            return cron(expression, tz=timezone, seconds=seconds, dst=dst)
        case "every":
            return every(expression, anchor=anchor or None)
        case "delay":
            return delay(expression)
        case "at":
            return at(expression)
    raise InvalidSchedule(f"the schedule kind {kind!r} is not known", hint="use cron, every, delay or at")
