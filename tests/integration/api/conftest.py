"""The API over a real database, called without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.settle import decide, settle
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads
from bellringer.store.wakeups import Wakeups
from bellringer.store.workers import WorkerRegistration

Work = Callable[[Ending | None], Awaitable[int]]


@pytest.fixture
async def lookups(tenants: Store) -> AsyncIterator[KeyedReads]:
    opened = KeyedReads(tenants)
    yield opened
    await opened.close()


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store, lookups: KeyedReads) -> AsyncIterator[httpx2.AsyncClient]:
    clock, wakeups = SystemClock(), Wakeups(store, SystemClock())
    app = create_app(store, catalog, tenants, version="1.2.3", clock=clock, wakeups=wakeups, keyed_reads=lookups)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client


@pytest.fixture
async def work(store: Store, catalog: Catalog) -> Work:
    """A worker step: claim ready runs of the task `demo` and settle them with this ending; None leaves them running."""
    tasks = await catalog.task_ids(["demo"])
    pools = await catalog.pool_ids(["short"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    worker_id = await workers.join(store, who)
    seat = ClaimSpec(worker_id=worker_id, pool_id=pools["short"], task_ids=[tasks["demo"]])

    async def step(ending: Ending | None) -> int:
        taken, _ = await claim(store, seat, 10, TenantCursor())
        if ending is not None:
            await settle(store, worker_id, [decide(claimed, ending) for claimed in taken])
        return len(taken)

    return step
