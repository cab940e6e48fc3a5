"""Lists of the API on the distribution's server take no longer than on the embedded one, whatever its defaults are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.settle import decide, settle
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads
from bellringer.store.tenant_scope import open_tenants
from bellringer.store.wakeups import Wakeups
from bellringer.store.workers import WorkerRegistration
from bellringer.testing.postgres import TestServer, serve

LISTS = ("runs", "runs/counts", "jobs", "overview", "events", "dead-letters", "tasks", "workers", "forecast")
ROUNDS = 7
RUNS = 300
ALLOWANCE_SECONDS = 0.03  # for what other processes of this machine take
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 5"})
DONE = Ending(outcome=Outcome.OK, result={"sum": 5})


@pytest.fixture(scope="module")
def embedded() -> Iterator[TestServer]:
    with serve(in_memory=True) as server:
        yield server


@asynccontextmanager
async def serving(server: TestServer) -> AsyncIterator[httpx2.AsyncClient]:
    """An API over a database with jobs, and with runs that wait, run, have succeeded and are dead."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(server.database())
        store = await Store.open(dsn)
        stack.push_async_callback(store.close)
        tenants = await open_tenants(dsn)
        stack.push_async_callback(tenants.close)
        lookups = KeyedReads(tenants)
        stack.push_async_callback(lookups.close)
        catalog, clock = Catalog(store), SystemClock()
        app = create_app(
            store, catalog, tenants, version="1.2.3", clock=clock, wakeups=Wakeups(store, clock), keyed_reads=lookups
        )
        transport = httpx2.ASGITransport(app=app)
        api = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://test/api/v1", timeout=60)
        )
        await _fill(api, store, catalog)
        yield api


async def _fill(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    for n in range(40):
        body = {"name": f"job-{n}", "task": "demo", "schedule": {"cron": "0 3 * * *"}}
        assert (await api.post("/jobs", json=body)).is_success
    for _ in range(RUNS):
        assert (await api.post("/jobs/execute", json={"task": "demo", "retry": 1})).status_code == 202
    tasks, pools = await catalog.task_ids(["demo"]), await catalog.pool_ids(["short"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    worker_id = await workers.join(store, who)
    seat = ClaimSpec(worker_id=worker_id, pool_id=pools["short"], task_ids=[tasks["demo"]])
    for ending in (DONE, FAILED, None):
        taken, _ = await claim(store, seat, RUNS // 4, TenantCursor())
        assert len(taken) == RUNS // 4
        if ending is not None:
            await settle(store, worker_id, [decide(claimed, ending) for claimed in taken])


async def _seconds(api: httpx2.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    response = await api.get(f"/{path}")
    assert response.status_code == 200, f"{path}: {response.text}"
    return time.perf_counter() - began


async def test_lists_take_at_most_twice_their_time_on_the_embedded_server(
    embedded: TestServer, stock_server: TestServer
) -> None:
    async with serving(embedded) as usual, serving(stock_server) as stock:
        slow = {}
        for path in LISTS:
            there = min([await _seconds(usual, path) for _ in range(ROUNDS)])
            here = min([await _seconds(stock, path) for _ in range(ROUNDS)])
            print(f"{path:15} embedded {there * 1000:7.1f} ms   stock {here * 1000:7.1f} ms")
            if here > 2 * there + ALLOWANCE_SECONDS:
                slow[path] = f"{here * 1000:.0f} ms, embedded {there * 1000:.0f} ms"
    assert not slow
