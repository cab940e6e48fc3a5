"""The base class of cron and recurrence rules: a wall-clock pattern, a time zone, a DST policy and days off."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final, TypeVar

from bellringer.errors import InvalidSchedule
from bellringer.schedule import dst
from bellringer.schedule.dst import DstFold, DstGap, parse_enum
from bellringer.schedule.holiday_calendars import (
    DaysOff,
    HolidayCalendar,
    Shift,
    WorkingDays,
    cache_calendar,
    cached_calendar,
    require_calendar,
)
from bellringer.schedule.instants import EPOCH, ceil_seconds, floor_seconds, from_seconds
from bellringer.schedule.open_hours import OpenHoursFilter
from bellringer.schedule.wall_clock import SECONDS_PER_DAY, WallClockPattern

S = TypeVar("S")
MAX_CALENDAR_NAME_LENGTH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedSchedule:
    """A schedule by the wall clock of a time zone."""

    timezone: str = "UTC"
    gap: DstGap
    fold: DstFold
    days_off: DaysOff | None = None

    def pattern(self) -> WallClockPattern:
        """The wall-clock days and times of the schedule, after its days off were applied."""
        raise NotImplementedError

    @property
    def fixed_time(self) -> bool:
        """Whether the schedule names fixed times of day rather than an interval of hours or minutes."""
        return True

    def next_after(self, t: datetime) -> datetime | None:
        """The first occurrence after `t`."""
        found = dst.first_occurrence(self.pattern(), self.timezone, floor_seconds(t) + 1, self.gap, self.fold)
        return None if found is None else from_seconds(found)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrences after `a`, up to and including `b`, in order."""
        pattern, last = self.pattern(), floor_seconds(b)
        found = dst.first_occurrence(pattern, self.timezone, floor_seconds(a) + 1, self.gap, self.fold)
        while found is not None and found <= last:
            yield from_seconds(found)
            found = dst.first_occurrence(pattern, self.timezone, found + 1, self.gap, self.fold)

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The latest occurrence from `not_before` up to and including `t`."""
        found = dst.last_occurrence(
            self.pattern(),
            self.timezone,
            floor_seconds(t),
            self.gap,
            self.fold,
            not_before=ceil_seconds(not_before),
        )
        return None if found is None else from_seconds(found)

    def count_between(self, a: datetime, b: datetime) -> int:
        """The number of occurrences from `a` up to, but not including, `b`."""
        start, end = ceil_seconds(a), ceil_seconds(b)
        return dst.count_occurrences(self.pattern(), self.timezone, start, end, self.gap, self.fold)

    def flags_of(self, occurrence: datetime) -> tuple[str, ...]:
        """Returns `dst_gap`, `dst_fold_first` or `dst_fold_second` if a DST change affected the occurrence."""
        return dst.dst_flags(self.pattern(), self.timezone, floor_seconds(occurrence), self.gap)


def parse_days_off(calendar: str | None, shift: str | None, digest: str) -> DaysOff | None:
    """Returns the days off of a schedule, or None without a calendar. A shift or digest without a calendar is an
    error.
    """
    if calendar is None:
        for key, value in (("shift", shift), ("calendar_digest", digest)):
            if value:
                message = f"{key!r} requires a calendar"
                raise InvalidSchedule(message, pointer=f"/{key}", hint=f"add a calendar, or remove {key!r}")
        return None
    if not isinstance(calendar, str) or not 0 < len(calendar) <= MAX_CALENDAR_NAME_LENGTH:
        hint = f"a name has 1 to {MAX_CALENDAR_NAME_LENGTH} characters"
        raise InvalidSchedule(
            "calendar must be the name of a calendar", code="calendar_invalid", pointer="/calendar", hint=hint
        )
    if not isinstance(digest, str) or (digest and not _is_digest(digest)):
        message, hint = "calendar_digest must be 32 hexadecimal digits", "remove it; the server fills it in"
        raise InvalidSchedule(message, code="calendar_invalid", pointer="/calendar_digest", hint=hint)
    choice = Shift.SKIP if shift is None else parse_enum(shift, Shift, key="shift", what="shift")
    return DaysOff(name=calendar, digest=digest, shift=choice)


def _is_digest(text: str) -> bool:
    return re.fullmatch("[0-9a-fh][0-9a-f]{31}", text) is not None


def missing_calendar_digests(schedules: Iterable[object]) -> set[str]:
    """Returns the digests of the calendars that these schedules need and that are not in this process's cache."""
    digests = {s.days_off.digest for s in schedules if isinstance(s, ZonedSchedule) and s.days_off is not None}
    return {digest for digest in digests if digest and cached_calendar(digest) is None}


