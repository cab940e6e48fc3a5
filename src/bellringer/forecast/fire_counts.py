"""Counts fires per time bucket. Each schedule is evaluated once, however many jobs share it."""

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

MAX_BUCKETS: Final = 2_000
MAX_SPAN: Final = timedelta(days=366)
MIN_BUCKET: Final = timedelta(seconds=1)
MAX_EVALUATIONS: Final = 150_000  # evaluations of schedules in one tally: about a second
_MICROSECOND: Final = timedelta(microseconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DEFAULT_BUCKETS: Final = tuple(timedelta(seconds=s) for s in (1, 10, 60, 300, 900, 3_600, 21_600, 86_400))
_MAX_DEFAULT_BUCKETS: Final = 1_500  # buckets of a usual length


@dataclass(frozen=True)
class ForecastWindow:
    """The time from `start` up to, but not including, `end`, in buckets that begin at multiples of their length."""

    start: datetime
    end: datetime
    bucket: timedelta

    @classmethod
    def of(cls, start: datetime, end: datetime, bucket: timedelta | None = None) -> ForecastWindow:
        """Returns a validated window. Without a bucket length, one that fits the span is chosen. Raises
        InvalidInput.
        """
        span = end - start
        if not timedelta(0) < span <= MAX_SPAN:
            hint = f"give a span of at most {format_duration(MAX_SPAN)}, from before to"
            raise InvalidInput(f"the forecast would span {format_duration(span)}", hint=hint, code="limit")
        if bucket is None:
            bucket = next(usual for usual in _DEFAULT_BUCKETS if span / usual <= _MAX_DEFAULT_BUCKETS)
        if bucket < MIN_BUCKET or cls(start, end, bucket).size > MAX_BUCKETS:
            least = -(-span // (MAX_BUCKETS - 1) // MIN_BUCKET) * MIN_BUCKET
            raise InvalidInput(
                f"bucket {format_duration(bucket)} is too short for the span: at most {MAX_BUCKETS:,} buckets",
                hint=f"give at least {format_duration(max(MIN_BUCKET, least))}",
                code="limit",
            )
        return cls(start, end, bucket)

    @cached_property
    def origin(self) -> datetime:
        return self.start - (self.start - EPOCH) % self.bucket

    @cached_property
    def size(self) -> int:
        """The number of buckets."""
        return -((self.origin - self.end) // self.bucket)

    def index(self, at: datetime) -> int:
        return (at - self.origin) // self.bucket

    def at(self, index: int) -> datetime:
        return self.origin + index * self.bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs that share a schedule, counted by pool. With `jitter`, each job starts within that time after its
    instant.
    """

    schedule: Schedule
    pools: Mapping[str, int]
    jitter: timedelta = timedelta(0)

    @property
    def jobs(self) -> int:
        return sum(self.pools.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFires:
    """A group, and the fires of each of its jobs by bucket. Buckets before the window have negative indexes."""

    crowd: JobGroup
    fires: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FireCounts:
    """Fires by pool and bucket. `left_out` is the number of jobs that were not counted: the work is limited, and the
    largest groups are counted first. `omitted` jobs fire more often than every minute and were not wanted.
    """

    window: ForecastWindow
    pools: Mapping[str, Sequence[int]]
    shares: Sequence[GroupFires] = ()
    left_out: int = 0
    omitted: int = 0

    def totals(self) -> list[int]:
        """Fires of all pools by bucket."""
        return [sum(fires) for fires in zip(*self.pools.values(), strict=True)] or [0] * self.window.size


def count_fires(
    crowds: Iterable[JobGroup],
    window: ForecastWindow,
    timers: Mapping[tuple[str, datetime], int] | None = None,
    *,
    sub_minute: bool = True,
) -> FireCounts:
    """Counts the fires of the groups in each bucket, evaluating each schedule once, and adds timers by their due
    time. Without `sub_minute`, groups that fire more often than every minute are omitted.
    """
    pools: dict[str, list[int]] = {}
    shares: list[GroupFires] = []
    left_out, omitted, work = 0, 0, MAX_EVALUATIONS
    for crowd in sorted(crowds, key=lambda c: c.jobs, reverse=True):
        width = count_buckets(crowd.jitter, window)
        fires = _fires_by_bucket(crowd.schedule, window, width - 1, work)
        if fires is None:
            left_out += crowd.jobs
            continue
        work -= len(fires) + 1
        if not sub_minute and sum(fires.values()) * _MINUTE > window.end - window.at(1 - width):
            omitted += crowd.jobs
            continue
        shares.append(GroupFires(crowd=crowd, fires=fires))
        for pool, jobs in crowd.pools.items():
            lane = pools.setdefault(pool, [0] * window.size)
            for index, count in spread_fires(fires, jobs, width, window.size).items():
                lane[index] += count
    for (pool, at), count in (timers or {}).items():
        pools.setdefault(pool, [0] * window.size)[max(0, window.index(at))] += count
    return FireCounts(window=window, pools=pools, shares=shares, left_out=left_out, omitted=omitted)


def count_buckets(length: timedelta, window: ForecastWindow) -> int:
    """Returns the number of buckets that a duration covers, limited to MAX_BUCKETS."""
    return max(1, min(-(-length // window.bucket), MAX_BUCKETS))


def _fires_by_bucket(schedule: Schedule, window: ForecastWindow, reach: int, work: int) -> dict[int, int] | None:
    """Returns the fires of one job by bucket, starting `reach` buckets before the window; None if it takes too much
    work.
    """
    start = window.at(-reach) if reach else window.start
    try:
        total = schedule.count_between(start, window.end)
        if min(total, window.size + reach) >= work:
            return None
        if total <= window.size + reach:
            return Counter(window.index(at) for at in schedule.between(start - _MICROSECOND, window.end - _MICROSECOND))
        edges = [start, *(window.at(index) for index in range(1 - reach, window.size)), window.end]
        counts = (schedule.count_between(a, b) for a, b in pairwise(edges))
        return {index: count for index, count in enumerate(counts, -reach) if count}
    except InvalidSchedule:  # such as days off that are not known here
        return None


def spread_fires(fires: Mapping[int, int], jobs: int, width: int, size: int) -> dict[int, int]:
    """Returns the fires of `jobs` jobs by bucket if each fire is spread evenly over `width` buckets from its own on."""
    if width <= 1:
        return {index: count * jobs for index, count in fires.items() if 0 <= index < size}
    steps = [0] * (size + 1)
    for index, count in fires.items():
        if index + width > 0 and index < size:
            steps[max(index, 0)] += count
            steps[min(index + width, size)] -= count
    found: dict[int, int] = {}
    level = run = shown = 0
    for index in range(size):
        level += steps[index]
        run += level * jobs
        if run // width > shown:  # rounded over the whole, so that no fire is lost but the last one's fraction
            found[index] = run // width - shown
            shown += found[index]
    return found
