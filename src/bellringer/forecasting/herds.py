"""Herds: the buckets that are far too full, and how the schedules that fill them could be spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from math import log, sqrt
from typing import Any, Final

from bellringer.durations import format_duration
from bellringer.forecasting.counting import LONGEST, Share, Tally, Window, buckets_of, spread
from bellringer.schedule import Cron, Schedule
from bellringer.schedule.instants import EPOCH

MOST_PROPOSALS: Final = 5
HOT: Final = 2.0  # a bucket with so many times what is usual is a herd …
LEAST_HERD: Final = 10  # … if it has at least so many fires
LEAST_SHARE: Final = 0.1  # of a hot bucket, for a schedule to be worth a proposal
_HOTTEST: Final = 20  # hot buckets that are looked into
_FIRST_FIRES: Final = 10  # of a schedule, whose shortest distance says how far its jobs may be spread
_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
_MOMENT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How to spread one schedule's jobs.

    `fires` of the bucket's `before` are its own; `after` is what the bucket, and `peak` what the fullest bucket of the
    window would get by it together with the proposals before it.
    """

    at: datetime
    schedule: Schedule
    jobs: int
    fires: int
    suggestion: Mapping[str, Any]
    before: int
    after: int
    peak: int


def proposals(counted: Tally) -> list[Proposal]:
    """How the schedules that make the hottest buckets could be spread; the hottest first."""
    window, totals = counted.window, counted.totals()
    plain = [share for share in counted.shares if not share.crowd.jitter]
    levels, scatter, expected = list(totals), [0] * window.size, totals
    made: list[Proposal] = []
    seen: set[int] = set()
    spots = 1
    for place in _hot(window, totals):
        for number, share in _largest(plain, place, LEAST_SHARE * totals[place]):
            remedy = _remedy(share.crowd.schedule, window)
            if remedy is None or number in seen or len(made) == MOST_PROPOSALS:
                continue
            seen.add(number)
            _apply(share, remedy, levels, scatter)
            spots = max(spots, remedy.width)
            before, expected = expected, _crests(levels, scatter, spots)
            made.append(
                Proposal(
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


def _hot(window: Window, totals: Sequence[int]) -> list[int]:
    """The fullest buckets that have far more than the average, and than they would have if their hour was even."""
    in_hour = _HOUR // window.bucket
    if in_hour < 2:
        return []
    usual = sum(totals) / window.size
    hours = Counter[datetime]()
    for index, count in enumerate(totals):
        hours[_hour_of(window, index)] += count

    def is_hot(index: int) -> bool:
        even = hours[_hour_of(window, index)] / in_hour
        return totals[index] >= max(LEAST_HERD, HOT * usual, HOT * even)

    found = [index for index in range(window.size) if is_hot(index)]
    return sorted(found, key=lambda index: -totals[index])[:_HOTTEST]


def _hour_of(window: Window, index: int) -> datetime:
    at = window.at(index)
    return at - (at - EPOCH) % _HOUR


def _largest(shares: Sequence[Share], place: int, least: float) -> list[tuple[int, Share]]:
    """The shares that give a bucket at least so many fires, the largest first."""
    sizes = ((share.fires.get(place, 0) * share.crowd.jobs, number) for number, share in enumerate(shares))
    return [(number, shares[number]) for size, number in sorted(sizes, reverse=True) if size and size >= least]


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A change that spreads a schedule's fires over `width` buckets, which begin `back` buckets before them."""

    suggestion: Mapping[str, Any]
    back: int
    width: int


def _remedy(schedule: Schedule, window: Window) -> _Remedy | None:
    """A minute by hash where a cron fixes the minute or its step, a jitter otherwise; None where neither helps."""
    if isinstance(schedule, Cron):
        fields = schedule.expression.split()
        place = len(fields) - 5
        minute, step = fields[place], fields[place].removeprefix("*/")
        back, over = timedelta(0), timedelta(0)
        if minute.isdecimal():
            fields[place], back, over = "H", int(minute) * _MINUTE, _HOUR
        elif minute != step and step.isdecimal() and 60 % int(step) == 0:
            fields[place], over = f"H/{step}", int(step) * _MINUTE
        if over:
            width = buckets_of(over, window)
            patch = {"schedule": {"cron": " ".join(fields)}}
            return _Remedy(patch, back // window.bucket, width) if width > 1 else None
    first = islice(schedule.between(window.start - _MOMENT, window.end + LONGEST), _FIRST_FIRES)
    over = min((b - a for a, b in pairwise(first)), default=_HOUR)
    width = buckets_of(min(over, _HOUR), window)
    return _Remedy({"jitter": format_duration(min(over, _HOUR))}, 0, width) if width > 1 else None


def _apply(share: Share, remedy: _Remedy, levels: list[int], scatter: list[int]) -> None:
    jobs, size = share.crowd.jobs, len(levels)
    for index, count in spread(share.fires, jobs, 1, size).items():
        levels[index] -= count
    moved = {index - remedy.back: count for index, count in share.fires.items()}
    for index, count in spread(moved, jobs, remedy.width, size).items():
        levels[index] += count
        scatter[index] += count


def _crests(levels: Sequence[int], scatter: Sequence[int], spots: int) -> list[int]:
    """How full buckets may well get. A hash scatters: of k spots with a mean of m, one gets about m + √(2·m·ln k)."""
    return [level + round(sqrt(2 * count * log(spots))) for level, count in zip(levels, scatter, strict=True)]
