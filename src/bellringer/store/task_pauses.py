"""Tasks that are paused for a tenant, and how many runs of each task wait, run and die."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("task_pauses")

MAX_COUNTED: Final = 10_000  # runs of a pool, and dead letters; counts stop here


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPauseRow:
    """The pause of a task. While `resumed_at` is set, the runs that it has held are released at `release_rate`."""

    task_id: int
    name: str
    paused_at: datetime
    paused_by: str
    reason: str | None
    until_at: datetime | None
    resumed_at: datetime | None
    release_rate: float | None  # runs a second


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoad:
    """Runs of a task: ready for a worker (the first since `oldest`), waiting for a retry, running, held by a pause,
    and dead in the last hour.
    """

    task_id: int
    ready: int = 0
    retrying: int = 0
    running: int = 0
    held: int = 0
    dead: int = 0
    oldest: datetime | None = None


async def find_task(store: Store, tenant_id: int, name: str) -> int | None:
    """Returns the id of a task that the tenant may name."""
    task_id: int | None = await store.pool.fetchval(_SQL.find, tenant_id, name)
    return task_id


async def pause(
    store: Store, tenant_id: int, task_id: int, *, who: str, reason: str | None, until: datetime | None
) -> None:
    await store.pool.execute(_SQL.pause, tenant_id, task_id, who, reason, until)


async def resume(store: Store, tenant_id: int, task_id: int, *, who: str, rate: float | None) -> bool:
    """Ends a pause; returns False if there is none."""
    resumed: bool = await store.pool.fetchval(_SQL.resume, tenant_id, task_id, who, rate)
    return resumed


async def hold_runs(store: Store, tenant_id: int | None, task_id: int | None, *, scan: int | None, limit: int) -> int:
    """Holds waiting runs of one paused task, or of all; returns how many."""
    held: int = await store.pool.fetchval(_SQL.hold, tenant_id, task_id, scan, limit)
    return held


async def release_runs(store: Store, tenant_id: int | None, task_id: int | None, *, limit: int) -> int:
    """Releases runs of one task, or of all, whose pause has ended; returns how many."""
    released: int = await store.pool.fetchval(_SQL.release, tenant_id, task_id, limit)
    return released


async def end_expired(store: Store) -> int:
    """Ends pauses whose time is over; returns how many."""
    ended: int = await store.pool.fetchval(_SQL.end_over)
    return ended


async def load_tasks(store: Store, tenant_id: int) -> Mapping[int, TaskLoad]:
    """Returns the load of each task of a tenant that has any, by task id."""
    return {row["task_id"]: TaskLoad(**dict(row)) for row in await store.pool.fetch(_SQL.load, tenant_id, MAX_COUNTED)}


async def list_pauses(store: Store, tenant_id: int) -> Mapping[int, TaskPauseRow]:
    """Returns the tenant's pauses by task id."""
    return {row["task_id"]: TaskPauseRow(**dict(row)) for row in await store.pool.fetch(_SQL.pauses, tenant_id)}


async def count_pauses(store: Store) -> int:
    """Returns how many tasks are paused, over all tenants."""
    count: int = await store.pool.fetchval(_SQL.count)
    return count
