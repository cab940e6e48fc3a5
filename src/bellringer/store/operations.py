"""Operations in the database: one request that concerns many, and how far it has come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("operations")

MOST_FAILURES: Final = 20  # that are told
MOST_RUNNING: Final = 20  # of a tenant
SCAN: Final = 5_000  # jobs that one look passes by


class JobFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which jobs; None: all. `state` is enabled, paused or disabled."""

    q: str | None = None
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An operation to be made."""

    tenant_id: int
    action: str
    filter: msgspec.Struct | None
    ids: Sequence[str] | None
    total: int
    total_is_least: bool
    rate: float | None
    who: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation as it is stored."""

    operation_id: int
    action: str
    filter: Any
    named: int | None  # how many ids it was given
    total: int
    total_is_least: bool
    done: int
    skipped: int
    failed: int
    failures: Sequence[Mapping[str, Any]]
    rate: float | None
    state: str
    who: str
    reason: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An operation that is being worked on; `ids` are the next of those that were named."""

    operation_id: int
    tenant_id: int
    action: str
    filter: str | None  # JSON
    ids: Sequence[str] | None
    cursor: str | None  # JSON
    rate: float | None
    paced_at: datetime
    quota: float | None  # of runs a minute, if it makes some …
    spent_until: datetime  # … and when it allows the next one, after all that the tenant's operations have made
    who: str
    reason: str | None
    created_at: datetime
    now: datetime


@dataclass(kw_only=True)
class Progress:
    """What a pass has done; `looked` counts named ids, `cursor` says how far a filter was followed."""

    paced_at: datetime
    spent_until: datetime
    looked: int = 0
    cursor: str | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    ends: bool = False


async def create(store: Store, asked: Asked, most: int = MOST_RUNNING) -> int | None:
    """None: so many of the tenant are running already."""
    document = None if asked.filter is None else msgspec.json.encode(asked.filter).decode()
    number: int | None = await store.pool.fetchval(
        _SQL.create,
        asked.tenant_id,
        asked.action,
        document,
        asked.ids,
        asked.total,
        asked.total_is_least,
        asked.rate,
        asked.who,
        asked.reason,
        most,
    )
    return number


async def get(store: Store, operation_id: int, tenant_id: int) -> Operation | None:
    row = await store.pool.fetchrow(_SQL.get, operation_id, tenant_id)
    return _operation(row) if row else None


async def listing(store: Store, tenant_id: int, before: int | None, most: int) -> list[Operation]:
    """A tenant's newest, those before one."""
    return [_operation(row) for row in await store.pool.fetch(_SQL.list, tenant_id, before, most)]


def _operation(row: asyncpg.Record) -> Operation:
    values = dict(row)
    values["filter"] = None if row["filter"] is None else msgspec.json.decode(row["filter"])
    values["failures"] = msgspec.json.decode(row["failures"])
    return Operation(**values)


async def abort(store: Store, operation_id: int, tenant_id: int) -> str | None:
    """Let it do no more; answers the state that it was in, None if there is none."""
    state: str | None = await store.pool.fetchval(_SQL.abort, operation_id, tenant_id)
    return state


@asynccontextmanager
async def taken(
    store: Store, after: int, most: int, fires: Sequence[str] = ()
) -> AsyncIterator[tuple[Taken, Progress] | None]:
    """An operation of the next tenant, locked while it is worked on; its progress is written at the end.

    `fires` are the actions that make runs. The items are done beside this transaction. A node that dies or is stopped
    meanwhile loses the lock, and with it the progress: the next one does the same items again, which changes nothing
    more.
    """
    async with store.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(_SQL.take, after, most, list(fires))
        if row is None:
            yield None
            return
        found = Taken(**dict(row))
        progress = Progress(paced_at=found.paced_at, spent_until=found.spent_until, cursor=found.cursor)
        yield found, progress
        await connection.execute(
            _SQL.save,
            found.operation_id,
            progress.looked,
            progress.cursor,
            progress.done,
            progress.skipped,
            progress.failed,
            msgspec.json.encode(progress.failures[:MOST_FAILURES]).decode(),
            progress.paced_at,
            progress.spent_until,
            progress.ends,
        )


async def forget(store: Store, before: datetime) -> None:
    """Delete those that ended before then."""
    await store.pool.execute(_SQL.forget, before)


async def jobs(
    store: Store, tenant_id: int, f: JobFilter, after: UUID | None, most: int, until: datetime | None = None
) -> tuple[list[UUID], UUID | None]:
    """The next jobs that fit, by their ids, and where to go on; `until` leaves out those that were made later."""
    filters = (f.q, f.tag, f.state, f.pool, f.task, f.owner)
    rows = await store.pool.fetch(_SQL.jobs, tenant_id, after, SCAN, most, *filters, until)
    found = [row["job_id"] for row in rows if row["job_id"] is not None]
    if len(found) == most:
        return found, found[-1]
    return found, rows[0]["stop"] if rows[0]["scanned"] == SCAN else None


async def run_for(store: Store, job_id: UUID, tenant_id: int, operation_id: int) -> bool:
    """Run a job for an operation, once; False: there is no such job."""
    there: bool = await store.pool.fetchval(_SQL.run_for, job_id, tenant_id, operation_id)
    return there
