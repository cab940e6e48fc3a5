"""The timeline: an hour of runs behind, and an hour of fires ahead, job by job."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Final
from uuid import UUID

from bellringer.api.calls import Call
from bellringer.errors import InvalidSchedule
from bellringer.forecasting import fires
from bellringer.store import job_history, jobs, overview
from bellringer.store.job_history import PastRun
from bellringer.store.jobs import Job
from bellringer.wire.overview import Bar, Lane, Timeline

SPAN: Final = timedelta(hours=1)
MOST_LANES: Final = 20
MOST_BARS: Final = 25  # of a lane, so 500 of all
MOST_FIRES: Final = 60  # of a lane


async def timeline(call: Call, now: datetime, busiest: Sequence[UUID]) -> Timeline:
    """The busiest jobs; where these are few, the newest too, so that who has just begun sees what is to come."""
    tenant_id = call.tenant_id
    newest = [] if len(busiest) >= MOST_LANES else await overview.newest_jobs(call.reads, tenant_id, MOST_LANES)
    wanted = list(dict.fromkeys([*busiest, *newest]))[:MOST_LANES]
    found = {job.job_id: job for job in await jobs.some(call.store, wanted, tenant_id)}
    shown = [found[job_id] for job_id in wanted if job_id in found]  # a send has no job
    bars: dict[UUID, list[PastRun]] = defaultdict(list)
    ids = [job.job_id for job in shown]
    for run in await job_history.last_runs(
        call.reads, tenant_id, ids, MOST_BARS + 1, start=now - SPAN, before=(now + timedelta(seconds=1), 0)
    ):
        bars[run.key.job_id].append(run)
    # In a thread: a schedule may take a while to find its next time.
    lanes = await asyncio.to_thread(lambda: [_lane(job, bars[job.job_id], now) for job in shown])
    cut = any(len(of_job) > MOST_BARS for of_job in bars.values())
    told = [lane for lane in lanes if lane.runs or lane.fires]
    return Timeline(start=now - SPAN, end=now + SPAN, lanes=told, truncated=cut)


def _lane(job: Job, runs: Sequence[PastRun], now: datetime) -> Lane:
    coming = _coming(job, now)
    return Lane(
        job_id=str(job.job_id),
        job=job.name,
        runs=[
            Bar(
                run_id=run.key.id,
                state=run.state,
                scheduled_for=run.key.scheduled_for,
                started_at=run.started_at,
                finished_at=run.finished_at,
            )
            for run in runs[:MOST_BARS]
        ],
        fires=coming[:MOST_FIRES],
        more=len(coming) > MOST_FIRES,
    )


def _coming(job: Job, now: datetime) -> list[datetime]:
    """The next fires of a job, and one more where there are more; of a delay, the one that its timer waits for."""
    if job.paused_at is not None:
        return []
    definition = job.definition()
    if definition.delay is not None:
        return [job.timer_at] if job.timer_at is not None and now < job.timer_at <= now + SPAN else []
    try:
        return list(islice(fires(definition, now, now + SPAN), MOST_FIRES + 1))
    except InvalidSchedule:  # such as days off that are not known here
        return []
