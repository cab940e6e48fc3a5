"""One scheduler or worker in a process of its own, for tests that stop and kill it.

`node.py scheduler|worker DSN NAME [MOST]`
"""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.tick import TickLimits
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.leases import PostgresLeases
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings


async def hold(ctx: Context) -> int:
    """Takes long the first time, so that its worker can be killed in the middle."""
    if ctx.attempt == 1:
        await asyncio.sleep(300)
    return ctx.attempt


async def quick() -> None:
    """Does nothing, at once."""


async def main(kind: str, dsn: str, name: str, most: int) -> None:
    store = await Store.open(dsn)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if kind == "scheduler":
        settings = SchedulerSettings(name=name, pace=TickLimits(max_runs=most))
        await Scheduler(store, PostgresLeases(store), SystemClock(), settings).run(stop)
    else:
        registry = Registry()
        registry.add(make_task(hold, name="hold"))
        registry.add(make_task(quick, name="quick"))
        settings_ = WorkerSettings(pools={"short": 50}, name=name, grace=timedelta(seconds=2))
        await Worker(store, registry, SystemClock(), settings_).run(stop)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 8_000))
