"""Delivers events to webhook endpoints. Each delivery is a run, so it is retried, shown and given up like any
other.

The idempotency key of the send prevents a second delivery of the same event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bellringer.core.jobs import HTTP_TASK
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Cause, RunKey
from bellringer.engine.send import SendSpec, send
from bellringer.errors import BellringerError, Conflict, NotFound
from bellringer.schedule.instants import write_instant
from bellringer.store import runs, webhooks
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind, EventRow
from bellringer.store.interned_names import Catalog
from bellringer.store.webhooks import DeliveryRow, EndpointRow
from bellringer.telemetry import log

MAX_ENDPOINTS_PER_PASS: Final = 50
MAX_EVENTS_PER_ENDPOINT: Final = 100  # per pass
TEST_EVENT: Final = "test"
DELIVERY_RETRY: Final = Retry(delays=("0s", "5s", "1m", "5m", "30m", "2h", "5h", "10h", "16h", "24h"))
_JOB_EVENTS: Final = frozenset(
    {EventKind.OUTGROWN, EventKind.RECOVERED, EventKind.ORPHANED, EventKind.ADOPTED, EventKind.OVERRIDDEN}
    | {EventKind.MISSED, EventKind.PAUSED}
)
# Kinds whose prefix names what they are about, such as task_paused. The key of such an event is that of no job.
_PREFIXES: Final = ("checkin", "task")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPass:
    """The events that a pass read and sent; `more`: the pass hit its limit."""

    read: int = 0
    sent: int = 0
    more: bool = False


async def deliver_events(store: Store, catalog: Catalog) -> DeliveryPass:
    """Sends each endpoint the events that were committed since its last delivery."""
    waiting = await webhooks.pending_endpoints(store, MAX_ENDPOINTS_PER_PASS)
    read = sent = 0
    more = len(waiting) == MAX_ENDPOINTS_PER_PASS
    for endpoint, position in waiting:
        events = await webhooks.events_after(store, endpoint.tenant_id, position, MAX_EVENTS_PER_ENDPOINT)
        wanted = [event for event, _ in events if endpoint.wants(event.kind)]
        try:
            for event in wanted:
                await _deliver(store, catalog, endpoint, event)
        except BellringerError as error:  # a failing endpoint must not delay the others
            log.error("webhook delivery not created", endpoint_id=endpoint.endpoint_id, error=str(error))
            continue
        if events:
            await webhooks.advance(store, endpoint.endpoint_id, position, events[-1][1])
        read, sent, more = read + len(events), sent + len(wanted), more or len(events) == MAX_EVENTS_PER_ENDPOINT
    return DeliveryPass(read=read, sent=sent, more=more)


async def _deliver(store: Store, catalog: Catalog, endpoint: EndpointRow, event: EventRow) -> None:
    # Safe to repeat after a crash: the key makes the send return the existing run.
    key = f"{event.event_id}:{endpoint.endpoint_id}"
    task = event.data.get("task")
    if task is None and event.job is None and event.run is not None:  # a send, or a node of a workflow
        task = await webhooks.task_of_run(store, endpoint.tenant_id, event.run)
    made = await _send(store, catalog, endpoint, event_body(event, task), key)
    await webhooks.record_delivery(store, endpoint, event.event_id, event.kind, made)


async def send_test(store: Store, catalog: Catalog, endpoint: EndpointRow, now: datetime) -> tuple[int, RunKey]:
    """Sends a test event; returns the delivery and its run."""
    body = {"type": TEST_EVENT, "timestamp": write_instant(now), "data": {"endpoint_id": endpoint.endpoint_id}}
    made = await _send(store, catalog, endpoint, body, None)
    return _require_delivery_id(await webhooks.record_delivery(store, endpoint, None, TEST_EVENT, made)), made


async def replay_delivery(
    store: Store, catalog: Catalog, delivery: DeliveryRow, *, tenant_id: int
) -> tuple[int, RunKey]:
    """Sends a delivery again, to the endpoint's present URL."""
    endpoint = await webhooks.get(store, tenant_id, delivery.endpoint_id)
    carried = await runs.get(store, delivery.key, tenant_id)
    if endpoint is None or carried is None or carried.spec is None:
        raise NotFound("there is no such delivery")
    if not endpoint.enabled:
        raise Conflict("the endpoint is disabled", hint="enable it first", code="endpoint_disabled")
    made = await _send(store, catalog, endpoint, carried.spec.kwargs.get("body"), None)
    first = delivery.replay_of or delivery.delivery_id
    number = await webhooks.record_delivery(store, endpoint, delivery.event_id, delivery.kind, made, first)
    return _require_delivery_id(number), made


def event_body(event: EventRow, task: str | None = None) -> dict[str, Any]:
    """Returns the ids of the event only. Receivers read the details through the API, with their own permissions.

    `task` is the task of an event without a job.
    """
    about, kind = "job" if event.kind in _JOB_EVENTS else "run", event.kind
    for prefix in _PREFIXES:
        if kind.startswith(f"{prefix}_"):
            about, kind = prefix, kind.removeprefix(f"{prefix}_")
    is_of_job_or_run = about in ("job", "run")
    data = {
        "event_id": event.event_id,
        "job_id": str(event.key.job_id) if is_of_job_or_run else None,
        "job": event.job,
        "run_id": event.run.id if event.run else None,
        "scheduled_for": write_instant(event.key.scheduled_for) if about != "task" else None,
        "attempt": event.attempt,
    }
    if about == "checkin":
        data["checkin"] = event.data.get("checkin")
    if task is not None:
        data["task"] = task
    return {"type": f"{about}.{kind}", "timestamp": write_instant(event.at), "data": data}


async def _send(
    store: Store, catalog: Catalog, endpoint: EndpointRow, body: Mapping[str, Any] | None, key: str | None
) -> RunKey:
    target = {
        "url": endpoint.url,
        "method": "POST",
        "body": body,
        "sign": True,
        "secret": {"id": endpoint.secret_id},
        "endpoint": endpoint.endpoint_id,
    }
    request = SendSpec(
        task=HTTP_TASK, pool=HTTP_TASK, kwargs=target, retry=DELIVERY_RETRY, key=key, cause=Cause.WEBHOOK
    )
    return (await send(store, catalog, request, tenant_id=endpoint.tenant_id)).key


def _require_delivery_id(number: int | None) -> int:
    if number is None:
        raise NotFound("there is no such webhook endpoint")
    return number
