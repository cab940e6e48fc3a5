"""What cron and recurrence rules share: a plan, read in a zone, with choices for clock changes and days off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from bellringer.errors import InvalidSchedule
from bellringer.schedule import occurrences
from bellringer.schedule.daysoff import DaysOff, Shift
from bellringer.schedule.instants import from_seconds, seconds_until, seconds_up_to
from bellringer.schedule.plan import Plan
from bellringer.schedule.readings import Fold, Gap, read_choice

_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """A schedule by the wall clock of a zone."""

    timezone: str = "UTC"
    gap: Gap
    fold: Fold
    days_off: DaysOff | None = None

    def plan(self) -> Plan:
        """The days and times that it names, after its days off."""
        raise NotImplementedError

    @property
    def fixed_time(self) -> bool:
        """Whether it names times of day, as against a rhythm of hours or minutes."""
        return True

    def next_after(self, t: datetime) -> datetime | None:
        """The first occurrence after an instant."""
        found = occurrences.first_from(self.plan(), self.timezone, seconds_until(t) + 1, self.gap, self.fold)
        return None if found is None else from_seconds(found)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrences after `a` up to and including `b`, in order."""
        plan, last = self.plan(), seconds_until(b)
        found = occurrences.first_from(plan, self.timezone, seconds_until(a) + 1, self.gap, self.fold)
        while found is not None and found <= last:
            yield from_seconds(found)
            found = occurrences.first_from(plan, self.timezone, found + 1, self.gap, self.fold)

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The latest occurrence that is neither after `t` nor before `not_before`."""
        found = occurrences.last_until(
            self.plan(),
            self.timezone,
            seconds_until(t),
            self.gap,
            self.fold,
            not_before=seconds_up_to(not_before),
        )
        return None if found is None else from_seconds(found)

    def count_between(self, a: datetime, b: datetime) -> int:
        """How many occurrences there are from `a` up to, but not including, `b`."""
        start, end = seconds_up_to(a), seconds_up_to(b)
        return occurrences.count(self.plan(), self.timezone, start, end, self.gap, self.fold)

    def flags_of(self, occurrence: datetime) -> tuple[str, ...]:
        """`dst_gap`, `dst_fold_first` or `dst_fold_second` for an occurrence that a change of the clock touched."""
        return occurrences.flags(self.plan(), self.timezone, seconds_until(occurrence), self.gap)


def read_days_off(calendar: str | None, shift: str | None, digest: str) -> DaysOff | None:
    """The calendar that a schedule names; a shift or a digest alone is a mistake."""
    if calendar is None:
        for key, value in (("shift", shift), ("calendar_digest", digest)):
            if value:
                message = f"{key!r} says nothing without a calendar"
                raise InvalidSchedule(message, pointer=f"/{key}", hint="name the calendar, or leave it out")
        return None
    if not isinstance(calendar, str) or not 0 < len(calendar) <= _LONGEST_NAME:
        hint = "give the name of one of your calendars"
        raise InvalidSchedule("the calendar is no name", code="calendar_invalid", pointer="/calendar", hint=hint)
    if not isinstance(digest, str) or (digest and not _is_digest(digest)):
        message, hint = "the calendar's digest is not 32 hexadecimal digits", "leave it out; it is filled in for you"
        raise InvalidSchedule(message, code="calendar_invalid", pointer="/calendar_digest", hint=hint)
    choice = Shift.SKIP if shift is None else read_choice(shift, Shift, key="shift", what="the shift")
    return DaysOff(name=calendar, digest=digest, shift=choice)


def _is_digest(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
