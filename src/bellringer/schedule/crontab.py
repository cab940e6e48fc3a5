"""Cron schedules: an expression, read in a time zone.

The evaluator is our own and not cronsim's, which a walk over every minute found wrong in four places: asked
during the second pass of a fold it answers with the past; with seconds it skips a fixed time in the gap and
repeats one in the fold; where midnight is skipped it invents one; and after Lord Howe's repeated half hour it
loses the next. It also knows no `W`, no `L-3` and no way to count. The tests keep it as a second opinion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Final, Literal

from bellringer.errors import InvalidSchedule
from bellringer.schedule import grammar, occurrences
from bellringer.schedule.english import describe_cron
from bellringer.schedule.instants import from_seconds, seconds_until, seconds_up_to
from bellringer.schedule.plan import Plan, compile_plan
from bellringer.schedule.zones import check_zone

_PLANS: Final = 16_384


class Dst(StrEnum):
    """How a schedule reads a change of the clock."""

    DEFAULT = "default"  # a fixed time of day by the wall, a rhythm of hours or minutes by elapsed time
    WALL = "wall"  # always by the wall: once, even where the clock skips or repeats the time
    ELAPSED = "elapsed"  # always by elapsed time: not at all in the gap, twice in the fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """Made by `cron`; `expression` is canonical: single spaces, capitals, no alias, no leading zeros."""

    kind: ClassVar[Literal["cron"]] = "cron"
    expression: str
    timezone: str = "UTC"
    seconds: bool = False
    dst: Dst = Dst.DEFAULT

    def next_after(self, t: datetime) -> datetime | None:
        """The first occurrence after an instant."""
        plan = _plan(self.expression, self.seconds)
        found = occurrences.first_from(plan, self.timezone, seconds_until(t) + 1, by_wall=_by_wall(plan, self.dst))
        return None if found is None else from_seconds(found)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrences after `a` up to and including `b`, in order."""
        plan = _plan(self.expression, self.seconds)
        by_wall = _by_wall(plan, self.dst)
        last = seconds_until(b)
        found = occurrences.first_from(plan, self.timezone, seconds_until(a) + 1, by_wall=by_wall)
        while found is not None and found <= last:
            yield from_seconds(found)
            found = occurrences.first_from(plan, self.timezone, found + 1, by_wall=by_wall)

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The latest occurrence that is neither after `t` nor before `not_before`."""
        plan = _plan(self.expression, self.seconds)
        found = occurrences.last_until(
            plan,
            self.timezone,
            seconds_until(t),
            not_before=seconds_up_to(not_before),
            by_wall=_by_wall(plan, self.dst),
        )
        return None if found is None else from_seconds(found)

    def count_between(self, a: datetime, b: datetime) -> int:
        """How many occurrences there are from `a` up to, but not including, `b`."""
        plan = _plan(self.expression, self.seconds)
        return occurrences.count(
            plan, self.timezone, seconds_up_to(a), seconds_up_to(b), by_wall=_by_wall(plan, self.dst)
        )

    def flags_of(self, occurrence: datetime) -> tuple[str, ...]:
        """`dst_gap` or `dst_fold_first` for an occurrence that a change of the clock touched."""
        plan = _plan(self.expression, self.seconds)
        return occurrences.flags(plan, self.timezone, seconds_until(occurrence), by_wall=_by_wall(plan, self.dst))

    def describe(self) -> str:
        return describe_cron(grammar.read(self.expression, seconds=self.seconds), self.timezone)


def cron(expression: str, *, tz: str = "UTC", seconds: bool = False, dst: Dst | str = Dst.DEFAULT) -> Cron:
    """Read a cron expression of five fields, or of six, with the second first, where `seconds` is set."""
    read = grammar.read(expression, seconds=seconds)
    if not compile_plan(read).fires:
        raise InvalidSchedule(
            "the cron expression never fires: no day of any year matches it",
            code="cron_never_fires",
            position=read.day_position,
            hint="check the day of month against the months and the day of week; L is a month's last day",
        )
    return Cron(expression=read.text, timezone=check_zone(tz), seconds=seconds, dst=_read_dst(dst))


def _read_dst(value: str) -> Dst:
    try:
        return Dst(value)
    except ValueError:
        known = ", ".join(Dst)
        message = f"the reading of clock changes {str(value)[:40]!r} is not known"
        raise InvalidSchedule(message, code="dst_unknown", pointer="/dst", hint=f"use one of {known}") from None


def _by_wall(plan: Plan, dst: Dst) -> bool:
    return dst is Dst.WALL or (dst is Dst.DEFAULT and plan.fixed_time)


@lru_cache(maxsize=_PLANS)
def _plan(expression: str, seconds: bool) -> Plan:
    return compile_plan(grammar.read(expression, seconds=seconds))
