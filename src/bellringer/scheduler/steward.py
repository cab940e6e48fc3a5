"""What one node does for all, so that runs go on and the tables stay small: the one that holds shard 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.clock import Clock
from bellringer.lifecycle import prune as pruning
from bellringer.lifecycle.flow import stop_flows
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.reap import reap
from bellringer.lifecycle.register import resume
from bellringer.lifecycle.seal import MOST as MOST_SEALED
from bellringer.lifecycle.seal import seal
from bellringer.schedule.instants import EPOCH
from bellringer.store import jobs, queue
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.wakeups import CANCELS, RUNS, WORK, Wakeups
from bellringer.telemetry import REAPED, log

PATIENCE: Final = 7.0  # longer than a worker's heartbeat waits after a failure
PASSES: Final = 10  # of sealing, before it rests
DECISIONS: Final = 2_000


class Steward:
    """Loops around these steps are the scheduler's; each is one bounded pass."""

    def __init__(
        self,
        store: Store,
        names: Names,
        clock: Clock,
        now: Callable[[], datetime],
        retention: Retention,
        silence: timedelta,
    ) -> None:
        self._store = store
        self._names = names
        self._clock = clock
        self._now = now
        self._retention = retention
        self._silence = silence
        self._wakeups = Wakeups(store, clock)
        self._reaped_at = float("-inf")
        self._reap_from = 0.0
        self._looked: tuple[datetime, UUID] | None = None  # how far the last look for orphans came

    async def reap(self) -> None:
        """Reap, but not right after this node or the database was away: then nobody could say that he lives."""
        moment = self._clock.monotonic()
        if moment - self._reaped_at > 3.0:
            self._reap_from = moment + PATIENCE
        self._reaped_at = moment
        if moment < self._reap_from:
            return
        if reaped := await reap(self._store, self._names, self._silence):
            REAPED.inc(reaped)
            log.warning("attempts of vanished workers were settled as lost", attempts=reaped)
            await self._wakeups.send(WORK, self._now().isoformat())

    async def sweep(self) -> None:
        await queue.sweep(self._store, 2_000)
        self._looked = await queue.free_orphans(self._store, self._looked or (EPOCH, UUID(int=0)), 5_000)

    async def decide(self) -> None:
        """What overlaps and is due, and what a freeze has held, go their way."""
        if await queue.decide(self._store, DECISIONS) + await queue.thaw(self._store, DECISIONS):
            await self._tell()

    async def stop(self) -> None:
        """Workflow runs that are to stop. A loop of its own: one with a hundred thousand elements takes its time."""
        if await stop_flows(self._store):
            await self._tell()

    async def _tell(self) -> None:
        await self._wakeups.send(WORK, self._now().isoformat())
        await self._wakeups.send(CANCELS, "")

    async def resume(self) -> None:
        for job_id, tenant_id in await jobs.lapsed(self._store, 100):
            try:
                await resume(self._store, self._names, job_id, tenant_id=tenant_id, who="the end of its pause")
                await self._wakeups.send(RUNS, str(tenant_id))
            except Exception as error:  # noqa: BLE001 - one that cannot be resumed here keeps no other from it
                log.error("a job could not be resumed", job_id=str(job_id), error=str(error))

    async def prune(self) -> None:
        if dropped := await pruning.prune(self._store, await self._store.now(), self._retention):
            log.info("days past retention were dropped", days=dropped)

    async def seal(self) -> None:
        """Chain what was noted in the audit meanwhile."""
        for _ in range(PASSES):
            if await seal(self._store) < MOST_SEALED:
                return
