"""A past for the pictures: runs that a scheduler and workers would have recorded, always the same ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from bellringer.schedule import parse_schedule

AGE: Final = timedelta(days=35)  # of the jobs
RECENT: Final = timedelta(hours=26)
MAX_PER_JOB: Final = 1600
# Median seconds of a run; the others take one second.
SECONDS: Final = {
    "sync stock": 0.9,
    "send receipts": 4.2,
    "nightly report": 252.0,
    "rebuild search": 41.0,
    "back up catalog": 940.0,
    "close the month": 388.0,
    "newsletter": 71.0,
    "sales forecast": 34.0,
}
# The share of runs that die, and the error of these.
FAILURES: Final = {
    "charge subscriptions": (
        0.35,
        "bookshop.CardExpired",
        "order 1042: the bank declined 49.90 EUR, the card has expired",
    ),
    "reorder titles": (0.1, "ConnectionError", "the warehouse did not respond within 10 s"),
}
JOBS: Final = "select job_id, name, schedules, created_at from bellringer.jobs where deleted_at is null order by name"
AGE_JOBS: Final = (
    "update bellringer.jobs set created_at = created_at - $1::interval, updated_at = updated_at - $1::interval"
)
RUNS: Final = """
insert into bellringer.runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id,
                             priority, cause, initial_state)
select job_id, at, 0, at, 1, tenant_id, task_id, revision, shard, pool_id, priority, 'schedule', 'queued'
from bellringer.jobs, unnest($2::timestamptz[]) at where job_id = $1
on conflict do nothing
"""
ATTEMPTS: Final = """
insert into bellringer.attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, revision,
                                 attempt, outcome, ends_as, error)
select job_id, at, 0, begun, ended, tenant_id, worker_id, revision, 1, outcome::bellringer.outcome,
       ends_as::bellringer.run_state, error
from bellringer.jobs,
  (select max(worker_id) as worker_id from bellringer.workers where pools ? 'short') worker,
  unnest($2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::text[], $7::jsonb[])
    as past (at, begun, ended, outcome, ends_as, error)
where job_id = $1
on conflict do nothing
"""
# Kinds of events from which the scheduler derives present troubles are left out.
EVENTS: Final = """
insert into bellringer.events (at, tenant_id, kind, job_id, scheduled_for, attempt, data)
select finished_at, tenant_id, 'failed', job_id, scheduled_for, attempt,
       jsonb_build_object('outcome', outcome, 'error', error ->> 'type')
from bellringer.attempts where ends_as = 'dead' order by finished_at
on conflict do nothing
"""
USAGE: Final = """
insert into bellringer.usage (minute, pool_id, tenant_id, started, late, missed, busy_ms)
select date_trunc('minute', attempt.scheduled_for), run.pool_id, run.tenant_id, count(*),
       count(*) filter (where attempt.started_at > attempt.scheduled_for + interval '5 s'), 0,
       sum(extract(epoch from attempt.finished_at - attempt.started_at) * 1000)
from bellringer.attempts attempt
join bellringer.runs run using (job_id, scheduled_for, slot)
where attempt.scheduled_for > bellringer.now() - interval '2 days'
group by 1, 2, 3
on conflict do nothing
"""


async def write_history(dsn: str) -> int:
    """Writes the past of all jobs up to now; returns the number of runs."""
    connection = await asyncpg.connect(dsn)
    try:
        written = 0
        for job in await connection.fetch(JOBS):
            past = list(_attempts(job["name"], job["schedules"], job["created_at"]))
            if past:
                columns = [list(column) for column in zip(*past, strict=True)]
                await connection.execute(
                    "select bellringer.ensure_days($1::date[])", sorted({at.date() for at in columns[0]})
                )
                await connection.execute(RUNS, job["job_id"], columns[0])
                await connection.execute(ATTEMPTS, job["job_id"], *columns)
                written += len(past)
        await connection.execute(EVENTS)
        await connection.execute(USAGE)
        await connection.execute(AGE_JOBS, AGE)
        await connection.execute("analyze")
        return written
    finally:
        await connection.close()


def _attempts(name: str, schedules: str, until: datetime) -> Iterator[tuple[Any, ...]]:
    """Yields occurrence, start, end, outcome, final state and error of each run of a job."""
    chance = random.Random(name)  # noqa: S311 - the same pictures every time
    for document in json.loads(schedules):
        schedule = parse_schedule(document)
        often = (
            schedule.next_after(until) is not None
            and len(_occurrences(schedule, until - timedelta(hours=2), until)) > 1
        )
        occurrences = _occurrences(schedule, until - (RECENT if often else AGE), until)
        for at in occurrences[-MAX_PER_JOB:]:
            hour = at.astimezone(UTC).hour
            late = chance.lognormvariate(-4.6, 0.7) + (chance.expovariate(0.4) if chance.random() < 0.004 else 0)
            median = SECONDS.get(name, 1.0) * (1 + 0.3 * (8 <= hour <= 17))
            took = median * chance.lognormvariate(0, 0.25)
            begun = at + timedelta(seconds=late)
            share, *error = FAILURES.get(name, (0.0,))
            died = chance.random() < share
            outcome, ends_as = ("failed", "dead") if died else ("ok", "succeeded")
            yield at, begun, begun + timedelta(seconds=took), outcome, ends_as, _error(*error) if died else None


def _error(kind: str, message: str) -> str:
    return json.dumps(
        {"type": kind, "message": message, "traceback": f"Traceback (most recent call last):\n{kind}: {message}"}
    )


def _occurrences(schedule: Any, start: datetime, end: datetime) -> list[datetime]:
    return list(schedule.between(start, end))
