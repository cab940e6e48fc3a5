"""The hands that strike next, in memory. Losing it loses nothing: the database is asked again twice a second."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Protocol

from bellringer.store.cohorts import Hand


class TimeIndex(Protocol):
    """Knows, outside of this process, in which shards something strikes soon. It may be wrong, and never raises."""

    async def near(self, tokens: Mapping[int, int], since: datetime, until: datetime) -> frozenset[int]:
        """The shards in which something strikes until then, and those that were not filled under this token since."""
        ...

    async def fill(self, tokens: Mapping[int, int], at: datetime, strikes: Iterable[tuple[int, str, datetime]]) -> None:
        """All that strikes soon in these shards, as it was at that time: the shard, what, and when."""
        ...

    async def close(self) -> None: ...


class Wheel:
    """Hands in the order in which they strike; a newer reading of a hand replaces the older one."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, int]] = []
        self._known: dict[tuple[int, int], Hand] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, hands: Iterable[Hand]) -> None:
        for hand in hands:
            place = (hand.shard, hand.schedule_id)
            known = self._known.get(place)
            self._known[place] = hand
            if known is None or known.next_at != hand.next_at:
                heapq.heappush(self._heap, (hand.next_at, *place))

    def take(self, until: datetime, most: int) -> list[Hand]:
        """Remove and answer at most so many hands that strike until then, the earliest first."""
        taken: list[Hand] = []
        while self._heap and len(taken) < most and self._heap[0][0] <= until:
            next_at, *place = heapq.heappop(self._heap)
            hand = self._known.get((place[0], place[1]))
            if hand is not None and hand.next_at == next_at:
                del self._known[hand.shard, hand.schedule_id]
                taken.append(hand)
        return taken

    def keep(self, shards: Collection[int]) -> None:
        """Forget the hands of all other shards."""
        if all(shard in shards for shard, _ in self._known):
            return
        self._known = {place: hand for place, hand in self._known.items() if hand.shard in shards}
        self._heap = [(hand.next_at, *place) for place, hand in self._known.items()]
        heapq.heapify(self._heap)

    def next_strike(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None
