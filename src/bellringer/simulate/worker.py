"""The worker of a simulation: what it claims takes its time on the simulated clock, and is settled after it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from msgspec.structs import replace

from bellringer.lifecycle.reap import SILENCE
from bellringer.lifecycle.settle import decide, settle
from bellringer.runs import Ending, Outcome
from bellringer.simulate.report import Crash
from bellringer.store import queue
from bellringer.store.queue import Claimed
from bellringer.testing import reads
from bellringer.testing.stage import Stage

_OK = Ending(outcome=Outcome.OK)
_OPENED = Ending(outcome=Outcome.OK, opened=True)


class SimulatedWorker:
    """Slots in each pool. When it crashes, it falls silent with what it holds, until schedulers notice."""

    def __init__(
        self,
        stage: Stage,
        *,
        slots: int,
        duration: Callable[[str | None], timedelta],
        execute: bool = False,
        results: Mapping[str, Any] | None = None,
    ) -> None:
        self._stage = stage
        self._slots = slots
        self._duration = duration
        self._execute = execute
        self._results = results or {}  # of nodes whose handlers are not called
        self._running: list[tuple[datetime, int, int, Claimed, Ending]] = []
        self._busy: Counter[int] = Counter()
        self._order = count()
        self._pools: dict[int, str] = {}
        self.dies_at: datetime | None = None
        self.noticed_at: datetime | None = None  # it is silent until then
        self.settled = 0

    @property
    def idle(self) -> bool:
        return not self._running and self.noticed_at is None

    def next_end(self) -> datetime | None:
        """When the first of its runs has had its time."""
        return self._running[0][0] if self._running else None

    async def heed(self, now: datetime) -> None:
        """Stop at once what it is asked to stop."""
        asked = set(await queue.cancels(self._stage.store, self._stage.workshop.worker_id))
        for place, (end, number, pool_id, claimed, _) in enumerate(self._running):
            if (claimed.key, claimed.attempt) in asked:
                ending = Ending(outcome=Outcome.CANCELLED, ran=(now - claimed.claimed_at).total_seconds())
                self._running[place] = (min(now, end), number, pool_id, claimed, ending)
        heapq.heapify(self._running)

    async def finish(self, now: datetime) -> int:
        """Settle what ended up to now, each with its own time; answers how many did."""
        batch = []
        while self._running and self._running[0][0] <= now:
            end, _, pool_id, claimed, ending = heapq.heappop(self._running)
            batch.append(decide(claimed, ending, (end - now).total_seconds()))
            self._busy[pool_id] -= 1
        if batch:
            self.settled += await settle(self._stage.store, self._stage.workshop.worker_id, batch, moment=0.0)
        return len(batch)

    async def take(self, now: datetime, pools: Collection[int]) -> int:
        """Claim what is ready in these pools, as far as there is room; answers how much."""
        taken = 0
        for pool_id in sorted(pools):
            room = self._slots - self._busy[pool_id]
            if room <= 0 or self.noticed_at is not None:
                continue
            for claimed in await self._stage.workshop.claim(pool_id, room):
                length = self._length(claimed)
                ending = replace(await self._ending(claimed, pool_id), ran=length.total_seconds())
                heapq.heappush(self._running, (now + length, next(self._order), pool_id, claimed, ending))
                self._busy[pool_id] += 1
                taken += 1
        return taken

    def _length(self, claimed: Claimed) -> timedelta:
        """How long it takes; to open a workflow run takes no time."""
        return timedelta(0) if claimed.spec.graph is not None else self._duration(claimed.spec.node or claimed.name)

    async def _ending(self, claimed: Claimed, pool_id: int) -> Ending:
        """How it will end: well, or as its handler decides."""
        if claimed.spec.graph is not None:
            return _OPENED
        if not self._execute:
            result = self._results.get(claimed.spec.node) if claimed.spec.node else None
            return _OK if result is None else Ending(outcome=Outcome.OK, result=result)
        if pool_id not in self._pools:
            self._pools = await reads.pool_ids(self._stage.store)
        return await self._stage.workshop.execute(claimed, self._pools[pool_id])

    def doom(self, now: datetime) -> bool:
        """Let it die half way to its next end; False: it holds nothing that it could lose."""
        end = self.next_end()
        if end is None or end <= now or self.dies_at is not None:
            return False
        self.dies_at = now + (end - now) / 2
        return True

    def crash(self, now: datetime) -> Crash:
        """Fall silent, with all that it holds."""
        lost = len(self._running)
        self._running.clear()
        self._busy.clear()
        self.dies_at, self.noticed_at = None, now + SILENCE
        return Crash(now, lost)

    async def come_back(self) -> None:
        """Its silence is noticed: what it held is reaped, and another takes its place."""
        self.settled += await self._stage.workshop.replace()
        self.noticed_at = None
