"""Reads new events once a second for all event streams of a process, and distributes them by tenant.

Processes that share a cache notify each other of new events, so that the others read at once. The table is
authoritative: a lost notification costs one second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from bellringer.clock import Clock
from bellringer.core.background_loops import Wake
from bellringer.core.cache import Cache
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store
from bellringer.store.events import CommitPosition, EventRow, commit_horizon, events_after

EVENT_POLL_SECONDS: Final = 1.0  # between two reads
MIN_EVENT_POLL_SECONDS: Final = 0.1  # minimum time between two reads, however many notifications arrive
NOTIFICATION_PREFIX: Final = "events "  # the notification's payload: events up to this transaction were found
MAX_BUFFERED_EVENTS: Final = 1_000  # events buffered for a slow reader before it is disconnected


class EventReader:
    """One stream. It receives all events of its tenant after `start`, until it is cut off for being slow."""

    def __init__(self, start: CommitPosition) -> None:
        self.start = start
        self.is_cut = False
        self._kept: asyncio.Queue[tuple[CommitPosition, EventRow] | None] = asyncio.Queue(MAX_BUFFERED_EVENTS)

    def give(self, place: CommitPosition, event: EventRow) -> None:
        try:
            self._kept.put_nowait((place, event))
        except asyncio.QueueFull:
            self.is_cut = True

    def cut(self) -> None:
        """Stops the delivery; the reader still gets the buffered events."""
        self.is_cut = True
        with suppress(asyncio.QueueFull):
            self._kept.put_nowait(None)

    async def next(self, seconds: float) -> tuple[CommitPosition, EventRow] | None:
        """Returns the next event, or None after a timeout or once a cut-off reader has got all buffered events."""
        if self.is_cut and self._kept.empty():
            return None
        try:
            async with asyncio.timeout(seconds):
                return await self._kept.get()
        except TimeoutError:
            return None

    @property
    def is_even(self) -> bool:
        """Returns whether the reader has received everything that its tenant's streams were given."""
        return self._kept.empty() and not self.is_cut


@dataclass(slots=True)
class _Tenant:
    position: CommitPosition  # the position up to which its readers have received everything
    readers: set[EventReader] = field(default_factory=set)


class EventFeed:
    """Reads events while there are streams."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self._hinted = Wake()
        self._is_hinted = False
        self._tenants: dict[int, _Tenant] = {}
        self._looker: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def read(self, store: Store, clock: Clock, tenant_id: int) -> AsyncIterator[EventReader]:
        """Yields a reader for the duration of this context."""
        start = await commit_horizon(store)
        tenant = self._tenants.setdefault(tenant_id, _Tenant(start))
        reader = EventReader(tenant.position)
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
        """Ends all streams."""
        for tenant in self._tenants.values():
            for reader in tenant.readers:
                reader.cut()

    def position(self, tenant_id: int) -> CommitPosition | None:
        tenant = self._tenants.get(tenant_id)
        return tenant.position if tenant else None

    def heard(self, text: str) -> None:
        """Handles the notification of another process: reads at once, unless these events are known here."""
        number = text.removeprefix(NOTIFICATION_PREFIX)
        if number == text or not number.isdecimal():
            return
        if any(tenant.position.tx <= int(number) for tenant in self._tenants.values()):
            self._is_hinted = True
            self._hinted.set()

    async def _look(self, store: Store, clock: Clock) -> None:
        while True:
            more, is_hinted, self._is_hinted = False, self._is_hinted, False
            with suppress(*RETRYABLE_ERRORS):
                more = await self._hand_out(
                    store, tells=not is_hinted
                )  # the process that found the events has notified all others
            if not more:
                await clock.sleep(MIN_EVENT_POLL_SECONDS)
                await self._hinted.wait(EVENT_POLL_SECONDS - MIN_EVENT_POLL_SECONDS)

    async def _hand_out(self, store: Store, *, tells: bool) -> bool:
        """Reads new events and distributes them; returns True if there are more."""
        tenants = dict(self._tenants)
        found = await events_after(store, {tenant_id: tenant.position for tenant_id, tenant in tenants.items()})
        for tenant_id, tenant in tenants.items():
            for place, event in found[tenant_id].events:
                for reader in [r for r in tenant.readers if not r.is_cut and r.start < place]:
                    reader.give(place, event)
            tenant.position = found[tenant_id].position
        newest = max((place.tx for follows in found.values() for place, _ in follows.events), default=None)
        if tells and newest is not None and self._cache is not None:
            await self._cache.publish(f"{NOTIFICATION_PREFIX}{newest}")
        return not all(follows.is_all for follows in found.values())
