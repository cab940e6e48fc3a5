"""How it goes for a tenant: bounded counts, what waits where, and what the last runs did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("overview")

MOST_COUNTED: Final = 10_000
MOST_DIED: Final = 5_000
LIVE: Final = timedelta(seconds=30)  # how long after its last beat a node is taken to live


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """How many there are; one more than MOST_COUNTED stands for more."""

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
    """Nodes that live, shards that they hold, what they wait for, and how many seconds the shards are late at most."""

    nodes: int
    total: int
    held: int
    waits_for: str | None
    firing: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A job in trouble: dead, missed or late."""

    job_id: UUID
    job: str
    kind: str
    since: datetime
    scheduled_for: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a pool has for a tenant: `ready` waits, the first of it `since` then, and `busy` runs."""

    pool: str
    paused: bool
    workers: int
    slots: int
    ready: int
    busy: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt at a run, or, where `attempt` is None, a run that has had none."""

    key: RunKey
    task: str
    jitter_by: timedelta | None
    attempt: int | None
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime | None
    is_node: bool = False  # of a workflow run: it has no time of its own, and no job


async def sums(store: Store, tenant_id: int) -> Sums:
    row = await store.pool.fetchrow(_SQL.sums, tenant_id, MOST_COUNTED + 1)
    assert row is not None
    return Sums(**dict(row))


async def schedulers(store: Store) -> Schedulers:
    row = await store.pool.fetchrow(_SQL.scheduler, LIVE)
    assert row is not None
    return Schedulers(**dict(row))


async def troubles(store: Store, tenant_id: int, most: int) -> list[Trouble]:
    """The latest of each kind, the dead ones first."""
    return [Trouble(**dict(row)) for row in await store.pool.fetch(_SQL.troubles, tenant_id, most)]


async def waiting(store: Store, tenant_id: int) -> list[Waiting]:
    """By the pools' names."""
    return [Waiting(**dict(row)) for row in await store.pool.fetch(_SQL.pools, tenant_id, MOST_COUNTED + 1)]


async def started(store: Store, tenant_id: int, since: datetime, step: int) -> Mapping[datetime, tuple[int, int]]:
    """How many runs that were due in each step of so many seconds have started, and how many of them late."""
    rows = await store.pool.fetch(_SQL.started, tenant_id, since, step)
    return {row["at"]: (row["started"], row["late"]) for row in rows}


async def died(store: Store, tenant_id: int, since: datetime, step: int) -> Mapping[datetime, int]:
    """How many runs gave up in each step; the newest MOST_DIED are counted."""
    return {row["at"]: row["died"] for row in await store.pool.fetch(_SQL.died, tenant_id, since, step, MOST_DIED)}


async def tries(store: Store, tenant_id: int, start: datetime, end: datetime, most: int) -> list[Try]:
    """The attempts of the newest runs between two instants, the newest run first."""
    rows = await store.pool.fetch(_SQL.tries, tenant_id, start, end, most)
    return [Try(RunKey(job_id, at, slot), *others) for job_id, at, slot, *others in rows]


async def newest_jobs(store: Store, tenant_id: int, most: int) -> Sequence[UUID]:
    return [row["job_id"] for row in await store.pool.fetch(_SQL.some_jobs, tenant_id, most)]
