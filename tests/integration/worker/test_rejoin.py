"""A worker that was declared lost and joins again, and what it has claimed before; claims of unknown tenants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from bellringer.clock import SystemClock
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.core.tasks import Registry, make_task
from bellringer.egress.secret_box import generate_secret_key, parse_secret_keys
from bellringer.egress.settings import Egress
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.named_secrets import SecretSpec, put_secret
from bellringer.engine.reap import reap
from bellringer.engine.send import SendSpec, send
from bellringer.store import runs
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun
from bellringer.store.runs import RunRow
from bellringer.telemetry import RETURNED
from bellringer.worker.app_loader import load_target
from bellringer.worker.lanes.processes import IsolationSettings
from bellringer.worker.lease import LEASE_SECONDS
from bellringer.worker.service import Worker, WorkerSettings
from bellringer.worker.work_source import DatabaseSource

KEYS = parse_secret_keys((generate_secret_key("k1"),))


@asynccontextmanager
async def serving(store: Store, *handlers: Callable[..., Any], **settings: Any) -> AsyncIterator[Worker]:
    registry = Registry()
    for handler in handlers:
        registry.add(make_task(handler, name=handler.__name__))
    chosen = {"pools": {"short": 4}, "grace": timedelta(seconds=1), "secret_box": KEYS, **settings}
    worker, stop = Worker(store, registry, SystemClock(), WorkerSettings(**chosen)), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    try:
        yield worker
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)


@asynccontextmanager
async def locked_secrets(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Makes lookups of secrets wait until the transaction ends."""
    connection = await connect(dsn)
    try:
        await connection.execute("begin")
        await connection.execute("lock table bellringer.named_secrets in access exclusive mode")
        yield connection
    finally:
        await connection.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - set by other tasks and threads
            await asyncio.sleep(0.01)


async def ended(store: Store, key: RunKey, tenant_id: int = 1) -> RunRow:
    async with asyncio.timeout(20):
        while True:
            run = await runs.get(store, key, tenant_id)
            if run is not None and run.state in FINAL_STATES:
                return run
            await asyncio.sleep(0.02)


async def test_a_run_that_was_being_prepared_when_its_worker_was_lost_does_not_start(
    store: Store, catalog: Catalog, dsn: str
) -> None:
    """Its second attempt belongs to the new identity of the same process, whose lease is valid."""
    calls: list[int] = []

    async def pay(ctx: Any, key: str) -> str:
        calls.append(ctx.attempt)
        return key

    spec = SecretSpec(name="stripe", value="sk_live_1")
    await put_secret(store, Egress((), KEYS), spec, tenant_id=1, who="test")
    async with locked_secrets(dsn) as lock, serving(store, pay) as worker:
        first = worker.worker_id
        sent = await send(store, catalog, SendSpec(task="pay", args=[{"$secret": "stripe"}]), tenant_id=1)
        await until(lambda: bool(worker._running))
        await store.pool.execute("update workers set state = 'lost' where worker_id = $1", first)
        assert await reap(store, catalog) == 1
        await until(lambda: worker.worker_id != first and len(worker._running) == 2)
        assert calls == []
        await lock.execute("rollback")
        run = await ended(store, sent.key)
        await until(lambda: not worker._running)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 2)
    assert calls == [2]


class FailingCatalog(Catalog):
    """Fails to read names of tenants so often."""

    failures = 0

    async def tenant_names(self, ids: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise asyncpg.exceptions.ConnectionDoesNotExistError("the connection was closed")
        return await super().tenant_names(ids)


async def make_tenant(store: Store, catalog: Catalog) -> int:
    await store.pool.execute("insert into tenants (name) values ('acme')")
    return await catalog.tenant_id("acme")


async def test_a_run_waits_until_the_name_of_its_tenant_is_known(store: Store, catalog: Catalog) -> None:
    seen: list[str] = []

    async def show(ctx: Any) -> None:
        seen.append(ctx.tenant)

    tenant_id = await make_tenant(store, catalog)
    async with serving(store, show, tenants={1: "default"}) as worker:
        worker._catalog = failing = FailingCatalog(store)
        failing.failures = 3
        other = await send(store, catalog, SendSpec(task="show"), tenant_id=tenant_id)
        mine = await send(store, catalog, SendSpec(task="show"), tenant_id=1)
        await ended(store, mine.key)
        run = await ended(store, other.key, tenant_id)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 1)
    assert sorted(seen) == ["acme", "default"]
    assert failing.failures == 0


