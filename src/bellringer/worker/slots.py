"""Slot accounting of a worker: how many attempts of a pool run at once, and how many runs to claim ahead of time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.core.background_loops import Wake, WakeupTimes
from bellringer.core.runs import Spec
from bellringer.store import pools
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun

BACKGROUND_SHARE: Final = 0.25  # the fraction of the slots that catch-ups and backfills can use
CLAIM_AHEAD_SECONDS: Final = 0.05  # claim this much work beyond the free slots: large batches, but no hoarding
MAX_CLAIM_ROWS: Final = 2_000


class PoolSlots:
    """The slots of one pool. Measures how fast slots become free, to choose the size of the next claim."""

    def __init__(self, pool: str, pool_id: int, count: int) -> None:
        self.pool = pool
        self.pool_id = pool_id
        self.count = count
        self.busy = 0
        self.active_at = 0.0  # monotonic time at which a run was last claimed or ended
        self.background = 0  # claimed and unfinished runs of catch-ups and backfills
        self.claiming = asyncio.Lock()  # held during a claim, whose response must not be lost
        self.waiting: deque[tuple[int, ClaimedRun]] = deque()  # (worker id of the claim, run)
        self.wake = Wake()  # of the pool's claim loop
        self.wakeup_times = WakeupTimes()
        self.may_have_more = False  # the last claim took all that it wanted, or there was no slot for a claim
        self.claimed_at = 0.0  # monotonic time at which the last claim was sent
        self._finished = 0
        self._since = 0.0
        self._rate = 0.0

    def wanted(self) -> int:
        """Return how many runs to claim now."""
        ahead = int(self._rate * CLAIM_AHEAD_SECONDS)
        return max(0, min(MAX_CLAIM_ROWS, self.count - self.busy + ahead - len(self.waiting)))

    def worth_claiming(self) -> bool:
        """Whether a claim now is large enough to be worth a query: there are free slots, and few claimed runs wait."""
        return self.busy < self.count and len(self.waiting) * 2 <= int(self._rate * CLAIM_AHEAD_SECONDS)

    def background_room(self) -> int:
        """Return how many catch-up and backfill runs can be claimed now. At least one slot is reserved for them."""
        return max(1, int(self.count * BACKGROUND_SHARE)) - self.background

    def finished(self, *, background: bool = False) -> None:
        self.busy -= 1
        self.background -= background
        self._finished += 1

    def measure(self, moment: float) -> None:
        """Update the rate at which attempts finish. Called before every claim; `moment` is a monotonic time."""
        passed = moment - self._since
        if passed >= CLAIM_AHEAD_SECONDS:
            self._rate = self._rate * 0.5 + self._finished / passed * 0.5
            self._finished, self._since = 0, moment


POOL_TIMEOUTS_REFRESH_SECONDS: Final = 10.0


class PoolTimeouts:
    """The default timeouts of pools, read periodically. A running attempt keeps the timeout it started with."""

    def __init__(self, store: Store, pools: Sequence[str]) -> None:
        self._store = store
        self._pools = list(pools)
        self._timeouts: Mapping[str, timedelta] = {}

    async def read(self) -> None:
        self._timeouts = await pools.pool_timeouts(self._store, self._pools)

    def apply(self, pool: str, spec: Spec) -> Spec:
        """Return the spec with the pool's timeout, unless the job has its own."""
        if spec.timeout is not None or (timeout := self._timeouts.get(pool)) is None:
            return spec
        return msgspec.structs.replace(spec, timeout=timeout.total_seconds())
