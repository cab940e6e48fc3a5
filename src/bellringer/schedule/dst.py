"""Converts the wall-clock matches of a schedule to instants, across DST changes.

The functions walk the time zone's timeline, one period of constant UTC offset after the other, and search the pattern
in wall-clock time within each period. `DstFold` decides whether the first or the second showing of a repeated time
counts. `DstGap` decides whether a skipped time fires at the start of the next period or not at all."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

from bellringer.errors import InvalidSchedule
from bellringer.schedule import wall_clock
from bellringer.schedule.time_zones import MAX_INSTANT, MIN_INSTANT, PROBE_SECONDS, OffsetPeriod, period_at
from bellringer.schedule.wall_clock import WallClockPattern

E = TypeVar("E", bound=StrEnum)


class DstGap(StrEnum):
    """How to handle a local time that the clock skips."""

    NEXT = "next"  # fires at the first instant after the gap
    SKIP = "skip"  # does not fire


class DstFold(StrEnum):
    """Which showing of a local time counts when the clock repeats it."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


def default_dst_policy(*, fixed_time: bool) -> tuple[DstGap, DstFold]:
    """Returns the default policy: a fixed time of day fires once a day; an interval of hours or minutes follows elapsed
    time.
    """
    return (DstGap.NEXT, DstFold.FIRST) if fixed_time else (DstGap.SKIP, DstFold.BOTH)


def parse_enum(value: object, kind: type[E], *, key: str, what: str) -> E:
    """Returns the member of an enumeration with this value. Raises InvalidSchedule."""
    words = [str(member) for member in kind]
    if not isinstance(value, str) or value not in words:
        message = f"{what} must be one of {', '.join(words)}, not {str(value)[:40]!r}"
        raise InvalidSchedule(message, code=f"{key}_unknown", pointer=f"/{key}")
    return kind(value)


def parse_dst_policy(gap: str | None, fold: str | None, *, fixed_time: bool) -> tuple[DstGap, DstFold]:
    """Returns the given choices, with the default where a choice is missing."""
    usual_gap, usual_fold = default_dst_policy(fixed_time=fixed_time)
    return (
        usual_gap if gap is None else parse_enum(gap, DstGap, key="gap", what="gap"),
        usual_fold if fold is None else parse_enum(fold, DstFold, key="fold", what="fold"),
    )


_NEXT: Final = DstGap.NEXT
_FIRST: Final = DstFold.FIRST
_SECOND: Final = DstFold.SECOND


def first_occurrence(pattern: WallClockPattern, zone: str, instant: int, gap: DstGap, fold: DstFold) -> int | None:
    """The first occurrence at or after `instant`."""
    instant, last = _clamp(pattern, instant, MAX_INSTANT)
    period = period_at(zone, instant)
    while period is not None and period.start <= last:
        if gap is _NEXT and instant <= period.start and _skips_match(pattern, period):
            return period.start
        earliest = max(instant + period.offset, _first_counted(period, fold))
        found = wall_clock.first_match(pattern, earliest)
        if found is None and period.shown_after >= earliest:
            return None  # no later period shows an earlier local time
        if found is not None and found < _end_of_counted(period, fold):
            return found - period.offset if found - period.offset <= last else None
        ahead = period.end
        if found is not None and period.shown_after >= earliest:
            ahead = max(ahead, found - PROBE_SECONDS)  # no local clock shows a match before that
        period = period_at(zone, ahead)
    return None


def last_occurrence(
    pattern: WallClockPattern, zone: str, instant: int, gap: DstGap, fold: DstFold, *, not_before: int
) -> int | None:
    """The last occurrence at or before `instant`, but not before `not_before`."""
    not_before, instant = _clamp(pattern, not_before, instant)
    period = period_at(zone, instant)
    while period is not None and period.end > not_before:
        latest = min(min(instant, period.end - 1) + period.offset, _end_of_counted(period, fold) - 1)
        found = wall_clock.last_match(pattern, latest)
        if found is None and period.shown_before <= latest:
            return None  # no earlier period showed a later local time
        if found is not None and found >= _first_counted(period, fold):
            answer = found - period.offset
            return answer if answer >= not_before else None
        if gap is _NEXT and _skips_match(pattern, period):
            return period.start if period.start >= not_before else None
        behind = period.start - 1
        if found is not None and period.shown_before <= latest:
            behind = min(behind, found + PROBE_SECONDS)  # no local clock has shown a match since then
        period = period_at(zone, behind)
    return None