def bind_calendar(schedule: S, calendars: Mapping[str, HolidayCalendar]) -> S:
    """Bind a schedule to the current content of its calendar, looked up by name. Raises InvalidSchedule."""
    if not isinstance(schedule, ZonedSchedule) or schedule.days_off is None:
        return schedule
    name = schedule.days_off.name
    if name not in calendars:
        near = get_close_matches(name, calendars, n=1)
        hint = f"did you mean {near[0]}?" if near else "create the calendar first, or remove it from the schedule"
        message = f"calendar {name[:40]!r} does not exist"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    calendar = cache_calendar(calendars[name].validate())
    return replace(schedule, days_off=replace(schedule.days_off, digest=calendar.digest))


_MAX_SHIFT_SECONDS: Final = 400 * SECONDS_PER_DAY  # no calendar has that many days off in a row


def apply_calendar(pattern: WallClockPattern, days_off: DaysOff) -> WallClockPattern:
    """Applies the days off and the hours of a calendar to a pattern that has no start or end at an instant."""
    calendar, shift = require_calendar(days_off), days_off.shift
    days = WorkingDays(pattern.days_in_month, calendar, shift)
    # The years limit the days that the expression names. A day that moves may leave them.
    return apply_hours(replace(pattern, days_of_month=days, years=None, bounds=_widened(pattern.bounds)), days_off)


def apply_hours(pattern: WallClockPattern, days_off: DaysOff) -> WallClockPattern:
    """Applies the hours of a calendar to a pattern whose days are working days already."""
    calendar = require_calendar(days_off)
    if not calendar.hours:
        return pattern
    direction = {Shift.SKIP: 0, Shift.NEXT: 1, Shift.PREVIOUS: -1}[days_off.shift]
    base = replace(pattern, last_instant=None)
    return replace(base, bounds=_widened(base.bounds), filter=OpenHoursFilter(base, calendar, direction))


def _widened(bounds: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if bounds is None else (bounds[0] - _MAX_SHIFT_SECONDS, bounds[1] + _MAX_SHIFT_SECONDS)


def explain_day_off(schedule: object, at: datetime) -> str | None:
    """Explains why an instant that matches the schedule is skipped or moved by its calendar; None if it is not."""
    if not isinstance(schedule, ZonedSchedule) or schedule.days_off is None:
        return None
    bare, days_off = replace(schedule, days_off=None), schedule.days_off
    if bare.last_at_or_before(at, not_before=at) != at:
        return None
    shown = dst.wall_clock_time(bare.pattern(), bare.timezone, floor_seconds(at), bare.gap)
    if shown is None:
        return None
    moment = EPOCH + timedelta(seconds=shown)
    day, calendar = moment.date(), require_calendar(days_off)
    if calendar.is_off(day):
        moved = calendar.shift_date(day, days_off.shift)
        fate = "the occurrence is skipped" if moved is None else f"the occurrence moved to {moved}"
        return f"{day} is a day off in calendar {days_off.name}; {fate}"
    minute = moment.hour * 60 + moment.minute
    if not calendar.hours or any(one.start <= minute < one.end for one in calendar.ranges_of(day.weekday())):
        return None
    fate = {
        Shift.SKIP: "the occurrence is skipped",
        Shift.NEXT: "the occurrence moved to the beginning of the next hours",
        Shift.PREVIOUS: "the occurrence moved to the last minute of the hours before",
    }[days_off.shift]
    return f"{moment:%H:%M} on {day} is outside of the hours of calendar {days_off.name}; {fate}"
