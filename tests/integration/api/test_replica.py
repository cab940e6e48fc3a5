"""A replica: lists and history come from it, a single thing and every change never do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from prometheus_client import REGISTRY

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.engine.register import create
from bellringer.schedule import every
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenant_scope import open_tenants
from bellringer.testing.postgres import TestServer

JOBS = "/api/v1/jobs"


@pytest.fixture
async def copy(bellringer_server: TestServer) -> AsyncIterator[str]:
    """A database that stands in for a replica, and holds what the primary does not."""
    async with bellringer_server.database() as made:
        there = await Store.open(made, size=1)
        definition = Definition(name="only there", task="demo", schedules=(every("1h"),))
        await create(there, Catalog(there), [definition], tenant_id=1, who="me")
        await there.close()
        yield made


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store, copy: str) -> AsyncIterator[httpx2.AsyncClient]:
    replica = await open_tenants(copy)
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), replica=replica)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        yield client
    replica.pool.terminate()


def fallbacks() -> float:
    return REGISTRY.get_sample_value("bellringer_replica_fallbacks_total") or 0.0


async def names_of(api: httpx2.AsyncClient, **query: str) -> list[str]:
    answer = await api.get(JOBS, params=query)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


async def test_lists_come_from_the_replica_and_decisions_do_not(api: httpx2.AsyncClient, copy: str) -> None:
    before = fallbacks()
    made = await api.post(JOBS, json={"name": "here", "task": "demo", "schedule": {"every": "1h"}})
    assert made.status_code == 202
    assert await names_of(api) == ["only there"]
    [there] = (await api.get(JOBS)).json()["items"]
    assert (await api.get(f"{JOBS}/{there['job_id']}")).status_code == 404, "a single job is the primary's"
    assert (await api.get(f"{JOBS}/here")).status_code == 200
    assert (await api.patch(f"{JOBS}/{there['job_id']}", json={"priority": 1})).status_code == 404
    assert (await api.patch(f"{JOBS}/here", json={"priority": 1})).status_code == 200
    assert (await api.put(f"{JOBS}/only%20there", json={"task": "demo"})).status_code == 201, "the name is free"
    history = await api.get(f"{JOBS}/here/revisions")
    assert (history.status_code, history.json()["items"]) == (200, []), "which lags behind"
    assert fallbacks() == before


async def test_the_primary_answers_for_a_replica_that_is_gone(
    api: httpx2.AsyncClient, copy: str, bellringer_server: TestServer
) -> None:
    await api.post(JOBS, json={"name": "here", "task": "demo"})
    assert await names_of(api) == ["only there"]
    before = fallbacks()
    store = await Store.open(bellringer_server.dsn, size=1)
    name = copy.rsplit("/", 1)[-1].split("?", maxsplit=1)[0]
    await store.pool.execute(f"alter database {name} allow_connections false")
    await store.pool.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
    try:
        assert await names_of(api) == ["here"]
        assert await names_of(api) == ["here"]
        assert fallbacks() > before
    finally:
        await store.pool.execute(f"alter database {name} allow_connections true")
        await store.close()
