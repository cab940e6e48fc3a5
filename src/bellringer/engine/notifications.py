"""Turns events into notification messages, and messages into runs that deliver them.

The decision is `core.notifications.decide`; the races are described in docs/decisions/029-notifications.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from uuid_utils.compat import uuid7

from bellringer.core.jobs import HTTP_TASK, NOTIFY_TASK
from bellringer.core.notifications import (
    Incident,
    NotificationDecision,
    NotificationEvent,
    NotificationMessage,
    RouteRules,
    decide,
)
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Cause, RunKey
from bellringer.engine.send import SendSpec, send
from bellringer.store import notifications
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.notifications import ChannelRow, NotificationPass

MAX_EVENTS_PER_PASS: Final = 500
MAX_DUE_PER_PASS: Final = 500  # incidents
MAX_SENDS_PER_PASS: Final = 200
NOTIFICATION_RETRY: Final = Retry(delays=("0s", "5s", "30s", "2m", "10m", "30m", "1h"))


async def notify(store: Store, catalog: Catalog) -> NotificationPass:
    """Decides about new events and due incidents, then sends the messages that have no run yet."""
    done = await notifications.decide_messages(store, _decide, max_events=MAX_EVENTS_PER_PASS, max_due=MAX_DUE_PER_PASS)

    async def send_one(number: int, tenant_id: int, channel_id: int, message: Mapping[str, Any]) -> RunKey:
        return await _send(store, catalog, number, channel_id, message, tenant_id=tenant_id)

    await notifications.send_unsent(store, send_one, MAX_SENDS_PER_PASS)
    return done


async def send_test(store: Store, catalog: Catalog, channel: ChannelRow, now: datetime, who: str) -> tuple[int, RunKey]:
    """Sends a test message to a channel; returns its number and its run."""
    message = NotificationMessage(
        reason="test",
        status="open",
        severity="info",
        title=f"Test of the channel {channel.name}, requested by {who}",
        dedup_key=f"bellringer-test-{uuid7()}",
        opened_at=now,
        at=now,
    )
    number = await notifications.add_test(store, channel, message)
    document = msgspec.to_builtins(message)
    key = await _send(store, catalog, number, channel.channel_id, document, tenant_id=channel.tenant_id)
    await notifications.record_run(store, number, key)
    return number, key


def _decide(
    route: RouteRules, known: Sequence[Incident], events: Sequence[NotificationEvent], now: datetime
) -> NotificationDecision:
    return decide(route, known, events, now, uuid7)


async def _send(
    store: Store, catalog: Catalog, number: int, channel_id: int, message: Mapping[str, Any], *, tenant_id: int
) -> RunKey:
    # Safe to repeat after a crash, and by two nodes: the key makes the second send return the run of the first.
    request = SendSpec(
        task=NOTIFY_TASK,
        pool=HTTP_TASK,
        kwargs={"channel": channel_id, "notification": number, "message": dict(message)},
        retry=NOTIFICATION_RETRY,
        key=f"notification:{number}",
        cause=Cause.WEBHOOK,
    )
    return (await send(store, catalog, request, tenant_id=tenant_id, notify=True)).key
