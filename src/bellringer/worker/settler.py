"""Writes endings to the database in batches: while one batch is written, the next one accumulates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from bellringer.clock import Clock
from bellringer.core.policies import Delivery
from bellringer.core.runs import Ending, Outcome, RunEvent, SettleDecision
from bellringer.engine.settle import decide, record_outcome, settle
from bellringer.store.connection_pool import DATABASE_ERRORS, INVALID_VALUE_ERRORS, RETRYABLE_ERRORS, Store
from bellringer.store.queue import ClaimedRun, EndedRun
from bellringer.telemetry import SETTLE_SECONDS, STALE, log
from bellringer.worker.results import failed_ending

MAX_SETTLE_BATCH: Final = 2_000
_REJECTED_REASON: Final = "the database rejected the ending"


class PendingEnding(msgspec.Struct, frozen=True):
    """An ending that waits to be written, with the worker id of its claim."""

    worker_id: int
    claimed: ClaimedRun
    task: str
    settled: EndedRun


class Settler:
    """Holds endings until they are written, and waits for the database if it is unavailable."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        on_retry: Callable[[EndedRun], None],
        on_workflow_progress: Callable[[], None],
        on_written: Callable[[], None],
        tenant_names: Mapping[int, str],
    ) -> None:
        self._store = store
        self._clock = clock
        self._put_back = on_retry
        self._go_on = on_workflow_progress
        self._on_written = on_written
        self._tenant_names = tenant_names
        self._waiting: list[PendingEnding] = []
        self._writing: list[PendingEnding] = []
        self._unwritable: list[PendingEnding] = []  # the reaper settles these after this worker has left
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, entry: PendingEnding) -> None:
        self._waiting.append(entry)
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._writing = self._next_batch()
                await self._write(self._writing)
                self._writing = []
            self._idle.set()

    def pending(self) -> list[PendingEnding]:
        """Return the endings that the database has not confirmed yet."""
        return [*self._writing, *self._waiting, *self._unwritable]

    async def drain(self) -> None:
        """Wait until all added endings are written."""
        await self._idle.wait()

    def _next_batch(self) -> list[PendingEnding]:
        """Remove and return the next batch. All endings of a batch have the same worker id."""
        worker_id = self._waiting[0].worker_id
        head, self._waiting = self._waiting[:MAX_SETTLE_BATCH], self._waiting[MAX_SETTLE_BATCH:]
        self._waiting = [entry for entry in head if entry.worker_id != worker_id] + self._waiting
        return [entry for entry in head if entry.worker_id == worker_id]

    async def _write(self, batch: list[PendingEnding]) -> None:
        started, wait = self._clock.monotonic(), 0.1
        while True:
            try:
                endings = [entry.settled for entry in batch]
                settlement = await settle(self._store, batch[0].worker_id, endings, self._clock.monotonic())
                break
            except RETRYABLE_ERRORS as error:
                log.warning("settling: waiting for the database", attempts=len(batch), error=str(error))
                await self._clock.sleep(wait)
                wait = min(wait * 2, 5.0)
            except DATABASE_ERRORS as error:
                await self._write_one_by_one(batch, error)
                return
        SETTLE_SECONDS.observe(self._clock.monotonic() - started)
        if settlement.refused:
            STALE.labels("worker").inc(len(settlement.refused))
            first = settlement.refused[0].key.id
            log.warning(
                "endings rejected: other workers own these runs now", attempts=len(settlement.refused), run_id=first
            )
            refused = {(settled.key, settled.attempt) for settled in settlement.refused}
            batch = [entry for entry in batch if (entry.settled.key, entry.settled.attempt) not in refused]
        if any(entry.settled.in_workflow for entry in batch):
            self._go_on()
        self._on_written()
        for entry in batch:
            tenant = self._tenant_names.get(entry.claimed.tenant_id)
            record_outcome(entry.claimed, entry.task, entry.settled, entry.worker_id, tenant)
            if entry.settled.decision.ends_as is None:
                self._put_back(entry.settled)

    async def _write_one_by_one(self, batch: list[PendingEnding], error: Exception) -> None:
        """Write the endings of a batch that failed as a whole. An ending that the database rejects is replaced by a
        failure.

        Example: the last node of a workflow, if the combined result of the workflow run is too large.
        """
        if len(batch) > 1:
            for entry in batch:
                await self._write([entry])
            return
        entry = batch[0]
        log.error("ending cannot be written", run_id=entry.settled.key.id, error=str(error))
        if not isinstance(error, INVALID_VALUE_ERRORS) or entry.settled.ending.final == _REJECTED_REASON:
            self._unwritable.append(entry)
        else:
            ending = msgspec.structs.replace(
                failed_ending(
                    "EndingNotWritten", f"the database rejected the ending: {error}", ran=entry.settled.ending.ran
                ),
                final=_REJECTED_REASON,
            )
            settled = decide(entry.claimed, ending, entry.settled.ended_at)
            await self._write([msgspec.structs.replace(entry, settled=settled)])


def end_interrupted(claimed: ClaimedRun, ran: float, progress: dict[str, Any] | None = None) -> EndedRun:
    """Return the ending of an attempt interrupted by the worker's shutdown. It counts neither as an attempt nor as a
    loss that makes the run poison, unless delivery is at_most_once."""
    error = {"type": "WorkerStopped", "message": "the worker stopped before the attempt had finished"}
    ending = Ending(outcome=Outcome.LOST, error=error, progress=progress, ran=ran)
    if claimed.spec.delivery == Delivery.AT_MOST_ONCE:
        return decide(claimed, ending)
    again = SettleDecision(event=RunEvent.GIVEN_BACK, wait=timedelta(0), counted=False)
    return EndedRun(claimed.key, claimed.attempt, ending, again)
