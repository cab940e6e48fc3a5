"""Schedules by elapsed time: a fixed interval, a delay after each run, and a single instant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Literal

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.describe import describe_at, describe_delay, describe_every
from bellringer.schedule.instants import END, EPOCH, read_instant
from bellringer.schedule.repeat_count import RepeatCount, parse_repeat_count

MIN_INTERVAL: Final = timedelta(seconds=1)
MAX_INTERVAL: Final = timedelta(days=366)
_REPEATING: Final = re.compile("R(?P<times>-1|[0-9]{0,7})/(?P<start>[^/]{1,40})/(?P<length>P[^/]{1,40})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """A fixed interval, created by `every`. Occurrences are whole intervals before and after `anchor`. `repeat` limits
    their number.
    """

    kind: ClassVar[Literal["every"]] = "every"
    interval: timedelta
    anchor: datetime = EPOCH
    repeat: RepeatCount | None = None

    def next_after(self, t: datetime) -> datetime | None:
        """The first occurrence after `t`."""
        found = _add_or_none(self.anchor, self.interval * ((t - self.anchor) // self.interval + 1))
        if self.repeat is None or (ends := self._counted()) is None:
            return found
        found = ends[0] if t < ends[0] else found
        return found if found is not None and found <= ends[1] else None

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrences after `a`, up to and including `b`, in order."""
        ends = self._counted()
        last = b if ends is None else min(b, ends[1])
        found = self.next_after(a)
        while found is not None and found <= last:
            yield found
            found = _add_or_none(found, self.interval)

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The latest occurrence from `not_before` up to and including `t`."""
        if (ends := self._counted()) is not None:
            t, not_before = min(t, ends[1]), max(not_before, ends[0])
        found = _add_or_none(self.anchor, self.interval * ((t - self.anchor) // self.interval))
        return found if found is not None and found >= not_before else None

    def count_between(self, a: datetime, b: datetime) -> int:
        """The number of occurrences from `a` up to, but not including, `b`."""
        if (ends := self._counted()) is not None:
            a, b = max(a, ends[0]), min(b, ends[1] + timedelta(microseconds=1))
        return max(0, (self.anchor - a) // self.interval - (self.anchor - b) // self.interval)

    def _counted(self) -> tuple[datetime, datetime] | None:
        """The first and the last occurrence of a repeat count that is bound to a start."""
        if self.repeat is None or self.repeat.start is None:
            return None
        first = self.anchor - self.interval * ((self.anchor - self.repeat.start) // self.interval)
        return first, _add_or_none(first, self.interval * (self.repeat.times - 1)) or END

    def describe(self) -> str:
        return describe_every(self.interval, self.anchor - EPOCH, self.repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A delay after each run, created by `delay`. The first argument of each method is the time when a run ended."""

    kind: ClassVar[Literal["delay"]] = "delay"
    interval: timedelta

    def next_after(self, t: datetime) -> datetime | None:
        """The occurrence after a run that ended at `t`."""
        return _add_or_none(t.astimezone(UTC), self.interval)

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The occurrence after a run that ended at `a`, unless it is after `b`."""
        found = self.next_after(a)
        if found is not None and found <= b:
            yield found

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The occurrence after a run that ended at `not_before`, unless it is after `t`."""
        return next(self.between(not_before, t), None)

    def count_between(self, a: datetime, b: datetime) -> int:
        """1 if the occurrence after a run that ended at `a` is before `b`, else 0."""
        found = self.next_after(a)
        return int(found is not None and found < b)

    def describe(self) -> str:
        return describe_delay(self.interval)


