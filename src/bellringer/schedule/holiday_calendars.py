"""Holiday calendars, and how their days off change the days of a schedule.

A calendar is identified by the digest of its content. The content of a digest never changes, so a process caches
every calendar that it has read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.open_hours import HourRange
from bellringer.schedule.wall_clock import DaysOfMonth, month_length

MAX_CONSECUTIVE_DAYS_OFF: Final = 366
MAX_CALENDAR_DATES: Final = 10_000
_MONTH_CACHE_SIZE: Final = 65_536
_LAST_DAY: Final = date.max.toordinal()
_calendars_by_digest: dict[str, HolidayCalendar] = {}


class Shift(StrEnum):
    """How to handle an occurrence on a day off."""

    SKIP = "skip"  # not run
    NEXT = "next"  # moved to the next working day, at the same time of day
    PREVIOUS = "previous"  # moved to the previous working day


@dataclass(frozen=True, kw_only=True)
class HolidayCalendar:
    """The days off: single dates, and the weekdays of the weekend (Monday is 0). With hours, only the times within them
    are working time, and a weekday without hours is a day off.
    """

    name: str
    dates: frozenset[date] = frozenset()
    weekend: frozenset[int] = frozenset({5, 6})
    hours: tuple[HourRange, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash of the content. The name is not part of it."""
        days = ",".join(map(str, sorted(self.weekend)))
        dates = ",".join(day.isoformat() for day in sorted(self.dates))
        content = f"weekend {days}\ndates {dates}\n"
        if not self.hours:
            return hashlib.sha256(content.encode()).hexdigest()[:32]
        # An earlier version refuses the letter, so that it does not read the calendar without its hours.
        content += f"hours {','.join(map(str, self.hours))}\n"
        return f"h{hashlib.sha256(content.encode()).hexdigest()[:31]}"

    @cached_property
    def _ordinals(self) -> frozenset[int]:
        return frozenset(day.toordinal() for day in self.dates)

    @cached_property
    def _off_weekdays(self) -> frozenset[int]:
        if not self.hours:
            return self.weekend
        return self.weekend | (frozenset(range(7)) - {one.weekday for one in self.hours})

    def ranges_of(self, weekday: int) -> tuple[HourRange, ...]:
        """The working hours of a weekday, in order."""
        return self._ranges_by_weekday[weekday]

    @cached_property
    def _ranges_by_weekday(self) -> tuple[tuple[HourRange, ...], ...]:
        return tuple(tuple(one for one in self.hours if one.weekday == weekday) for weekday in range(7))

    def is_off(self, day: date) -> bool:
        return self.is_off_ordinal(day.toordinal())

    def is_off_ordinal(self, ordinal: int) -> bool:
        """Whether the day with this proleptic ordinal (see `date.toordinal`) is a day off."""
        return (ordinal - 1) % 7 in self._off_weekdays or ordinal in self._ordinals

    def shift_date(self, day: date, shift: Shift) -> date | None:
        """Returns the day to which an occurrence on this day moves, or None if it is skipped."""
        ordinal = day.toordinal()
        if shift is not Shift.SKIP:
            ordinal = self.nearest_working_day(ordinal, 1 if shift is Shift.NEXT else -1)
        return None if self.is_off_ordinal(ordinal) else date.fromordinal(ordinal)

    def nearest_working_day(self, ordinal: int, step: int) -> int:
        """Returns the nearest working day, from this day on, in the direction of `step`."""
        while self.is_off_ordinal(ordinal) and 1 < ordinal < _LAST_DAY:
            ordinal += step
        return ordinal

    def validate(self) -> HolidayCalendar:
        """Returns the calendar. Raises InvalidInput if it is not usable."""
        if not self.weekend <= set(range(7)):
            wrong = min(self.weekend - set(range(7)))
            raise _error(
                f"weekend must contain days from 0 to 6, not {wrong}", "/weekend", hint="Monday is 0, Sunday is 6"
            )
        if len(self.dates) > MAX_CALENDAR_DATES:
            message = f"the calendar has {len(self.dates)} dates; the maximum is {MAX_CALENDAR_DATES}"
            raise _error(message, "/dates", hint="remove the dates of past years")
        if len(self.weekend) == 7:
            raise _error(
                "weekend contains all seven days", "/weekend", hint="leave at least one working day in the week"
            )
        if len(self._off_weekdays) == 7:
            raise _error("all hours are on days of the weekend", "/hours", hint="give the hours of a working day")
        for ordinal in self._ordinals:
            if (
                not self.is_off_ordinal(ordinal - 1)
                and self.nearest_working_day(ordinal, 1) - ordinal >= MAX_CONSECUTIVE_DAYS_OFF
            ):
                first = date.fromordinal(ordinal)
                message = f"there is no working day for {MAX_CONSECUTIVE_DAYS_OFF} days from {first} on"
                raise _error(message, "/dates", hint="leave at least one working day in every year")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DaysOff:
    """The calendar of a schedule. An empty digest means that the name was not yet looked up."""

    name: str
    digest: str = ""
    shift: Shift = Shift.SKIP


