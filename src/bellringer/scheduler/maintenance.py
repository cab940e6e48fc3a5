"""Cluster-wide maintenance, done by the node that holds shard 0: reap, sweep, decide, resume, finish, prune, seal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.clock import Clock
from bellringer.core.archive import ObjectStore
from bellringer.engine import pause_task
from bellringer.engine import prune as pruning
from bellringer.engine.audit_seal import MAX_ENTRIES_PER_SEAL, seal_entries
from bellringer.engine.prune import Retention
from bellringer.engine.reap import reap
from bellringer.engine.register import resume
from bellringer.engine.retain import trim_slice
from bellringer.engine.workflow_commands import stop_workflow_runs
from bellringer.errors import BellringerError
from bellringer.schedule.instants import EPOCH
from bellringer.store import archive, jobs, queue
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import FinishCursor
from bellringer.store.wakeups import CANCELS_CHANNEL, COHORTS_CHANNEL, RUNS_CHANNEL, WORK_CHANNEL, Wakeups
from bellringer.telemetry import (
    ARCHIVE_AGE,
    ARCHIVE_BACKLOG,
    ARCHIVE_FAILURES,
    ARCHIVED,
    EXPIRED,
    REAPED,
    log,
)

REAP_DELAY_SECONDS: Final = 7.0  # after an outage; longer than a worker waits before it repeats a failed heartbeat
MAX_SEAL_PASSES: Final = 10
MAX_DECISIONS_PER_PASS: Final = 2_000
MAX_FINISH_CANDIDATES: Final = 1_000
MAX_FINISH_PASSES: Final = 5  # of the candidates above, every two seconds


class Maintenance:
    """Maintenance steps. Each call does one bounded pass; the scheduler's loops repeat them."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        clock: Clock,
        now: Callable[[], datetime],
        retention: Retention,
        silence: timedelta,
        archive: ObjectStore | None = None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._now = now
        self._retention = retention
        self._silence = silence
        self._archive = archive
        self._wakeups = Wakeups(store, clock)
        self._reaped_at = float("-inf")
        self._reap_from = 0.0
        self._orphan_cursor: tuple[datetime, UUID] | None = None
        self._finish_cursor: FinishCursor | None = None
        self._delete_cursor: tuple[datetime, UUID] | None = None

    async def reap(self) -> None:
        """Settle the attempts of silent workers as lost. Skipped for a while after an outage of this node or of the
        database, because workers could not send heartbeats during it."""
        moment = self._clock.monotonic()
        if moment - self._reaped_at > 3.0:
            self._reap_from = moment + REAP_DELAY_SECONDS
        self._reaped_at = moment
        if moment < self._reap_from:
            return
        if reaped := await reap(self._store, self._catalog, self._silence):
            REAPED.inc(reaped)
            log.warning("attempts of lost workers settled as lost", attempts=reaped)
            await self._wakeups.send(WORK_CHANNEL, self._now().isoformat())

    async def sweep(self) -> None:
        await queue.park_unknown_tasks(self._store, 2_000)
        self._orphan_cursor = await queue.unblock_orphans(
            self._store, self._orphan_cursor or (EPOCH, UUID(int=0)), 5_000
        )

    async def decide(self) -> None:
        """Apply the overlap policy to due runs, release runs whose freeze has ended, and end runs that have expired."""
        await self._expire()
        if await queue.decide_overlaps(self._store, MAX_DECISIONS_PER_PASS) + await queue.release_frozen(
            self._store, MAX_DECISIONS_PER_PASS
        ):
            await self._wake_workers()

    async def _expire(self) -> None:
        expired = await queue.expire_runs(self._store, MAX_DECISIONS_PER_PASS)
        if any(expired):
            EXPIRED.labels("scheduler").inc(sum(expired))
            log.info("runs ended because their deadline has passed", skipped=expired.skipped, dead=expired.dead)
            await self._wake_workers()  # runs that waited for these may be ready

    async def stop(self) -> None:
        """Stop workflow runs. Has its own loop, because stopping a run with 100,000 elements takes long."""
        if await stop_workflow_runs(self._store):
            await self._wake_workers()

    async def _wake_workers(self) -> None:
        await self._wakeups.send(WORK_CHANNEL, self._now().isoformat())
        await self._wakeups.send(CANCELS_CHANNEL, "")

    async def resume(self) -> None:
        """Resume jobs whose pause has ended, and hold or release the runs of paused and resumed tasks."""
        if await pause_task.sweep(self._store):
            await self._wake_workers()
        for job_id, tenant_id in await jobs.find_expired_pauses(self._store, 100):
            try:
                await resume(self._store, self._catalog, job_id, tenant_id=tenant_id, who="the end of its pause")
                await self._wakeups.send(RUNS_CHANNEL, str(tenant_id))
                await self._wakeups.send(COHORTS_CHANNEL)
                await self._wake_workers()  # runs that the pause held back
            except Exception as error:  # noqa: BLE001 - one failure must not keep other jobs paused
                log.error("job could not be resumed", job_id=str(job_id), error=str(error))

    async def finish(self) -> None:
        """Mark jobs without further occurrences as done, and delete those that are not to be kept."""
        for _ in range(MAX_FINISH_PASSES):
            finished = await jobs.finish(self._store, self._finish_cursor, MAX_FINISH_CANDIDATES)
            deleted = await jobs.delete_done(self._store, self._delete_cursor, MAX_FINISH_CANDIDATES)
            self._finish_cursor, self._delete_cursor = finished.at, deleted.at
            if finished.at is None and deleted.at is None:
                return

    async def prune(self) -> None:
        archives = self._archive is not None
        if dropped := await pruning.prune(self._store, await self._store.now(), self._retention, archives=archives):
            log.info("partitions past retention dropped", days=dropped, archived_first=archives)

    async def trim(self) -> None:
        """Delete runs whose own retention is shorter than that of their day, for a few seconds."""
        now, archives = await self._store.now(), self._archive is not None
        if deleted := await trim_slice(self._store, self._clock, now, self._retention.runs, archives=archives):
            log.info("runs past the retention of their tenant or job deleted", runs=deleted, archived_first=archives)

    async def archive(self) -> None:
        """Write runs past retention to the archive, for a few seconds."""
        if self._archive is None:
            return
        from bellringer.engine.archive import archive_slice  # noqa: PLC0415 - needs an optional dependency

        try:
            ARCHIVED.inc(await archive_slice(self._store, self._archive, self._clock))
        except BellringerError as error:
            ARCHIVE_FAILURES.inc()
            log.error("runs past retention cannot be archived; they are kept", error=error.message)
        finally:
            waiting = await archive.backlog(self._store)
            ARCHIVE_BACKLOG.set(waiting.batches)
            ARCHIVE_AGE.set(waiting.oldest_seconds)

    async def seal(self) -> None:
        """Seal new audit entries into the hash chain."""
        for _ in range(MAX_SEAL_PASSES):
            if await seal_entries(self._store) < MAX_ENTRIES_PER_SEAL:
                return
