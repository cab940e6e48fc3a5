"""Days off: calendars as values, and what one does to the days of a schedule.

The content of a calendar never changes under its digest, so a process keeps what it once knew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.plan import Days, month_length

LONGEST_REST: Final = 366
MOST_DATES: Final = 10_000
_MONTHS: Final = 65_536
_LAST_DAY: Final = date.max.toordinal()
_known: dict[str, Calendar] = {}


class Shift(StrEnum):
    """What becomes of an occurrence on a day off."""

    SKIP = "skip"  # it is left out
    NEXT = "next"  # it moves to the next working day, at the same time of day
    PREVIOUS = "previous"  # it moves to the working day before


@dataclass(frozen=True, kw_only=True)
class Calendar:
    """Which days are days off: single dates, and the days of every weekend (Monday is 0)."""

    name: str
    dates: frozenset[date] = frozenset()
    weekend: frozenset[int] = frozenset({5, 6})

    @cached_property
    def digest(self) -> str:
        """Stands for the content; the name is no part of it."""
        days = ",".join(map(str, sorted(self.weekend)))
        dates = ",".join(day.isoformat() for day in sorted(self.dates))
        return hashlib.sha256(f"weekend {days}\ndates {dates}\n".encode()).hexdigest()[:32]

    @cached_property
    def _ordinals(self) -> frozenset[int]:
        return frozenset(day.toordinal() for day in self.dates)

    def is_off(self, day: date) -> bool:
        return self.off(day.toordinal())

    def off(self, ordinal: int) -> bool:
        """Whether a day, counted from the year 1, is a day off."""
        return (ordinal - 1) % 7 in self.weekend or ordinal in self._ordinals

    def moved(self, day: date, shift: Shift) -> date | None:
        """Where an occurrence of this day goes; none if it is left out."""
        ordinal = day.toordinal()
        if shift is not Shift.SKIP:
            ordinal = self.working(ordinal, 1 if shift is Shift.NEXT else -1)
        return None if self.off(ordinal) else date.fromordinal(ordinal)

    def working(self, ordinal: int, step: int) -> int:
        """The nearest working day from this one on, forwards or backwards; at the end of time, the day there."""
        while self.off(ordinal) and 1 < ordinal < _LAST_DAY:
            ordinal += step
        return ordinal

    def checked(self) -> Calendar:
        """Give the calendar back, or refuse one that cannot be used."""
        if not self.weekend <= set(range(7)):
            wrong = min(self.weekend - set(range(7)))
            raise _refusal(f"a weekend has no day {wrong}", "/weekend", hint="Monday is 0, Sunday is 6")
        if len(self.dates) > MOST_DATES:
            message = f"the calendar has {len(self.dates)} dates, more than {MOST_DATES}"
            raise _refusal(message, "/dates", hint="leave out those of years long past")
        if len(self.weekend) == 7:
            raise _refusal("every day is a day off", "/weekend", hint="leave at least one day of the week to work")
        for ordinal in self._ordinals:
            if not self.off(ordinal - 1) and self.working(ordinal, 1) - ordinal >= LONGEST_REST:
                message = f"from {date.fromordinal(ordinal)} on there is no working day for {LONGEST_REST} days"
                raise _refusal(message, "/dates", hint="leave at least one working day in a year")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysOff:
    """The calendar that a schedule names; without a digest, the name has not been looked up yet."""

    name: str
    digest: str = ""
    shift: Shift = Shift.SKIP


def know(calendar: Calendar) -> Calendar:
    """Keep a calendar for the schedules of this process."""
    return _known.setdefault(calendar.digest, calendar)


def known(digest: str) -> Calendar | None:
    """The calendar of this content, if this process was told."""
    return _known.get(digest)


def heeded(days_off: DaysOff) -> Calendar:
    """The calendar that a schedule needs, or a refusal."""
    calendar = known(days_off.digest)
    if calendar is None:
        message = f"the calendar {days_off.name!r} is not known here"
        hint = "read it from the store first" if days_off.digest else "resolve the schedule with your calendars first"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    return calendar


@dataclass(frozen=True, slots=True, eq=False)
class Worked:
    """The days of a schedule after its days off; compared by identity, as the key of what is kept."""

    days: Days
    calendar: Calendar
    shift: Shift

    def __call__(self, year: int, month: int) -> int:
        return _worked(self, year, month)


@lru_cache(maxsize=_MONTHS)
def _worked(worked: Worked, year: int, month: int) -> int:
    calendar, shift = worked.calendar, worked.shift
    first = date(year, month, 1).toordinal()
    end = first + month_length(year, month)
    if shift is Shift.SKIP:
        days: Iterable[int] = range(first, end) if worked.days(year, month) else ()
    elif shift is Shift.NEXT:
        days = range(_rest(calendar, first, -1), end)
    else:
        days = range(_rest(calendar, end - 1, 1), first - 1, -1)
    bits, waiting = 0, False
    for ordinal in days:
        day = date.fromordinal(ordinal)
        named = worked.days(day.year, day.month) >> day.day & 1
        if calendar.off(ordinal):
            waiting = waiting or (bool(named) and shift is not Shift.SKIP)
        else:
            # A rest that reaches into this month ends in it, so whatever waited has its day here.
            if named or waiting:
                bits |= 1 << ordinal - first + 1
            waiting = False
    return bits


def _rest(calendar: Calendar, ordinal: int, step: int) -> int:
    """The far end of the rest that comes right before (or after) a day; the day itself if it follows work."""
    while 1 < ordinal < _LAST_DAY and calendar.off(ordinal + step):
        ordinal += step
    return ordinal


def _refusal(message: str, pointer: str, *, hint: str) -> InvalidInput:
    return InvalidInput(message, code="calendar_invalid", pointer=pointer, hint=hint)
