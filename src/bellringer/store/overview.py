"""The state of a tenant's jobs and runs, for the overview page. All counts are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Final
from uuid import UUID

from bellringer.core.jobs import HTTP_TASK
from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("overview")

MAX_COUNTED: Final = 10_000
MAX_ERROR_LENGTH: Final = 300  # characters
MAX_DEATHS_COUNTED: Final = 5_000
MAX_STRANDED_READ: Final = 1_000  # of all tenants
MAX_JOBS_LOOKED_AT: Final = 1_000
MAX_ROUND_TRIPS: Final = 3
NODE_LIVE_WITHIN: Final = timedelta(seconds=30)  # since the last heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCounts:
    """Counts of jobs, runs and slots; MAX_COUNTED + 1 stands for more."""

    now: datetime
    jobs: int
    paused: int
    failing: int
    late: int
    dead: int
    live: int
    slots: int
    busy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedulers:
    """The live schedulers, the shards they hold, what they wait for, and the lateness of the latest shard in
    seconds.
    """

    nodes: int
    total: int
    held: int
    waits_for: str | None
    firing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrouble:
    """A job in trouble: dead, missed, late or skipping."""

    job_id: UUID
    job: str
    kind: str
    since: datetime
    scheduled_for: datetime
    error: str | None = None  # of the latest dead run


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingPause:
    """A job that was paused because its last runs died (`pause_after_failures`)."""

    job_id: UUID
    job: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTask:
    """A task that `runs` wait for since `since` and that no live worker of their pool knows."""

    task: str
    pool: str
    since: datetime
    runs: int
    key: RunKey
    job: str | None  # of the first run; None: a send


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedJob:
    """A job that fires although the code of its app no longer declares it; `version` was the last that did."""

    job_id: UUID
    job: str
    app: str
    version: str | None
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBacklog:
    """A tenant's runs in a pool: `ready` runs wait, the first of them since `since`, and `busy` runs execute."""

    pool: str
    paused: bool
    workers: int
    slots: int
    ready: int
    busy: int
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJobs:
    """Jobs that are late, missed occurrences or skip them; MAX_COUNTED + 1 stands for more."""

    late: int
    missed: int
    skipping: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSuspension:
    """A tenant none of whose jobs run, since someone suspended it."""

    tenant: str
    since: datetime


@dataclass(frozen=True, slots=True)
class RunBar:
    """One attempt of a run; a run without attempts has `attempt` None."""

    key: RunKey
    task: str
    jitter_by: timedelta | None
    attempt: int | None
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime | None
    is_node: bool = False  # the run of a workflow node, which has neither a schedule nor a job


async def load_counts(store: Store, tenant_id: int) -> OverviewCounts:
    row = await store.pool.fetchrow(_SQL.counts, tenant_id, MAX_COUNTED + 1)
    assert row is not None
    return OverviewCounts(**dict(row))


async def load_schedulers(store: Store) -> Schedulers:
    row = await store.pool.fetchrow(_SQL.scheduler, NODE_LIVE_WITHIN)
    assert row is not None
    return Schedulers(**dict(row))


async def list_troubles(store: Store, tenant_id: int, limit: int) -> list[JobTrouble]:
    """Returns the latest troubles of each kind, dead jobs first."""
    return [
        JobTrouble(**dict(row)) for row in await store.pool.fetch(_SQL.troubles, tenant_id, limit, MAX_ERROR_LENGTH)
    ]


async def list_failing_pauses(store: Store, tenant_id: int, limit: int) -> list[FailingPause]:
    """Returns the jobs that were paused because their runs died, the latest first."""
    return [FailingPause(**dict(row)) for row in await store.pool.fetch(_SQL.failing_pauses, tenant_id, limit)]


async def list_unknown_tasks(store: Store, tenant_id: int, limit: int) -> list[UnknownTask]:
    """Returns the longest waiting tasks first; their runs are counted up to MAX_COUNTED + 1."""
    rows = await store.pool.fetch(_SQL.unknown_tasks, tenant_id, limit, MAX_COUNTED + 1)
    return [
        UnknownTask(task=task, pool=pool, since=since, runs=runs, job=job, key=RunKey(job_id, at, slot))
        for task, pool, since, runs, job_id, job, at, slot in rows
    ]


