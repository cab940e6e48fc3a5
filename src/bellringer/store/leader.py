"""One node holds all shards: the one whose session has a lock of the database; the others stand by.

The lock belongs to a connection of the leader's own, by which it also renews. Who loses the connection loses the lock,
and the next that asks takes over at once. A leader that is stopped keeps its connection, as its kernel answers for it:
once no lease is good any more, and that connection has been silent for longer than a lease, a standby ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg

from bellringer.leases import LEASE, LeaseKeeper
from bellringer.store import leases
from bellringer.store.pool import FAILURES, Store, connect
from bellringer.telemetry import log

SPACE: Final = 89  # of the advisory lock
PATIENCE: Final = 2.0  # seconds that the leader's connection may take to answer; a lease is renewed far more often
_TRY: Final = f"select pg_try_advisory_lock({SPACE}, 0)"


class LeaderLeases(LeaseKeeper):
    """Grants all shards to who has the lock. It needs a session: no pooler that hands connections to transactions."""

    divides = False

    def __init__(self, store: Store, lease: timedelta = LEASE) -> None:
        self._store = store
        self._lease = lease
        self._session: asyncpg.Connection[Any] | None = None
        self._leads = False
        self._freed: Callable[[], None] = lambda: None

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """The shards, whoever had them, if this is the leader or can become it."""
        if not self._leads and not await self._elected():
            return {}
        shards = range(want) if among is None else sorted(among)[:want]
        return await leases.install(self._session, holder, dict.fromkeys(shards, 0), self._lease)

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """By the connection that has the lock, so that there is never the one without the other."""
        if not self._leads or self._session is None:
            return frozenset()
        try:
            async with asyncio.timeout(PATIENCE):
                return await leases.renew(self._session, holder, tokens, self._lease)
        except FAILURES as error:
            log.warning("the leader has lost its connection, and with it the lock", error=str(error))
            self._step_down()
            return frozenset()

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        await leases.release(self._store.pool, holder, tokens)

    async def watch(self, freed: Callable[[], None]) -> None:
        self._freed = freed

    async def close(self) -> None:
        self._step_down()

    async def _elected(self) -> bool:
        """Try for the lock."""
        session = await self._connected()
        try:
            async with asyncio.timeout(PATIENCE):
                self._leads = bool(await session.fetchval(_TRY))
        except FAILURES:
            self._step_down()
        if self._leads:
            log.info("this node leads")
        elif await leases.end_silent_leader(self._store, SPACE, self._lease):
            log.warning("the leader is silent: its connection was ended")
            self._freed()  # the lock is free in a moment
        return self._leads

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._session is None or self._session.is_closed():
            self._session = await connect(self._store.dsn, name="bellringer leader")
            self._session.add_termination_listener(self._cut)
        return self._session

    def _cut(self, session: object) -> None:
        """The server has ended the connection: do not wait for the next renewal to find out."""
        if session is self._session:
            self._step_down()
            self._freed()

    def _step_down(self) -> None:
        """At once, and without asking: a connection that is cut off would not answer."""
        session, self._session, self._leads = self._session, None, False
        if session is not None and not session.is_closed():
            session.terminate()
