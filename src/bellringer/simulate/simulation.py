"""The simulation: from instant to instant, as the real processes would do it, but without the waiting."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from bellringer.simulate.faults import Faults
from bellringer.simulate.report import Crash
from bellringer.simulate.worker import SimulatedWorker
from bellringer.testing.stage import Stage

Progress = Callable[[datetime], None]

AFTER: Final = timedelta(days=30)  # when the time is over, what was born may take so long to end
TIDY_AFTER: Final = 500  # steps


class Simulation:
    """Leaps to the next instant at which something happens, and lets everyone do what they do at it.

    `exact`: the end of a run may matter at its very instant, also where nothing in the queue waits for it.
    """

    def __init__(self, stage: Stage, worker: SimulatedWorker, faults: Faults, end: datetime, *, exact: bool) -> None:
        self._stage = stage
        self._worker = worker
        self._faults = faults
        self._end = end
        self._exact = exact
        self._doomed = list(faults.crashes)
        self._waits = False  # something may be waiting for a run to end
        self._again = False  # something may have become ready at this very instant
        self.crashes: list[Crash] = []
        self.steps = 0

    async def run(self, progress: Progress | None = None) -> None:
        """Until the end; and then, with no new occurrences, until all that was born has ended."""
        definitions = self._stage.app.definitions()
        numbers = await self._stage.names.pool_ids({d.pool for d in definitions})
        pools = {numbers[d.pool] for d in definitions}
        now = self._stage.clock.now()
        while not self._over(now):
            now = await self._step(now, pools)
            self.steps += 1
            if self.steps % TIDY_AFTER == 0:
                await self._stage.tidy()
            if progress is not None:
                progress(min(now, self._end))

    def _over(self, now: datetime) -> bool:
        if now < self._end:
            return False
        return now >= self._end + AFTER or (self._worker.idle and not self._waits and not self._again)

    async def _step(self, now: datetime, pools: Collection[int]) -> datetime:
        """One instant. Who ends at it makes room before who begins at it."""
        ticking = now < self._end and not self._faults.away(now)
        due = await self._stage.clock.leap(self._horizon(now), schedulers=ticking)
        now = due.now
        if now >= self._end:
            due = replace(due, hands=(), timers=False, pauses=False)
        if due.cancels:
            await self._worker.heed(now)
        ended = await self._worker.finish(now)
        reaped = await self._suffer(now)
        born = 0 if self._faults.away(now) else await self._stage.do_chores(due)
        taken = 0
        if due.pools or born:
            taken = await self._worker.take(now, {*due.pools, *(pools if born else ())})
        if self._doomed and self._doomed[0] <= now and self._worker.doom(now):
            self._doomed.pop(0)
        self._waits = due.backfills or due.waiting + born > taken
        self._again = reaped or (bool(ended or born or taken) and (self._exact or self._waits))
        return now

    def _horizon(self, now: datetime) -> datetime:
        """The next instant that the database knows nothing of.

        An end that nobody waits for need not be one: it is written at the next instant, with its own time.
        """
        if self._again:
            return now
        worker, closing = self._worker, now >= self._end
        moments = [
            self._end + AFTER if closing else self._end,
            self._faults.next_turn(now),
            worker.dies_at,
            None if self._faults.away(now) else worker.noticed_at,
            worker.next_end() if closing or self._exact or self._waits else None,
        ]
        return min(moment for moment in moments if moment is not None)

    async def _suffer(self, now: datetime) -> bool:
        """Let the worker die when its time has come, and another come when that is noticed; True: one has come."""
        worker = self._worker
        if worker.dies_at is not None and worker.dies_at <= now:
            self.crashes.append(worker.crash(now))
        if worker.noticed_at is None or worker.noticed_at > now or self._faults.away(now):
            return False
        await worker.come_back()
        return True
