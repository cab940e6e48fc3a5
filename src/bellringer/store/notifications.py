"""Notification channels and routes, incidents, and messages with the runs that deliver them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.notifications import (
    Incident,
    NotificationDecision,
    NotificationEvent,
    NotificationMessage,
    PlannedMessage,
    RouteRules,
    Subject,
)
from bellringer.core.quiet_hours import QuietHours, parse_quiet_hours, quiet_hours_document
from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventRow
from bellringer.store.queries import load

_SQL = load("notifications")
MAX_CHANNELS: Final = 50  # per tenant
MAX_ROUTES: Final = 100  # per tenant
_MAX_NUMBER: Final = (1 << 63) - 1
_MAX_UUID: Final = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRow:
    """A channel; `secret_id` refers to the sealed URL or routing key."""

    channel_id: int
    tenant_id: int
    name: str
    kind: str
    settings: Mapping[str, Any]
    secret_id: str | None = field(repr=False)
    enabled: bool
    created_at: datetime
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """A stored route: the part that decides, and the rest."""

    route: RouteRules
    channel: str
    enabled: bool
    created_at: datetime
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRoute:
    """The fields of a route that a user sets."""

    name: str
    channel_id: int
    enabled: bool
    tenants: Sequence[str]
    kinds: Sequence[str]
    severity: str
    jobs: Sequence[str]
    tags: Sequence[str]
    owners: Sequence[str]
    group_by: str
    wait: timedelta
    min_interval: timedelta
    repeat_after: timedelta | None
    quiet: QuietHours | None
    recoveries: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRow:
    """A message; `key` is the run that delivers it, None while it has not been sent."""

    notification_id: int
    channel: str
    route: str | None
    incident_ids: Sequence[UUID]
    reason: str
    message: NotificationMessage
    made_at: datetime
    key: RunKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """An incident for lists."""

    incident_id: UUID
    route: str
    group_key: str
    opened_at: datetime
    resolved_at: datetime | None
    last_at: datetime
    severity: str
    count: int
    subjects: Mapping[str, Subject]
    more: int
    sent: int
    sent_at: datetime | None
    next_at: datetime | None
    held: bool


# Channels


class ChannelInUse(Exception):
    """Routes refer to the channel."""


async def put_channel(
    store: Store,
    tenant_id: int,
    name: str,
    *,
    kind: str,
    settings: Mapping[str, Any],
    secret_id: str | None,
    enabled: bool,
    who: str,
) -> int | None:
    """Creates or replaces a channel; returns None if the tenant has reached its limit."""
    document = msgspec.json.encode(settings).decode()
    values = (tenant_id, name, kind, document, secret_id, enabled, who, MAX_CHANNELS)
    made: int | None = await store.pool.fetchval(_SQL.put_channel, *values)
    return made


async def get_channel(store: Store, tenant_id: int, name: str) -> ChannelRow | None:
    row = await store.pool.fetchrow(_SQL.channel, tenant_id, name)
    return None if row is None else _channel(row)


async def get_channel_by_id(store: Store, tenant_id: int, channel_id: int) -> ChannelRow | None:
    row = await store.pool.fetchrow(_SQL.channel_by_id, tenant_id, channel_id)
    return None if row is None else _channel(row)


async def list_channels(store: Store, tenant_id: int, after: str | None, limit: int) -> list[ChannelRow]:
    return [_channel(row) for row in await store.pool.fetch(_SQL.channels, tenant_id, after, limit)]


async def delete_channel(store: Store, tenant_id: int, name: str) -> ChannelRow | None:
    """Deletes a channel; returns it, or None if there is none. Raises ChannelInUse."""
    found = await get_channel(store, tenant_id, name)
    if found is not None:
        try:
            await store.pool.execute(_SQL.delete_channel, tenant_id, name)
        except asyncpg.ForeignKeyViolationError:
            raise ChannelInUse from None
    return found


async def has_foreign_routes(store: Store, tenant_id: int, channel: str) -> bool:
    """Whether a route of the channel sends events of other tenants."""
    found: bool = await store.pool.fetchval(_SQL.has_foreign_routes, tenant_id, channel)
    return found


# Routes


async def put_route(store: Store, tenant_id: int, new: NewRoute, who: str) -> int | None:
    """Creates or replaces a route; returns None if the tenant has reached its limit."""
    quiet = None if new.quiet is None else msgspec.json.encode(quiet_hours_document(new.quiet)).decode()
    made: int | None = await store.pool.fetchval(
        _SQL.put_route,
        tenant_id,
        new.name,
        new.channel_id,
        new.enabled,
        list(new.tenants),
        list(new.kinds),
        new.severity,
        list(new.jobs),
        list(new.tags),
        list(new.owners),
        new.group_by,
        new.wait,
        new.min_interval,
        new.repeat_after,
        quiet,
        new.recoveries,
        who,
        MAX_ROUTES,
    )
    return made


async def get_route(store: Store, tenant_id: int, name: str) -> RouteRow | None:
    row = await store.pool.fetchrow(_SQL.route, tenant_id, name)
    return None if row is None else _route(row)


async def list_routes(store: Store, tenant_id: int, after: str | None, limit: int) -> list[RouteRow]:
    return [_route(row) for row in await store.pool.fetch(_SQL.routes, tenant_id, after, limit)]


async def delete_route(store: Store, tenant_id: int, name: str) -> bool:
    done: str = await store.pool.execute(_SQL.delete_route, tenant_id, name)
    return done == "DELETE 1"


# Decisions

Decide = Callable[[RouteRules, Sequence[Incident], Sequence[NotificationEvent], datetime], NotificationDecision]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPass:
    """The outcome of one pass; `more`: the pass hit its limit."""

    read: int = 0
    messages: int = 0
    more: bool = False


async def decide_messages(store: Store, decide: Decide, *, max_events: int, max_due: int) -> NotificationPass:
    """Reads new events and due incidents, and stores what `decide` returns for each route, in one transaction.

    Locks `notification_position`; if another node holds it, nothing happens.
    """
    async with store.pool.acquire() as connection, connection.transaction():
        position = await connection.fetchrow(_SQL.lock_position)
        if position is None:
            return NotificationPass()
        routes = [_route(row).route for row in await connection.fetch(_SQL.active_routes)]
        if not routes:
            if position["is_old"]:
                await connection.execute(_SQL.move_to_end)
            return NotificationPass()
        now = await connection.fetchval("select bellringer.now()")
        seen = await _seen_tenants(connection, routes)
        rows = await connection.fetch(_SQL.new_events, seen, position["tx"], position["event_id"], max_events)
        events = [_event(row) for row in rows]
        known = await _incidents(connection, routes, events, now, max_due)
        messages = due = 0
        for route in routes:
            mine = [incident for incident in known if incident.route_id == route.route_id]
            decision = decide(route, mine, events, now)
            await _write(connection, route, decision)
            messages += len(decision.messages)
            due += len(mine)
        if rows:
            await connection.execute(_SQL.move_position, rows[-1]["tx"], rows[-1]["event_id"])
    return NotificationPass(read=len(rows), messages=messages, more=len(rows) == max_events or due >= max_due)


async def _seen_tenants(connection: Any, routes: Sequence[RouteRules]) -> list[int]:
    """Returns the tenants whose events some route wants."""
    if all(not route.tenants for route in routes):
        return sorted({route.tenant_id for route in routes})
    tenants = await connection.fetch(_SQL.tenants)
    return [t["tenant_id"] for t in tenants if any(route.sees(t["tenant_id"], t["name"]) for route in routes)]


async def _incidents(
    connection: Any,
    routes: Sequence[RouteRules],
    events: Sequence[NotificationEvent],
    now: datetime,
    limit: int,
) -> list[Incident]:
    groups = sorted({(r.route_id, r.group_key(e)) for r in routes for e in events if r.matches(e)})
    rows = await connection.fetch(
        _SQL.incidents_for,
        [route_id for route_id, _ in groups],
        [key for _, key in groups],
        sorted({event.subject for event in events}),
        now,
        limit,
        [route.route_id for route in routes],
    )
    return [_incident(row) for row in rows]


async def _write(connection: Any, route: RouteRules, decision: NotificationDecision) -> None:
    if decision.incidents:
        documents = [{**msgspec.to_builtins(i), "tenant_id": route.tenant_id} for i in decision.incidents]
        await connection.execute(_SQL.put_incidents, msgspec.json.encode(documents).decode())
    for planned in decision.messages:
        await _add_message(connection, planned)


async def _add_message(connection: Any, planned: PlannedMessage) -> int:
    route, message = planned.route, planned.message
    values = (route.tenant_id, route.channel_id, route.route_id, list(planned.incident_ids), message.reason)
    number: int = await connection.fetchval(_SQL.add_message, *values, msgspec.json.encode(message).decode())
    return number


# Messages


async def add_test(store: Store, channel: ChannelRow, message: NotificationMessage) -> int:
    """Stores a test message; returns its number."""
    no_incidents: list[UUID] = []
    values = (channel.tenant_id, channel.channel_id, None, no_incidents, message.reason)
    number: int = await store.pool.fetchval(_SQL.add_message, *values, msgspec.json.encode(message).decode())
    return number


Send = Callable[[int, int, int, Mapping[str, Any]], Awaitable[RunKey]]


async def send_unsent(store: Store, send: Send, limit: int) -> int:
    """Calls `send` with number, tenant, channel and message of messages without a run, and records their runs."""
    rows = await store.pool.fetch(_SQL.unsent, limit)
    for row in rows:
        message = msgspec.json.decode(row["message"])
        key = await send(row["notification_id"], row["tenant_id"], row["channel_id"], message)
        await record_run(store, row["notification_id"], key)
    return len(rows)


async def record_run(store: Store, notification_id: int, key: RunKey) -> None:
    """Records the run that delivers a message, unless one is recorded."""
    await store.pool.execute(_SQL.record_run, notification_id, key.job_id, key.scheduled_for, key.slot)


async def is_superseded(store: Store, notification_id: int) -> bool:
    """Whether a later message covers all incidents of this one."""
    found: bool = await store.pool.fetchval(_SQL.is_superseded, notification_id)
    return found


async def list_history(
    store: Store, tenant_id: int, before: int | None, limit: int, *, channel: str | None = None
) -> list[NotificationRow]:
    """Returns messages, newest first."""
    rows = await store.pool.fetch(_SQL.history, tenant_id, before or _MAX_NUMBER, channel, limit)
    return [_notification(row) for row in rows]


async def list_incidents(
    store: Store, tenant_id: int, before: UUID | None, limit: int, *, only_open: bool
) -> list[IncidentRow]:
    """Returns incidents, newest first."""
    rows = await store.pool.fetch(_SQL.incidents, tenant_id, before or _MAX_UUID, only_open, limit)
    return [IncidentRow(**{**dict(row), "subjects": _subjects(row["subjects"])}) for row in rows]


async def prune(store: Store, before: datetime) -> None:
    """Deletes messages and resolved incidents older than a time."""
    await store.pool.execute(_SQL.forget, before)


# Rows


def _channel(row: asyncpg.Record) -> ChannelRow:
    return ChannelRow(**{**dict(row), "settings": msgspec.json.decode(row["settings"])})


_ROUTE_COLUMNS: Final = tuple(f.name for f in msgspec.structs.fields(RouteRules) if f.name != "quiet")


def _route(row: asyncpg.Record) -> RouteRow:
    quiet = None if row["quiet"] is None else parse_quiet_hours(msgspec.json.decode(row["quiet"]))
    names = ("channel", "enabled", "created_at", "changed_at", "changed_by")
    route = RouteRules(**{name: row[name] for name in _ROUTE_COLUMNS}, quiet=quiet)
    return RouteRow(route=route, **{name: row[name] for name in names})


def _incident(row: asyncpg.Record) -> Incident:
    values = dict(row)
    del values["tenant_id"]
    recovered = msgspec.json.decode(values.pop("recovered"), type=list[Subject])
    return Incident(**{**values, "subjects": _subjects(values["subjects"])}, recovered=recovered)


def _subjects(text: str) -> dict[str, Subject]:
    return msgspec.json.decode(text, type=dict[str, Subject])


def _event(row: asyncpg.Record) -> NotificationEvent:
    data = msgspec.json.decode(row["data"])
    key = RunKey(row["job_id"], row["scheduled_for"], row["slot"])
    names = ("event_id", "at", "kind", "job", "attempt")
    event = EventRow(**{name: row[name] for name in names}, key=key, data=data)
    return NotificationEvent(
        **{name: row[name] for name in (*names, "tenant_id", "tenant", "job_id", "task", "owner", "scheduled_for")},
        tags=tuple(row["tags"]),
        run_id=event.run.id if event.run else None,
        error=row["error"] or data.get("error"),
        data=data,
    )


def _notification(row: asyncpg.Record) -> NotificationRow:
    names = ("notification_id", "channel", "route", "incident_ids", "reason", "made_at")
    return NotificationRow(
        **{name: row[name] for name in names},
        message=msgspec.json.decode(row["message"], type=NotificationMessage),
        key=None if row["job_id"] is None else RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
    )
