"""Finds overloaded time buckets and proposes how to spread the schedules that fill them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from math import log, sqrt
from typing import Any, Final

from bellringer.durations import format_duration
from bellringer.forecast.fire_counts import (
    MAX_SPAN,
    FireCounts,
    ForecastWindow,
    GroupFires,
    count_buckets,
    spread_fires,
)
from bellringer.schedule import Cron, Dialect, Schedule
from bellringer.schedule.instants import EPOCH

MAX_PROPOSALS: Final = 5
HOT_BUCKET_RATIO: Final = 2.0  # a bucket with so many times what is usual is a herd …
MIN_HOT_BUCKET_FIRES: Final = 10  # … if it has at least so many fires
MIN_SHARE: Final = 0.1  # of a hot bucket, for a schedule to be worth a proposal
_MAX_HOT_BUCKETS: Final = 20  # hot buckets that are looked into
_FIRES_COMPARED: Final = 10  # of a schedule, whose shortest distance says how far its jobs may be spread
_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadProposal:
    """A proposal to spread the jobs of one schedule.

    `fires` is the schedule's part of the `before` fires in the bucket. `after` is the expected number in the bucket,
    and `peak` in the fullest bucket of the window, if this proposal and the ones before it are applied.
    """

    at: datetime
    schedule: Schedule
    jobs: int
    fires: int
    suggestion: Mapping[str, Any]
    before: int
    after: int
    peak: int


def propose_spreading(counted: FireCounts) -> list[SpreadProposal]:
    """Returns proposals for the schedules that fill the hottest buckets, the hottest first."""
    window, totals = counted.window, counted.totals()
    plain = [share for share in counted.shares if not share.crowd.jitter]
    levels, scatter, expected = list(totals), [0] * window.size, totals
    made: list[SpreadProposal] = []
    seen: set[int] = set()
    spots = 1
    for place in _hot_buckets(window, totals):
        for number, share in _largest_groups(plain, place, MIN_SHARE * totals[place]):
            remedy = _choose_remedy(share.crowd.schedule, window)
            if remedy is None or number in seen or len(made) == MAX_PROPOSALS:
                continue
            seen.add(number)
            _apply_remedy(share, remedy, levels, scatter)
            spots = max(spots, remedy.width)
            before, expected = expected, _expected_peaks(levels, scatter, spots)
            made.append(
                SpreadProposal(
                    at=window.at(place),
                    schedule=share.crowd.schedule,
                    jobs=share.crowd.jobs,
                    fires=share.fires[place] * share.crowd.jobs,
                    suggestion=remedy.suggestion,
                    before=before[place],
                    after=expected[place],
                    peak=max(expected),
                )
            )
    return made


def _hot_buckets(window: ForecastWindow, totals: Sequence[int]) -> list[int]:
    """Returns the fullest buckets that clearly exceed both the average and an even distribution within their hour."""
    in_hour = _HOUR // window.bucket
    if in_hour < 2:
        return []
    usual = sum(totals) / window.size
    hours = Counter[datetime]()
    for index, count in enumerate(totals):
        hours[_hour_of(window, index)] += count

    def is_hot(index: int) -> bool:
        even = hours[_hour_of(window, index)] / in_hour
        return totals[index] >= max(MIN_HOT_BUCKET_FIRES, HOT_BUCKET_RATIO * usual, HOT_BUCKET_RATIO * even)

    found = [index for index in range(window.size) if is_hot(index)]
    return sorted(found, key=lambda index: -totals[index])[:_MAX_HOT_BUCKETS]


def _hour_of(window: ForecastWindow, index: int) -> datetime:
    at = window.at(index)
    return at - (at - EPOCH) % _HOUR


def _largest_groups(shares: Sequence[GroupFires], place: int, least: float) -> list[tuple[int, GroupFires]]:
    """Returns the groups with at least `least` fires in the bucket, the largest first."""
    sizes = ((share.fires.get(place, 0) * share.crowd.jobs, number) for number, share in enumerate(shares))
    return [(number, shares[number]) for size, number in sorted(sizes, reverse=True) if size and size >= least]


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A change that spreads the fires of a schedule over `width` buckets, starting `back` buckets before the
    original one.
    """

    suggestion: Mapping[str, Any]
    back: int
    width: int


def _choose_remedy(schedule: Schedule, window: ForecastWindow) -> _Remedy | None:
    """Proposes `H` if a cron fixes the minute or its step, a jitter otherwise; None if neither helps."""
    if isinstance(schedule, Cron) and schedule.dialect is Dialect.UNIX:
        fields = schedule.expression.split()
        place = len(fields) - 5
        minute, step = fields[place], fields[place].removeprefix("*/")
        back, over = timedelta(0), timedelta(0)
        if minute.isdecimal():
            fields[place], back, over = "H", int(minute) * _MINUTE, _HOUR
        elif minute != step and step.isdecimal() and 60 % int(step) == 0:
            fields[place], over = f"H/{step}", int(step) * _MINUTE
        if over:
            width = count_buckets(over, window)
            patch = {"schedule": {"cron": " ".join(fields)}}
            return _Remedy(patch, back // window.bucket, width) if width > 1 else None
    first = islice(schedule.between(window.start - _MICROSECOND, window.end + MAX_SPAN), _FIRES_COMPARED)
    over = min((b - a for a, b in pairwise(first)), default=_HOUR)
    width = count_buckets(min(over, _HOUR), window)
    return _Remedy({"jitter": format_duration(min(over, _HOUR))}, 0, width) if width > 1 else None


def _apply_remedy(share: GroupFires, remedy: _Remedy, levels: list[int], scatter: list[int]) -> None:
    jobs, size = share.crowd.jobs, len(levels)
    for index, count in spread_fires(share.fires, jobs, 1, size).items():
        levels[index] -= count
    moved = {index - remedy.back: count for index, count in share.fires.items()}
    for index, count in spread_fires(moved, jobs, remedy.width, size).items():
        levels[index] += count
        scatter[index] += count


def _expected_peaks(levels: Sequence[int], scatter: Sequence[int], spots: int) -> list[int]:
    """Returns the level that each bucket is likely to reach. A hash scatters: of k buckets with a mean of m, one
    gets about m + √(2·m·ln k).
    """
    return [level + round(sqrt(2 * count * log(spots))) for level, count in zip(levels, scatter, strict=True)]