def cache_calendar(calendar: HolidayCalendar) -> HolidayCalendar:
    """Add a calendar to the cache of this process."""
    return _calendars_by_digest.setdefault(calendar.digest, calendar)


def cached_calendar(digest: str) -> HolidayCalendar | None:
    """Returns the cached calendar with this digest, if any."""
    return _calendars_by_digest.get(digest)


def require_calendar(days_off: DaysOff) -> HolidayCalendar:
    """Returns the cached calendar of a schedule. Raises InvalidSchedule if it is not cached."""
    calendar = cached_calendar(days_off.digest)
    if calendar is None:
        message = f"the content of calendar {days_off.name!r} is not loaded"
        hint = "load it from the database first" if days_off.digest else "bind the schedule to its calendar first"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    return calendar


@dataclass(frozen=True, slots=True, eq=False)
class WorkingDays:
    """The days of a schedule after its days off were applied. Compared by identity, because it is a cache key."""

    days: DaysOfMonth
    calendar: HolidayCalendar
    shift: Shift

    def __call__(self, year: int, month: int) -> int:
        return _working_days_of_month(self, year, month)


@lru_cache(maxsize=_MONTH_CACHE_SIZE)
def _working_days_of_month(worked: WorkingDays, year: int, month: int) -> int:
    calendar, shift = worked.calendar, worked.shift
    first = date(year, month, 1).toordinal()
    end = first + month_length(year, month)
    if shift is Shift.SKIP:
        days: Iterable[int] = range(first, end) if worked.days(year, month) else ()
    elif shift is Shift.NEXT:
        days = range(_end_of_rest(calendar, first, -1), end)
    else:
        days = range(_end_of_rest(calendar, end - 1, 1), first - 1, -1)
    bits, waiting = 0, False
    for ordinal in days:
        day = date.fromordinal(ordinal)
        named = worked.days(day.year, day.month) >> day.day & 1
        if calendar.is_off_ordinal(ordinal):
            waiting = waiting or (bool(named) and shift is not Shift.SKIP)
        else:
            # Days off that extend into this month end in it, so an occurrence that was shifted falls on this day.
            if named or waiting:
                bits |= 1 << ordinal - first + 1
            waiting = False
    return bits


def _end_of_rest(calendar: HolidayCalendar, ordinal: int, step: int) -> int:
    """Returns the far end of the days off that are adjacent to a day, or the day itself if there are none."""
    while 1 < ordinal < _LAST_DAY and calendar.is_off_ordinal(ordinal + step):
        ordinal += step
    return ordinal


def _error(message: str, pointer: str, *, hint: str) -> InvalidInput:
    return InvalidInput(message, code="calendar_invalid", pointer=pointer, hint=hint)
