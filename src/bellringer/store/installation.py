"""What all tenants share, as people look at it: tasks, pools and shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("installation")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task that workers have told of; `workers` counts the live ones that know it."""

    name: str
    doc: str
    defaults: Mapping[str, Any]
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskRow):
    """With the JSON Schema of its arguments, and some of those that know it, by number and name."""

    schema: Mapping[str, Any]
    who: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool, who works for it, and what waits in it; `oldest` is for how many seconds."""

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
    """What a person chooses of a pool: how many of its runs are under way at most, how many start a second, and the
    timeout of attempts whose job says none."""

    description: str = ""
    paused: bool = False
    reason: str | None = None
    concurrency: int | None = None
    rate: float | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """How much a pool has to do, and who is there to do it; `oldest`: for how many seconds its first run has waited."""

    pool: str
    ready: int
    sent: int
    busy: int
    oldest: float
    workers: int
    slots: int
    concurrency: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A shard, who may fire it, and when it has something to do next; `late`: for how many seconds it should have."""

    shard: int
    holder: UUID | None
    node: str | None
    token: int
    region: str | None
    next_at: datetime | None
    timer_at: datetime | None
    late: float


async def tasks(store: Store, after: str, limit: int) -> list[TaskRow]:
    rows = await store.pool.fetch(_SQL.tasks, after, limit)
    return [TaskRow(**{**dict(row), "defaults": msgspec.json.decode(row["defaults"])}) for row in rows]


async def task(store: Store, name: str) -> TaskDetail | None:
    row = await store.pool.fetchrow(_SQL.task, name)
    if row is None:
        return None
    read = {field: msgspec.json.decode(row[field]) for field in ("defaults", "schema")}
    return TaskDetail(**{**dict(row), **read, "who": [(number, called) for number, called in row["who"]]})


async def pools(store: Store, after: str, limit: int, *, everywhere: bool) -> list[PoolRow]:
    return [PoolRow(**dict(row)) for row in await store.pool.fetch(_SQL.pools, None, after, everywhere, limit)]


async def pool(store: Store, name: str, *, everywhere: bool) -> PoolRow | None:
    row = await store.pool.fetchrow(_SQL.pools, name, "", everywhere, 1)
    return None if row is None else PoolRow(**dict(row))


async def keep_pool(store: Store, name: str, wanted: PoolSettings, *, who: str) -> None:
    """Make a pool what is given; one that is not there begins to exist."""
    bounds = (wanted.concurrency, wanted.rate, wanted.timeout)
    await store.pool.execute(_SQL.keep_pool, name, wanted.description, wanted.paused, who, wanted.reason, *bounds)


async def timeouts(store: Store, names: Sequence[str]) -> Mapping[str, timedelta]:
    """The timeouts of those of these pools that have one."""
    return {row["name"]: row["timeout"] for row in await store.pool.fetch(_SQL.timeouts, names)}


async def signals(store: Store) -> list[Signal]:
    """What those go by who decide how many workers there are to be."""
    return [Signal(**dict(row)) for row in await store.pool.fetch(_SQL.signals)]


async def shards(store: Store) -> list[ShardRow]:
    return [ShardRow(**dict(row)) for row in await store.pool.fetch(_SQL.shards)]
