"""Webhook endpoints, the position up to which each received events, and its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventRow
from bellringer.store.queries import load

_SQL = load("webhooks")
MAX_ENDPOINTS: Final = 50  # per tenant
_MAX_DELIVERY_ID: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class EventPosition:
    """A position in the events: a transaction, as text, and an event id."""

    tx: str
    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRow:
    """A webhook endpoint; empty `kinds` means all kinds."""

    endpoint_id: int
    tenant_id: int
    url: str
    kinds: Sequence[str]
    description: str
    secret_id: str = field(repr=False)
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    created_by: str
    changed_at: datetime

    def wants(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """A delivery and the run that carries it. A delivery without an event is a test."""

    delivery_id: int
    endpoint_id: int
    event_id: int | None
    kind: str
    key: RunKey
    made_at: datetime
    replay_of: int | None


async def add(
    store: Store, tenant_id: int, url: str, kinds: Sequence[str], description: str, secret_id: str, who: str
) -> int | None:
    """Creates an endpoint; returns None if the tenant has reached its limit."""
    values = (tenant_id, url, list(kinds), description, secret_id, who, MAX_ENDPOINTS)
    made: int | None = await store.pool.fetchval(_SQL.add, *values)
    return made


async def get(store: Store, tenant_id: int, endpoint_id: int) -> EndpointRow | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, endpoint_id)
    return None if row is None else EndpointRow(**dict(row))


async def list_page(store: Store, tenant_id: int, after: int, limit: int) -> list[EndpointRow]:
    return [EndpointRow(**dict(row)) for row in await store.pool.fetch(_SQL.list, tenant_id, after, limit)]


async def change(store: Store, endpoint: EndpointRow) -> bool:
    """Replaces the settings of an endpoint; returns False if there is no such endpoint."""
    e = endpoint
    done = await store.pool.execute(
        _SQL.change, e.tenant_id, e.endpoint_id, e.url, list(e.kinds), e.description, e.enabled
    )
    return done == "UPDATE 1"


async def delete(store: Store, tenant_id: int, endpoint_id: int) -> str | None:
    """Deletes an endpoint and returns the id of its secret; None if there is no such endpoint."""
    secret_id: str | None = await store.pool.fetchval(_SQL.delete, tenant_id, endpoint_id)
    return secret_id


async def pending_endpoints(store: Store, limit: int) -> list[tuple[EndpointRow, EventPosition]]:
    """Returns enabled endpoints with undelivered events, and the position of each."""
    found = []
    for row in await store.pool.fetch(_SQL.with_new_events, limit):
        values = dict(row)
        position = EventPosition(values.pop("sent_tx"), values.pop("sent_event"))
        found.append((EndpointRow(**values), position))
    return found


async def events_after(
    store: Store, tenant_id: int, after: EventPosition, limit: int
) -> list[tuple[EventRow, EventPosition]]:
    """Returns the next events of a tenant in commit order."""
    rows = await store.pool.fetch(_SQL.new_events, tenant_id, after.tx, after.event_id, limit)
    return [
        (
            EventRow(
                event_id=row["event_id"],
                at=row["at"],
                kind=row["kind"],
                job=row["job"],
                key=_key(row),
                attempt=row["attempt"],
                data=msgspec.json.decode(row["data"]),
            ),
            EventPosition(row["tx"], row["event_id"]),
        )
        for row in rows
    ]


async def task_of_run(store: Store, tenant_id: int, key: RunKey) -> str | None:
    """Returns the name of the task of a run, or None if the run is past retention."""
    name: str | None = await store.pool.fetchval(_SQL.task_of_run, key.job_id, key.scheduled_for, key.slot, tenant_id)
    return name


async def advance(store: Store, endpoint_id: int, seen: EventPosition, to: EventPosition) -> bool:
    """Advances the position of an endpoint; returns False if another process has done so."""
    done = await store.pool.execute(_SQL.advance, endpoint_id, seen.tx, seen.event_id, to.tx, to.event_id)
    return done == "UPDATE 1"


async def record_delivery(
    store: Store, endpoint: EndpointRow, event_id: int | None, kind: str, key: RunKey, replay_of: int | None = None
) -> int | None:
    """Records the run that carries an event; returns None if it is recorded already, or the endpoint is gone."""
    number: int | None = await store.pool.fetchval(
        _SQL.add_delivery,
        endpoint.tenant_id,
        endpoint.endpoint_id,
        event_id,
        kind,
        key.job_id,
        key.scheduled_for,
        key.slot,
        replay_of,
    )
    return number


async def list_deliveries(
    store: Store, tenant_id: int, endpoint_id: int, before: int | None, limit: int
) -> list[DeliveryRow]:
    """Returns the deliveries to an endpoint, newest first."""
    rows = await store.pool.fetch(_SQL.deliveries, tenant_id, endpoint_id, before or _MAX_DELIVERY_ID, limit)
    return [_delivery(row) for row in rows]


async def get_delivery(store: Store, tenant_id: int, delivery_id: int) -> DeliveryRow | None:
    row = await store.pool.fetchrow(_SQL.delivery, tenant_id, delivery_id)
    return None if row is None else _delivery(row)


async def prune_deliveries(store: Store, before: datetime) -> None:
    """Deletes deliveries made before a time."""
    await store.pool.execute(_SQL.forget, before)


def _key(row: Any) -> RunKey:
    return RunKey(row["job_id"], row["scheduled_for"], row["slot"])


def _delivery(row: Any) -> DeliveryRow:
    names = ("delivery_id", "endpoint_id", "event_id", "kind", "made_at", "replay_of")
    return DeliveryRow(**{name: row[name] for name in names}, key=_key(row))
