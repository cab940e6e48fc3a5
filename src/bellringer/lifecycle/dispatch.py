"""Dispatch: send ready runs to a broker, in the order and within the quotas of a claim; take those that came by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from bellringer import faults
from bellringer.dispatch import RESEND, Away, Broker, Message, Parcel, Unreadable, decode, encode
from bellringer.lifecycle.turns import Turn
from bellringer.store import dispatch
from bellringer.store.dispatch import Lane
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed

MOST_AGAIN: Final = 2_000  # runs in one pass that nobody has taken


class Marked(NamedTuple):
    """What a pass has marked as sent, and whose turn it is next."""

    messages: list[Message]
    turn: Turn


async def mark(store: Store, lane: Lane, most: int, turn: Turn, *, behind: int) -> Marked:
    """Mark at most so many runs as sent. From here on they count as under way, and whoever has their message may take
    them; should this process end before the broker has them, they are sent again."""
    tenants = turn.looks_at(most)
    messages, walk = await dispatch.send(
        store, lane, most, after=turn.after, rest=turn.rest, behind=behind, tenants=tenants
    )
    return Marked(messages, turn.next(walk, full=len(messages) == most, looked_at=tenants))


async def hand_in(store: Store, broker: Broker, topic: str, lane: Lane, messages: Sequence[Message]) -> int:
    """Give marked runs to the broker; those that it does not take come home. Answers how many it took; raises Away."""
    faults.point("dispatch.marked")
    parcels = [(message.job_id.bytes, encode(message)) for message in messages]
    try:
        failed = await broker.send(topic, parcels)
    except Away:
        await dispatch.unsend(store, lane.pool_id, messages)
        raise
    if failed:
        await dispatch.unsend(store, lane.pool_id, [messages[place] for place in failed])
    return len(messages) - len(failed)


async def send_again(store: Store, broker: Broker, topic: str, lane: Lane) -> int:
    """Send what nobody has taken for a while, to any partition: its own may be the one whose consumer is stuck."""
    messages = await dispatch.resend(store, lane.pool_id, RESEND, MOST_AGAIN)
    if messages:
        await broker.send(topic, [(None, encode(message)) for message in messages])
    return len(messages)


async def take(
    store: Store, worker_id: int, pool_id: int, task_ids: Sequence[int], parcels: Sequence[Parcel]
) -> list[Claimed]:
    """The runs that came in these parcels and that nobody has taken before. What cannot be read is put aside; what this
    worker does not know is left to be sent again, to another."""
    messages, strange = [], []
    for parcel in parcels:
        try:
            message = decode(parcel.data)
        except Unreadable as error:
            strange.append((parcel, str(error)))
        else:
            if message.task_id in task_ids:
                messages.append(message)
    if strange:
        await dispatch.set_aside(store, strange)
    return await dispatch.take(store, worker_id, pool_id, messages) if messages else []
