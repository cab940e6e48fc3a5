"""The feed of events: one look a second for all streams of a process, handed out to each by its tenant.

Processes that share a cache tell each other what a look has found, so that the others look at once; the table stays the
truth, and a hint that is lost costs a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from bellringer.cache import Cache
from bellringer.clock import Clock
from bellringer.loops import Wake
from bellringer.store.events import Event
from bellringer.store.feed import Position, following, horizon
from bellringer.store.pool import RETRYABLE, Store

LOOK: Final = 1.0  # seconds between two looks
HASTE: Final = 0.1  # the least, however many hints come
HINT: Final = "events "  # … up to this transaction
MOST_KEPT: Final = 1_000  # events that wait for a slow reader, before it is cut off


class Reader:
    """One stream. It gets all events of its tenant after `start`, until it is cut off for being slow."""

    def __init__(self, start: Position) -> None:
        self.start = start
        self.is_cut = False
        self._kept: asyncio.Queue[tuple[Position, Event] | None] = asyncio.Queue(MOST_KEPT)

    def give(self, place: Position, event: Event) -> None:
        try:
            self._kept.put_nowait((place, event))
        except asyncio.QueueFull:
            self.is_cut = True

    def cut(self) -> None:
        """Give it no more; it has what is kept, and ends."""
        self.is_cut = True
        with suppress(asyncio.QueueFull):
            self._kept.put_nowait(None)

    async def next(self, seconds: float) -> tuple[Position, Event] | None:
        """The next event, or None: there was none for so long, or it was cut off and has had all that was kept."""
        if self.is_cut and self._kept.empty():
            return None
        try:
            async with asyncio.timeout(seconds):
                return await self._kept.get()
        except TimeoutError:
            return None

    @property
    def is_even(self) -> bool:
        """Whether it has had all that its tenant's streams were given."""
        return self._kept.empty() and not self.is_cut


@dataclass(slots=True)
class _Tenant:
    position: Position  # up to there its readers were given everything
    readers: set[Reader] = field(default_factory=set)


class Feed:
    """Looks while somebody reads."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self._hinted = Wake()
        self._is_hinted = False
        self._tenants: dict[int, _Tenant] = {}
        self._looker: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def read(self, store: Store, clock: Clock, tenant_id: int) -> AsyncIterator[Reader]:
        """A reader, for as long as this context."""
        start = await horizon(store)
        tenant = self._tenants.setdefault(tenant_id, _Tenant(start))
        reader = Reader(tenant.position)
        tenant.readers.add(reader)
        if self._looker is None or self._looker.done():
            self._looker = asyncio.create_task(self._look(store, clock))
        try:
            yield reader
        finally:
            tenant.readers.discard(reader)
            if not tenant.readers:
                self._tenants.pop(tenant_id, None)
            if not self._tenants and self._looker is not None:
                self._looker.cancel()
                self._looker = None

    def close(self) -> None:
        """Let all streams end."""
        for tenant in self._tenants.values():
            for reader in tenant.readers:
                reader.cut()

    def position(self, tenant_id: int) -> Position | None:
        tenant = self._tenants.get(tenant_id)
        return tenant.position if tenant else None

    def heard(self, text: str) -> None:
        """Another process has found events: look, unless these are known here."""
        number = text.removeprefix(HINT)
        if number == text or not number.isdecimal():
            return
        if any(tenant.position.tx <= int(number) for tenant in self._tenants.values()):
            self._is_hinted = True
            self._hinted.set()

    async def _look(self, store: Store, clock: Clock) -> None:
        while True:
            more, is_hinted, self._is_hinted = False, self._is_hinted, False
            with suppress(*RETRYABLE):
                more = await self._hand_out(store, tells=not is_hinted)  # who found them has told all
            if not more:
                await clock.sleep(HASTE)
                await self._hinted.wait(LOOK - HASTE)

    async def _hand_out(self, store: Store, *, tells: bool) -> bool:
        """One look for all; True: there is more."""
        tenants = dict(self._tenants)
        found = await following(store, {tenant_id: tenant.position for tenant_id, tenant in tenants.items()})
        for tenant_id, tenant in tenants.items():
            for place, event in found[tenant_id].events:
                for reader in [r for r in tenant.readers if not r.is_cut and r.start < place]:
                    reader.give(place, event)
            tenant.position = found[tenant_id].position
        newest = max((place.tx for follows in found.values() for place, _ in follows.events), default=None)
        if tells and newest is not None and self._cache is not None:
            await self._cache.tell(f"{HINT}{newest}")
        return not all(follows.is_all for follows in found.values())
