"""A worker that stops while handlers do not: what they executed is not returned as if it had never begun."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.send import SendSpec, send
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.worker.service import Worker, WorkerSettings


async def test_a_reconciliation_during_the_stop_does_not_return_what_was_executed(
    store: Store, catalog: Catalog
) -> None:
    begun, stopped, released = threading.Event(), threading.Event(), threading.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(300)
        finally:
            stopped.set()
            while not released.is_set():  # noqa: ASYNC110 - it is set on another loop
                await asyncio.sleep(0.01)

    registry = Registry()
    registry.add(make_task(stubborn, name="stubborn"))
    await send(store, catalog, SendSpec(task="stubborn"), tenant_id=1)
    stop = asyncio.Event()
    settings = WorkerSettings(pools={"short": 1}, grace=timedelta(0))
    worker = Worker(store, registry, SystemClock(), settings)
    running = asyncio.create_task(worker.run(stop))
    await asyncio.to_thread(begun.wait, 20)
    stop.set()
    await asyncio.to_thread(stopped.wait, 20)
    worker._settled_at = await store.now()
    await worker._reconcile()
    released.set()
    await asyncio.wait_for(running, 20)
    [attempt] = await store.pool.fetch("select attempt, outcome::text from attempts")
    assert tuple(attempt) == (1, "lost")
    [row] = await store.pool.fetch("select worker_id, attempt, attempt_floor from queue")
    assert tuple(row) == (None, 1, 1), "the attempt is recorded, and uses up no budget"
