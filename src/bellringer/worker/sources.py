"""Where a worker's work comes from: it claims it in the database, or takes what a broker brings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from bellringer.dispatch import Inbox, Parcel, Post
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.lifecycle.dispatch import take
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed

PATIENCE: Final = 0.2  # seconds for which an inbox waits for something to come


class Source(Protocol):
    """Brings the attempts that a worker executes; they are the worker's own by the database."""

    @property
    def engine(self) -> str:
        """How the work gets here, in one word."""

    async def open(self, pools: Mapping[str, int]) -> None: ...

    async def take(self, seat: Seat, most: int, *, behind: int) -> tuple[list[Claimed], bool]:
        """At most so many; and whether it pays to ask again at once."""

    async def rest(self, pool_id: int, *, for_good: bool) -> None:
        """Nothing is wanted now, or never again."""

    async def close(self) -> None: ...


class Claims:
    """The database itself: ready runs are claimed, a fair share of each tenant's."""

    engine = "postgresql"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns: dict[int, Turn] = {}

    async def open(self, pools: Mapping[str, int]) -> None: ...

    async def take(self, seat: Seat, most: int, *, behind: int) -> tuple[list[Claimed], bool]:
        turn = self._turns.get(seat.pool_id, Turn())
        taken, turn = await claim(self._store, seat, most, turn, behind=behind)
        self._turns[seat.pool_id] = turn
        return taken, len(taken) == most or turn.goes_on

    async def rest(self, pool_id: int, *, for_good: bool) -> None: ...

    async def close(self) -> None: ...


class Messages:
    """A broker: what its messages tell of is taken in the database, all at once, and then need not come again."""

    def __init__(self, store: Store, post: Post) -> None:
        self._store = store
        self._post = post
        self._inboxes: dict[int, Inbox] = {}
        self._untaken: dict[int, list[Parcel]] = {}  # got, while the database was away

    @property
    def engine(self) -> str:
        return self._post.engine

    async def open(self, pools: Mapping[str, int]) -> None:
        self._inboxes = {pool_id: self._post.inbox(pool) for pool, pool_id in pools.items()}

    async def take(
        self,
        seat: Seat,
        most: int,
        *,
        behind: int,  # noqa: ARG002 - who sent them has seen to it
    ) -> tuple[list[Claimed], bool]:
        inbox = self._inboxes[seat.pool_id]
        parcels = self._untaken.get(seat.pool_id) or await inbox.get(most, PATIENCE)
        if not parcels:
            return [], True  # it has waited already
        self._untaken[seat.pool_id] = parcels
        taken = await take(self._store, seat.worker_id, seat.pool_id, seat.task_ids, parcels)
        del self._untaken[seat.pool_id]
        await inbox.done()
        return taken, True

    async def rest(self, pool_id: int, *, for_good: bool) -> None:
        inbox = self._inboxes.get(pool_id)
        if inbox is not None and for_good:  # who only rested would keep its part of the messages from others
            del self._inboxes[pool_id]
            await inbox.close()
        elif inbox is not None:
            await inbox.rest()

    async def close(self) -> None:
        await asyncio.gather(*(inbox.close() for inbox in self._inboxes.values()), return_exceptions=True)
