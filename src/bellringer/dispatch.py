"""How work gets to workers by a broker.

The queue row is the outbox: a scheduler marks rows as sent and hands their messages to the broker; a worker takes the
runs of the messages that it got in the database, and only then executes them. So a message is a doorbell with a parcel:
it may come twice, late, out of order or not at all, and changes nothing but the time.

    queue row ── sent ──► message ──► a worker ── take ──► its own, by worker and attempt, as if it had claimed it
        ▲                    ✕ lost                ✕ taken before: the message is dropped
        └──── sent again when nobody has taken it for a while; home again when the broker is away
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

import msgspec

from bellringer.errors import BellringerError
from bellringer.runs import RunKey

FORM: Final = 1  # of a message; a worker that does not know it puts the message aside
LONGEST_SPEC: Final = 64 * 1024  # characters; a longer one is read from the database by who takes the run
RESEND: Final = timedelta(seconds=5)  # after which a run that nobody took is sent again
HOME: Final = timedelta(seconds=15)  # … or comes home, where nobody sends any more


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker needs to take a run and to execute it. `attempt` is how many there were when it was sent."""

    form: int
    job_id: UUID
    scheduled_for: datetime
    slot: int
    attempt: int
    floor: int
    task_id: int
    tenant_id: int
    revision: int | None  # of its job
    name: str | None
    spec: str | None  # JSON, as it is stored; None: too long
    behind: bool
    available_at: datetime

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.scheduled_for, self.slot)


class Unreadable(Exception):
    """A message that is not ours, or of a form that came later."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    try:
        message = _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from None
    if message.form != FORM:
        raise Unreadable(f"its form is {message.form}, and this worker knows {FORM}")
    return message


@dataclass(frozen=True, slots=True)
class Parcel:
    """What came for a worker, and where from."""

    topic: str
    part: int
    place: int
    data: bytes


class Away(BellringerError):
    """The broker does not answer, or refuses."""


class Broker(Protocol):
    """Where a scheduler hands in messages. It may lose them; it says so of those that it knows of."""

    async def prepare(self, topics: Collection[str]) -> None:
        """Make the topics that are missing. Raises Away."""

    async def send(self, topic: str, parcels: Sequence[tuple[bytes | None, bytes]]) -> list[int]:
        """Hand in messages, each with its key (None: any partition will do), and wait until the broker has them all.

        Answers the places of those that it did not take; raises Away where that is all of them.
        """

    async def close(self) -> None: ...


class Inbox(Protocol):
    """Where a worker gets the messages of one pool, beside others that do the same."""

    async def get(self, most: int, seconds: float) -> list[Parcel]:
        """What is there, at most so many; waits so long for the first. Raises Away."""

    async def done(self) -> None:
        """Whatever was got need not come again."""

    async def rest(self) -> None:
        """Take nothing now, but stay: others get what comes meanwhile only if this one is gone."""

    async def close(self) -> None: ...


class Unread(Protocol):
    """How many messages of each pool nobody has read yet, for who looks at it."""

    async def __call__(self, pools: Collection[str]) -> Mapping[str, int]:
        """Of these pools, those that the broker knows of; none while it is away."""


class Post(Protocol):
    """A broker as one installation uses it: its topics are named after pools."""

    @property
    def engine(self) -> str:
        """What it is, in one word."""

    @property
    def place(self) -> str:
        """Where it is, for people."""

    def topic(self, pool: str) -> str: ...

    def broker(self) -> Broker: ...

    def inbox(self, pool: str) -> Inbox: ...

    def unread(self) -> Unread: ...
