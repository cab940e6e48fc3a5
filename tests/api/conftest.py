"""The API over a real database, called without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.lifecycle.settle import decide, settle
from bellringer.runs import Ending
from bellringer.store import workers
from bellringer.store.lookups import Lookups
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.wakeups import Wakeups
from bellringer.store.workers import Introduction

Work = Callable[[Ending | None], Awaitable[int]]


@pytest.fixture
async def lookups(tenants: Store) -> AsyncIterator[Lookups]:
    opened = Lookups(tenants)
    yield opened
    await opened.close()


@pytest.fixture
async def api(store: Store, names: Names, tenants: Store, lookups: Lookups) -> AsyncIterator[httpx2.AsyncClient]:
    clock, wakeups = SystemClock(), Wakeups(store, SystemClock())
    app = create_app(store, names, tenants, version="1.2.3", clock=clock, wakeups=wakeups, lookups=lookups)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client


@pytest.fixture
async def work(store: Store, names: Names) -> Work:
    """A worker by hand: claims what is ready of the task `demo`, and ends it so; None leaves it running."""
    tasks = await names.task_ids(["demo"])
    pools = await names.pool_ids(["short"])
    who = Introduction(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    worker_id = await workers.join(store, who)
    seat = Seat(worker_id=worker_id, pool_id=pools["short"], task_ids=[tasks["demo"]])

    async def step(ending: Ending | None) -> int:
        taken, _ = await claim(store, seat, 10, Turn())
        if ending is not None:
            await settle(store, worker_id, [decide(claimed, ending) for claimed in taken])
        return len(taken)

    return step
