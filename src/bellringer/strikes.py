"""Instants at which runs become claimable, as far as this process was told; it wakes for them by itself."""

from __future__ import annotations

import heapq
from datetime import datetime
from typing import Final

MOST: Final = 10_000


class Strikes:
    """A heap of hints: forgetting one costs a poll interval, no more."""

    def __init__(self) -> None:
        self._heap: list[datetime] = []

    def add(self, instant: datetime) -> None:
        if len(self._heap) < MOST:
            heapq.heappush(self._heap, instant)

    def until_next(self, now: datetime, most: float) -> float:
        """Seconds to sleep: to the next strike, but no longer than `most`."""
        while self._heap and self._heap[0] <= now:
            heapq.heappop(self._heap)
        if not self._heap:
            return most
        return min(most, max((self._heap[0] - now).total_seconds(), 0.0))
