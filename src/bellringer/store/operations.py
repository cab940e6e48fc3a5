"""Bulk operations: one request that changes many jobs, runs or dead letters, and its progress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("operations")

MAX_FAILURES_KEPT: Final = 20
MAX_RUNNING_PER_TENANT: Final = 20
MAX_JOBS_SCANNED: Final = 5_000  # by one scan


class OperationJobFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Selects jobs; None selects all. `state` is enabled, paused, disabled or done."""

    q: str | None = None
    tag: str | None = None
    state: str | None = None
    pool: str | None = None
    task: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperation:
    """An operation to create."""

    tenant_id: int
    action: str
    filter: msgspec.Struct | None
    ids: Sequence[str] | None
    total: int
    total_is_least: bool
    rate: float | None
    who: str
    reason: str | None
    change: msgspec.Struct | None = None  # of jobs.update: the fields to set
    reverts: int | None = None  # of jobs.revert: the operation whose changes it takes back


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRow:
    """An operation as the API shows it."""

    operation_id: int
    action: str
    filter: Any
    named: int | None  # the number of given ids
    first_ids: Sequence[str] | None  # the first twenty of them
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
    change: Any
    reverts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedOperation:
    """An operation that a scheduler works on; `ids` are the next of the ids it was given."""

    operation_id: int
    tenant_id: int
    action: str
    filter: str | None  # JSON
    ids: Sequence[str] | None
    cursor: str | None  # JSON
    rate: float | None
    paced_at: datetime
    quota: float | None  # runs per minute, for actions that create runs
    spent_until: datetime  # when the quota allows the next run of the tenant's operations
    who: str
    reason: str | None
    created_at: datetime
    now: datetime
    change: str | None = None  # JSON; of a revert, that of the reverted operation
    reverts: int | None = None


@dataclass(kw_only=True)
class Progress:
    """The results of a pass; `ids_consumed` counts given ids, `cursor` is the position in a filtered list."""

    paced_at: datetime
    spent_until: datetime
    ids_consumed: int = 0
    cursor: str | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    is_finished: bool = False


async def create(store: Store, operation: NewOperation, limit: int = MAX_RUNNING_PER_TENANT) -> int | None:
    """Creates an operation; returns None if the tenant has reached its limit of running operations."""
    document = None if operation.filter is None else msgspec.json.encode(operation.filter).decode()
    number: int | None = await store.pool.fetchval(
        _SQL.create,
        operation.tenant_id,
        operation.action,
        document,
        operation.ids,
        operation.total,
        operation.total_is_least,
        operation.rate,
        operation.who,
        operation.reason,
        limit,
        None if operation.change is None else msgspec.json.encode(operation.change).decode(),
        operation.reverts,
    )
    return number


async def get(store: Store, operation_id: int, tenant_id: int) -> OperationRow | None:
    row = await store.pool.fetchrow(_SQL.get, operation_id, tenant_id)
    return _operation(row) if row else None


async def list_page(store: Store, tenant_id: int, before: int | None, limit: int) -> list[OperationRow]:
    """Returns a tenant's newest operations, or those before one."""
    return [_operation(row) for row in await store.pool.fetch(_SQL.list, tenant_id, before, limit)]


def _operation(row: asyncpg.Record) -> OperationRow:
    values = dict(row)
    values["filter"] = None if row["filter"] is None else msgspec.json.decode(row["filter"])
    values["change"] = None if row["change"] is None else msgspec.json.decode(row["change"])
    values["failures"] = msgspec.json.decode(row["failures"])
    return OperationRow(**values)


async def abort(store: Store, operation_id: int, tenant_id: int) -> str | None:
    """Stops an operation; returns its previous state, None if there is no such operation."""
    state: str | None = await store.pool.fetchval(_SQL.abort, operation_id, tenant_id)
    return state


@asynccontextmanager
async def claim_next(
    store: Store, after: int, limit: int, fires: Sequence[str] = ()
) -> AsyncIterator[tuple[ClaimedOperation, Progress] | None]:
    """Locks an operation of the next tenant, and stores its progress at the end.

    `fires` are the actions that create runs. The items are changed outside of this transaction. If the scheduler
    dies or is stopped meanwhile, the lock and the progress are lost and the next scheduler repeats the items, which
    is harmless.
    """
    async with store.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(_SQL.take_next, after, limit, list(fires))
        if row is None:
            yield None
            return
        found = ClaimedOperation(**dict(row))
        progress = Progress(paced_at=found.paced_at, spent_until=found.spent_until, cursor=found.cursor)
        yield found, progress
        await connection.execute(
            _SQL.save_progress,
            found.operation_id,
            progress.ids_consumed,
            progress.cursor,
            progress.done,
            progress.skipped,
            progress.failed,
            msgspec.json.encode(progress.failures[:MAX_FAILURES_KEPT]).decode(),
            progress.paced_at,
            progress.spent_until,
            progress.is_finished,
        )


async def prune(store: Store, before: datetime) -> None:
    """Deletes operations that ended before a time."""
    await store.pool.execute(_SQL.forget, before)


async def find_jobs(
    store: Store, tenant_id: int, f: OperationJobFilter, after: UUID | None, limit: int, until: datetime | None = None
) -> tuple[list[UUID], UUID | None]:
    """Returns the next matching jobs by id and the position to continue from; `until` leaves out jobs created later."""
    filters = (f.q, f.tag, f.state, f.pool, f.task, f.owner)
    rows = await store.pool.fetch(_SQL.jobs, tenant_id, after, MAX_JOBS_SCANNED, limit, *filters, until)
    return _page(rows, limit)


async def find_changed_jobs(
    store: Store, tenant_id: int, marker: str, after: UUID | None, limit: int
) -> tuple[list[UUID], UUID | None]:
    """Returns the next jobs that the operation `marker` has changed, and the position to continue from."""
    rows = await store.pool.fetch(_SQL.changed_jobs, tenant_id, after, MAX_JOBS_SCANNED, limit, marker)
    return _page(rows, limit)


def _page(rows: Sequence[asyncpg.Record], limit: int) -> tuple[list[UUID], UUID | None]:
    found = [row["job_id"] for row in rows if row["job_id"] is not None]
    if len(found) == limit:
        return found, found[-1]
    return found, rows[0]["stop"] if rows[0]["scanned"] == MAX_JOBS_SCANNED else None


async def create_run(store: Store, job_id: UUID, tenant_id: int, operation_id: int) -> bool:
    """Creates the run of a job for an operation, once; returns False if there is no such job."""
    there: bool = await store.pool.fetchval(_SQL.trigger, job_id, tenant_id, operation_id)
    return there
