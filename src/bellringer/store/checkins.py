"""Check-ins, their pings, and the events that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.checkins import MAX_PINGS_KEPT, CheckinRecord, PingKind
from bellringer.schedule import parse_schedule, to_document
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("checkins")
MAX_CHECKINS: Final = 500  # per tenant
_MAX_PING_ID: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPing:
    """A ping to record. `body` is the beginning of the request's body."""

    kind: PingKind
    exit_code: int | None = None
    origin: str | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRow:
    """A recorded ping."""

    ping_id: int
    at: datetime
    kind: str
    exit_code: int | None
    duration: timedelta | None
    origin: str | None
    body: str | None


async def add(store: Store, checkin: CheckinRecord, token_hash: bytes) -> bool:
    """Creates a check-in; returns False if the tenant has reached its limit or has one of this name."""
    c = checkin
    schedule = msgspec.json.encode(to_document(c.schedule)).decode()
    values = (c.checkin_id, c.tenant_id, c.name, c.description, schedule, c.grace, c.owner, list(c.tags), token_hash)
    made = await store.pool.fetchval(_SQL.add, *values, c.changed_by, MAX_CHECKINS)
    return made is not None


async def get(store: Store, tenant_id: int, name: str) -> CheckinRecord | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, name)
    return None if row is None else _checkin(row)


async def list_page(store: Store, tenant_id: int, after: str | None, limit: int) -> list[CheckinRecord]:
    return [_checkin(row) for row in await store.pool.fetch(_SQL.list, tenant_id, after, limit)]


async def change(
    store: Store, tenant_id: int, name: str, who: str, changed: Callable[[CheckinRecord, datetime], CheckinRecord]
) -> CheckinRecord | None:
    """Replaces a check-in with what `changed` returns, under the lock of its row. None if there is no such check-in."""
    async with store.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(_SQL.lock_by_name, tenant_id, name)
        if row is None:
            return None
        c = changed(_checkin(row), await connection.fetchval("select bellringer.now()"))
        await connection.execute(
            _SQL.change,
            tenant_id,
            c.checkin_id,
            c.description,
            msgspec.json.encode(to_document(c.schedule)).decode(),
            c.grace,
            c.owner,
            list(c.tags),
            c.paused_at,
            c.state,
            c.due_at,
            c.deadline_at,
            c.started_at,
            c.down_since,
            who,
        )
    return await get(store, tenant_id, name)


async def set_token(store: Store, tenant_id: int, name: str, token_hash: bytes, who: str) -> bool:
    """Replaces the token; the old URL stops working at once."""
    done: str = await store.pool.execute(_SQL.set_token, tenant_id, name, token_hash, who)
    return done == "UPDATE 1"


async def delete(store: Store, tenant_id: int, name: str) -> bool:
    done: str = await store.pool.execute(_SQL.delete, tenant_id, name)
    return done == "DELETE 1"


async def find_by_token(store: Store, token_hash: bytes) -> tuple[UUID, int] | None:
    """Returns the id and the tenant of a check-in, by the hash of its token."""
    row = await store.pool.fetchrow(_SQL.id_by_token, token_hash)
    return None if row is None else (row["checkin_id"], row["tenant_id"])


ApplyPing = Callable[[CheckinRecord, PingKind, datetime], tuple[CheckinRecord, str | None]]


async def record_ping(store: Store, token_hash: bytes, ping: NewPing, apply: ApplyPing) -> CheckinRecord | None:
    """Records a ping, what `apply` returns for it, and its event, in one transaction under the lock of the check-in."""
    async with store.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(_SQL.lock_by_token, token_hash)
        if row is None:
            return None
        before, now = _checkin(row), await connection.fetchval("select bellringer.clock()")
        after, event = apply(before, ping.kind, now)
        await connection.execute(
            _SQL.record_ping,
            after.checkin_id,
            after.state,
            after.due_at,
            after.deadline_at,
            after.started_at,
            after.pinged_at,
            after.succeeded_at,
            after.down_since,
            after.duration,
            after.pings,
        )
        duration = None if ping.kind is PingKind.START else after.duration
        values = (after.tenant_id, after.checkin_id, now, ping.kind.value, ping.exit_code, duration)
        await connection.execute(_SQL.add_ping, *values, ping.origin, ping.body)
        await connection.execute(_SQL.forget_pings_of, after.checkin_id, MAX_PINGS_KEPT)
        if event is not None:
            await _add_event(connection, before, event, ping, now)
    return after


async def _add_event(connection: Any, before: CheckinRecord, event: str, ping: NewPing, now: datetime) -> None:
    data: Mapping[str, Any] = {"checkin": before.name}
    at = now
    if event == "checkin_recovered":
        at = before.down_since or now
        data = {**data, "since": at}
    elif event == "checkin_failed":
        lines = (ping.body or "").strip().splitlines()
        status = "" if ping.exit_code is None else f"exit code {ping.exit_code}"
        data = {**data, "exit_code": ping.exit_code, "error": ": ".join(filter(None, (status, *lines[-1:]))) or None}
    written = msgspec.json.encode(data).decode()
    await connection.execute(_SQL.add_event, now, before.tenant_id, event, before.checkin_id, at, written)


async def report_missed(store: Store, limit: int) -> int:
    """Marks check-ins whose deadline has passed as down, each with one event; returns how many."""
    return len(await store.pool.fetch(_SQL.miss, limit))


async def list_pings(store: Store, tenant_id: int, checkin_id: UUID, before: int | None, limit: int) -> list[PingRow]:
    """Returns pings, newest first."""
    rows = await store.pool.fetch(_SQL.pings, tenant_id, checkin_id, before or _MAX_PING_ID, limit)
    return [PingRow(**dict(row)) for row in rows]


async def prune_pings(store: Store, before: datetime) -> None:
    """Deletes pings older than a time."""
    await store.pool.execute(_SQL.prune_pings, before)


def _checkin(row: asyncpg.Record) -> CheckinRecord:
    schedule = parse_schedule(msgspec.json.decode(row["schedule"]))
    return CheckinRecord(**{**dict(row), "schedule": schedule, "tags": tuple(row["tags"])})
