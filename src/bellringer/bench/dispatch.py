"""Compares dispatch by the database with dispatch by Kafka: the same ready runs, with 1, 2 and 4 workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bellringer.backends.kafka.backend import KafkaBackend
from bellringer.bench.drain import fill
from bellringer.bench.processes import WORK, running
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.dev.local_servers import find_server
from bellringer.scheduler.broker_dispatcher import MAX_SENT_RUNS, Dispatcher
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration
from bellringer.telemetry import SENT, with_labels

NOOP: Final = "bench.noop"
EMPTY: Final = "select not exists (select 1 from queue)"
WORKERS: Final = (1, 2, 4)
WARM: Final = 500  # runs before each measurement: they fill caches and assign partitions to consumers
MEASUREMENT_TIMEOUT_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatches:
    """Runs per second by engine and number of worker processes; and runs per second that a scheduler publishes."""

    runs: int
    slots: int
    broker: str
    postgresql_per_second: dict[str, float]
    kafka_per_second: dict[str, float]
    kafka_published: int
    kafka_published_per_second: float


def find_broker() -> str:
    """Returns the Kafka address of BELLRINGER_DISPATCH, or of the broker that `make services` started."""
    return find_server("kafka", os.environ.get("BELLRINGER_DISPATCH"))


async def dispatches(dsn: str, runs: int, slots: int, address: str) -> Dispatches:
    store = await Store.open(dsn, size=6)
    try:
        publish = min(runs, MAX_SENT_RUNS)
        published = await _publish(store, publish, address)
        rates = {
            engine: {str(count): await _drain(store, runs, slots, count, chosen) for count in WORKERS}
            for engine, chosen in (("postgresql", "postgresql"), ("kafka", address))
        }
    finally:
        await store.close()
    return Dispatches(
        runs=runs,
        slots=slots,
        broker=address.partition("?")[0],
        postgresql_per_second=rates["postgresql"],
        kafka_per_second=rates["kafka"],
        kafka_published=publish,
        kafka_published_per_second=round(published, 1),
    )


async def _drain(store: Store, runs: int, slots: int, count: int, dispatch: str) -> float:
    """Fill the queue at once, and measure how long the workers take to empty it."""
    commands = [("scheduler",), *[("worker", WORK, "--pool", f"{DEFAULT_POOL}={slots}")] * count]
    with running(store.dsn, *commands, BELLRINGER_DISPATCH=dispatch):
        await _until(store, "select count(*) = $1 from workers where state = 'live'", count)
        await _ready(store, WARM)
        await _until(store, EMPTY)
        await _ready(store, runs)
        clock = SystemClock()
        started = clock.monotonic()
        await _until(store, EMPTY)
        seconds = clock.monotonic() - started
    if await store.pool.fetchval("select count(*) from attempts where ends_as = 'succeeded'") != runs:
        raise AssertionError("not every run was executed once")
    return round(runs / seconds, 1)


async def _publish(store: Store, runs: int, address: str) -> float:
    """Send ready runs to a pool without an active worker; returns the runs per second that the broker accepted."""
    catalog = Catalog(store)
    post, clock = KafkaBackend(address, await catalog.installation_name()), SystemClock()
    task_ids = list((await catalog.task_ids([NOOP])).values())
    who = WorkerRegistration(
        name="nobody", host="", pid=0, version="", pools={DEFAULT_POOL: runs}, task_ids=task_ids, dispatch=post.name
    )
    worker_id = await workers.join(store, who)
    now = await store.now()
    dispatcher = Dispatcher(store, post, clock, lambda: now, lambda _: True)
    taken = with_labels(SENT, DEFAULT_POOL)._value  # noqa: SLF001 - there is no other way to read it back
    sending = asyncio.create_task(dispatcher.run())
    try:
        await _ready(store, 1)
        await _until_taken(taken.get, 1)
        await _ready(store, runs)
        before, started = taken.get(), clock.monotonic()
        await _until_taken(taken.get, before + runs)
        return runs / (clock.monotonic() - started)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await dispatcher.close()
        await workers.remove(store, worker_id)


async def _ready(store: Store, runs: int) -> None:
    """Replace the queue with this many ready runs."""
    catalog = Catalog(store)
    task_id = (await catalog.task_ids([NOOP]))[NOOP]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    await store.pool.execute("truncate queue, runs, attempts")
    await fill(store, runs, task_id, pool_id, await store.now())
    await store.pool.execute("analyze queue")


async def _until(store: Store, query: str, *arguments: int) -> None:
    async with asyncio.timeout(MEASUREMENT_TIMEOUT_SECONDS):
        while not await store.pool.fetchval(query, *arguments):
            await asyncio.sleep(0.02)


async def _until_taken(taken: Callable[[], float], count: float) -> None:
    async with asyncio.timeout(MEASUREMENT_TIMEOUT_SECONDS):
        while taken() < count:
            await asyncio.sleep(0.005)