async def list_orphans(store: Store, tenant_id: int, limit: int) -> list[OrphanedJob]:
    """Returns jobs that fire although the code of their app no longer declares them."""
    return [OrphanedJob(**dict(row)) for row in await store.pool.fetch(_SQL.orphans, tenant_id, limit)]


async def count_late_jobs(store: Store, tenant_id: int) -> LateJobs:
    row = await store.pool.fetchrow(_SQL.late_jobs, tenant_id, MAX_COUNTED + 1)
    assert row is not None
    return LateJobs(**dict(row))


async def find_suspension(store: Store, tenant_id: int) -> TenantSuspension | None:
    row = await store.pool.fetchrow(_SQL.suspension, tenant_id)
    return None if row is None else TenantSuspension(**dict(row))


async def count_stranded(store: Store, tenant_id: int, after: timedelta) -> int:
    """Returns how many runs, claimed longer ago than this, no live worker executes; at most MAX_STRANDED_READ of all
    tenants are read.
    """
    count: int = await store.pool.fetchval(_SQL.stranded, tenant_id, after, MAX_STRANDED_READ)
    return count


async def needs_workers(store: Store, tenant_id: int) -> bool:
    """Whether an active job, among the newest MAX_JOBS_LOOKED_AT, runs in a pool that servers do not serve."""
    found: bool = await store.pool.fetchval(_SQL.needs_workers, tenant_id, HTTP_TASK, MAX_JOBS_LOOKED_AT)
    return found


async def measure_round_trip(store: Store, usual_seconds: float) -> float:
    """Returns the seconds of a round trip to the database: of the fastest of a few, until one is as fast as usual, so
    that a busy process is not taken for a slow database.
    """
    clock = asyncio.get_running_loop().time
    fastest = inf
    async with store.pool.acquire() as connection:
        for _ in range(MAX_ROUND_TRIPS):
            start = clock()
            await connection.execute(_SQL.round_trip)  # without arguments, so nothing is prepared first
            fastest = min(fastest, clock() - start)
            if fastest <= usual_seconds:
                break
    return fastest


async def list_live_tasks(store: Store) -> list[str]:
    """Returns the names of tasks that live workers know."""
    return [row["name"] for row in await store.pool.fetch(_SQL.live_tasks)]


async def pool_backlogs(store: Store, tenant_id: int) -> list[PoolBacklog]:
    """Returns the backlog of each pool, ordered by name."""
    return [PoolBacklog(**dict(row)) for row in await store.pool.fetch(_SQL.pools, tenant_id, MAX_COUNTED + 1)]


async def starts_by_step(
    store: Store, tenant_id: int, since: datetime, step: int
) -> Mapping[datetime, tuple[int, int, int]]:
    """Returns (started, late, missed) for the runs that were due in each step."""
    rows = await store.pool.fetch(_SQL.started, tenant_id, since, step)
    return {row["at"]: (row["started"], row["late"], row["missed"]) for row in rows}


async def deaths_by_step(store: Store, tenant_id: int, since: datetime, step: int) -> Mapping[datetime, int]:
    """Returns how many runs died in each step; only the newest MAX_DEATHS_COUNTED are counted."""
    return {
        row["at"]: row["died"] for row in await store.pool.fetch(_SQL.died, tenant_id, since, step, MAX_DEATHS_COUNTED)
    }


async def load_attempts(store: Store, tenant_id: int, start: datetime, end: datetime, limit: int) -> list[RunBar]:
    """Returns the attempts of the newest runs between two instants, newest run first."""
    rows = await store.pool.fetch(_SQL.attempts, tenant_id, start, end, limit)
    return [RunBar(RunKey(job_id, at, slot), *others) for job_id, at, slot, *others in rows]


async def list_claims(store: Store, tenant_id: int, limit: int) -> dict[RunKey, datetime]:
    """Returns the runs that workers hold, and since when."""
    rows = await store.pool.fetch(_SQL.claims, tenant_id, limit)
    return {RunKey(job_id, at, slot): claimed_at for job_id, at, slot, claimed_at in rows}


async def newest_jobs(store: Store, tenant_id: int, limit: int) -> Sequence[UUID]:
    return [row["job_id"] for row in await store.pool.fetch(_SQL.newest_jobs, tenant_id, limit)]
