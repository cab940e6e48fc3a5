"""Pools: their settings and load, and the jobs that are moved between pools by the duration of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("pools")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool with its workers and waiting runs; `oldest` is the waiting time of its oldest run in seconds."""

    name: str
    description: str
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    concurrency: int | None
    rate: float | None
    timeout: timedelta | None
    created_at: datetime
    workers: int
    slots: int
    busy: int
    ready: int
    oldest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The settings of a pool: its maximum of running runs, of starts per second, and the default timeout of
    attempts.
    """

    description: str = ""
    paused: bool = False
    reason: str | None = None
    concurrency: int | None = None
    rate: float | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSignal:
    """The load of a pool, for autoscaling; `oldest` is the waiting time of its oldest run in seconds.

    `unknown` runs wait for `unknown_tasks` tasks that no live worker knows; `oldest_ready` leaves them out.
    """

    pool: str
    ready: int
    sent: int
    busy: int
    oldest: float
    workers: int
    slots: int
    concurrency: int | None
    unknown: int = 0
    unknown_tasks: int = 0
    oldest_ready: float = 0.0


async def list_pools(store: Store, after: str, limit: int, *, everywhere: bool) -> list[PoolRow]:
    return [PoolRow(**dict(row)) for row in await store.pool.fetch(_SQL.pools, None, after, everywhere, limit)]


async def get_pool(store: Store, name: str, *, everywhere: bool) -> PoolRow | None:
    row = await store.pool.fetchrow(_SQL.pools, name, "", everywhere, 1)
    return None if row is None else PoolRow(**dict(row))


async def save_pool(store: Store, name: str, wanted: PoolSettings, *, who: str) -> None:
    """Creates or replaces the settings of a pool."""
    bounds = (wanted.concurrency, wanted.rate, wanted.timeout)
    await store.pool.execute(_SQL.store_pool, name, wanted.description, wanted.paused, who, wanted.reason, *bounds)


async def pool_timeouts(store: Store, names: Sequence[str]) -> Mapping[str, timedelta]:
    """Returns the timeouts of those pools that have one."""
    return {row["name"]: row["timeout"] for row in await store.pool.fetch(_SQL.timeouts, names)}


async def autoscaling_signals(store: Store) -> list[PoolSignal]:
    """Returns the load of each pool, from which the number of workers can be decided."""
    return [PoolSignal(**dict(row)) for row in await store.pool.fetch(_SQL.signals)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedJob:
    """A job whose pool follows its duration; `served`: a live worker of the other pool knows its task."""

    job_id: UUID
    tenant_id: int
    revision: int
    is_long: bool
    served: bool


async def jobs_running_since(store: Store, pool_id: int, before: datetime, limit: int) -> list[UUID]:
    """Returns jobs with a run in this pool that was claimed before a moment; a sample if there are more."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.running_since, pool_id, before, limit)]


async def learned_jobs(store: Store, after: UUID, limit: int) -> list[UUID]:
    """Returns jobs after this one that were moved to the pool for long runs."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.learned, after, limit)]


async def routable_jobs(store: Store, job_ids: Sequence[UUID], short: int, long: int) -> list[RoutedJob]:
    """Returns those jobs that are in one of the two pools because of their duration."""
    return [RoutedJob(**dict(row)) for row in await store.pool.fetch(_SQL.routed, job_ids, short, long)]


async def move_job(store: Store, job: RoutedJob, pool_id: int, *, learned: bool, who: str, why: str) -> int | None:
    """Moves a job if it is unchanged since it was read; returns its new revision."""
    arguments = (job.job_id, job.revision, pool_id, learned, who, why)
    revision: int | None = await store.pool.fetchval(_SQL.change_pool, *arguments)
    return revision
