"""Registered workers: their pools and tasks, heartbeats, and which of them are lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("workers")

RESPONSE_TIME: Final = timedelta(seconds=3)  # a claim without a response in this time counts as unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker, as the API shows it."""

    worker_id: int
    name: str
    host: str
    pid: int
    version: str
    pools: Mapping[str, int]
    state: str
    busy: int
    asked: str | None  # quiet or stop, if an operator requests it
    started_at: datetime
    seen_at: datetime
    age: float
    tasks: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistration:
    """The data that a worker registers with."""

    name: str
    host: str
    pid: int
    version: str
    pools: Mapping[str, int]
    task_ids: Sequence[int]
    dispatch: str = "postgresql"
    process: UUID | None = None  # one id for all registrations of a process


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The response to a heartbeat: what an operator requests, and up to when claims can be confirmed."""

    requested: str  # work, quiet or stop
    settled_at: datetime  # responses to claims made before this time have arrived, or never will


async def join(store: Store, who: WorkerRegistration) -> int:
    pools = msgspec.json.encode(who.pools).decode()
    about = (who.name, who.host, who.pid, who.version, pools, who.task_ids, who.dispatch, who.process)
    number: int = await store.pool.fetchval(_SQL.join, *about)
    return number


async def record_heartbeat(
    store: Store, worker_id: int, busy: int, state: str, confirmed_at: datetime | None = None
) -> Heartbeat | None:
    """Records a heartbeat. Returns None if the worker was declared lost and its runs belong to others."""
    row = await store.pool.fetchrow(_SQL.heartbeat, worker_id, busy, state, confirmed_at, RESPONSE_TIME)
    return None if row is None else Heartbeat(requested=row["asked"], settled_at=row["settled_at"])


async def held_before(store: Store, worker_id: int, moment: datetime) -> set[tuple[RunKey, int]]:
    """Returns the attempts that a worker holds and claimed before a moment."""
    rows = await store.pool.fetch(_SQL.held_before, worker_id, moment)
    return {(RunKey(r[0], r[1], r[2]), r[3]) for r in rows}


async def request_state(store: Store, worker_id: int, what: str) -> bool:
    """Asks a worker to be quiet or to stop; returns False if it is not live."""
    return await store.pool.fetchval(_SQL.ask, worker_id, what) is not None


async def remove(store: Store, worker_id: int) -> None:
    await store.pool.execute(_SQL.leave, worker_id)


async def declare_lost(store: Store, silent: timedelta) -> list[int]:
    """Declares workers lost that were silent for `silent`; returns all lost workers that still hold runs."""
    await store.pool.execute(_SQL.declare_lost, silent)
    return [row["worker_id"] for row in await store.pool.fetch(_SQL.lost_with_runs)]


async def list_all(store: Store) -> list[WorkerRow]:
    return [_row(row) for row in await store.pool.fetch(_SQL.list)]


async def get(store: Store, worker_id: int) -> WorkerRow | None:
    row = await store.pool.fetchrow(_SQL.get, worker_id)
    return None if row is None else _row(row)


async def find_names(store: Store, ids: Collection[int]) -> dict[int, str]:
    """Returns the names of these workers; workers that were forgotten are left out."""
    return {row["worker_id"]: row["name"] for row in await store.pool.fetch(_SQL.names, list(ids))} if ids else {}


def _row(row: asyncpg.Record) -> WorkerRow:
    return WorkerRow(**{**dict(row), "pools": msgspec.json.decode(row["pools"])})


async def prune(store: Store) -> None:
    await store.pool.execute(_SQL.forget)