async def test_a_run_whose_tenant_cannot_be_named_is_given_back_at_the_stop(store: Store, catalog: Catalog) -> None:
    seen: list[str] = []

    async def show(ctx: Any) -> None:
        seen.append(ctx.tenant)

    tenant_id = await make_tenant(store, catalog)
    before = RETURNED.labels("tenant unknown")._value.get()
    async with serving(store, show, tenants={1: "default"}) as worker:
        worker._catalog = failing = FailingCatalog(store)
        failing.failures = 1_000_000
        await send(store, catalog, SendSpec(task="show"), tenant_id=tenant_id)
        await until(lambda: failing.failures < 1_000_000)
    assert seen == []
    assert RETURNED.labels("tenant unknown")._value.get() == before + 1
    [row] = await store.pool.fetch("select worker_id, attempt from queue")
    assert tuple(row) == (None, 0)


class SuspendedSource(DatabaseSource):
    """The process is suspended between the claim and its response, once."""

    def __init__(self, store: Store, clock: SuspendedClock) -> None:
        super().__init__(store)
        self._suspended_clock = clock

    async def take(self, spec: ClaimSpec, most: int, *, behind: int) -> tuple[list[ClaimedRun], bool]:
        taken, more = await super().take(spec, most, behind=behind)
        if taken and not self._suspended_clock.offset:
            self._suspended_clock.offset = LEASE_SECONDS + 1
        return taken, more


class SuspendedClock(SystemClock):
    offset = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.offset


async def test_runs_of_a_claim_that_outlasted_the_lease_are_given_back(store: Store, catalog: Catalog) -> None:
    attempts: list[int] = []

    async def show(ctx: Any) -> None:
        attempts.append(ctx.attempt)

    registry, clock, stop = Registry(), SuspendedClock(), asyncio.Event()
    registry.add(make_task(show, name="show"))
    settings = WorkerSettings(pools={"short": 4}, grace=timedelta(seconds=1))
    before = RETURNED.labels("stale claim")._value.get()
    worker = Worker(store, registry, clock, settings, SuspendedSource(store, clock))
    running = asyncio.create_task(worker.run(stop))
    try:
        await worker.started.wait()
        keys = [(await send(store, catalog, SendSpec(task="show"), tenant_id=1)).key for _ in range(3)]
        for key in keys:
            run = await ended(store, key)
            assert (run.state, run.attempt) == (State.SUCCEEDED, 1)
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)
    assert clock.offset > LEASE_SECONDS
    assert RETURNED.labels("stale claim")._value.get() > before
    assert attempts == [1, 1, 1]


@pytest.mark.parametrize("ends", ["before the worker knows", "after it has joined again"])
async def test_an_ending_that_was_refused_is_not_logged(store: Store, catalog: Catalog, ends: str) -> None:
    """After a stop and a continue, the database has settled the attempt as lost; the worker must not say otherwise."""
    release, begun = threading.Event(), threading.Event()

    async def wait(ctx: Any) -> str:
        begun.set()
        if ctx.attempt == 1:
            try:
                while not release.is_set():  # noqa: ASYNC110 - set by the test's loop
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                return "ended all the same"
        return "done"

    with capture_logs() as lines:
        async with serving(store, wait) as worker:
            first = worker.worker_id
            sent = await send(store, catalog, SendSpec(task="wait"), tenant_id=1)
            await until(begun.is_set)
            await store.pool.execute("update workers set state = 'lost' where worker_id = $1", first)
            if ends == "before the worker knows":
                release.set()
                await asyncio.sleep(0.2)
                await reap(store, catalog)
            else:
                await reap(store, catalog)
                await until(lambda: worker.worker_id != first)
            run = await ended(store, sent.key)
            assert (run.state, run.attempt) == (State.SUCCEEDED, 2)
    finished = [line for line in lines if line["event"] == "attempt finished" and line["attempt"] == 1]
    assert [line["outcome"] for line in finished] == ["lost"]  # by the reaper


async def test_a_handler_that_exceeds_the_memory_limit_fails_alone(
    store: Store, catalog: Catalog, isolated_app: Path
) -> None:
    settings = WorkerSettings(
        pools={"short": 4},
        grace=timedelta(seconds=1),
        processes=2,
        target=str(isolated_app),
        isolation=IsolationSettings(memory=512 << 20),
    )
    worker = Worker(store, load_target(str(isolated_app)).registry, SystemClock(), settings)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    try:
        await worker.started.wait()
        orders = [SendSpec(task="eat", args=[size], retry=Retry(1)) for size in (1000, 50)]
        keys = [(await send(store, catalog, order, tenant_id=1)).key for order in orders]
        greedy, modest = [await ended(store, key) for key in keys]
    finally:
        stop.set()
        await asyncio.wait_for(running, 30)
    assert (greedy.state, greedy.error["type"]) == (State.DEAD, "MemoryError")
    assert (modest.state, modest.result) == (State.SUCCEEDED, 50 << 20)
