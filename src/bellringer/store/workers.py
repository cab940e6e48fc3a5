"""Worker rows: who is there, what each can do, who fell silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
import msgspec

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker, as a person reads it."""

    worker_id: int
    name: str
    host: str
    pid: int
    version: str
    pools: Mapping[str, int]
    state: str
    busy: int
    asked: str | None  # quiet or stop: what an operator wants of it
    started_at: datetime
    seen_at: datetime
    age: float
    tasks: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a worker says of itself when it joins."""

    name: str
    host: str
    pid: int
    version: str
    pools: Mapping[str, int]
    task_ids: Sequence[int]
    dispatch: str = "postgresql"


async def join(store: Store, who: Introduction) -> int:
    pools = msgspec.json.encode(who.pools).decode()
    about = (who.name, who.host, who.pid, who.version, pools, who.task_ids, who.dispatch)
    number: int = await store.pool.fetchval(_SQL.join, *about)
    return number


async def beat(store: Store, worker_id: int, busy: int, state: str) -> str | None:
    """Say that this worker lives; answers what it is to do: work, quiet or stop.

    None: it was declared lost, and its work is others' now.
    """
    asked: str | None = await store.pool.fetchval(_SQL.beat, worker_id, busy, state)
    return asked


async def ask(store: Store, worker_id: int, what: str) -> bool:
    """Ask a worker to be quiet or to stop; False: it is not there any more."""
    return await store.pool.fetchval(_SQL.ask, worker_id, what) is not None


async def leave(store: Store, worker_id: int) -> None:
    await store.pool.execute(_SQL.leave, worker_id)


async def lose(store: Store, silent: timedelta) -> list[int]:
    """Declare lost whoever was silent for so long; answers all the lost who still hold work."""
    await store.pool.execute(_SQL.lose, silent)
    return [row["worker_id"] for row in await store.pool.fetch(_SQL.indebted)]


async def listing(store: Store) -> list[WorkerRow]:
    return [_row(row) for row in await store.pool.fetch(_SQL.list)]


async def get(store: Store, worker_id: int) -> WorkerRow | None:
    row = await store.pool.fetchrow(_SQL.get, worker_id)
    return None if row is None else _row(row)


def _row(row: asyncpg.Record) -> WorkerRow:
    return WorkerRow(**{**dict(row), "pools": msgspec.json.decode(row["pools"])})


async def forget(store: Store) -> None:
    await store.pool.execute(_SQL.forget)
