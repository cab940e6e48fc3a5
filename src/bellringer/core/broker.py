"""The contract of message brokers that deliver runs to workers.

The queue row is the outbox. A scheduler marks queue rows as sent and sends one message for each to the broker. A worker
that receives a message takes the run in the database and only then executes it. Messages can therefore be duplicated,
late, out of order or lost: the result is the same, only later.

    queue row ── mark as sent ──► message ──► worker ── take ──► claimed by this worker and attempt
        ▲                            ✕ lost            ✕ already taken: the message is dropped
        └──── sent again if no worker has taken the run for a while; unsent if the broker is unavailable
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

import msgspec

from bellringer.core.runs import RunKey
from bellringer.errors import BellringerError

MESSAGE_VERSION: Final = 1  # workers set messages of other versions aside
MAX_INLINE_SPEC_LENGTH: Final = 64 * 1024  # characters; the worker reads a longer spec from the database
RESEND_AFTER: Final = timedelta(seconds=5)  # a sent run that no worker has taken is sent again
UNSEND_AFTER: Final = timedelta(seconds=15)  # a sent run goes back to the queue if its pool no longer uses the broker


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything that a worker needs to take and execute a run. `attempt` is the attempt count at sending time."""

    version: int
    job_id: UUID
    scheduled_for: datetime
    slot: int
    attempt: int
    floor: int
    task_id: int
    tenant_id: int
    revision: int | None  # the job's revision
    name: str | None
    spec: str | None  # JSON as stored; None if longer than MAX_INLINE_SPEC_LENGTH
    behind: bool
    available_at: datetime

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.scheduled_for, self.slot)


class UnreadableMessage(Exception):
    """Data that is not a message of this program, or has another message version."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode_message(data: bytes) -> Message:
    try:
        message = _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnreadableMessage(str(error)) from None
    if message.version != MESSAGE_VERSION:
        raise UnreadableMessage(f"the message has version {message.version}; this worker reads {MESSAGE_VERSION}")
    return message


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """Raw message data and its position in the broker."""

    topic: str
    partition: int
    offset: int
    data: bytes


class BrokerUnavailable(BellringerError):
    """The broker cannot be reached, or rejects all requests."""


class Broker(Protocol):
    """The sending side, used by schedulers."""

    async def prepare(self, topics: Collection[str]) -> None:
        """Create missing topics. Raises BrokerUnavailable."""

    async def send(self, topic: str, messages: Sequence[tuple[bytes | None, bytes]]) -> list[int]:
        """Send (key, data) pairs and wait for the acknowledgements. A key of None allows any partition.

        Returns the indexes of the messages that failed. Raises BrokerUnavailable if all of them failed.
        """

    async def close(self) -> None: ...


class Inbox(Protocol):
    """The receiving side: one of several consumers of a pool's messages, used by workers."""

    async def get(self, most: int, seconds: float) -> list[ReceivedMessage]:
        """Return up to `most` messages; wait up to `seconds` for the first one. Raises BrokerUnavailable."""

    async def commit(self) -> None:
        """Acknowledge all messages returned by `get` so far."""

    async def pause(self) -> None:
        """Receive nothing for now, but keep this consumer's partitions. Called repeatedly while the worker is full."""

    async def close(self) -> None: ...


class QueueDepths(Protocol):
    """Counts the messages of each pool that no worker has received yet. For monitoring only."""

    async def __call__(self, pools: Collection[str]) -> Mapping[str, int]:
        """Return the count per pool. Pools unknown to the broker are missing; all are if the broker is unavailable."""


class BrokerBackend(Protocol):
    """Creates the clients of one broker for one installation. Each pool has one topic."""

    @property
    def name(self) -> str:
        """The kind of broker, such as "kafka"."""

    @property
    def address(self) -> str:
        """The broker's address for messages; contains no password."""

    def topic(self, pool: str) -> str: ...

    def broker(self) -> Broker: ...

    def inbox(self, pool: str) -> Inbox: ...

    def queue_depths(self) -> QueueDepths: ...
