"""The load of a tenant over time, derived from the attempts of its runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.runs import RunKey
from bellringer.store.overview import RunBar

WORKFLOW_TASKS: Final = frozenset({WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK})  # runs of these tasks occupy no worker
_DIGITS: Final = 3

Interval = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The runs that were due and had not started at the end of a step, and the average number of executing runs."""

    waiting: int
    busy: float


@dataclass(frozen=True, slots=True)
class _Run:
    due: datetime
    started: datetime | None
    ended: datetime | None
    is_node: bool


def loads_by_step(
    tries: Sequence[RunBar], starts: Sequence[datetime], step: timedelta, now: datetime, executing: int
) -> list[StepLoad]:
    """Returns the load of each step.

    Attempts are stored when they end. Of the runs without one, the `executing` that were due first count as executing
    since they were due, and the others as waiting. Workflow nodes wait for other nodes, so they never count as waiting.
    """
    if not starts:
        return []
    waiting, busy = _intervals(tries, now, executing)
    ends = [min(start + step, now) for start in starts]
    return [
        StepLoad(waiting=waits, busy=round(used / max((end - start).total_seconds(), 1.0), _DIGITS))
        for start, end, waits, used in zip(
            starts, ends, _count_at(waiting, ends), _overlaps(busy, starts, ends), strict=True
        )
    ]


def _intervals(tries: Sequence[RunBar], now: datetime, executing: int) -> tuple[list[Interval], list[Interval]]:
    by_run: dict[RunKey, list[RunBar]] = defaultdict(list)
    for one in tries:
        if one.task not in WORKFLOW_TASKS:
            by_run[one.key].append(one)
    runs = sorted((_run(key, some) for key, some in by_run.items()), key=lambda run: run.due)
    unfinished = [run for run in runs if run.started is None and run.ended is None and run.due <= now]
    busy = [(run.due, now) for run in unfinished[:executing]]
    busy += [
        (one.started_at, one.finished_at)
        for some in by_run.values()
        for one in some
        if one.started_at is not None and one.finished_at is not None
    ]
    waiting = [(run.due, now + timedelta.resolution) for run in unfinished[executing:] if not run.is_node]
    waiting += [(run.due, end) for run in runs if not run.is_node and (end := run.started or run.ended) is not None]
    return waiting, busy


def _run(key: RunKey, tries: Sequence[RunBar]) -> _Run:
    return _Run(
        due=key.scheduled_for + (tries[0].jitter_by or timedelta(0)),
        started=min((one.started_at for one in tries if one.started_at), default=None),
        ended=max((one.finished_at for one in tries if one.finished_at), default=None),
        is_node=tries[0].is_node,
    )


def _count_at(intervals: Sequence[Interval], moments: Sequence[datetime]) -> Iterator[int]:
    """Counts the intervals that contain each moment; an interval does not contain its end. Moments are in order."""
    begins = sorted(begin for begin, end in intervals if begin < end)
    ends = sorted(end for begin, end in intervals if begin < end)
    begun = over = 0
    for moment in moments:
        while begun < len(begins) and begins[begun] <= moment:
            begun += 1
        while over < len(ends) and ends[over] <= moment:
            over += 1
        yield begun - over


def _overlaps(intervals: Sequence[Interval], starts: Sequence[datetime], ends: Sequence[datetime]) -> list[float]:
    """Returns the seconds that all intervals together have in each step."""
    found = [0.0] * len(starts)
    length = (starts[1] - starts[0]) if len(starts) > 1 else ends[0] - starts[0]
    for since, until in intervals:
        first, last = (max(0, (moment - starts[0]) // length) for moment in (since, until))
        for n in range(first, min(last + 1, len(starts))):
            found[n] += max(0.0, (min(until, ends[n]) - max(since, starts[n])).total_seconds())
    return found
