"""Moves jobs without a chosen pool between the pool for short runs and the pool for long runs, by their usual
duration.

A job that usually takes more than a minute moves to the long pool, so that short runs do not wait for its slots. It
moves back when it usually takes less than half a minute. Claims and settlements write nothing for this.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.core.jobs import DEFAULT_POOL, LONG_POOL, LONG_RUN_THRESHOLD, SHORT_RUN_THRESHOLD
from bellringer.durations import format_duration
from bellringer.engine.monitor import MIN_BASELINE_ATTEMPTS, JobBaseline, load_baselines
from bellringer.store import pools
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

MAX_JOBS_PER_PASS: Final = 500  # in each direction
ACTOR: Final = "learned from its runs"
FIRST_JOB_ID: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedJobs:
    """The number of jobs that a pass moved, and the job after which the next pass continues."""

    to_long: int = 0
    to_short: int = 0
    after: UUID = FIRST_JOB_ID


def belongs_to_long(baseline: JobBaseline, *, is_long: bool) -> bool:
    """Decides whether a job belongs into the long pool. With too few known runs it stays where it is."""
    if baseline.runs < MIN_BASELINE_ATTEMPTS or baseline.median is None:
        return is_long
    return baseline.median >= SHORT_RUN_THRESHOLD if is_long else baseline.median > LONG_RUN_THRESHOLD


async def move_jobs(store: Store, catalog: Catalog, now: datetime, after: UUID = FIRST_JOB_ID) -> MovedJobs:
    """Moves jobs to the pool that fits their duration, if a live worker of that pool knows their task.

    Long jobs are found among the running runs; jobs that have become short are found among those moved before.
    """
    pool_ids = await catalog.pool_ids([DEFAULT_POOL, LONG_POOL])
    short, long = pool_ids[DEFAULT_POOL], pool_ids[LONG_POOL]
    slow = await pools.jobs_running_since(store, short, now - SHORT_RUN_THRESHOLD, MAX_JOBS_PER_PASS)
    moved = await pools.learned_jobs(store, after, MAX_JOBS_PER_PASS)
    found = await pools.routable_jobs(store, [*slow, *moved], short, long)
    known = await load_baselines(store, catalog, [job.job_id for job in found], now)
    counts = {True: 0, False: 0}
    for job in found:
        if job.job_id not in known or not job.served:
            continue
        _, baseline = known[job.job_id]
        wanted = belongs_to_long(baseline, is_long=job.is_long)
        if wanted != job.is_long:
            why = f"its runs usually take {_format_length(baseline.median)}"
            pool_id = long if wanted else short
            done = await pools.move_job(store, job, pool_id, learned=wanted, who=ACTOR, why=why)
            counts[wanted] += done is not None
    return MovedJobs(
        to_long=counts[True],
        to_short=counts[False],
        after=moved[-1] if len(moved) == MAX_JOBS_PER_PASS else FIRST_JOB_ID,
    )


def _format_length(length: timedelta | None) -> str:
    seconds = (length or timedelta(0)).total_seconds()
    return format_duration(timedelta(seconds=round(seconds, 0 if seconds >= 1 else 3)))
