"""Leader mode: one scheduler holds all shards, namely the one whose session has an advisory lock; the others stand
by.

The lock belongs to a dedicated connection, over which the leader also renews. If the connection is lost, so is the
lock, and the next scheduler that tries takes over. A leader whose process is stopped keeps its connection, because
its kernel still responds: once no lease is valid and the connection was silent for longer than a lease, a standby
ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.leases import LEASE_DURATION, LeaseKeeper
from bellringer.errors import ConfigError
from bellringer.store import leases
from bellringer.store.connection_pool import DATABASE_ERRORS, Store, connect
from bellringer.telemetry import log

SESSION_TIMEOUT_SECONDS: Final = 2.0  # leases are renewed far more often
_TRY_LOCK: Final = f"select pg_try_advisory_lock({AdvisoryLock.LEADER.value}, 0)"


class LeaderLeases(LeaseKeeper):
    """Grants all shards to the holder of the lock. Needs a session, so behind a pooler it needs `direct_dsn`."""

    shares_shards = False

    def __init__(self, store: Store, lease: timedelta = LEASE_DURATION) -> None:
        if store.session_dsn is None:
            raise ConfigError(
                "coordination = leader needs a session, and the DSN leads to a pooler",
                hint="set direct_dsn to the address of PostgreSQL itself, or choose coordination = postgresql",
            )
        self._store = store
        self._session_dsn = store.session_dsn
        self._lease = lease
        self._session: asyncpg.Connection[Any] | None = None
        self._leads = False
        self._freed: Callable[[], None] = lambda: None

    async def acquire(self, holder: UUID, want: int, among: Collection[int] | None = None) -> Mapping[int, int]:
        """Returns the shards, regardless of their holder, if this scheduler is or becomes the leader."""
        if not self._leads and not await self._elected():
            return {}
        shards = range(want) if among is None else sorted(among)[:want]
        try:
            async with asyncio.timeout(SESSION_TIMEOUT_SECONDS):
                return await leases.install(self._session, holder, dict.fromkeys(shards, 0), self._lease)
        except DATABASE_ERRORS:
            self._step_down()
            raise

    async def renew(self, holder: UUID, tokens: Mapping[int, int]) -> frozenset[int]:
        """Renews over the connection that holds the lock, so that lease and lock are lost together."""
        if not self._leads or self._session is None:
            return frozenset()
        try:
            async with asyncio.timeout(SESSION_TIMEOUT_SECONDS):
                return await leases.renew(self._session, holder, tokens, self._lease)
        except DATABASE_ERRORS as error:
            log.warning("leadership lost: the connection of the leader broke", error=str(error))
            self._step_down()
            return frozenset()

    async def release(self, holder: UUID, tokens: Mapping[int, int]) -> None:
        await leases.release(self._store.pool, holder, tokens)

    async def watch(self, freed: Callable[[], None]) -> None:
        self._freed = freed

    async def close(self) -> None:
        self._step_down()

    async def _elected(self) -> bool:
        """Tries to get the lock."""
        session = await self._connected()
        try:
            async with asyncio.timeout(SESSION_TIMEOUT_SECONDS):
                self._leads = bool(await session.fetchval(_TRY_LOCK))
        except DATABASE_ERRORS:
            self._step_down()
        if self._leads:
            log.info("leadership gained")
        elif await leases.end_silent_leader(self._store, AdvisoryLock.LEADER, self._lease):
            log.warning("silent leader: its connection was ended")
            self._freed()  # the lock becomes free in a moment
        return self._leads

    async def _connected(self) -> asyncpg.Connection[Any]:
        if self._session is None or self._session.is_closed():
            self._session = await connect(self._session_dsn, name="bellringer leader")
            self._session.add_termination_listener(self._cut)
        return self._session

    def _cut(self, session: object) -> None:
        """The server has ended the connection: steps down without waiting for the next renewal."""
        if session is self._session:
            self._step_down()
            self._freed()

    def _step_down(self) -> None:
        """Drops the connection without a round trip, which a broken connection would not answer."""
        session, self._session, self._leads = self._session, None, False
        if session is not None and not session.is_closed():
            session.terminate()
