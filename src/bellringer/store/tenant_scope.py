"""Stores that act for one caller: each connection knows the tenant whose rows it may see, and the actor for the
audit. Behind a pooler the scope belongs to a transaction instead, because the session is shared with other clients.

Every statement filters by tenant. Row-level security is the second barrier: the connections have a database role
that sees only the rows of the current tenant, even if a statement lacks its filter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import asyncpg

from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store, connect, unreachable
from bellringer.store.dead_connections import CONNECT_SECONDS
from bellringer.store.dead_connections import GuardedConnection as Watched
from bellringer.store.migrate import RowSecurity, row_security
from bellringer.telemetry import log

if TYPE_CHECKING:
    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

ISOLATION_HINT: Final = "see docs/tenant-isolation.md"
_SET_TENANT: Final = "select set_config('bellringer.tenant', $1, false), set_config('bellringer.actor', $2, false)"
# A process that is stopped inside a transaction may hold a shard lock: the server ends the session soon.
_SHORT_IDLE_TIMEOUT: Final = "set_config('idle_in_transaction_session_timeout', '3s', true)"
_SET_ALL_TENANTS: Final = (
    f"select set_config('bellringer.tenant', '', true), set_config('bellringer.actor', $1, true), {_SHORT_IDLE_TIMEOUT}"
)
# Behind a pooler the role belongs to the scope: it cannot be set at the start of a session.
_SET_LOCALLY: Final = (
    "select set_config('role', $3, true), set_config('bellringer.tenant', $1, true),"
    f" set_config('bellringer.actor', $2, true), {_SHORT_IDLE_TIMEOUT}"
)
NO_ROLE: Final = "none"


class ScopedConnection(Watched):
    """A connection that remembers its tenant and actor, so that it sets them only when they change."""

    _scope: tuple[int, str] | None = None

    def __init__(self, protocol: Any, transport: asyncio.Transport, *more: Any) -> None:
        super().__init__(protocol, transport, *more)
        # Writes requests to the socket at once instead of when the event loop is idle.
        transport.set_write_buffer_limits(high=0)

    async def set_tenant(self, tenant_id: int, actor: str | None) -> None:
        """Sets the tenant whose rows are visible, and the actor; a read (None) does not need one."""
        if self._scope is not None and self._scope[0] == tenant_id and actor in (None, self._scope[1]):
            return
        self._scope = None  # unknown until the statement completes
        await self.fetchval(_SET_TENANT, str(tenant_id), actor or "")
        self._scope = (tenant_id, actor or "")


class ScopedPool:
    """The part of the pool interface that the store's functions use, for one caller."""

    def __init__(self, base: Store, tenant_id: int, actor: str | None) -> None:
        self._base = base
        self._pool = base.pool
        self._tenant_id = tenant_id
        self._actor = actor
        self._pinned: Connection | None = None
        self._pinned_lock = asyncio.Lock()  # one statement at a time on the pinned connection

    @property
    def is_pinned(self) -> bool:
        """Whether all statements use one connection, in one transaction."""
        return self._pinned is not None

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if self._pinned is not None:
            yield self._pinned
            return
        if self._base.is_pooled:
            async with self._local_scope(str(self._tenant_id)) as connection:
                yield connection
            return
        async with self._pool.acquire() as connection:
            await connection.set_tenant(self._tenant_id, self._actor)  # type: ignore[attr-defined]
            yield connection

    @asynccontextmanager
    async def _local_scope(self, tenant: str) -> AsyncIterator[Connection]:
        """Yields a connection in a transaction that has the role, the tenant and the actor; its end resets them."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetchval(_SET_LOCALLY, tenant, self._actor or "", self._base.role or NO_ROLE)
            yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Runs all statements of the block in one transaction."""
        async with self.acquire() as connection, connection.transaction():
            await connection.execute(f"select {_SHORT_IDLE_TIMEOUT}")
            self._pinned = connection
            try:
                yield connection
            finally:
                self._pinned = None

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[Connection]:
        """Yields the pinned connection inside a savepoint, so that a failed statement does not end the transaction."""
        assert self._pinned is not None
        async with self._pinned_lock, self._pinned.transaction():
            yield self._pinned

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        return self.acquire() if self._pinned is None else self._savepoint()

    async def execute(self, query: str, *args: Any) -> str:
        return str(await self._run("execute", query, args))

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return cast(list[asyncpg.Record], await self._run("fetch", query, args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        return cast(asyncpg.Record | None, await self._run("fetchrow", query, args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._run("fetchval", query, args)

    async def _run(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        """Runs a statement, and repeats it if a migration has changed its result since it was prepared. The first try
        had no effect: its transaction of one statement, or its savepoint, was rolled back.
        """
        try:
            async with self._connection() as connection:
                return await getattr(connection, method)(query, *args)
        except asyncpg.InvalidCachedStatementError:  # the driver has dropped its prepared statements
            async with self._connection() as connection:
                return await getattr(connection, method)(query, *args)


class _AllTenantsPool(ScopedPool):
    """The pool of callers who may see all tenants. Its settings end with the transaction, because others share the
    connection.
    """

    def __init__(self, base: Store, actor: str | None) -> None:
        super().__init__(base, 0, actor)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        if self._pinned is not None:
            yield self._pinned
            return
        if self._base.is_pooled:
            async with self._local_scope("") as connection:
                yield connection
            return
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.fetchval(_SET_ALL_TENANTS, self._actor or "")
            yield connection


class ScopedStore(Store):
    """A store for one caller; tenant None may see all tenants."""

    def __init__(self, base: Store, tenant_id: int | None, actor: str | None) -> None:
        self.scoped_pool = _AllTenantsPool(base, actor) if tenant_id is None else ScopedPool(base, tenant_id, actor)
        super().__init__(  # the scoped pool implements the methods of a pool that are used
            cast(Any, self.scoped_pool), base.dsn, session_dsn=base.session_dsn, is_pooled=base.is_pooled
        )
        self.days = base.days

    @property
    def is_in_transaction(self) -> bool:
        return self.scoped_pool.is_pinned

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Runs all statements of the block in one transaction."""
        known, self.days = self.days, set(self.days)
        try:
            async with self.scoped_pool.transaction():
                yield
            known |= self.days  # after the commit, the created days exist for others too
        finally:
            self.days = known


async def open_tenants(dsn: str, *, size: int = 8, name: str = "bellringer", direct_dsn: str | None = None) -> Store:
    """Opens a pool whose stores are scoped per caller. Without the role, only the statements separate tenants."""
    found = await _row_security(dsn, name)
    role = found.role if found is not None and found.is_on else None
    if role is None:
        hint = (
            ISOLATION_HINT
            if found is None
            else f"let an administrator run `{found.remedy}`, then run `bellringer migrate`"
        )
        log.warning("row-level security between tenants is off", hint=hint)
    opened = await Store.open(
        dsn,
        size=size,
        name=name,
        kind=ScopedConnection,
        settings={} if role is None else {"role": role},
        direct_dsn=direct_dsn,
    )
    opened.role = role
    return opened


async def _row_security(dsn: str, name: str) -> RowSecurity | None:
    connection = await connect(dsn, name=name)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await row_security(connection)
    except (
        RETRYABLE_ERRORS
    ) as error:  # says nothing about the role, and continuing without the role would disable row-level security
        raise unreachable(dsn, error) from error
    except asyncpg.PostgresError:
        return None
    finally:
        connection.terminate()
