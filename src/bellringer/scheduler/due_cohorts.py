"""The cohorts that are due soon: an in-memory heap, and the poller that fills it from the database.

The poller reads the database twice a second, once a second while nothing happens. With a time index it reads only the
shards that have something due soon.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from bellringer.clock import Clock, DatabaseClock
from bellringer.core.time_index import TimeIndex
from bellringer.store import cohorts
from bellringer.store.cohorts import Cohort
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import LOOKS, with_labels

POLL_AHEAD: Final = timedelta(seconds=1)  # read cohorts due this long after the lead time: two poll intervals
FULL_POLL_INTERVAL: Final = timedelta(seconds=5)  # with a time index: read all shards at least this often
MAX_COHORTS_PER_POLL: Final = 10_000


class DueHeap:
    """Cohorts ordered by due time. A newer reading of a cohort replaces the older one.

    The heap can be lost at any time: the next poll fills it again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, int]] = []
        self._known: dict[tuple[int, int], Cohort] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, found: Iterable[Cohort]) -> None:
        for cohort in found:
            key = (cohort.shard, cohort.schedule_id)
            known = self._known.get(key)
            self._known[key] = cohort
            if known is None or known.next_at != cohort.next_at:
                heapq.heappush(self._heap, (cohort.next_at, *key))

    def take(self, until: datetime, most: int) -> list[Cohort]:
        """Remove and return up to `most` cohorts due by `until`, earliest first."""
        taken: list[Cohort] = []
        while self._heap and len(taken) < most and self._heap[0][0] <= until:
            next_at, *key = heapq.heappop(self._heap)
            cohort = self._known.get((key[0], key[1]))
            if cohort is not None and cohort.next_at == next_at:
                del self._known[cohort.shard, cohort.schedule_id]
                taken.append(cohort)
        return taken

    def keep(self, shards: Collection[int]) -> None:
        """Remove the cohorts of all other shards."""
        if all(shard in shards for shard, _ in self._known):
            return
        self._known = {key: cohort for key, cohort in self._known.items() if cohort.shard in shards}
        self._heap = [(cohort.next_at, *key) for key, cohort in self._known.items()]
        heapq.heapify(self._heap)

    def next_due_at(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None


class PollResult(NamedTuple):
    """The shards that have a timer that is due soon, and whether there are more cohorts than one poll reads."""

    timer_shards: list[int]
    more: bool


class CohortPoller:
    """Fills the heap from the database.

    A time index only serves to skip shards with nothing due soon. If the index is wrong, a fire is late by at most
    `FULL_POLL_INTERVAL`.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        due_heap: DueHeap,
        database_clock: DatabaseClock,
        clock: Clock,
        index: TimeIndex | None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._due_heap = due_heap
        self._database_clock = database_clock
        self._clock = clock
        self._index = index
        self._full_poll_at = float("-inf")
        self._changed_shards: set[int] = set()

    def request_full_poll(self) -> None:
        """Read all shards at the next poll, because any due time may have changed."""
        self._full_poll_at = float("-inf")

    async def close(self) -> None:
        if self._index is not None:
            await self._index.close()

    def mark_changed(self, shards: Collection[int]) -> None:
        """Read these shards at the next poll, because their due times have changed since the index was filled."""
        self._changed_shards.update(shards)

    @property
    def may_poll_rarely(self) -> bool:
        """Whether `timers_within` has an effect: a time index finds timers only when they are due within the lead."""
        return self._index is None

    async def poll(
        self, tokens: Mapping[int, int], lead: timedelta, *, timers_within: timedelta | None = None
    ) -> PollResult:
        """Read the cohorts that are due soon into the heap, and find timers due within the lead or `timers_within`."""
        if self._index is None:
            return await self._read(sorted(tokens), lead, timers_within or lead)
        shards = await self._shards_to_read(self._index, tokens, lead)
        if not shards:
            with_labels(LOOKS, "index").inc()
            return PollResult([], more=False)
        return await self._read_and_fill(self._index, tokens, shards, lead)

    async def _shards_to_read(self, index: TimeIndex, tokens: Mapping[int, int], lead: timedelta) -> list[int]:
        if self._clock.monotonic() - self._full_poll_at >= FULL_POLL_INTERVAL.total_seconds():
            return sorted(tokens)
        now = self._database_clock.now()
        near = await index.near(tokens, now - FULL_POLL_INTERVAL, now + lead + POLL_AHEAD)
        return sorted(shard for shard in tokens if shard in near or shard in self._changed_shards)

    async def _read(self, shards: list[int], lead: timedelta, timers_within: timedelta) -> PollResult:
        with_labels(LOOKS, "database").inc()
        found = await cohorts.due_soon(self._store, shards, timers_within, lead + POLL_AHEAD, MAX_COHORTS_PER_POLL)
        self._database_clock.observe(found.now)
        self._due_heap.put(found.cohorts)
        await self._catalog.schedules({cohort.schedule_id for cohort in found.cohorts})  # cached before they are due
        return PollResult(found.timer_shards, more=len(found.cohorts) == MAX_COHORTS_PER_POLL)

    async def _read_and_fill(
        self, index: TimeIndex, tokens: Mapping[int, int], shards: list[int], lead: timedelta
    ) -> PollResult:
        """Read further ahead, until the next full poll, and store the due times in the index."""
        with_labels(LOOKS, "database").inc()
        moment, self._changed_shards = self._clock.monotonic(), self._changed_shards - set(shards)
        now = await self._store.now()
        self._database_clock.observe(now)
        until = now + lead
        found = await cohorts.upcoming(
            self._store, shards, until + POLL_AHEAD + FULL_POLL_INTERVAL, MAX_COHORTS_PER_POLL
        )
        soon = [cohort for cohort in found if cohort.next_at <= until + POLL_AHEAD]
        self._due_heap.put(soon)
        await self._catalog.schedules({cohort.schedule_id for cohort in soon})
        timers = await cohorts.first_timers(self._store, shards)
        more = len(found) == MAX_COHORTS_PER_POLL
        if more:
            self._changed_shards.update(shards)  # the result was cut off, so the index cannot be filled
        else:
            due_times = [(cohort.shard, f"c:{cohort.schedule_id}", cohort.next_at) for cohort in found]
            due_times += [(shard, "t", due) for shard, due in timers.items()]
            await index.fill({shard: tokens[shard] for shard in shards}, now, due_times)
        if len(shards) == len(tokens):
            self._full_poll_at = moment
        return PollResult(
            [shard for shard, due in timers.items() if due <= until], more=more and len(soon) == len(found)
        )
