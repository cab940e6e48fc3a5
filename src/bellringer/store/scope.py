"""A store that acts for one caller: its connections are told whose rows they may see, and who acts.

Every statement names its tenant by itself. This is the second wall: the connections have a role of the database that
sees only the rows of the tenant that they were told of (row-level security), whatever a statement forgets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import asyncpg

from bellringer.store.pool import Store

ROLE: Final = "bellringer_tenant"
_TELL: Final = "select set_config('bellringer.tenant', $1, false), set_config('bellringer.actor', $2, false)"


class Told(asyncpg.Connection):
    """A connection that remembers what it was told, so that it is told only what is new."""

    _told: tuple[int, str] | None = None

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
        self._pinned: asyncpg.pool.PoolConnectionProxy[asyncpg.Record] | None = None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        if self._pinned is not None:
            yield self._pinned
            return
        async with self._pool.acquire() as connection:
            await connection.tell(self._tenant_id, self._actor)  # type: ignore[attr-defined]
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        """All that is asked for meanwhile is one transaction, or nothing of it."""
        async with self.acquire() as connection, connection.transaction():
            self._pinned = connection
            try:
                yield connection
            finally:
                self._pinned = None

    async def execute(self, query: str, *args: Any) -> str:
        async with self.acquire() as connection:
            return await connection.execute(query, *args)

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self.acquire() as connection:
            return await connection.fetch(query, *args)

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        async with self.acquire() as connection:
            return await connection.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        async with self.acquire() as connection:
            return await connection.fetchval(query, *args)


class ScopedStore(Store):
    """A store for one caller."""

    def __init__(self, base: Store, tenant_id: int, actor: str | None) -> None:
        self.gate = Gate(base.pool, tenant_id, actor)
        super().__init__(cast(Any, self.gate), base.dsn)  # it has all that is ever asked of a pool
        self.days = base.days


async def open_tenants(dsn: str, *, size: int = 8, name: str = "bellringer") -> Store:
    """A pool for callers, to be scoped for each of them."""
    return await Store.open(dsn, size=size, name=name, kind=Told)
