"""The look for what strikes soon: at the database twice a second, or, with a time index, where the index says so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from bellringer.clock import Clock, DatabaseClock
from bellringer.scheduler.wheel import TimeIndex, Wheel
from bellringer.store import cohorts
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.telemetry import LOOKS, one_of

AHEAD: Final = timedelta(seconds=1)  # how far beyond the lead the wheel looks: two polls
WHOLE: Final = timedelta(seconds=5)  # all shards are asked for as often as this, whatever an index says
MOST_HANDS: Final = 10_000


class Seen(NamedTuple):
    """Shards that have a timer due; and whether there are more hands than one look brings."""

    rung: list[int]
    more: bool


class Lookout:
    """Fills the wheel. An index only says where nothing strikes soon; who believes a wrong one is 5 s late at most."""

    def __init__(
        self,
        store: Store,
        names: Names,
        wheel: Wheel,
        time: DatabaseClock,
        clock: Clock,
        index: TimeIndex | None,
    ) -> None:
        self._store = store
        self._names = names
        self._wheel = wheel
        self._time = time
        self._clock = clock
        self._index = index
        self._whole_at = float("-inf")
        self._moved: set[int] = set()

    def forget(self) -> None:
        """Hands may stand elsewhere, nobody knows which."""
        self._whole_at = float("-inf")

    async def close(self) -> None:
        if self._index is not None:
            await self._index.close()

    def moved(self, shards: Collection[int]) -> None:
        """Hands or timers of these shards have moved, so what the index says of them is over."""
        self._moved.update(shards)

    async def look(self, tokens: Mapping[int, int], lead: timedelta) -> Seen:
        """Read the hands that strike soon into the wheel."""
        if self._index is None:
            return await self._read(sorted(tokens), lead)
        shards = await self._asked(self._index, tokens, lead)
        if not shards:
            one_of(LOOKS, "index").inc()
            return Seen([], more=False)
        return await self._read_and_fill(self._index, tokens, shards, lead)

    async def _asked(self, index: TimeIndex, tokens: Mapping[int, int], lead: timedelta) -> list[int]:
        if self._clock.monotonic() - self._whole_at >= WHOLE.total_seconds():
            return sorted(tokens)
        now = self._time.now()
        near = await index.near(tokens, now - WHOLE, now + lead + AHEAD)
        return sorted(shard for shard in tokens if shard in near or shard in self._moved)

    async def _read(self, shards: list[int], lead: timedelta) -> Seen:
        one_of(LOOKS, "database").inc()
        now = await self._store.now()
        self._time.observe(now)
        until = now + lead
        hands = await cohorts.coming(self._store, shards, until + AHEAD, MOST_HANDS)
        self._wheel.put(hands)
        await self._names.schedules({hand.schedule_id for hand in hands})  # read before the strike, not during it
        return Seen(await cohorts.rung(self._store, shards, until), more=len(hands) == MOST_HANDS)

    async def _read_and_fill(
        self, index: TimeIndex, tokens: Mapping[int, int], shards: list[int], lead: timedelta
    ) -> Seen:
        """The same, and further ahead: until all is looked at again the index answers for what was found."""
        one_of(LOOKS, "database").inc()
        moment, self._moved = self._clock.monotonic(), self._moved - set(shards)
        now = await self._store.now()
        self._time.observe(now)
        until = now + lead
        hands = await cohorts.coming(self._store, shards, until + AHEAD + WHOLE, MOST_HANDS)
        soon = [hand for hand in hands if hand.next_at <= until + AHEAD]
        self._wheel.put(soon)
        await self._names.schedules({hand.schedule_id for hand in soon})
        timers = await cohorts.first_timers(self._store, shards)
        more = len(hands) == MOST_HANDS
        if more:
            self._moved.update(shards)  # what is beyond these is not known
        else:
            strikes = [(hand.shard, f"c:{hand.schedule_id}", hand.next_at) for hand in hands]
            strikes += [(shard, "t", due) for shard, due in timers.items()]
            await index.fill({shard: tokens[shard] for shard in shards}, now, strikes)
        if len(shards) == len(tokens):
            self._whole_at = moment
        return Seen([shard for shard, due in timers.items() if due <= until], more=more and len(soon) == len(hands))
