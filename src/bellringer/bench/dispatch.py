"""The drain by a broker: the same ready runs, claimed in the database and brought by Kafka, with 1, 2 and 4 workers."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bellringer.bench.drain import fill
from bellringer.bench.processes import WORK, running
from bellringer.clock import SystemClock
from bellringer.engines.kafka import KafkaPost
from bellringer.jobs import DEFAULT_POOL
from bellringer.scheduler.dispatcher import Dispatcher
from bellringer.scheduler.outflow import MOST_OUT
from bellringer.services import FOLDER, Kafka, addresses
from bellringer.store import workers
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.workers import Introduction
from bellringer.telemetry import SENT, one_of

NOOP: Final = "bench.noop"
EMPTY: Final = "select not exists (select 1 from queue)"
WORKERS: Final = (1, 2, 4)
WARM: Final = 500  # runs before each measurement: caches are filled, and consumers have their partitions
PATIENCE: Final = 300.0  # seconds that one of them may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatches:
    """Runs in a second by engine and number of worker processes; and runs that a scheduler publishes in a second."""

    runs: int
    slots: int
    broker: str
    postgresql_per_second: dict[str, float]
    kafka_per_second: dict[str, float]
    kafka_published: int
    kafka_published_per_second: float


@contextmanager
def broker() -> Iterator[str]:
    """The Kafka that was named, the one that runs for this folder, or one of our own for as long as it is needed."""
    named = os.environ.get("BELLRINGER_DISPATCH", "")
    if named.startswith("kafka://"):
        yield named
    elif found := (addresses() or {}).get("kafka"):
        yield found
    else:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bellringer-bench-")))
            yield stack.enter_context(Kafka(folder, downloads=FOLDER / "kafka")).address


async def dispatches(dsn: str, runs: int, slots: int, address: str) -> Dispatches:
    store = await Store.open(dsn, size=6)
    try:
        publish = min(runs, MOST_OUT)
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
    """Fill the queue before so many workers, in one moment, and look how long it takes until it is empty."""
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
    """Send ready runs to a pool whose one worker never looks; answers how many a second the broker took."""
    names = Names(store)
    post, clock = KafkaPost(address, await names.installation()), SystemClock()
    task_ids = list((await names.task_ids([NOOP])).values())
    who = Introduction(
        name="nobody", host="", pid=0, version="", pools={DEFAULT_POOL: runs}, task_ids=task_ids, dispatch=post.engine
    )
    worker_id = await workers.join(store, who)
    now = await store.now()
    dispatcher = Dispatcher(store, post, clock, lambda: now, lambda _: True)
    taken = one_of(SENT, DEFAULT_POOL)._value  # noqa: SLF001 - there is no other way to read it back
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
        await workers.leave(store, worker_id)


async def _ready(store: Store, runs: int) -> None:
    """So many runs that are ready, all at once, and nothing else."""
    names = Names(store)
    task_id = (await names.task_ids([NOOP]))[NOOP]
    pool_id = (await names.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    await store.pool.execute("truncate queue, runs, attempts")
    await fill(store, runs, task_id, pool_id, await store.now())
    await store.pool.execute("analyze queue")


async def _until(store: Store, query: str, *arguments: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await store.pool.fetchval(query, *arguments):
            await asyncio.sleep(0.02)


async def _until_taken(taken: Callable[[], float], count: float) -> None:
    async with asyncio.timeout(PATIENCE):
        while taken() < count:
            await asyncio.sleep(0.005)
