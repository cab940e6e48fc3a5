"""Settles endings in batches: while one batch is being written the next one gathers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bellringer.clock import Clock
from bellringer.lifecycle.settle import settle
from bellringer.runs import Outcome, State
from bellringer.store.pool import RETRYABLE, Store
from bellringer.store.queue import Claimed, Settled
from bellringer.telemetry import (
    ATTEMPTS,
    DEAD,
    DUPLICATES,
    RETRIES,
    RUN_SECONDS,
    SETTLE_SECONDS,
    STALE,
    log,
    one_of,
)

MOST: Final = 2_000


class Settler:
    """Endings wait here until the database has taken them; a database that is away is waited for."""

    def __init__(self, store: Store, clock: Clock, put_back: Callable[[Settled], None]) -> None:
        self._store = store
        self._clock = clock
        self._put_back = put_back
        self._waiting: list[tuple[int, Settled]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.stale = 0

    def add(self, worker_id: int, settled: Settled) -> None:
        self._waiting.append((worker_id, settled))
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

    def _gather(self) -> tuple[int, list[Settled]]:
        """The next batch, all of one number: a worker that was declared lost goes on under a new one."""
        worker_id = self._waiting[0][0]
        head, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        self._waiting = [entry for entry in head if entry[0] != worker_id] + self._waiting
        return worker_id, [settled for number, settled in head if number == worker_id]

    async def _write(self, gathered: tuple[int, list[Settled]]) -> None:
        worker_id, batch = gathered
        started, wait = self._clock.monotonic(), 0.1
        while True:
            try:
                written = await settle(self._store, worker_id, batch)
                break
            except RETRYABLE as error:
                log.warning("settling waits for the database", attempts=len(batch), error=str(error))
                await self._clock.sleep(wait)
                wait = min(wait * 2, 5.0)
        SETTLE_SECONDS.observe(self._clock.monotonic() - started)
        if written < len(batch):
            self.stale += len(batch) - written
            STALE.labels("worker").inc(len(batch) - written)
            log.warning("reports came too late and were dropped", attempts=len(batch) - written)
        for settled in batch:
            if settled.verdict.ends_as is None:
                self._put_back(settled)


def account(claimed: Claimed, task: str, settled: Settled) -> None:
    """Count an ending, and tell of it where it is not the usual one."""
    ending, verdict = settled.ending, settled.verdict
    one_of(ATTEMPTS, task, ending.outcome.value).inc()
    one_of(RUN_SECONDS, task).observe(ending.ran)
    if ending.outcome is Outcome.OK:
        return
    if verdict.ends_as is None:
        RETRIES.labels(task).inc()
        DUPLICATES.labels(ending.outcome.value).inc()
    elif verdict.ends_as is State.DEAD:
        DEAD.labels(task).inc()
    error = ending.error or {}
    log.info(
        "attempt finished",
        run_id=claimed.key.id,
        job_id=str(claimed.key.job_id),
        job=claimed.name,
        task=task,
        tenant_id=claimed.tenant_id,
        attempt=claimed.attempt,
        outcome=ending.outcome.value,
        ends_as=verdict.ends_as.value if verdict.ends_as else None,
        reason=verdict.reason,
        error=f"{error.get('type')}: {str(error.get('message', ''))[:200]}",
        duration_ms=round(ending.ran * 1000, 1),
    )
