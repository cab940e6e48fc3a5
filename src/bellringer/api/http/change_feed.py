"""Polls the change counters of tenants once a second for all listeners of a process; without listeners it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from bellringer.clock import Clock
from bellringer.store.change_counters import ChangeCounters, load_counters
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store

CHANGE_POLL_SECONDS: Final = 1.0
MAX_TENANTS_PER_QUERY: Final = 100  # tenants in one query


class TenantChanges:
    """The last counters of one tenant, shared by all its listeners."""

    def __init__(self, seen: ChangeCounters) -> None:
        self.seen = seen
        self.listeners = 0
        self._news = asyncio.Event()

    def show(self, seen: ChangeCounters) -> None:
        if seen != self.seen:
            self.seen = seen
            self.wake()

    def wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def differs(self, known: ChangeCounters, seconds: float) -> bool:
        """Waits until the counters differ from the given ones, or the time is over; returns whether they differ."""
        if self.seen == known:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        return self.seen != known


class ChangeFeed:
    """The change counters of all tenants that have listeners."""

    def __init__(self) -> None:
        self._beats: dict[int, TenantChanges] = {}
        self._looker: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listen(self, store: Store, clock: Clock, tenant_id: int) -> AsyncIterator[TenantChanges]:
        """Yields the changes of a tenant for the duration of this context."""
        if tenant_id not in self._beats:
            first = TenantChanges((await load_counters(store, [tenant_id]))[tenant_id])
            self._beats.setdefault(tenant_id, first)  # another listener may have come meanwhile
        beat = self._beats[tenant_id]
        beat.listeners += 1
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look(store, clock))
        try:
            yield beat
        finally:
            beat.listeners -= 1
            if not beat.listeners:
                self._beats.pop(tenant_id, None)
            if not self._beats and self._looker is not None:
                self._looker.cancel()
                self._looker = None

    @property
    def is_idle(self) -> bool:
        return self._looker is None

    def close(self) -> None:
        """Wakes all listeners, because the process is stopping."""
        for beat in self._beats.values():
            beat.wake()

    async def _look(self, store: Store, clock: Clock) -> None:
        while True:
            await clock.sleep(CHANGE_POLL_SECONDS)
            tenants = list(self._beats)
            for start in range(0, len(tenants), MAX_TENANTS_PER_QUERY):
                with suppress(*RETRYABLE_ERRORS):
                    for tenant_id, seen in (
                        await load_counters(store, tenants[start : start + MAX_TENANTS_PER_QUERY])
                    ).items():
                        if tenant_id in self._beats:
                            self._beats[tenant_id].show(seen)
