"""Audit entries, and the seals that chain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("audit")
MAX_ENTRIES_SCANNED: Final = 10_000  # by one scan
MAX_PRUNE_CALLS: Final = 50  # of 100 seals each; an hour creates at most 1,800
FIRST_POSITION: Final = (0, 0)  # before every entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Selects audit entries; None selects all."""

    who: str | None = None
    action: str | None = None
    kind: str | None = None
    target: str | None = None
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One change; `name` is the job's present name."""

    audit_id: int
    at: datetime
    who: str
    origin: str | None
    request_id: str | None
    action: str
    kind: str
    target: str
    revision: int | None
    name: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditScan:
    """The entries found by one scan; `stop` is the entry after which the next scan continues, None at the end."""

    entries: list[AuditRow]
    stop: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRow:
    """A hash over the previous seal and the entries up to a position."""

    seal_id: int
    last: tuple[int, int]
    count: int
    prev_hash: bytes
    hash: bytes
    sealed_at: datetime


async def newest_before(
    store: Store, tenant_id: int, before: int, wanted: AuditFilter, limit: int, scan: int = MAX_ENTRIES_SCANNED
) -> AuditScan:
    """Returns the newest matching entries before one. Scans at most `scan` entries, so it may return fewer than
    `limit`.
    """
    return _read_scan(
        await store.pool.fetch(_SQL.newest, tenant_id, before, scan, limit, *_columns(wanted)), limit, scan
    )


async def oldest_after(
    store: Store, tenant_id: int, after: int, wanted: AuditFilter, limit: int, scan: int = MAX_ENTRIES_SCANNED
) -> AuditScan:
    """Returns the oldest matching entries after one; bounded like `newest_before`."""
    return _read_scan(await store.pool.fetch(_SQL.after, tenant_id, after, scan, limit, *_columns(wanted)), limit, scan)


def _columns(wanted: AuditFilter) -> tuple[object, ...]:
    return wanted.who, wanted.action, wanted.kind, wanted.target, wanted.start, wanted.end


def _read_scan(rows: Sequence[asyncpg.Record], limit: int, scan: int) -> AuditScan:
    stop, scanned = rows[0]["stop"], rows[0]["scanned"]
    found = [_entry(row) for row in rows if row["audit_id"] is not None]
    if len(found) == limit:
        stop = found[-1].audit_id
    elif scanned < scan:
        stop = None
    return AuditScan(entries=found, stop=stop)


def _entry(row: asyncpg.Record) -> AuditRow:
    values = {name: row[name] for name in AuditRow.__dataclass_fields__}
    for side in ("before", "after"):
        values[side] = None if row[side] is None else msgspec.json.decode(row[side])
    return AuditRow(**values)


async def add_seal(store: Store, limit: int, digest: Callable[[bytes, Sequence[Sequence[object]]], bytes]) -> int:
    """Seals the next entries, unless another scheduler is doing so; returns how many."""
    async with store.pool.acquire() as connection, connection.transaction():
        if not await connection.fetchval(_SQL.lock):
            return 0
        row = await connection.fetchrow(_SQL.last)
        last = _seal(row) if row else None
        rows = await connection.fetch(_SQL.unsealed, *(last.last if last else FIRST_POSITION), limit)
        if not rows:
            return 0
        before = last.hash if last else b""
        hashed = digest(before, [tuple(r.values()) for r in rows])
        await connection.execute(_SQL.add, rows[-1]["tx"], rows[-1]["audit_id"], len(rows), before, hashed)
    return len(rows)


async def seals_after(store: Store, after: int, limit: int) -> list[SealRow]:
    """Returns the seals of the audit log after a seal, in the order of the hash chain."""
    return [_seal(row) for row in await store.pool.fetch(_SQL.seals, after, limit)]


async def newest_seals_before(store: Store, before: int, limit: int) -> list[SealRow]:
    return [_seal(row) for row in await store.pool.fetch(_SQL.newest_seals, before, limit)]


async def sealed_entries(
    store: Store, after: tuple[int, int], last: tuple[int, int], limit: int
) -> Sequence[Sequence[object]]:
    """Returns the present contents of the entries that a seal covers."""
    return [tuple(row.values()) for row in await store.pool.fetch(_SQL.sealed, *after, *last, limit)]


async def count_unsealed(store: Store, after: tuple[int, int]) -> int:
    """Counts the entries without a seal, up to 100,000."""
    count: int = await store.pool.fetchval(_SQL.unsealed_count, *after)
    return count


async def prune(store: Store, before: datetime) -> None:
    """Deletes old seals with their entries in small batches; more in total than are created between two calls."""
    for _ in range(MAX_PRUNE_CALLS):
        if not await store.pool.fetchval(_SQL.forget, before):
            return


def _seal(row: asyncpg.Record) -> SealRow:
    return SealRow(
        seal_id=row["seal_id"],
        last=(row["last_tx"], row["last_id"]),
        count=row["count"],
        prev_hash=row["prev_hash"],
        hash=row["hash"],
        sealed_at=row["sealed_at"],
    )
