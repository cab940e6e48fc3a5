"""A replica to read lists and history from, and the primary in its place where it does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, cast

import asyncpg
from prometheus_client import Counter

from bellringer.clock import Clock
from bellringer.store.pool import FAILURES, Store
from bellringer.telemetry import log

T = TypeVar("T")

PATIENCE: Final = 3.0  # seconds that a replica may take
PAUSE: Final = 5.0  # seconds before one that did not answer is asked again

FALLBACKS: Final = Counter("bellringer_replica_fallbacks_total", "Reads that the primary answered for the replica")


class Replica:
    """A store that lags behind a little, and whether it answered lately."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._again_at = 0.0

    def is_up(self) -> bool:
        return self._clock.monotonic() >= self._again_at

    def failed(self, error: BaseException) -> None:
        if self.is_up():
            log.warning("the replica does not answer; lists come from the primary", error=type(error).__name__)
        self._again_at = self._clock.monotonic() + PAUSE


class _Either:
    """The ways to a database that reads use: the replica's, or those of the primary."""

    def __init__(self, replica: Replica, lagging: Any, primary: Any) -> None:
        self._replica = replica
        self._lagging = lagging
        self._primary = primary

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await self._read(lambda way: way.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> asyncpg.Record | None:
        return await self._read(lambda way: way.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._read(lambda way: way.fetchval(query, *args))

    def acquire(self) -> AbstractAsyncContextManager[Any]:
        """Whoever wants a connection wants more than one read: that is the primary's."""
        return cast(AbstractAsyncContextManager[Any], self._primary.acquire())

    async def _read(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        if self._replica.is_up():
            try:
                async with asyncio.timeout(PATIENCE):
                    return await ask(self._lagging)
            except FAILURES as error:
                self._replica.failed(error)
        FALLBACKS.inc()
        return await ask(self._primary)


class ReadStore(Store):
    """A store for reads that may lag behind; it cannot write."""

    def __init__(self, replica: Replica, lagging: Store, primary: Store) -> None:
        super().__init__(cast(Any, _Either(replica, lagging.pool, primary.pool)), primary.dsn)
