"""The pulse: told at once, then only when something has changed, by one look for all who listen."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from tests.integration.api.conftest import Work

from bellringer.api.app import Api, create_app
from bellringer.api.http import change_feed, sse
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.store import change_counters, workers
from bellringer.store.change_counters import ChangeCounters
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

PATIENCE = 60
API = "/api/v1"


@pytest.fixture
def app(store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(change_feed, "CHANGE_POLL_SECONDS", 0.05)
    return create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())


@pytest.fixture
async def http(app: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """A real server: a stream needs one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield client
        app.streams.close()
        server.should_exit = True
        await serving


@asynccontextmanager
async def listening(http: httpx2.AsyncClient) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """What is told, one by one."""

    async def told(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
        async for line in lines:
            if line.startswith("data:"):
                yield json.loads(line[5:])

    async with http.stream("GET", f"{API}/pulse", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield told(answer.aiter_lines())


async def soon(told: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        return await anext(told)


async def test_it_is_reported_at_once_and_then_when_something_has_changed(http: httpx2.AsyncClient) -> None:
    async with listening(http) as told:
        first = await soon(told)
        assert set(first) == {"runs", "jobs", "dead", "workers", "events"}
        await http.post(f"{API}/jobs", json={"name": "a", "task": "demo"})
        assert (await soon(told))["jobs"] != first["jobs"]


async def test_nothing_is_reported_while_nothing_changes(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.api.endpoints.events.HEARTBEAT_SECONDS", 0.05)
    headers = {"Accept": "text/event-stream"}
    async with asyncio.timeout(PATIENCE), http.stream("GET", f"{API}/pulse", headers=headers) as answer:
        seen: list[str] = []
        async for line in answer.aiter_lines():
            seen += [line] if line else []
            if sum(one == ": still here" for one in seen) == 5:
                break
    assert [line[:5] for line in seen] == ["data:", *[": sti"] * 5]


async def test_all_who_listen_share_one_look_and_no_one_looks_for_none(
    http: httpx2.AsyncClient, app: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[int, ...]] = []

    async def counting(store: Store, tenants: Any) -> dict[int, ChangeCounters]:
        looks.append(tuple(tenants))
        return await change_counters.load_counters(store, tenants)

    monkeypatch.setattr(change_feed, "load_counters", counting)
    async with listening(http) as one, listening(http) as other:
        assert await soon(one) == await soon(other)
        await http.post(f"{API}/jobs", json={"name": "a", "task": "demo"})
        assert await soon(one) == await soon(other)
    assert set(looks) == {(1,)}
    async with asyncio.timeout(PATIENCE):
        before = -1
        while len(looks) != before:  # until the server has seen that they are gone; it would look ten times meanwhile
            before = len(looks)
            await asyncio.sleep(0.5)
    assert app.streams.beats.is_idle


async def test_who_asks_for_json_gets_it_once(api: httpx2.AsyncClient) -> None:
    first = (await api.get(f"{API}/pulse")).json()
    assert (await api.get(f"{API}/pulse")).json() == first
    assert all(0 <= number < 1 << 53 for number in first.values())


async def test_each_mark_differs_when_its_things_have_changed(
    store: Store, api: httpx2.AsyncClient, work: Work
) -> None:
    known = (await change_counters.load_counters(store, [1]))[1]

    async def changed() -> set[str]:
        nonlocal known
        seen = (await change_counters.load_counters(store, [1]))[1]
        differing = {name for name in ChangeCounters._fields if getattr(seen, name) != getattr(known, name)}
        known = seen
        return differing

    assert await changed() == set()
    assert (await api.post(f"{API}/jobs", json={"name": "a", "task": "demo"})).is_success
    assert await changed() == {"jobs"}
    assert (await api.post(f"{API}/jobs/a/run", json={})).is_success
    assert "runs" in await changed()
    assert await work(None) == 1  # claimed
    assert await changed() == {"runs"}
    assert (await api.post(f"{API}/jobs/execute", json={"task": "demo"})).is_success
    assert "runs" in await changed()
    assert await work(Ending(outcome=Outcome.FAILED, error={}, final="no")) == 1
    assert await changed() >= {"runs", "dead", "events"}
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[])
    await workers.join(store, who)
    assert await changed() == {"workers"}


async def test_another_tenants_changes_are_not_reported(store: Store, catalog: Catalog) -> None:
    await store.pool.execute("insert into tenants (name) values ('other')")
    other = await catalog.tenant_id("other")
    before = await change_counters.load_counters(store, [1, other])
    await store.pool.execute(
        "insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason,"
        " fingerprint) values (gen_random_uuid(), now(), 0, $1, 1, 1, now(), '', '')",
        other,
    )
    after = await change_counters.load_counters(store, [1, other])
    assert after[1] == before[1]
    assert after[other].dead != before[other].dead


async def test_a_tenant_has_only_so_many_streams(
    http: httpx2.AsyncClient, app: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.streams, "streams", sse.OpenResponseLimit(1))
    async with listening(http) as told:
        await soon(told)
        refused = await http.get(f"{API}/pulse", headers={"Accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
