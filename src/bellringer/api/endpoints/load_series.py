"""The load of a tenant over time: the runs that waited and the runs that executed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    """How many runs waited for their first start, and how many executed, on average over a step."""

    waiting: float
    busy: float


def loads_by_step(
    tries: Sequence[RunBar],
    starts: Sequence[datetime],
    step: timedelta,
    now: datetime,
    claimed: Mapping[RunKey, datetime],
) -> list[StepLoad]:
    """Returns the load of each step. `tries` has the attempts that have ended, and runs without one; `claimed` the runs
    that a worker holds, with the time since when.
    """
    if not starts:
        return []
    waiting, busy = _intervals(tries, now, claimed)
    ends = [min(start + step, now) for start in starts]
    lengths = [max((end - start).total_seconds(), 1.0) for start, end in zip(starts, ends, strict=True)]
    return [
        StepLoad(waiting=round(waits / length, _DIGITS), busy=round(used / length, _DIGITS))
        for length, waits, used in zip(
            lengths, _overlaps(waiting, starts, ends, step), _overlaps(busy, starts, ends, step), strict=True
        )
    ]


def _intervals(
    tries: Sequence[RunBar], now: datetime, claimed: Mapping[RunKey, datetime]
) -> tuple[list[Interval], list[Interval]]:
    """Returns when runs waited, and when they executed. Workflow nodes wait for other nodes, so they are not counted as
    waiting.
    """
    by_run: dict[RunKey, list[RunBar]] = defaultdict(list)
    for one in tries:
        if one.task not in WORKFLOW_TASKS:
            by_run[one.key].append(one)
    waiting, busy = [], []
    for key, some in by_run.items():
        busy += [
            (one.started_at, one.finished_at)
            for one in some
            if one.started_at is not None and one.finished_at is not None
        ]
        if key in claimed:
            busy.append((claimed[key], now))
        if not some[0].is_node:
            due = key.scheduled_for + (some[0].jitter_by or timedelta(0))
            began = [one.started_at or one.finished_at for one in some]
            waiting.append((due, min((at for at in [*began, claimed.get(key)] if at is not None), default=now)))
    return waiting, busy


def _overlaps(
    intervals: Sequence[Interval], starts: Sequence[datetime], ends: Sequence[datetime], step: timedelta
) -> list[float]:
    """Returns the seconds that all intervals together have in each step."""
    found = [0.0] * len(starts)
    for since, until in intervals:
        first, last = (max(0, (moment - starts[0]) // step) for moment in (since, until))
        for n in range(first, min(last + 1, len(starts))):
            found[n] += max(0.0, (min(until, ends[n]) - max(since, starts[n])).total_seconds())
    return found
