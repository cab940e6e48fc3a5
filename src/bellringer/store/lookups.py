"""Connections for reads by whole keys alone, of which an API answers thousands a second.

Their plans are made once and kept, since to make one costs several times as much as to run it; and they ask indexes
alone, so that one made while a table was empty is right when it is large. They belong to no pool: to take one from it
for each read costs as much as the driver's own part of the read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, cast

import asyncpg

from bellringer.store.pool import RETRYABLE, SETTINGS, Store
from bellringer.store.scope import Told

AT_ONCE: Final = 8  # connections, opened when needed: two in use by one tenant leave some to the others
PATIENCE: Final = 5.0  # seconds for one statement
KEPT_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_material": "off",
    "enable_memoize": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}


class Lookups:
    """Beside a pool for callers, and for them: a connection is told whose rows it may see. Opened when needed."""

    def __init__(self, tenants: Store, size: int = AT_ONCE, name: str = "bellringer api") -> None:
        self._dsn = tenants.dsn
        self._settings = {**SETTINGS, **KEPT_PLANS, "application_name": name}
        if tenants.role is not None:
            self._settings["role"] = tenants.role
        self._lines: asyncio.LifoQueue[Told | None] = asyncio.LifoQueue()  # None: one that is not open
        for _ in range(size):
            self._lines.put_nowait(None)

    def of(self, tenant_id: int) -> Store:
        """What a tenant may look up."""
        return Store(cast(Any, _Line(self, tenant_id)), self._dsn)  # it has what look-ups ask of a pool

    async def fetch(self, tenant_id: int, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        line, sound = await self._lines.get(), None
        try:
            if line is None or line.is_closed():
                line = await self._open()
            await line.tell(tenant_id, None)
            found = await line.fetch(query, *args)
            sound = line
        finally:
            self._lines.put_nowait(sound)
            if sound is None and line is not None:
                line.terminate()  # whatever happened to it, nobody else shall meet it
        return found

    async def _open(self) -> Told:
        return await asyncpg.connect(
            self._dsn,
            connection_class=Told,
            server_settings=self._settings,
            timeout=PATIENCE,
            command_timeout=PATIENCE,  # also for what it is told before a read, and to call one off
        )

    async def close(self) -> None:
        while not self._lines.empty():
            line = self._lines.get_nowait()
            if line is not None:
                with suppress(*RETRYABLE):  # a server that is away need not be told
                    await line.close(timeout=PATIENCE)


class _Line:
    """The way to the database for one tenant."""

    def __init__(self, lookups: Lookups, tenant_id: int) -> None:
        self._lookups = lookups
        self._tenant_id = tenant_id

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await self._lookups.fetch(self._tenant_id, query, args)
