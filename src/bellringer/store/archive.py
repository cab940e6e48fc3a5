"""Batches of runs past retention, between the history and the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from bellringer.core.archive import ArchivePart
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.runs import AttemptRow, AttemptSummary, RunRow, read_run

_SQL = load("archive")
_ATTEMPTS: Final = msgspec.json.Decoder(list[AttemptRow])
COUNT_TIMEOUT_SECONDS: Final = 600  # counting a large day reads all of it


class ArchiveCursor(NamedTuple):
    """The position after a run, in the order of its index."""

    scheduled_for: datetime | None = None
    shard: int | None = None
    job_id: UUID | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveBatch:
    """A batch, and how much of it has been written."""

    batch_id: int
    day: date
    opened_at: datetime
    state: str
    tenant_id: int
    after: ArchiveCursor
    parts: int
    rows: int
    bytes: int


class ExpiredRun(NamedTuple):
    run: RunRow
    attempts: Sequence[AttemptRow]
    cursor: ArchiveCursor


class ArchiveBacklog(NamedTuple):
    """Batches that are not in the archive yet, those whose last step failed, and the age of the oldest."""

    batches: int
    failing: int
    oldest_seconds: float


async def next_batch(store: Store) -> ArchiveBatch | None:
    """Returns the batch to work on: the oldest, but those that failed come last."""
    row = await store.pool.fetchrow(_SQL.next)
    if row is None:
        return None
    values = dict(row)
    after = ArchiveCursor(*(values.pop(f"after_{name}") for name in ("at", "shard", "job", "slot")))
    return ArchiveBatch(**values, after=after)


async def next_tenant(store: Store, batch: ArchiveBatch, tenant_id: int) -> tuple[int, str] | None:
    """Returns the first tenant from `tenant_id` on that has runs in the batch."""
    row = await store.pool.fetchrow(_of(batch, _SQL.next_tenant), tenant_id)
    return None if row is None else (row["tenant_id"], row["name"])


async def read_page(
    store: Store, batch: ArchiveBatch, tenant_id: int, after: ArchiveCursor, limit: int
) -> list[ExpiredRun]:
    """Returns the next runs of a tenant with their attempts."""
    found = []
    for row in await store.pool.fetch(_of(batch, _SQL.page), tenant_id, *after, limit):
        attempts = _ATTEMPTS.decode(row["attempts"]) if row["attempts"] is not None else []
        cursor = ArchiveCursor(row["scheduled_for"], row["shard"], row["job_id"], row["slot"])
        found.append(ExpiredRun(read_run(row, AttemptSummary.of(attempts)), attempts, cursor))
    return found


async def add_part(store: Store, batch: ArchiveBatch, tenant_id: int, part: ArchivePart, after: ArchiveCursor) -> None:
    """Records a part that was written, and moves the position behind it."""
    values = (tenant_id, part.path, part.rows, part.bytes, part.sha256)
    await store.pool.execute(_SQL.add_part, batch.batch_id, batch.parts + 1, *values, *after)


async def list_parts(store: Store, batch: ArchiveBatch) -> list[ArchivePart]:
    rows = await store.pool.fetch(_SQL.parts, batch.batch_id)
    return [ArchivePart(**{name: row[name] for name in ArchivePart.__struct_fields__}) for row in rows]


async def count_rows(store: Store, batch: ArchiveBatch) -> int:
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute(f"set local statement_timeout = '{COUNT_TIMEOUT_SECONDS} s'")
        count: int = await connection.fetchval(_of(batch, _SQL.count), timeout=COUNT_TIMEOUT_SECONDS)
    return count


async def mark_archived(store: Store, batch: ArchiveBatch) -> None:
    await store.pool.execute(_SQL.set_state, batch.batch_id, "archived")


async def drop_batch(store: Store, batch: ArchiveBatch) -> None:
    """Drops the tables of a batch that is in the archive."""
    await store.pool.execute(_SQL.drop, batch.batch_id)


async def record_failure(store: Store, batch: ArchiveBatch, problem: str) -> None:
    await store.pool.execute(_SQL.fail, batch.batch_id, problem)


async def backlog(store: Store) -> ArchiveBacklog:
    row = await store.pool.fetchrow(_SQL.waiting)
    assert row is not None
    return ArchiveBacklog(**dict(row))


async def unfinished(store: Store) -> list[dict[str, Any]]:
    """Returns the batches that are not in the archive yet, as the doctor shows them."""
    return [dict(row) for row in await store.pool.fetch(_SQL.status)]


def _of(batch: ArchiveBatch, statement: str) -> str:
    return statement.replace("_BATCH", f"_{int(batch.batch_id)}")
