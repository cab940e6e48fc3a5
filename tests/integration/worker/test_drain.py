"""A worker that stops while handlers do not: what they executed is not returned as if it had never begun."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bellringer.clock import SystemClock
from bellringer.core.policies import Delivery
from bellringer.core.runs import RunKey
from bellringer.core.tasks import Registry, make_task
from bellringer.egress.secret_box import generate_secret_key, parse_secret_keys
from bellringer.egress.settings import Egress
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.named_secrets import SecretSpec, put_secret
from bellringer.engine.reap import reap
from bellringer.engine.send import SendSpec, send
from bellringer.store import queue, workers
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration
from bellringer.worker.app_loader import load_target
from bellringer.worker.service import Worker, WorkerSettings

KEYS = parse_secret_keys((generate_secret_key("k1"),))


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


async def stopped_while(store: Store, registry: Registry, ready: Callable[[Worker], bool], **settings: Any) -> None:
    """Runs a worker until `ready`, and stops it with a grace period of 0."""
    stop = asyncio.Event()
    chosen = {"pools": {"short": 4}, "grace": timedelta(0), **settings}
    worker = Worker(store, registry, SystemClock(), WorkerSettings(**chosen))
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(30):
        await worker.started.wait()
        while not ready(worker):  # noqa: ASYNC110 - handlers run in threads
            await asyncio.sleep(0.01)
    stop.set()
    await asyncio.wait_for(running, 30)


async def test_an_interrupted_attempt_keeps_its_start(store: Store, catalog: Catalog) -> None:
    began: list[float] = []

    async def nap() -> None:
        began.append(time.monotonic())
        await asyncio.sleep(300)

    registry = Registry()
    registry.add(make_task(nap, name="nap"))
    await send(store, catalog, SendSpec(task="nap"), tenant_id=1)
    await stopped_while(store, registry, lambda _: bool(began) and time.monotonic() > began[0] + 1.5)
    [row] = await store.pool.fetch(
        "select outcome::text, error ->> 'type' as error, extract(epoch from finished_at - started_at)::float8 as ran"
        " from attempts"
    )
    assert (row["outcome"], row["error"]) == ("lost", "WorkerStopped")
    assert 1.4 < row["ran"] < 10


async def test_graceful_stops_are_no_crashes(store: Store, catalog: Catalog) -> None:
    """Two deployments past the grace period and one crash: the run is not poison, and has all of its retries."""
    begun = threading.Event()

    async def nap() -> None:
        begun.set()
        await asyncio.sleep(300)

    registry = Registry()
    registry.add(make_task(nap, name="nap"))
    await send(store, catalog, SendSpec(task="nap"), tenant_id=1)
    for number in range(2):
        begun.clear()
        await stopped_while(store, registry, lambda _: begun.is_set())
        # This test has one process; deployments have several.
        await store.pool.execute("update workers set process = gen_random_uuid()")
        assert await store.pool.fetchval("select count(*) from attempts") == number + 1
    who = WorkerRegistration(
        name="w",
        host="h",
        pid=1,
        version="0",
        pools={"short": 1},
        task_ids=list((await catalog.task_ids(["nap"])).values()),
    )
    worker_id = await workers.join(store, who)
    pool_id = (await catalog.pool_ids(["short"]))["short"]
    taken, _ = await claim(
        store, ClaimSpec(worker_id=worker_id, pool_id=pool_id, task_ids=who.task_ids), 1, TenantCursor()
    )
    assert (taken[0].attempt, taken[0].spent) == (3, 1)
    await queue.begin_attempts(store, worker_id, taken)
    await store.pool.execute("update workers set state = 'lost' where worker_id = $1", worker_id)
    assert await reap(store, catalog) == 1
    assert await store.pool.fetchval("select count(*) from dead_letters") == 0
    [row] = await store.pool.fetch("select attempt, attempt_floor from queue")
    assert tuple(row) == (3, 3)


async def occupy_then_send(store: Store, catalog: Catalog, first: SendSpec, second: SendSpec) -> RunKey:
    """Sends a run, and a second one when a worker holds the first."""
    await send(store, catalog, first, tenant_id=1)
    async with asyncio.timeout(30):
        while not await store.pool.fetchval("select count(*) from queue where worker_id is not null"):  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)
    return (await send(store, catalog, second, tenant_id=1)).key


@pytest.mark.parametrize("waits_for", ["thread", "process", "secret"])
async def test_what_was_claimed_and_never_called_is_given_back_at_the_stop(
    store: Store, catalog: Catalog, dsn: str, isolated_app: Path, tmp_path: Path, waits_for: str
) -> None:
    """Also at most once: the handler was not called, so the run is no dead letter."""
    called: list[str] = []

    def occupy() -> None:
        time.sleep(3)

    def late(key: str = "") -> None:
        called.append(key)

    is_process = waits_for == "process"
    registry = load_target(str(isolated_app)).registry if is_process else Registry()
    for function in () if is_process else (occupy, late):
        registry.add(make_task(function, name=function.__name__))
    first = SendSpec(task="hang", args=[str(tmp_path / "note"), True]) if is_process else SendSpec(task="occupy")
    spec = SecretSpec(name="stripe", value="sk_live_1")
    await put_secret(store, Egress((), KEYS), spec, tenant_id=1, who="test")
    args = [{"$secret": "stripe"}] if waits_for == "secret" else []
    second = SendSpec(task="pid" if is_process else "late", args=args, delivery=Delivery.AT_MOST_ONCE)
    connection = await connect(dsn)  # holds up lookups of secrets
    try:
        async with connection.transaction():
            if waits_for == "secret":
                await connection.execute("lock table bellringer.named_secrets in access exclusive mode")
            sending = asyncio.create_task(occupy_then_send(store, catalog, first, second))
            threads = 4 if waits_for == "secret" else 1
            await stopped_while(
                store,
                registry,
                lambda worker: len(worker._running) == 2,
                threads=threads,
                processes=1,
                target=str(isolated_app),
                secret_box=KEYS,
            )
            key = await sending
    finally:
        await connection.close()
    assert called == []
    [row] = await store.pool.fetch("select worker_id, attempt from queue where job_id = $1", key.job_id)
    assert tuple(row) == (None, 0)
    assert await store.pool.fetchval("select count(*) from attempts where job_id = $1", key.job_id) == 0
    assert await store.pool.fetchval("select count(*) from dead_letters") == 0
