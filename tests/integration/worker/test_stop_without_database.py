"""A worker that is asked to stop while the database cannot be reached."""

from __future__ import annotations

import asyncio

from tests.support.silent_proxy import SilentProxy

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry
from bellringer.store.connection_pool import Store
from bellringer.worker.service import Worker, WorkerSettings


async def test_a_worker_stops_without_the_database(dsn: str) -> None:
    async with SilentProxy(dsn) as proxy:
        store = await Store.open(proxy.address)
        stop = asyncio.Event()
        worker = Worker(store, Registry(), SystemClock(), WorkerSettings(pools={"short": 1}))
        running = asyncio.create_task(worker.run(stop))
        await worker.started.wait()
        proxy.refuses_new = True
        proxy.cut()
        stop.set()
        await asyncio.wait_for(running, 30)
        await store.close()
