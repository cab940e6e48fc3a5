"""The audit in the database: its entries, and the seals that chain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("audit")
SCAN: Final = 10_000  # entries that one look goes through
MOST_FORGOTTEN: Final = 50  # times 100 seals; an hour has 1,800 at most
START: Final = (0, 0)  # before every entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which entries are wanted; None: all."""

    who: str | None = None
    action: str | None = None
    kind: str | None = None
    target: str | None = None
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change; `name` is what a job is called now."""

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
class Look:
    """What one look has found, and behind which entry the next begins; None: there is nothing there."""

    entries: list[Entry]
    stop: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A hash over the seal before it and the entries up to a position."""

    seal_id: int
    last: tuple[int, int]
    count: int
    prev_hash: bytes
    hash: bytes
    sealed_at: datetime


async def newest(store: Store, tenant_id: int, before: int, wanted: Filter, most: int, scan: int = SCAN) -> Look:
    """The newest entries before one; it looks through so many, and may find fewer than are wanted."""
    return _look(await store.pool.fetch(_SQL.newest, tenant_id, before, scan, most, *_columns(wanted)), most, scan)


async def after(store: Store, tenant_id: int, behind: int, wanted: Filter, most: int, scan: int = SCAN) -> Look:
    """The oldest entries after one, in the same way."""
    return _look(await store.pool.fetch(_SQL.after, tenant_id, behind, scan, most, *_columns(wanted)), most, scan)


def _columns(wanted: Filter) -> tuple[object, ...]:
    return wanted.who, wanted.action, wanted.kind, wanted.target, wanted.start, wanted.end


def _look(rows: Sequence[asyncpg.Record], most: int, scan: int) -> Look:
    stop, scanned = rows[0]["stop"], rows[0]["scanned"]
    found = [_entry(row) for row in rows if row["audit_id"] is not None]
    if len(found) == most:
        stop = found[-1].audit_id
    elif scanned < scan:
        stop = None
    return Look(entries=found, stop=stop)


def _entry(row: asyncpg.Record) -> Entry:
    values = {name: row[name] for name in Entry.__dataclass_fields__}
    for side in ("before", "after"):
        values[side] = None if row[side] is None else msgspec.json.decode(row[side])
    return Entry(**values)


async def seal(store: Store, most: int, digest: Callable[[bytes, Sequence[Sequence[object]]], bytes]) -> int:
    """Seal the next entries, unless another node is at it; answers how many."""
    async with store.pool.acquire() as connection, connection.transaction():
        if not await connection.fetchval(_SQL.lock):
            return 0
        row = await connection.fetchrow(_SQL.last)
        last = _seal(row) if row else None
        rows = await connection.fetch(_SQL.unsealed, *(last.last if last else START), most)
        if not rows:
            return 0
        before = last.hash if last else b""
        hashed = digest(before, [tuple(r.values()) for r in rows])
        await connection.execute(_SQL.add, rows[-1]["tx"], rows[-1]["audit_id"], len(rows), before, hashed)
    return len(rows)


async def seals(store: Store, behind: int, most: int) -> list[Seal]:
    """Seals after one, in their order."""
    return [_seal(row) for row in await store.pool.fetch(_SQL.seals, behind, most)]


async def newest_seals(store: Store, before: int, most: int) -> list[Seal]:
    return [_seal(row) for row in await store.pool.fetch(_SQL.newest_seals, before, most)]


async def sealed(store: Store, behind: tuple[int, int], last: tuple[int, int], most: int) -> Sequence[Sequence[object]]:
    """What a seal was made of, as it is now."""
    return [tuple(row.values()) for row in await store.pool.fetch(_SQL.sealed, *behind, *last, most)]


async def unsealed(store: Store, behind: tuple[int, int]) -> int:
    """How many entries wait for a seal; no more than 100,000 are counted."""
    count: int = await store.pool.fetchval(_SQL.unsealed_count, *behind)
    return count


async def forget(store: Store, before: datetime) -> None:
    """Delete old seals with their entries, some at a time; in all, more than are made between two calls."""
    for _ in range(MOST_FORGOTTEN):
        if not await store.pool.fetchval(_SQL.forget, before):
            return


def _seal(row: asyncpg.Record) -> Seal:
    return Seal(
        seal_id=row["seal_id"],
        last=(row["last_tx"], row["last_id"]),
        count=row["count"],
        prev_hash=row["prev_hash"],
        hash=row["hash"],
        sealed_at=row["sealed_at"],
    )
