"""A store that acts for one caller: its connections are told whose rows they may see, and who acts.

Every statement names its tenant by itself. This is the second wall: the connections have a role of the database that
sees only the rows of the tenant that they were told of (row-level security), whatever a statement forgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg

from bellringer.store.pool import Store, connect
from bellringer.telemetry import log

if TYPE_CHECKING:
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

HINT: Final = "let an administrator create the role and grant it to the owner of the tables; see docs/audit.md"
_TELL: Final = "select set_config('bellringer.tenant', $1, false), set_config('bellringer.actor', $2, false)"
# Whoever is stopped in a transaction may hold the lock of a shard: the server ends it before many ticks were missed.
_BRIEF: Final = "set_config('idle_in_transaction_session_timeout', '3s', true)"
_TELL_WITHIN: Final = (
    f"select set_config('bellringer.tenant', '', true), set_config('bellringer.actor', $1, true), {_BRIEF}"
)


class Told(asyncpg.Connection):
    """A connection that remembers what it was told, so that it is told only what is new."""

    _told: tuple[int, str] | None = None

    def __init__(self, protocol: Any, transport: asyncio.Transport, *more: Any) -> None:
        super().__init__(protocol, transport, *more)
        # What is asked goes out at once, and not when this process has nothing else to do (see api.writing).
        transport.set_write_buffer_limits(high=0)

    async def tell(self, tenant_id: int, actor: str | None) -> None:
        """Whose rows it may see from now on, and who acts; a reader (None) is not told of in the audit."""
        if self._told is not None and self._told[0] == tenant_id and actor in (None, self._told[1]):
            return
        self._told = None  # until it is done: a call that is cut off leaves it unknown
        await self.fetchval(_TELL, str(tenant_id), actor or "")
        self._told = (tenant_id, actor or "")


class Gate:
    """The ways to the database that a store's functions use, for one caller."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], tenant_id: int, actor: str | None) -> None:
        self._pool = pool
        self._tenant_id = tenant_id
        self._actor = actor
        self._pinned: Connection | None = None
        self._turn = asyncio.Lock()  # of the pinned connection, which does one thing at a time

    @property
    def is_pinned(self) -> bool:
        """Whether all goes through one connection, in one transaction."""
        return self._pinned is not None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if self._pinned is not None:
            yield self._pinned
            return
        async with self._pool.acquire() as connection:
            await connection.tell(self._tenant_id, self._actor)  # type: ignore[attr-defined]
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """All that is asked for meanwhile is one transaction, or nothing of it."""
        async with self.acquire() as connection, connection.transaction():
            await connection.execute(f"select {_BRIEF}")
            self._pinned = connection
            try:
                yield connection
            finally:
                self._pinned = None

    @asynccontextmanager
    async def _within(self) -> AsyncIterator[Connection]:
        """The pinned connection, for one statement. If it is refused, the transaction goes on without it, as a caller
        who tries something else expects."""
        assert self._pinned is not None
        async with self._turn, self._pinned.transaction():
            yield self._pinned

    def _way(self) -> AbstractAsyncContextManager[Connection]:
        return self.acquire() if self._pinned is None else self._within()

    async def execute(self, query: str, *args: Any) -> str:
        async with self._way() as connection:
            return await connection.execute(query, *args)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self._way() as connection:
            return await connection.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        async with self._way() as connection:
            return await connection.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        async with self._way() as connection:
            return await connection.fetchval(query, *args)


class _Everywhere(Gate):
    """For callers of the whole installation. What it tells a connection ends with the transaction: others use it too,
    and would act in this caller's name."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], actor: str | None) -> None:
        super().__init__(pool, 0, actor)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if self._pinned is not None:
            yield self._pinned
            return
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetchval(_TELL_WITHIN, self._actor or "")
            yield connection


class ScopedStore(Store):
    """A store for one caller; None: one who may see all tenants."""

    def __init__(self, base: Store, tenant_id: int | None, actor: str | None) -> None:
        self.gate = _Everywhere(base.pool, actor) if tenant_id is None else Gate(base.pool, tenant_id, actor)
        super().__init__(cast(Any, self.gate), base.dsn)  # it has all that is ever asked of a pool
        self.days = base.days

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """All that is asked of this store meanwhile is one transaction, or nothing of it."""
        known, self.days = self.days, set(self.days)
        try:
            async with self.gate.transaction():
                yield
            known |= self.days  # a day that was made is there for others from now on
        finally:
            self.days = known


async def open_tenants(dsn: str, *, size: int = 8, name: str = "bellringer") -> Store:
    """A pool for callers, to be scoped for each of them. Without the role, statements keep tenants apart alone."""
    role = await _role(dsn, name)
    if role is None:
        log.warning("the database has no second wall between tenants", hint=HINT)
    opened = await Store.open(dsn, size=size, name=name, kind=Told, settings={} if role is None else {"role": role})
    opened.role = role
    return opened


async def _role(dsn: str, name: str) -> str | None:
    """The role that serves tenants in this database; None: there is none, or we may not be it."""
    connection = await connect(dsn, name=name)
    try:
        role: str = await connection.fetchval("select bellringer.tenant_role()")
        await connection.execute(f"set role {role}")
    except asyncpg.PostgresError:
        return None
    finally:
        await connection.close()
    return role
