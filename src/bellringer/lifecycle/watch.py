"""Watch: tell what is late, what takes far longer than usual, and which job outgrows its interval.

Everything is looked for beside the path of a run, by one node for all; claims and settles write nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final
from uuid import UUID

from bellringer.reasons import SILENT
from bellringer.runs import RunKey
from bellringer.schedule import Schedule
from bellringer.store import events
from bellringer.store.events import History, Kind, News, Running
from bellringer.store.names import Names
from bellringer.store.pool import Store

MOST: Final = 1_000  # late runs a pass
MOST_RUNNING: Final = 500
LAST: Final = 20  # attempts that make a baseline …
FEWEST: Final = 5  # … and without so many there is none
LOOK: Final = 200  # attempts among which they are searched
SHORTEST: Final = timedelta(seconds=1)  # no schedule comes more often, so no shorter run can outgrow one
NEVER_SLOW: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a pass told of: runs that wait, and occurrences that are not even born; `more`: it was cut off."""

    waiting: int
    unborn: int
    more: bool


async def watch(store: Store, now: datetime) -> Watched:
    """Tell of what should have started by now."""
    looked, waiting = await events.tell_waiting(store, now, MOST)
    unborn = await events.tell_unborn(store, now, MOST)
    return Watched(waiting=waiting, unborn=unborn, more=MOST in {looked, unborn})


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is usual for a job: of its last attempts that ended well, and of its next two occurrences."""

    runs: int = 0
    median: timedelta | None = None
    longest: timedelta | None = None
    interval: timedelta | None = None

    @property
    def slow_after(self) -> timedelta | None:
        """A run that takes longer than this is slow; none, as long as too little is known."""
        if self.runs < FEWEST or self.median is None or self.longest is None:
            return None
        return max(2 * self.longest, 3 * self.median, NEVER_SLOW)

    @property
    def outgrown(self) -> bool:
        """Whether it usually takes longer than the time to its next occurrence."""
        known = self.runs >= FEWEST and self.median is not None and self.interval is not None
        return known and self.median > self.interval  # type: ignore[operator] # both are known


def usual(took: Sequence[float], schedules: Iterable[Schedule], now: datetime) -> Baseline:
    """The baseline of durations in seconds, and of the schedules that a job runs by."""
    return Baseline(
        runs=len(took),
        median=timedelta(seconds=median(took)) if took else None,
        longest=timedelta(seconds=max(took)) if took else None,
        interval=interval_of(schedules, now),
    )


def interval_of(schedules: Iterable[Schedule], now: datetime) -> timedelta | None:
    """The time between the next two occurrences of all schedules together."""
    coming: set[datetime] = set()
    for schedule in schedules:
        first = schedule.next_after(now)
        second = None if first is None else schedule.next_after(first)
        coming |= {moment for moment in (first, second) if moment is not None}
    if len(coming) < 2:
        return None
    earliest, following, *_ = sorted(coming)
    return following - earliest


def judge(run: Running, history: History, baseline: Baseline, now: datetime) -> list[News]:
    """What is to be told of a run under way, and of its job: of a job, once a day."""
    news = []
    limit, took = baseline.slow_after, now - run.claimed_at
    if limit is not None and took > limit:
        data = {"running_for": took.total_seconds(), "usual": _seconds(baseline.median)}
        data["longest"] = _seconds(baseline.longest)
        news.append(
            News(tenant_id=history.tenant_id, kind=Kind.SLOW, key=run.key, attempt=run.attempt, data=data),
        )
    if baseline.outgrown:
        day = RunKey(history.job_id, now.replace(hour=0, minute=0, second=0, microsecond=0))
        data = {"usual": _seconds(baseline.median), "interval": _seconds(baseline.interval)}
        news.append(News(tenant_id=history.tenant_id, kind=Kind.OUTGROWN, key=day, data=data))
    return news


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a pass told of."""

    slow: int
    outgrown: int


async def compare(store: Store, names: Names, now: datetime) -> Compared:
    """Compare what runs, on workers that are there, with what is usual for its job."""
    running = await events.running(store, now - SHORTEST, MOST_RUNNING, SILENT)
    known = await baselines(store, names, sorted({run.key.job_id for run in running}), now)
    news = [n for run in running if run.key.job_id in known for n in judge(run, *known[run.key.job_id], now)]
    told = await events.tell(store, now, news)
    return Compared(slow=told[Kind.SLOW], outgrown=told[Kind.OUTGROWN])


async def baseline(store: Store, names: Names, job_id: UUID, now: datetime, *, tenant_id: int) -> Baseline | None:
    """What is usual for a job; None where there is no such job."""
    known = await baselines(store, names, [job_id], now)
    if job_id not in known or known[job_id][0].tenant_id != tenant_id:
        return None
    return known[job_id][1]


async def baselines(
    store: Store, names: Names, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, tuple[History, Baseline]]:
    """What is usual for jobs, each with what that was found from."""
    if not job_ids:
        return {}
    found = await events.histories(store, job_ids, LOOK, LAST)
    schedules = await names.schedules({number for history in found for number in history.schedule_ids})
    return {h.job_id: (h, usual(h.took, [schedules[n] for n in h.schedule_ids if n in schedules], now)) for h in found}


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
