"""Route: a job whose pool nobody named, and of which nobody says how long it takes, goes where its runs belong.

One that usually takes more than a minute goes to the pool for long ones, so that short ones do not wait for its slots;
it comes back when it usually takes less than half of that. As in watching, nothing is written on the path of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.durations import format_duration
from bellringer.jobs import DEFAULT_POOL, LONG, LONG_POOL, NO_LONGER_LONG
from bellringer.lifecycle.watch import FEWEST, Baseline, baselines
from bellringer.store import routes
from bellringer.store.names import Names
from bellringer.store.pool import Store

MOST: Final = 500  # jobs of each kind a pass
WHO: Final = "learned from its runs"
FIRST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How many jobs a pass has moved, and behind which of those that are long the next one looks."""

    to_long: int = 0
    to_short: int = 0
    after: UUID = FIRST


def belongs_to_long(baseline: Baseline, *, is_long: bool) -> bool:
    """Where a job belongs by what is usual for it; it stays where it is, as long as too little is known."""
    if baseline.runs < FEWEST or baseline.median is None:
        return is_long
    return baseline.median >= NO_LONGER_LONG if is_long else baseline.median > LONG


async def route(store: Store, names: Names, now: datetime, after: UUID = FIRST) -> Moved:
    """Move the jobs that are in the wrong pool, as far as a live worker of the right one knows their task.

    A run of a minute shows while it is under way; those that have become short are looked for among the moved ones.
    """
    pools = await names.pool_ids([DEFAULT_POOL, LONG_POOL])
    short, long = pools[DEFAULT_POOL], pools[LONG_POOL]
    slow = await routes.under_way(store, short, now - NO_LONGER_LONG, MOST)
    moved = await routes.learned(store, after, MOST)
    found = await routes.routed(store, [*slow, *moved], short, long)
    known = await baselines(store, names, [job.job_id for job in found], now)
    counts = {True: 0, False: 0}
    for job in found:
        if job.job_id not in known or not job.served:
            continue
        _, baseline = known[job.job_id]
        wanted = belongs_to_long(baseline, is_long=job.is_long)
        if wanted != job.is_long:
            why = f"its runs usually take {_shown(baseline.median)}"
            pool_id = long if wanted else short
            done = await routes.reroute(store, job, pool_id, learned=wanted, who=WHO, why=why)
            counts[wanted] += done is not None
    return Moved(to_long=counts[True], to_short=counts[False], after=moved[-1] if len(moved) == MOST else FIRST)


def _shown(length: timedelta | None) -> str:
    seconds = (length or timedelta(0)).total_seconds()
    return format_duration(timedelta(seconds=round(seconds, 0 if seconds >= 1 else 3)))
