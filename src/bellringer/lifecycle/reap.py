"""Reap: what vanished workers held is settled as lost, by the same code that settles everything else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.lifecycle.settle import account, decide, settle
from bellringer.runs import Ending, Outcome
from bellringer.store import queue, workers
from bellringer.store.names import Names
from bellringer.store.pool import FAILURES, RETRYABLE, Store
from bellringer.store.queue import Claimed, Settled
from bellringer.telemetry import log

SILENCE: Final = timedelta(seconds=10)
BATCH: Final = 1_000  # a worker; what is left, the next pass takes

Lost = tuple[Claimed, Settled]


async def reap(store: Store, names: Names, silence: timedelta = SILENCE) -> int:
    """Settle the runs of workers that were silent for too long; answers how many."""
    reaped = 0
    for worker_id in await workers.lose(store, silence):
        held = await queue.held(store, worker_id, BATCH)
        # The attempt that is being lost counts among the lost.
        lost = [(c, decide(msgspec.structs.replace(c, lost=c.lost + 1), _lost(c))) for c in held]
        if lost:
            count, written = await _write(store, worker_id, lost)
            reaped += count
            tasks = await names.task_names({claimed.task_id for claimed in held})
            for claimed, settled in written:
                account(claimed, tasks[claimed.task_id], settled, worker_id)
    return reaped


async def _write(store: Store, worker_id: int, lost: Sequence[Lost]) -> tuple[int, Sequence[Lost]]:
    """Settle them: how many were there to settle, and which. One that cannot be settled keeps no other from it."""
    try:
        return await settle(store, worker_id, [settled for _, settled in lost]), lost
    except RETRYABLE:
        raise
    except FAILURES as error:
        if len(lost) == 1:
            log.error("a lost attempt cannot be settled", run_id=lost[0][0].key.id, error=str(error))
            return 0, ()
    each = [await _write(store, worker_id, [one]) for one in lost]
    return sum(count for count, _ in each), [one for _, written in each for one in written]


def _lost(claimed: Claimed) -> Ending:
    return Ending(
        outcome=Outcome.LOST,
        ran=claimed.ran,
        error={"type": "WorkerLost", "message": "the worker fell silent while it held this attempt"},
    )
