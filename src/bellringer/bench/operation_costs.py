"""Measures the CPU cost of single operations at full load: a fire, a send, the execution of a run, API requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from bellringer.bench import api
from bellringer.bench.drain import fill, work
from bellringer.bench.herd import register
from bellringer.bench.processes import cpu, server_cpu
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.engine.broker_dispatch import mark_sent, send_marked
from bellringer.engine.claim import TenantCursor
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.broker_dispatch import BrokerPool
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.wire.routes import PREFIX

CREATES: Final = 3_000
SECONDS: Final = 4.0
HERD: Final = 50_000
SCHEDULES: Final = 60  # among the herd
RUNS: Final = 40_000
SLOTS: Final = 200
BATCH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Each:
    """CPU microseconds per operation, in the database and in our process."""

    database: float
    process: float


async def calls(dsn: str) -> Mapping[str, Each]:
    """Create jobs one by one and read runs, over real connections."""
    store = await Store.open(dsn, size=2, name="bellringer bench")
    try:
        runs = await api.fill(store)
        with api.served(dsn) as (port, pid):
            hammer = api.LoadGenerators(port, 32, SECONDS)
            await hammer.go(api.jobs_of("warm", 300))

            async def used() -> tuple[float, float]:
                return sum((await server_cpu(store)).values()), cpu(pid)

            before = await used()
            made = await hammer.go(api.jobs_of("job", CREATES))
            between = await used()
            read = await hammer.go([("GET", f"{PREFIX}/runs/{run_id}", None) for run_id in runs], seconds=SECONDS)
            after = await used()
    finally:
        await store.close()
    return {"create": _each(before, between, made.requests), "read": _each(between, after, read.requests)}


async def firing(dsn: str) -> Each:
    """Fire jobs that are due at one instant, by a scheduler in this process."""
    store = await Store.open(dsn, name="bellringer bench")
    try:
        await register(store, HERD, SCHEDULES, (await store.now()).replace(microsecond=0) - timedelta(seconds=1))
        await store.pool.execute("vacuum analyze members")
        scheduler = Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings(name="bench"))
        stop = asyncio.Event()
        before = await _used(store)
        running = asyncio.create_task(scheduler.run(stop))
        while scheduler.fired < HERD and not running.done():
            await asyncio.sleep(0.02)
        after = await _used(store)
        stop.set()
        await running
    finally:
        await store.close()
    return _each(before, after, HERD)


async def working(dsn: str) -> Each:
    """Claim, execute and settle ready no-op runs, by a worker in this process."""
    store = await Store.open(dsn, size=6, name="bellringer bench")
    try:
        await _ready(store)
        before = await _used(store)
        await work(store, SLOTS)
        after = await _used(store)
    finally:
        await store.close()
    return _each(before, after, RUNS)


async def sending(dsn: str) -> Each:
    """Mark ready runs as sent and encode their messages; the broker discards them."""
    store = await Store.open(dsn, size=2, name="bellringer bench")
    try:
        task_id, pool_id = await _ready(store)
        lane = BrokerPool(pool_id=pool_id, pool=DEFAULT_POOL, slots=BATCH, workers=[], task_ids=[task_id])
        before = await _used(store)
        turn, sent = TenantCursor(), 0
        while sent < RUNS:
            marked = await mark_sent(store, lane, BATCH, turn, background=0)
            turn, sent = marked.cursor, sent + await send_marked(store, _Nowhere(), "bench", lane, marked.messages)
        after = await _used(store)
    finally:
        await store.close()
    return _each(before, after, RUNS)


async def _ready(store: Store) -> tuple[int, int]:
    """Fill the queue; returns the task and the pool."""
    catalog = Catalog(store)
    task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    await fill(store, RUNS, task_id, pool_id, await store.now())
    await store.pool.execute("vacuum analyze queue")
    return task_id, pool_id


async def _used(store: Store) -> tuple[float, float]:
    """Returns CPU seconds of the database and of this process."""
    return sum((await server_cpu(store)).values()), cpu(os.getpid())


def _each(before: tuple[float, float], after: tuple[float, float], count: int) -> Each:
    return Each(*((b - a) * 1e6 / count for a, b in zip(before, after, strict=True)))


class _Nowhere:
    """A broker that discards all messages."""

    async def prepare(self, topics: object) -> None: ...

    async def send(self, topic: str, parcels: object) -> list[int]:  # noqa: ARG002 - it is not looked at
        return []

    async def close(self) -> None: ...
