"""Reads lists and history from a replica, and falls back to the primary when the replica does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, cast

import asyncpg
from prometheus_client import Counter

from bellringer.clock import Clock
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.telemetry import log

T = TypeVar("T")

REPLICA_TIMEOUT_SECONDS: Final = 3.0
REPLICA_RETRY_SECONDS: Final = 5.0

REPLICA_FALLBACKS: Final = Counter(
    "bellringer_replica_fallbacks_total", "Reads that fell back from the replica to the primary"
)


class Replica:
    """A store that may lag behind, and whether it responded lately."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._again_at = 0.0

    def is_up(self) -> bool:
        return self._clock.monotonic() >= self._again_at

    def failed(self, error: BaseException) -> None:
        if self.is_up():
            log.warning("replica does not respond; reading lists from the primary", error=type(error).__name__)
        self._again_at = self._clock.monotonic() + REPLICA_RETRY_SECONDS


class _FallbackPool:
    """The read methods of a pool: tries the replica, then the primary."""

    def __init__(self, replica: Replica, lagging: Any, primary: Any) -> None:
        self._replica = replica
        self._lagging = lagging
        self._primary = primary

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await self._read(lambda pool: pool.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        return await self._read(lambda pool: pool.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._read(lambda pool: pool.fetchval(query, *args))

    def acquire(self) -> AbstractAsyncContextManager[Any]:
        """Returns a connection of the primary, because callers need one for more than a single read."""
        return cast(AbstractAsyncContextManager[Any], self._primary.acquire())

    async def _read(self, read: Callable[[Any], Awaitable[T]]) -> T:
        if self._replica.is_up():
            try:
                async with asyncio.timeout(REPLICA_TIMEOUT_SECONDS):
                    return await read(self._lagging)
            except DATABASE_ERRORS as error:
                self._replica.failed(error)
        REPLICA_FALLBACKS.inc()
        return await read(self._primary)


class ReadStore(Store):
    """A read-only store that may lag behind."""

    def __init__(self, replica: Replica, lagging: Store, primary: Store) -> None:
        super().__init__(
            cast(Any, _FallbackPool(replica, lagging.pool, primary.pool)),
            primary.dsn,
            session_dsn=primary.session_dsn,
            is_pooled=primary.is_pooled,
        )
