"""Announce: events become calls to those who want to be told of them. Each call is a run, so it is tried, seen and
given up like any other; an order's key keeps it from being made twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bellringer.errors import BellringerError, Conflict, NotFound
from bellringer.jobs import HTTP
from bellringer.lifecycle.send import Order, send
from bellringer.policies import Retry
from bellringer.runs import Cause, RunKey
from bellringer.schedule.instants import write_instant
from bellringer.store import runs, webhooks
from bellringer.store.events import Event, Kind
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.webhooks import Delivery, Endpoint
from bellringer.telemetry import log

MOST_ENDPOINTS: Final = 50
MOST_EVENTS: Final = 100  # an endpoint and pass
TEST: Final = "test"
RETRY: Final = Retry(delays=("0s", "5s", "1m", "5m", "30m", "2h", "5h", "10h", "16h", "24h"))
_OF_JOBS: Final = frozenset({Kind.OUTGROWN, Kind.RECOVERED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What a pass read and sent; `more`: it was cut off."""

    read: int = 0
    sent: int = 0
    more: bool = False


async def announce(store: Store, names: Names) -> Announced:
    """Tell each endpoint of what has happened since it was last told."""
    waiting = await webhooks.waiting(store, MOST_ENDPOINTS)
    read = sent = 0
    more = len(waiting) == MOST_ENDPOINTS
    for endpoint, place in waiting:
        news = await webhooks.news(store, endpoint.tenant_id, place, MOST_EVENTS)
        wanted = [event for event, _ in news if endpoint.wants(event.kind)]
        try:
            for event in wanted:
                await _tell(store, names, endpoint, event)
        except BellringerError as error:  # what cannot be sent to one keeps nobody else waiting
            log.error("an event could not be sent", endpoint_id=endpoint.endpoint_id, error=str(error))
            continue
        if news:
            await webhooks.move(store, endpoint.endpoint_id, place, news[-1][1])
        read, sent, more = read + len(news), sent + len(wanted), more or len(news) == MOST_EVENTS
    return Announced(read=read, sent=sent, more=more)


async def _tell(store: Store, names: Names, endpoint: Endpoint, event: Event) -> None:
    # A crash between the two, or before the place is moved, is repeated: the key answers the run that is there.
    key = f"{event.event_id}:{endpoint.endpoint_id}"
    made = await _send(store, names, endpoint, body_of(event), key)
    await webhooks.delivered(store, endpoint, event.event_id, event.kind, made)


async def test(store: Store, names: Names, endpoint: Endpoint, now: datetime) -> tuple[int, RunKey]:
    """Send something harmless; answers the delivery and its run."""
    body = {"type": TEST, "timestamp": write_instant(now), "data": {"endpoint_id": endpoint.endpoint_id}}
    made = await _send(store, names, endpoint, body, None)
    return _known(await webhooks.delivered(store, endpoint, None, TEST, made)), made


async def replay(store: Store, names: Names, delivery: Delivery, *, tenant_id: int) -> tuple[int, RunKey]:
    """Send once more what was sent, as the endpoint is now."""
    endpoint = await webhooks.get(store, tenant_id, delivery.endpoint_id)
    carried = await runs.get(store, delivery.key, tenant_id)
    if endpoint is None or carried is None or carried.spec is None:
        raise NotFound("there is no such delivery")
    if not endpoint.enabled:
        raise Conflict("the endpoint is switched off", hint="switch it on first", code="endpoint_disabled")
    made = await _send(store, names, endpoint, carried.spec.kwargs.get("body"), None)
    first = delivery.replay_of or delivery.delivery_id
    number = await webhooks.delivered(store, endpoint, delivery.event_id, delivery.kind, made, first)
    return _known(number), made


def body_of(event: Event) -> dict[str, Any]:
    """Only what names the event: whoever is told reads the rest with a right to."""
    about = "job" if event.kind in _OF_JOBS else "run"
    return {
        "type": f"{about}.{event.kind}",
        "timestamp": write_instant(event.at),
        "data": {
            "event_id": event.event_id,
            "job_id": str(event.key.job_id),
            "job": event.job,
            "run_id": event.run.id if event.run else None,
            "scheduled_for": write_instant(event.key.scheduled_for),
            "attempt": event.attempt,
        },
    }


async def _send(
    store: Store, names: Names, endpoint: Endpoint, body: Mapping[str, Any] | None, key: str | None
) -> RunKey:
    target = {
        "url": endpoint.url,
        "method": "POST",
        "body": body,
        "sign": True,
        "secret": {"id": endpoint.secret_id},
        "endpoint": endpoint.endpoint_id,
    }
    order = Order(task=HTTP, pool=HTTP, kwargs=target, retry=RETRY, key=key, cause=Cause.WEBHOOK)
    return (await send(store, names, order, tenant_id=endpoint.tenant_id)).key


def _known(number: int | None) -> int:
    if number is None:
        raise NotFound("there is no such webhook endpoint")
    return number
