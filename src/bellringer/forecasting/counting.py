"""Fires counted into buckets: each schedule is evaluated once, however many jobs share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Final

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule import Schedule
from bellringer.schedule.instants import EPOCH

MOST_BUCKETS: Final = 2_000
LONGEST: Final = timedelta(days=366)
SHORTEST: Final = timedelta(seconds=1)
MOST_WORK: Final = 150_000  # evaluations of schedules in one tally: about a second
_MOMENT: Final = timedelta(microseconds=1)
_USUAL: Final = tuple(timedelta(seconds=s) for s in (1, 10, 60, 300, 900, 3_600, 21_600, 86_400))
_FITTING: Final = 1_500  # buckets of a usual length


@dataclass(frozen=True)
class Window:
    """From `start` up to, not including, `end`, in buckets that begin at whole multiples of their length."""

    start: datetime
    end: datetime
    bucket: timedelta

    @classmethod
    def of(cls, start: datetime, end: datetime, bucket: timedelta | None = None) -> Window:
        """A window within bounds; without a bucket, one that fits the span."""
        span = end - start
        if not timedelta(0) < span <= LONGEST:
            hint = f"give a span of at most {format_duration(LONGEST)}, from before to"
            raise InvalidInput(f"the forecast would span {format_duration(span)}", hint=hint, code="limit")
        if bucket is None:
            bucket = next(usual for usual in _USUAL if span / usual <= _FITTING)
        if bucket < SHORTEST or cls(start, end, bucket).size > MOST_BUCKETS:
            least = -(-span // (MOST_BUCKETS - 1) // SHORTEST) * SHORTEST
            raise InvalidInput(
                f"bucket {format_duration(bucket)} is too short for the span: at most {MOST_BUCKETS:,} buckets",
                hint=f"give at least {format_duration(max(SHORTEST, least))}",
                code="limit",
            )
        return cls(start, end, bucket)

    @cached_property
    def origin(self) -> datetime:
        return self.start - (self.start - EPOCH) % self.bucket

    @cached_property
    def size(self) -> int:
        """How many buckets there are."""
        return -((self.origin - self.end) // self.bucket)

    def index(self, at: datetime) -> int:
        return (at - self.origin) // self.bucket

    def at(self, index: int) -> datetime:
        return self.origin + index * self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Jobs that share a schedule, counted by pool; with `jitter` they start within so long after their time."""

    schedule: Schedule
    pools: Mapping[str, int]
    jitter: timedelta = timedelta(0)

    @property
    def jobs(self) -> int:
        return sum(self.pools.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A crowd, and how often each of its jobs fires in which bucket; buckets before the window are negative."""

    crowd: Crowd
    fires: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Fires by pool and bucket. `left_out` jobs were not counted: the work is bounded, the largest crowds go first."""

    window: Window
    pools: Mapping[str, Sequence[int]]
    shares: Sequence[Share] = ()
    left_out: int = 0

    def totals(self) -> list[int]:
        """Fires of all pools by bucket."""
        return [sum(fires) for fires in zip(*self.pools.values(), strict=True)] or [0] * self.window.size


def tally(crowds: Iterable[Crowd], window: Window, timers: Mapping[tuple[str, datetime], int] | None = None) -> Tally:
    """Count what the crowds fire in each bucket, each schedule evaluated once, and add timers by their due times."""
    pools: dict[str, list[int]] = {}
    shares: list[Share] = []
    left_out, work = 0, MOST_WORK
    for crowd in sorted(crowds, key=lambda c: c.jobs, reverse=True):
        width = buckets_of(crowd.jitter, window)
        fires = _fires(crowd.schedule, window, width - 1, work)
        if fires is None:
            left_out += crowd.jobs
            continue
        work -= len(fires) + 1
        shares.append(Share(crowd=crowd, fires=fires))
        for pool, jobs in crowd.pools.items():
            lane = pools.setdefault(pool, [0] * window.size)
            for index, count in spread(fires, jobs, width, window.size).items():
                lane[index] += count
    for (pool, at), count in (timers or {}).items():
        pools.setdefault(pool, [0] * window.size)[max(0, window.index(at))] += count
    return Tally(window=window, pools=pools, shares=shares, left_out=left_out)


def buckets_of(length: timedelta, window: Window) -> int:
    """How many buckets a spread over this length reaches; those of a jitter longer than the window are cut."""
    return max(1, min(-(-length // window.bucket), MOST_BUCKETS))


def _fires(schedule: Schedule, window: Window, reach: int, work: int) -> dict[int, int] | None:
    """One job's fires by bucket, from `reach` buckets before the window on; None where it takes too much work."""
    start = window.at(-reach) if reach else window.start
    try:
        total = schedule.count_between(start, window.end)
        if min(total, window.size + reach) >= work:
            return None
        if total <= window.size + reach:
            return Counter(window.index(at) for at in schedule.between(start - _MOMENT, window.end - _MOMENT))
        edges = [start, *(window.at(index) for index in range(1 - reach, window.size)), window.end]
        counts = (schedule.count_between(a, b) for a, b in pairwise(edges))
        return {index: count for index, count in enumerate(counts, -reach) if count}
    except InvalidSchedule:  # such as days off that are not known here
        return None


def spread(fires: Mapping[int, int], jobs: int, width: int, size: int) -> dict[int, int]:
    """What `jobs` jobs fire in each bucket, if each fire is spread evenly over `width` buckets from its own on."""
    if width <= 1:
        return {index: count * jobs for index, count in fires.items() if 0 <= index < size}
    steps = [0] * (size + 1)
    for index, count in fires.items():
        if index + width > 0 and index < size:
            steps[max(index, 0)] += count
            steps[min(index + width, size)] -= count
    found: dict[int, int] = {}
    level = run = told = 0
    for index in range(size):
        level += steps[index]
        run += level * jobs
        if run // width > told:  # rounded over the whole, so that no fire is lost but the last one's fraction
            found[index] = run // width - told
            told += found[index]
    return found
