"""Settles endings in batches: while one batch is being written the next one gathers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.clock import Clock
from bellringer.lifecycle.settle import account, decide, settle
from bellringer.policies import Delivery
from bellringer.runs import Ending, Event, Outcome, Verdict
from bellringer.store.pool import FAILURES, REFUSED, RETRYABLE, Store
from bellringer.store.queue import Claimed, Settled
from bellringer.telemetry import SETTLE_SECONDS, STALE, log
from bellringer.worker.endings import failed

MOST: Final = 2_000
_REFUSED: Final = "the database refuses how it ended"


class Entry(msgspec.Struct, frozen=True):
    """An ending that waits to be written, and under which number its attempt was claimed."""

    worker_id: int
    claimed: Claimed
    task: str
    settled: Settled


class Settler:
    """Endings wait here until the database has taken them; a database that is away is waited for."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        put_back: Callable[[Settled], None],
        go_on: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._put_back = put_back
        self._go_on = go_on
        self._waiting: list[Entry] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._write(self._gather())
            self._idle.set()

    async def drained(self) -> None:
        """Wait until everything that was added is written."""
        await self._idle.wait()

    def _gather(self) -> list[Entry]:
        """The next batch, all of one number: a worker that was declared lost goes on under a new one."""
        worker_id = self._waiting[0].worker_id
        head, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        self._waiting = [entry for entry in head if entry.worker_id != worker_id] + self._waiting
        return [entry for entry in head if entry.worker_id == worker_id]

    async def _write(self, batch: list[Entry]) -> None:
        started, wait = self._clock.monotonic(), 0.1
        while True:
            try:
                endings = [entry.settled for entry in batch]
                written = await settle(self._store, batch[0].worker_id, endings, self._clock.monotonic())
                break
            except RETRYABLE as error:
                log.warning("settling waits for the database", attempts=len(batch), error=str(error))
                await self._clock.sleep(wait)
                wait = min(wait * 2, 5.0)
            except FAILURES as error:
                await self._write_apart(batch, error)
                return
        SETTLE_SECONDS.observe(self._clock.monotonic() - started)
        if written < len(batch):
            STALE.labels("worker").inc(len(batch) - written)
            log.warning("reports came too late and were dropped", attempts=len(batch) - written)
        if any(entry.settled.flows for entry in batch):
            self._go_on()
        for entry in batch:
            account(entry.claimed, entry.task, entry.settled, entry.worker_id)
            if entry.settled.verdict.ends_as is None:
                self._put_back(entry.settled)

    async def _write_apart(self, batch: list[Entry], error: Exception) -> None:
        """Something in the batch cannot be written: the others are, and that one ends as failed where it is to blame.

        A workflow run's last node is an example, when what the run returns is too large to be put together.
        """
        if len(batch) > 1:
            for entry in batch:
                await self._write([entry])
            return
        entry = batch[0]
        log.error("an ending cannot be written", run_id=entry.settled.key.id, error=str(error))
        if isinstance(error, REFUSED) and entry.settled.ending.final != _REFUSED:  # else it is left to the reaper
            ending = msgspec.structs.replace(
                failed("EndingNotWritten", f"the database refuses how it ended: {error}", ran=entry.settled.ending.ran),
                final=_REFUSED,
            )
            settled = decide(entry.claimed, ending, entry.settled.ended_at)
            await self._write([msgspec.structs.replace(entry, settled=settled)])


def interrupted(claimed: Claimed) -> Settled:
    """The grace is over: the attempt is lost by our own doing, so it does not count against the run."""
    error = {"type": "WorkerStopped", "message": "the worker stopped before the attempt had finished"}
    ending = Ending(outcome=Outcome.LOST, error=error)
    if claimed.spec.delivery == Delivery.AT_MOST_ONCE:
        return decide(claimed, ending)
    again = Verdict(event=Event.GIVEN_BACK, wait=timedelta(0), counted=False)
    return Settled(claimed.key, claimed.attempt, ending, again)