def every(
    interval: str | float | timedelta,
    *,
    anchor: datetime | str | None = None,
    offset: str | float | timedelta | None = None,
    times: int | None = None,
    start: datetime | str | None = None,
) -> Every:
    """Create a fixed interval, aligned to 1970-01-01 UTC or to `anchor`, and shifted by `offset`.

    `times` ends it after this many occurrences from `start` on, an instant that defaults to the registration of the
    job. A repeating interval of ISO 8601, such as "R10/2026-01-01T00:00:00Z/PT5M", gives interval, anchor and times.
    """
    if isinstance(interval, str) and (repeating := _REPEATING.fullmatch(interval)):
        return _from_iso_repetition(repeating, anchor, offset, times, start)
    length = _parse_interval(interval, "interval")
    if not MIN_INTERVAL <= length <= MAX_INTERVAL:
        raise _out_of_range("interval", length, hint="use a duration from 1s to 366d")
    since = EPOCH if anchor is None else read_instant(anchor, what="anchor", pointer="/anchor")
    shift = timedelta(0) if offset is None else _parse_interval(offset, "offset", pointer="/offset")
    # Anchors that are whole intervals apart mean the same schedule; it is stored with the earliest one since 1970.
    return Every(
        interval=length,
        anchor=EPOCH + (since - EPOCH + shift) % length,
        repeat=parse_repeat_count(times, start),
    )


def _from_iso_repetition(match: re.Match[str], *options: object) -> Every:
    if any(option is not None for option in options):
        message, hint = "a repeating interval takes no further options", "it names its start and its number of times"
        raise InvalidSchedule(message, code="duration_invalid", hint=hint)
    if re.search("[YM]", match["length"].partition("T")[0]):
        message = f"the length {match['length'][:40]} of the repeating interval has years or months"
        hint = 'they differ in length: use rrule("FREQ=MONTHLY", start=…) or FREQ=YEARLY'
        raise InvalidSchedule(message, code="duration_invalid", hint=hint)
    if match["times"] == "0":
        message, hint = "a repeating interval with R0 never fires", "write R1/… for one occurrence, or R/… for no end"
        raise InvalidSchedule(message, code="times_invalid", hint=hint)
    times = int(match["times"]) if match["times"] not in ("", "-1") else None
    begin = read_instant(match["start"], what="start")
    return every(match["length"], anchor=begin, times=times, start=begin if times else None)


def delay(interval: str | float | timedelta) -> Delay:
    """Create a delay between the end of one run and the start of the next."""
    length = _parse_interval(interval, "delay")
    if not timedelta(0) < length <= MAX_INTERVAL:
        raise _out_of_range("delay", length, hint="use a duration above 0s and up to 366d")
    return Delay(interval=length)


def _parse_interval(value: str | float | timedelta, what: str, *, pointer: str = "") -> timedelta:
    try:
        return parse_duration(value, what=what)
    except InvalidInput as error:
        # A number that is not a valid duration has the right type, so the error is "out of range", not "invalid".
        is_number = isinstance(value, int | float | timedelta) and not isinstance(value, bool)
        code = "duration_out_of_range" if is_number else error.code
        raise InvalidSchedule(error.message, hint=error.hint, code=code, pointer=pointer) from None


def _out_of_range(what: str, length: timedelta, *, hint: str) -> InvalidSchedule:
    message = f"{what} {format_duration(length)} is out of range"
    return InvalidSchedule(message, code="duration_out_of_range", hint=hint)


def _add_or_none(start: datetime, length: timedelta) -> datetime | None:
    """Add, or return None if the result exceeds the maximum datetime: then there is no such occurrence."""
    try:
        return start + length
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A single instant (UTC), created by `at`."""

    kind: ClassVar[Literal["at"]] = "at"
    instant: datetime

    def next_after(self, t: datetime) -> datetime | None:
        """The instant if it is after `t`, else None."""
        return self.instant if self.instant > t else None

    def between(self, a: datetime, b: datetime) -> Iterator[datetime]:
        """The instant if it is after `a` and not after `b`."""
        if a < self.instant <= b:
            yield self.instant

    def last_at_or_before(self, t: datetime, *, not_before: datetime) -> datetime | None:
        """The instant if it is from `not_before` up to and including `t`."""
        return self.instant if not_before <= self.instant <= t else None

    def count_between(self, a: datetime, b: datetime) -> int:
        """1 if the instant is from `a` up to, but not including, `b`, else 0."""
        return int(a <= self.instant < b)

    def describe(self) -> str:
        return describe_at(self.instant)


def at(instant: datetime | str) -> At:
    """Create a schedule of one instant, given as an aware datetime or as RFC 3339 text with an offset."""
    return At(instant=read_instant(instant, what="time"))
