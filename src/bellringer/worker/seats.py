"""The seats of one pool: how many attempts may run at once, and what was claimed for them ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from bellringer.store.queue import Claimed

BEHIND: Final = 0.25  # the part of the seats that catch-ups and backfills may take
AHEAD: Final = 0.05  # seconds of work that may be claimed beyond the free seats: batches, not hoards
MOST: Final = 2_000  # rows in one claim


class Seats:
    """Counts seats and measures how fast they are freed, so that a claim is neither too small nor a hoard."""

    def __init__(self, pool: str, pool_id: int, slots: int) -> None:
        self.pool = pool
        self.pool_id = pool_id
        self.slots = slots
        self.busy = 0
        self.behind = 0  # of catch-ups and backfills, claimed and not ended
        self.claiming = asyncio.Lock()  # a claim is under way; its answer must not be lost
        self.waiting: deque[tuple[int, Claimed]] = deque()  # each with the number that it was claimed under
        self._finished = 0
        self._since = 0.0
        self._rate = 0.0

    def wanted(self) -> int:
        """How many rows to claim now."""
        ahead = int(self._rate * AHEAD)
        return max(0, min(MOST, self.slots - self.busy + ahead - len(self.waiting)))

    def worth_claiming(self) -> bool:
        """Whether a claim now would be of a size that pays: some seats are free, and the stock runs low."""
        return self.busy < self.slots and len(self.waiting) * 2 <= int(self._rate * AHEAD)

    def room_behind(self) -> int:
        """How many runs from behind live work may be claimed now; one seat is always theirs."""
        return max(1, int(self.slots * BEHIND)) - self.behind

    def finished(self, *, behind: bool = False) -> None:
        self.busy -= 1
        self.behind -= behind
        self._finished += 1

    def measure(self, moment: float) -> None:
        """Take the rate of the last moments; called at every claim."""
        passed = moment - self._since
        if passed >= AHEAD:
            self._rate = self._rate * 0.5 + self._finished / passed * 0.5
            self._finished, self._since = 0, moment
