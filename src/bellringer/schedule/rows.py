"""Schedules as rows of plain values: equal schedules give equal rows, so a table can hold each one once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from bellringer.durations import format_duration
from bellringer.errors import InvalidSchedule
from bellringer.schedule.crontab import Cron, cron
from bellringer.schedule.daysoff import DaysOff
from bellringer.schedule.instants import EPOCH, write_instant
from bellringer.schedule.intervals import Delay, Every, delay, every
from bellringer.schedule.oneshot import At, at
from bellringer.schedule.recurrence import Rrule, rrule, write_start

Schedule = Cron | Rrule | Every | Delay | At


class Row(NamedTuple):
    """A schedule for storage: all that changes its instants, and nothing else, so that neither the seed of an `H`
    nor the name of a calendar is in it. A column without meaning for its kind is empty or false, never null.
    """

    kind: str
    expression: str
    timezone: str = ""
    anchor: str = ""
    seconds: bool = False
    dst: str = ""
    calendar: str = ""


def to_row(schedule: Schedule) -> Row:
    """Write a schedule as plain values."""
    match schedule:
        case Cron(timezone=zone, seconds=seconds):
            days_off = _write_days_off(schedule.days_off)
            dst = f"{schedule.gap} {schedule.fold}"
            text = schedule.plain if schedule.hashed else schedule.expression
            return Row(kind="cron", expression=text, timezone=zone, seconds=seconds, dst=dst, calendar=days_off)
        case Rrule(rule=rule, timezone=zone, start=begin):
            days_off = _write_days_off(schedule.days_off)
            dst = f"{schedule.gap} {schedule.fold}"
            anchor = write_start(begin)
            return Row(kind="rrule", expression=rule, timezone=zone, anchor=anchor, dst=dst, calendar=days_off)
        case Every(interval=interval, anchor=since):
            start = "" if since == EPOCH else write_instant(since)
            return Row(kind="every", expression=format_duration(interval), anchor=start)
        case Delay(interval=interval):
            return Row(kind="delay", expression=format_duration(interval))
        case At(instant=instant):
            return Row(kind="at", expression=write_instant(instant))
    assert_never(schedule)


@lru_cache(maxsize=65_536)
def from_row(
    kind: str, expression: str, timezone: str, anchor: str, seconds: bool, dst: str, calendar: str
) -> Schedule:
    """Read a schedule back; kept, because the same few rows are read at every tick."""
    match kind:
        case "cron":
            return cron(expression, tz=timezone, seconds=seconds, **_choices(dst, calendar))
        case "rrule":
            return rrule(expression, tz=timezone, start=anchor, **_choices(dst, calendar))
        case "every":
            return every(expression, anchor=anchor or None)
        case "delay":
            return delay(expression)
        case "at":
            return at(expression)
    raise InvalidSchedule(f"the schedule kind {kind!r} is not known", hint="use cron, rrule, every, delay or at")


def seeded(schedule: Schedule, seed: str) -> Schedule:
    """Give a schedule whose `H` has no seed this one; any other is given back as it is."""
    if not isinstance(schedule, Cron) or schedule.seed or not schedule.hashed:
        return schedule
    days_off = schedule.days_off
    return cron(
        schedule.expression,
        tz=schedule.timezone,
        seconds=schedule.seconds,
        gap=schedule.gap,
        fold=schedule.fold,
        seed=seed,
        calendar=days_off.name if days_off else None,
        shift=days_off.shift if days_off else None,
        calendar_digest=days_off.digest if days_off else "",
    )


def _write_days_off(days_off: DaysOff | None) -> str:
    """By content: what the calendar is called changes no instant."""
    if days_off is None:
        return ""
    if not days_off.digest:
        message, hint = f"the calendar {days_off.name!r} has not been looked up", "resolve the schedule first"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    return f"{days_off.digest} {days_off.shift}"


def _choices(dst: str, calendar: str) -> dict[str, Any]:
    gap, _, fold = dst.partition(" ")
    choices = {"gap": gap, "fold": fold}
    if calendar:
        digest, _, shift = calendar.partition(" ")
        choices |= {"calendar": digest, "calendar_digest": digest, "shift": shift}
    return choices