def count_occurrences(pattern: WallClockPattern, zone: str, start: int, end: int, gap: DstGap, fold: DstFold) -> int:
    """The number of occurrences from `start` up to, but not including, `end`."""
    total = 0
    start, last = _clamp(pattern, start, end - 1)
    end = last + 1
    period = period_at(zone, start)
    while period is not None and period.start < end:
        opening, closing = _first_counted(period, fold), _end_of_counted(period, fold)
        total += wall_clock.count_matches(
            pattern, max(start + period.offset, opening), min(end + period.offset, closing)
        )
        if gap is _NEXT and start <= period.start and _skips_match(pattern, period):
            # The skipped times and a match at the end of the gap are one occurrence.
            total += 1 - wall_clock.count_matches(pattern, opening, opening + 1)
        period = period_at(zone, period.end)
    return total


def nth_occurrence(
    pattern: WallClockPattern, zone: str, start: int, gap: DstGap, fold: DstFold, count: int
) -> int | None:
    """Returns the instant of the last of `count` occurrences from `start` on, or None if there are fewer within
    SEARCH_YEARS.

    It counts instants, not wall-clock times: RFC 5545 does not count a time that the clock skips.
    """
    low, passed = start, 0
    for _ in range(wall_clock.SEARCH_YEARS):
        high = low + 366 * wall_clock.SECONDS_PER_DAY
        found = count_occurrences(pattern, zone, low, high, gap, fold)
        if passed + found >= count:
            break
        low, passed = high, passed + found
    else:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = count_occurrences(pattern, zone, low, middle, gap, fold)
        if passed + found >= count:
            high = middle
        else:
            low, passed = middle, passed + found
    return low


def dst_flags(pattern: WallClockPattern, zone: str, instant: int, gap: DstGap) -> tuple[str, ...]:
    """Returns the flags of an occurrence that a DST change affected: `dst_gap`, `dst_fold_first`, `dst_fold_second`."""
    period = period_at(zone, instant)
    if period is None:
        return ()
    if gap is _NEXT and instant == period.start and _skips_match(pattern, period):
        return ("dst_gap",)
    if instant + period.offset >= period.shown_after:
        return ("dst_fold_first",)
    if instant + period.offset < period.shown_before:
        return ("dst_fold_second",)
    return ()


def wall_clock_time(pattern: WallClockPattern, zone: str, instant: int, gap: DstGap) -> int | None:
    """Returns the wall-clock moment of an occurrence; in a gap, the skipped moment that it stands for."""
    period = period_at(zone, instant)
    if period is None:
        return None
    if gap is _NEXT and instant == period.start and _skips_match(pattern, period):
        return wall_clock.first_match(pattern, period.shown_before)
    return instant + period.offset


def next_clock_change(pattern: WallClockPattern, zone: str, instant: int, until: int) -> tuple[int, str] | None:
    """Returns the first clock change that skips or repeats a match, as its instant and `dst_gap` or `dst_fold`."""
    instant, last = _clamp(pattern, instant, until - 1)
    period = period_at(zone, instant)
    while period is not None and period.start <= last:
        landing = period.start + period.offset
        if period.start > instant and wall_clock.count_matches(
            pattern, min(landing, period.shown_before), max(landing, period.shown_before)
        ):
            return period.start, "dst_gap" if period.shown_before < landing else "dst_fold"
        period = period_at(zone, period.end)
    return None


def _clamp(pattern: WallClockPattern, first: int, last: int) -> tuple[int, int]:
    """Limits a range of instants to the bounds of the pattern.

    UTC offsets and gaps are shorter than a day, so an instant is less than PROBE_SECONDS away from its wall-clock
    moment read as UTC.
    """
    first, last = max(first, MIN_INSTANT), min(last, MAX_INSTANT)
    if pattern.bounds is not None:
        first, last = max(first, pattern.bounds[0] - PROBE_SECONDS), min(last, pattern.bounds[1] + PROBE_SECONDS)
    if pattern.first_instant is not None:
        first = max(first, pattern.first_instant)
    if pattern.last_instant is not None:
        last = min(last, pattern.last_instant)
    return first, last


def _first_counted(period: OffsetPeriod, fold: DstFold) -> int:
    """The first wall-clock moment that counts in a period. If the first showing counts, a repeated time was already
    used.
    """
    opening = period.start + period.offset
    return max(opening, period.shown_before) if fold is _FIRST else opening


def _end_of_counted(period: OffsetPeriod, fold: DstFold) -> int:
    """The end (exclusive) of the moments that count in a period. If the second showing counts, a time that will be
    repeated does not count yet.
    """
    closing = period.end + period.offset
    return min(closing, period.shown_after) if fold is _SECOND else closing


def _skips_match(pattern: WallClockPattern, period: OffsetPeriod) -> bool:
    """Whether the clock skipped a match right before this period."""
    landing = period.start + period.offset
    if period.shown_before >= landing:
        return False
    missed = wall_clock.first_match(pattern, period.shown_before)
    return missed is not None and missed < landing
