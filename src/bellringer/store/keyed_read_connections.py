"""Connections for reads by complete keys, of which an API serves thousands a second.

Plans are generic and kept, because planning takes several times as long as executing. They use only indexes, so a plan
that was made while a table was empty is still right when the table is large. The connections do not belong to a pool:
acquiring one from a pool for each read would cost as much as the driver's part of the read. Behind a pooler nothing of
this works, because plans and scopes belong to a session: then the pool reads.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, cast

import asyncpg

from bellringer.store.connection_pool import RETRYABLE_ERRORS, SETTINGS, Store
from bellringer.store.dsn import driver_dsn
from bellringer.store.tenant_scope import ScopedConnection, ScopedPool

MAX_CONNECTIONS: Final = 8  # opened when needed; one tenant uses two at most, which leaves some for the others
STATEMENT_TIMEOUT_SECONDS: Final = 5.0
KEPT_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}


class KeyedReads:
    """Connections for tenants, next to their pool. Each read sets the tenant whose rows the connection may see."""

    def __init__(self, tenants: Store, size: int = MAX_CONNECTIONS, name: str = "bellringer api") -> None:
        self._tenants = tenants
        self._dsn = tenants.dsn
        self._settings = {**SETTINGS, **KEPT_PLANS, "application_name": name}
        if tenants.role is not None:
            self._settings["role"] = tenants.role
        self._connections: asyncio.LifoQueue[ScopedConnection | None] = asyncio.LifoQueue()  # None: not connected
        for _ in range(size):
            self._connections.put_nowait(None)

    def of(self, tenant_id: int) -> Store:
        """Returns a store that reads as this tenant."""
        return Store(
            cast(Any, _TenantReader(self, tenant_id)), self._dsn, is_pooled=self._tenants.is_pooled
        )  # it has the methods of a pool that lookups use

    async def fetch(self, tenant_id: int, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        if self._tenants.is_pooled:
            return await self._by_pool(tenant_id, query, args)
        connection, reusable = await self._connections.get(), None
        try:
            if connection is None or connection.is_closed():
                connection = await self._open()
            await connection.set_tenant(tenant_id, None)
            found = await connection.fetch(query, *args)
            reusable = connection
        except asyncpg.TooManyConnectionsError:
            return await self._by_pool(tenant_id, query, args)
        finally:
            self._connections.put_nowait(reusable)
            if reusable is None and connection is not None:
                connection.terminate()  # it may be in an unknown state, so it is not reused
        return found

    async def _by_pool(self, tenant_id: int, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        """Reads on a connection of the pool; the statement is planned each time."""
        return await ScopedPool(self._tenants, tenant_id, None).fetch(query, *args)

    async def _open(self) -> ScopedConnection:
        return await asyncpg.connect(
            driver_dsn(self._dsn),
            connection_class=ScopedConnection,
            server_settings=self._settings,
            timeout=STATEMENT_TIMEOUT_SECONDS,
            command_timeout=STATEMENT_TIMEOUT_SECONDS,  # also applies to setting the tenant, and to cancelling
        )

    async def close(self) -> None:
        while not self._connections.empty():
            connection = self._connections.get_nowait()
            if connection is not None:
                with suppress(*RETRYABLE_ERRORS):  # the server may be down
                    await connection.close(timeout=STATEMENT_TIMEOUT_SECONDS)


class _TenantReader:
    """Reads as one tenant."""

    def __init__(self, lookups: KeyedReads, tenant_id: int) -> None:
        self._lookups = lookups
        self._tenant_id = tenant_id

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await self._lookups.fetch(self._tenant_id, query, args)
