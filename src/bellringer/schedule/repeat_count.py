"""A repeat count: a schedule that ends after a number of occurrences.

The count needs no state. The schedule stores the instant from which occurrences are counted, so the last one follows
from the schedule alone, and every process computes the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from bellringer.errors import InvalidSchedule
from bellringer.schedule import dst
from bellringer.schedule.dst import DstFold, DstGap
from bellringer.schedule.instants import ceil_seconds, read_instant
from bellringer.schedule.wall_clock import SEARCH_YEARS, WallClockPattern

MAX_TIMES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatCount:
    """The number of occurrences, counted from `start` on. Without a start it is not bound yet: the registration of the
    job sets it, and until then the schedule has no end.
    """

    times: int
    start: datetime | None = None


def parse_repeat_count(times: object, start: datetime | str | None) -> RepeatCount | None:
    """Returns the repeat count of a schedule, or None without one. Raises InvalidSchedule."""
    if times is None:
        if start is not None:
            hint = "add times, or set starts_at of the job"
            message = "'start' requires a number of times"
            raise InvalidSchedule(message, code="times_invalid", pointer="/start", hint=hint)
        return None
    if isinstance(times, bool) or not isinstance(times, int) or not 1 <= times <= MAX_TIMES:
        message = f"times must be a whole number from 1 to {MAX_TIMES:,}"
        raise InvalidSchedule(message, code="times_invalid", pointer="/times", hint="remove it to repeat forever")
    instant = None if start is None else read_instant(start, what="start", pointer="/start")
    return RepeatCount(times=times, start=instant)


def limit_pattern(
    pattern: WallClockPattern, zone: str, gap: DstGap, fold: DstFold, repeat: RepeatCount
) -> WallClockPattern:
    """Returns a pattern that begins and ends with the counted occurrences. If there are fewer of them within
    SEARCH_YEARS, the pattern has no end.
    """
    if repeat.start is None:
        return pattern
    start = ceil_seconds(repeat.start)
    return replace(
        pattern,
        first_instant=start,
        last_instant=dst.nth_occurrence(pattern, zone, start, gap, fold, repeat.times),
    )


def check_reachable(pattern: WallClockPattern, repeat: RepeatCount | None) -> None:
    """Raises InvalidSchedule if a limited pattern never reaches its repeat count. Years may end it earlier."""
    if repeat is not None and repeat.start is not None and pattern.last_instant is None and pattern.bounds is None:
        message = f"times={repeat.times} is not reached within {SEARCH_YEARS} years"
        raise InvalidSchedule(message, code="times_invalid", pointer="/times", hint="use a smaller number")
