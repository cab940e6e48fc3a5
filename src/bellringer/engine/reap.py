"""Settles the runs of lost workers. Uses the same decisions and the same SQL as every other settlement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.core.runs import Ending, Outcome
from bellringer.engine.settle import decide, decide_not_started, load_retry_windows, record_outcome, settle
from bellringer.store import queue, workers
from bellringer.store.connection_pool import DATABASE_ERRORS, RETRYABLE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun, EndedRun
from bellringer.telemetry import log

WORKER_SILENCE: Final = timedelta(seconds=10)
REAP_BATCH_RUNS: Final = 1_000  # per worker and pass
WORKER_LOST_ERROR: Final = "WorkerLost"  # `held` in store/queue.sql counts the losses with this error

LostRun = tuple[ClaimedRun, EndedRun]


async def reap(store: Store, catalog: Catalog, silence: timedelta = WORKER_SILENCE) -> int:
    """Settles the runs of workers without a recent heartbeat; returns how many were settled."""
    reaped = 0
    for worker_id in await workers.declare_lost(store, silence):
        held = await load_retry_windows(store, await queue.held_by_worker(store, worker_id, REAP_BATCH_RUNS))
        lost = [(c, _decide_lost(c)) for c in held]
        if lost:
            count, written = await _write(store, worker_id, lost)
            reaped += count
            tasks = await catalog.task_names({claimed.task_id for claimed in held})
            tenants = await catalog.tenant_names({claimed.tenant_id for claimed in held})
            for claimed, settled in written:
                tenant = tenants.get(claimed.tenant_id)
                record_outcome(claimed, tasks[claimed.task_id], settled, worker_id, tenant)
    return reaped


async def _write(store: Store, worker_id: int, lost: Sequence[LostRun]) -> tuple[int, Sequence[LostRun]]:
    """Writes the settlements and returns how many were written, and which. If one fails, each is retried on its own."""
    try:
        settlement = await settle(store, worker_id, [settled for _, settled in lost], reaping=True)
        refused = {settled.key for settled in settlement.refused}
        return settlement.written, [one for one in lost if one[0].key not in refused]
    except RETRYABLE_ERRORS:
        raise
    except DATABASE_ERRORS as error:
        if len(lost) == 1:
            log.error("lost attempt not settled", run_id=lost[0][0].key.id, error=str(error))
            return 0, ()
    each = [await _write(store, worker_id, [one]) for one in lost]
    return sum(count for count, _ in each), [one for _, written in each for one in written]


def _decide_lost(claimed: ClaimedRun) -> EndedRun:
    """Settles an attempt of a lost worker. Only an attempt that is known to have started can make the run poison, and
    can be the end of a run that is delivered at most once."""
    error = {"type": WORKER_LOST_ERROR, "message": "the worker was lost while it held this attempt"}
    ending = Ending(outcome=Outcome.LOST, ran=claimed.ran, error=error)
    if not claimed.started:
        return decide_not_started(claimed, ending)
    return decide(msgspec.structs.replace(claimed, lost=claimed.lost + 1), ending)  # counts the loss of this worker
