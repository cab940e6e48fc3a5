"""The hands that strike next, in memory. Losing it loses nothing: the database is asked again twice a second."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from datetime import datetime

from bellringer.store.cohorts import Hand


class Wheel:
    """Hands in the order in which they strike; a newer reading of a hand replaces the older one."""

    def __init__(self) -> None:
        self._heap: list[Hand] = []
        self._known: dict[tuple[int, int], datetime] = {}

    def __len__(self) -> int:
        return len(self._known)

    def put(self, hands: Iterable[Hand]) -> None:
        for hand in hands:
            if self._known.get((hand.shard, hand.schedule_id)) != hand.next_at:
                self._known[hand.shard, hand.schedule_id] = hand.next_at
                heapq.heappush(self._heap, hand)

    def take(self, until: datetime, most: int) -> list[Hand]:
        """Remove and answer at most so many hands that strike until then, the earliest first."""
        taken: list[Hand] = []
        while self._heap and len(taken) < most and self._heap[0].next_at <= until:
            hand = heapq.heappop(self._heap)
            if self._is_newest(hand):
                del self._known[hand.shard, hand.schedule_id]
                taken.append(hand)
        return taken

    def keep(self, shards: Collection[int]) -> None:
        """Forget the hands of all other shards."""
        if all(shard in shards for shard, _ in self._known):
            return
        live = [hand for hand in self._heap if hand.shard in shards and self._is_newest(hand)]
        self._heap = live
        heapq.heapify(self._heap)
        self._known = {(hand.shard, hand.schedule_id): hand.next_at for hand in live}

    def _is_newest(self, hand: Hand) -> bool:
        return self._known.get((hand.shard, hand.schedule_id)) == hand.next_at

    def next_strike(self) -> datetime | None:
        return self._heap[0].next_at if self._heap else None
