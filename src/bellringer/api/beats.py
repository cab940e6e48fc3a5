"""Beats: one look a second for all who want to know that something has changed, and none while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from bellringer.clock import Clock
from bellringer.store.pool import RETRYABLE, Store
from bellringer.store.pulse import Marks, marks

LOOK: Final = 1.0  # seconds between two looks
MOST_ASKED: Final = 100  # tenants of one look


class Beat:
    """What was last seen of one tenant, for all who listen for it."""

    def __init__(self, seen: Marks) -> None:
        self.seen = seen
        self.listeners = 0
        self._news = asyncio.Event()

    def show(self, seen: Marks) -> None:
        if seen != self.seen:
            self.seen = seen
            self.wake()

    def wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def differs(self, known: Marks, seconds: float) -> bool:
        """Whether there is something else to tell, now or within so long."""
        if self.seen == known:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        return self.seen != known


class Beats:
    """The beats of all tenants that somebody listens for."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._looker: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listen(self, store: Store, clock: Clock, tenant_id: int) -> AsyncIterator[Beat]:
        """The beat of a tenant, for as long as this context."""
        if tenant_id not in self._beats:
            first = Beat((await marks(store, [tenant_id]))[tenant_id])
            self._beats.setdefault(tenant_id, first)  # another may have come meanwhile
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
        """Whether nobody listens, so that nobody looks."""
        return self._looker is None

    def close(self) -> None:
        """Let all who listen look up: the process ends."""
        for beat in self._beats.values():
            beat.wake()

    async def _look(self, store: Store, clock: Clock) -> None:
        while True:
            await clock.sleep(LOOK)
            tenants = list(self._beats)
            for start in range(0, len(tenants), MOST_ASKED):
                with suppress(*RETRYABLE):
                    for tenant_id, seen in (await marks(store, tenants[start : start + MOST_ASKED])).items():
                        if tenant_id in self._beats:
                            self._beats[tenant_id].show(seen)
