"""Sends ready runs to a broker in claim order and within quotas, and takes runs whose messages a worker received."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bellringer.core import fault_injection
from bellringer.core.broker import (
    RESEND_AFTER,
    Broker,
    BrokerUnavailable,
    Message,
    ReceivedMessage,
    UnreadableMessage,
    decode_message,
    encode_message,
)
from bellringer.engine.claim import TenantCursor
from bellringer.store import broker_dispatch
from bellringer.store.broker_dispatch import BrokerPool
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun

MAX_RESENT_RUNS: Final = 2_000  # per pass


class DispatchPass(NamedTuple):
    """The messages that a pass marked as sent, and the next cursor."""

    messages: list[Message]
    cursor: TenantCursor


async def mark_sent(
    store: Store, pool: BrokerPool, limit: int, cursor: TenantCursor, *, background: int
) -> DispatchPass:
    """Marks up to `limit` runs as sent. Marked runs count as running and may be taken by the worker that receives
    the message.

    If this process dies before the broker has the message, the run is sent again later.
    """
    tenants = cursor.tenants_to_visit(limit)
    messages, position = await broker_dispatch.mark_sent(
        store, pool, limit, after=cursor.after_tenant, rest=cursor.carry, behind=background, tenants=tenants
    )
    return DispatchPass(messages, cursor.advance(position, full=len(messages) == limit, visited=tenants))


async def send_marked(store: Store, broker: Broker, topic: str, pool: BrokerPool, messages: Sequence[Message]) -> int:
    """Sends marked runs to the broker and returns how many it accepted; rejected runs become ready again.

    Raises BrokerUnavailable.
    """
    fault_injection.fault_point("dispatch.marked")
    parcels = [(message.job_id.bytes, encode_message(message)) for message in messages]
    try:
        failed = await broker.send(topic, parcels)
    except BrokerUnavailable:
        await broker_dispatch.unsend(store, pool.pool_id, messages)
        raise
    if failed:
        await broker_dispatch.unsend(store, pool.pool_id, [messages[place] for place in failed])
    return len(messages) - len(failed)


async def resend_untaken(store: Store, broker: Broker, topic: str, pool: BrokerPool) -> int:
    """Sends runs again that no worker has taken for a while, to any partition: the consumer of their own may be
    stuck.
    """
    messages = await broker_dispatch.mark_resent(store, pool.pool_id, RESEND_AFTER, MAX_RESENT_RUNS)
    if messages:
        await broker.send(topic, [(None, encode_message(message)) for message in messages])
    return len(messages)


async def take_messages(
    store: Store, worker_id: int, pool_id: int, task_ids: Sequence[int], parcels: Sequence[ReceivedMessage]
) -> list[ClaimedRun]:
    """Returns the runs of these messages that no worker has taken before.

    Unreadable messages are quarantined. Messages of tasks that this worker does not know are left to be sent again.
    """
    messages, unreadable = [], []
    for parcel in parcels:
        try:
            message = decode_message(parcel.data)
        except UnreadableMessage as error:
            unreadable.append((parcel, str(error)))
        else:
            if message.task_id in task_ids:
                messages.append(message)
    if unreadable:
        await broker_dispatch.quarantine(store, unreadable)
    return await broker_dispatch.take(store, worker_id, pool_id, messages) if messages else []
