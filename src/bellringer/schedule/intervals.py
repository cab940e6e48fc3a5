"""Schedules that count time: a steady interval, and a delay after each run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Literal

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.english import describe_delay, describe_every
from bellringer.schedule.instants import EPOCH, read_instant

SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Made by `every`; occurrences lie whole intervals from `anchor`, on both sides of it."""

    kind: ClassVar[Literal["every"]] = "every"
    interval: timedelta
    anchor: datetime = EPOCH

    def next_after(self, t: datetime) -> datetime | None:
        """The first occurrence after an instant."""
        return _add(self.anchor, self.interval * ((t - self.anchor) // self.interval + 1))

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrences after `a` up to and including `b`, in order."""
        found = self.next_after(a)
        while found is not None and found <= b:
            yield found
            found = _add(found, self.interval)

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The latest occurrence that is neither after `t` nor before `not_before`."""
        found = _add(self.anchor, self.interval * ((t - self.anchor) // self.interval))
        return found if found is not None and found >= not_before else None

    def count_between(self, a: datetime, b: datetime) -> int:
        """How many occurrences there are from `a` up to, but not including, `b`."""
        return max(0, (self.anchor - a) // self.interval - (self.anchor - b) // self.interval)

    def describe(self) -> str:
        return describe_every(self.interval, self.anchor - EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Made by `delay`; only the end of a run, the first time that each method takes, makes an occurrence."""

    kind: ClassVar[Literal["delay"]] = "delay"
    interval: timedelta

    def next_after(self, t: datetime) -> datetime | None:
        """The occurrence that follows a run that ended at `t`."""
        return _add(t.astimezone(UTC), self.interval)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The one occurrence that follows a run that ended at `a`, unless it is after `b`."""
        found = self.next_after(a)
        if found is not None and found <= b:
            yield found

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The one occurrence that follows a run that ended at `not_before`, unless it is after `t`."""
        return next(self.between(not_before, t), None)

    def count_between(self, a: datetime, b: datetime) -> int:
        """One if the occurrence that follows a run that ended at `a` is before `b`, else none."""
        found = self.next_after(a)
        return int(found is not None and found < b)

    def describe(self) -> str:
        return describe_delay(self.interval)


def every(
    interval: str | float | timedelta,
    *,
    anchor: datetime | str | None = None,
    offset: str | float | timedelta | None = None,
) -> Every:
    """A steady interval, aligned to 1970-01-01 UTC or to `anchor`, and shifted by `offset`."""
    length = _duration(interval, "interval")
    if not SHORTEST <= length <= LONGEST:
        raise _out_of_range("interval", length, hint="use 1s to 366d")
    start = EPOCH if anchor is None else read_instant(anchor, what="anchor", pointer="/anchor")
    shift = timedelta(0) if offset is None else _duration(offset, "offset", pointer="/offset")
    # Anchors whole intervals apart mean the same schedule; the earliest since 1970 stands for all of them.
    return Every(interval=length, anchor=EPOCH + (start - EPOCH + shift) % length)


def delay(interval: str | float | timedelta) -> Delay:
    """A pause between the end of one run and the start of the next."""
    length = _duration(interval, "delay")
    if not timedelta(0) < length <= LONGEST:
        raise _out_of_range("delay", length, hint="use more than 0s and at most 366d")
    return Delay(interval=length)


def _duration(value: str | float | timedelta, what: str, *, pointer: str = "") -> timedelta:
    try:
        return parse_duration(value, what=what)
    except InvalidInput as error:
        # A number that is no length of time could at least be read, unlike a text: it is out of range.
        is_number = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
        code = "duration_out_of_range" if is_number else error.code
        raise InvalidSchedule(error.message, hint=error.hint, code=code, pointer=pointer) from None


def _out_of_range(what: str, length: timedelta, *, hint: str) -> InvalidSchedule:
    message = f"{what} {format_duration(length)} is out of range"
    return InvalidSchedule(message, code="duration_out_of_range", hint=hint)


def _add(start: datetime, length: timedelta) -> datetime | None:
    """None after the last instant that a datetime can hold: there is no such occurrence."""
    try:
        return start + length
    except OverflowError:
        return None
