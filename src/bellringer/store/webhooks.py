"""Webhook endpoints in the database: who wants to be told, how far each was told, and by which runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from bellringer.runs import RunKey
from bellringer.store.events import Event
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("webhooks")
MOST: Final = 50  # endpoints of a tenant
_LATEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Place:
    """How far the events were read: a transaction, as text, and an event of it."""

    tx: str
    event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Who wants to be told; no `kinds` means all."""

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
class Delivery:
    """What was sent: the run that carries it. Without an event it is a test."""

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
    """None: the tenant has as many as it may have."""
    values = (tenant_id, url, list(kinds), description, secret_id, who, MOST)
    made: int | None = await store.pool.fetchval(_SQL.add, *values)
    return made


async def get(store: Store, tenant_id: int, endpoint_id: int) -> Endpoint | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, endpoint_id)
    return None if row is None else Endpoint(**dict(row))


async def listing(store: Store, tenant_id: int, after: int, most: int) -> list[Endpoint]:
    return [Endpoint(**dict(row)) for row in await store.pool.fetch(_SQL.listing, tenant_id, after, most)]


async def change(store: Store, endpoint: Endpoint) -> bool:
    """Make it what is given. False: there is none."""
    e = endpoint
    done = await store.pool.execute(
        _SQL.change, e.tenant_id, e.endpoint_id, e.url, list(e.kinds), e.description, e.enabled
    )
    return done == "UPDATE 1"


async def delete(store: Store, tenant_id: int, endpoint_id: int) -> str | None:
    """Answers the id of its secret; None: there was none."""
    secret_id: str | None = await store.pool.fetchval(_SQL.delete, tenant_id, endpoint_id)
    return secret_id


async def waiting(store: Store, most: int) -> list[tuple[Endpoint, Place]]:
    """Endpoints with something to tell, and how far each was told."""
    found = []
    for row in await store.pool.fetch(_SQL.waiting, most):
        values = dict(row)
        place = Place(values.pop("told_tx"), values.pop("told_event"))
        found.append((Endpoint(**values), place))
    return found


async def news(store: Store, tenant_id: int, after: Place, most: int) -> list[tuple[Event, Place]]:
    """The next events of a tenant, in the order in which they became final."""
    rows = await store.pool.fetch(_SQL.news, tenant_id, after.tx, after.event_id, most)
    return [
        (
            Event(
                event_id=row["event_id"],
                at=row["at"],
                kind=row["kind"],
                job=row["job"],
                key=_key(row),
                attempt=row["attempt"],
                data=msgspec.json.decode(row["data"]),
            ),
            Place(row["tx"], row["event_id"]),
        )
        for row in rows
    ]


async def move(store: Store, endpoint_id: int, seen: Place, to: Place) -> bool:
    """Say how far it was told. False: somebody else has."""
    done = await store.pool.execute(_SQL.move, endpoint_id, seen.tx, seen.event_id, to.tx, to.event_id)
    return done == "UPDATE 1"


async def delivered(
    store: Store, endpoint: Endpoint, event_id: int | None, kind: str, key: RunKey, replay_of: int | None = None
) -> int | None:
    """Remember which run carries an event. None: that is known already, or the endpoint is gone."""
    number: int | None = await store.pool.fetchval(
        _SQL.delivered,
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


async def deliveries(store: Store, tenant_id: int, endpoint_id: int, before: int | None, most: int) -> list[Delivery]:
    """What was sent to an endpoint, the newest first."""
    rows = await store.pool.fetch(_SQL.deliveries, tenant_id, endpoint_id, before or _LATEST, most)
    return [_delivery(row) for row in rows]


async def delivery(store: Store, tenant_id: int, delivery_id: int) -> Delivery | None:
    row = await store.pool.fetchrow(_SQL.delivery, tenant_id, delivery_id)
    return None if row is None else _delivery(row)


async def forget(store: Store, before: datetime) -> None:
    """What was sent before then."""
    await store.pool.execute(_SQL.forget, before)


def _key(row: Any) -> RunKey:
    return RunKey(row["job_id"], row["scheduled_for"], row["slot"])


def _delivery(row: Any) -> Delivery:
    names = ("delivery_id", "endpoint_id", "event_id", "kind", "made_at", "replay_of")
    return Delivery(**{name: row[name] for name in names}, key=_key(row))
