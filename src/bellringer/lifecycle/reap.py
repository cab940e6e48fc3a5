"""Reap: what vanished workers held is settled as lost, by the same code that settles everything else."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from bellringer.lifecycle.settle import account, decide, settle
from bellringer.runs import Ending, Outcome
from bellringer.store import queue, workers
from bellringer.store.names import Names
from bellringer.store.pool import Store

SILENCE: Final = timedelta(seconds=10)
BATCH: Final = 1_000  # a worker; what is left, the next pass takes


async def reap(store: Store, names: Names, silence: timedelta = SILENCE) -> int:
    """Settle the runs of workers that were silent for too long; answers how many."""
    reaped = 0
    for worker_id in await workers.lose(store, silence):
        held = await queue.held(store, worker_id, BATCH)
        # The attempt that is being lost counts among the lost.
        lost = [(c, decide(msgspec.structs.replace(c, lost=c.lost + 1), _lost(c))) for c in held]
        if lost:
            reaped += await settle(store, worker_id, [settled for _, settled in lost])
            tasks = await names.task_names({claimed.task_id for claimed in held})
            for claimed, settled in lost:
                account(claimed, tasks[claimed.task_id], settled, worker_id)
    return reaped


def _lost(claimed: queue.Claimed) -> Ending:
    return Ending(
        outcome=Outcome.LOST,
        ran=claimed.ran,
        error={"type": "WorkerLost", "message": "the worker fell silent while it held this attempt"},
    )
