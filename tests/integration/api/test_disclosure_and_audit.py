"""Errors disclose no internal names, revoked keys stop receiving, and the audit names who acted."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import uuid4

import httpx2
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellringer.access.api_keys import generate_api_key
from bellringer.api.app import create_app
from bellringer.api.http import event_feed
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.api.http.connection_limits import limit_send_buffer
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.egress.guarded_connect import EgressGuard
from bellringer.egress.http_call import CallFailure, HttpRequest, send_request
from bellringer.egress.urls import parse_url
from bellringer.store import api_keys, events, workers
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind, NewEvent
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

API: Final = "/api/v1"


@asynccontextmanager
async def serving(app: Any, protocol: type[asyncio.Protocol]) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limit_send_buffer(listener)
        config = uvicorn.Config(app, log_config=None, lifespan="off", http=protocol, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1], server
        app.streams.close()
        server.should_exit = True
        await running


async def test_what_inner_names_lead_to_is_not_reported() -> None:
    """The message is in the run that every viewer of the tenant reads: a map of the inner network, name by name."""

    async def inner(_host: str, _port: int) -> list[str]:
        return ["10.20.30.40"]

    request = HttpRequest(url=parse_url("https://vault.corp.internal/"))
    end = await send_request(request, EgressGuard(resolver=inner), time.monotonic)
    assert isinstance(end, CallFailure)
    assert "10.20.30.40" not in end.message

    async def unknown(_host: str, _port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    other = await send_request(request, EgressGuard(resolver=unknown), time.monotonic)
    assert isinstance(other, CallFailure)
    assert (other.trouble, other.message) == (end.trouble, end.message)


async def test_a_revoked_key_hears_no_more_after_five_seconds(
    store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream is asked for once and goes on for 15 minutes, whatever becomes of the key."""
    monkeypatch.setattr(event_feed, "EVENT_POLL_SECONDS", 0.05)
    key = generate_api_key()
    await api_keys.add(store, key, tenant_id=1, name="thief", role="viewer", who="test")
    authenticator = Authenticator(store, catalog, AuthSettings())
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator)
    async with serving(app, HttpToolsProtocol) as (port, _):
        headers = {"Authorization": f"Bearer {key.text}", "Accept": "text/event-stream"}
        async with (
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as api,
            api.stream("GET", f"{API}/events", headers=headers) as answer,
        ):
            lines = answer.aiter_lines()
            assert "still here" in await anext(lines)
            await api_keys.revoke(store, key.key_id, 1)
            await asyncio.sleep(6)
            assert (await api.get(f"{API}/whoami", headers=headers)).status_code == 401
            await tell(store, 1)
            heard = [line async for line in before(lines, 8)]
    assert not [line for line in heard if line.startswith("data:")], heard


async def before(lines: AsyncIterator[str], seconds: float) -> AsyncIterator[str]:
    """What comes within that time."""
    try:
        async with asyncio.timeout(seconds):
            async for line in lines:
                yield line
    except TimeoutError:
        return


async def tell(store: Store, *tenants: int) -> None:
    """Something late for each of them."""
    now = await store.now()
    news = [
        NewEvent(tenant_id=t, kind=EventKind.LATE, key=RunKey(uuid4(), now), data={"late_after": 90}) for t in tenants
    ]
    assert (await events.record(store, now, news))[EventKind.LATE] == len(tenants)


async def test_who_stops_a_worker_is_reported_by_the_audit(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    tasks = await catalog.task_ids(["demo"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    number = await workers.join(store, who)
    for what in ("quiet", "stop"):
        answer = await api.post(f"{API}/workers/{number}/{what}", headers={"X-Request-ID": f"ask-{what}"})
        assert answer.status_code == 202, answer.text
        found = await store.pool.fetchval("select count(*) from audit where request_id = $1", f"ask-{what}")
        assert found == 1, what


async def test_who_executes_a_task_is_reported_somewhere(api: httpx2.AsyncClient, store: Store) -> None:
    """docs/audit.md leaves it out because the run tells it by itself; but a run does not say who sent it."""
    sent = await api.post(f"{API}/jobs/execute", json={"task": "demo"}, headers={"X-Request-ID": "ask-execute"})
    run = (await api.get(f"{API}/runs/{sent.json()['run_id']}")).text
    found = await store.pool.fetchval("select count(*) from audit where request_id = 'ask-execute'")
    assert found or '"local"' in run, run


async def test_a_patch_that_changes_nothing_leaves_no_row(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post(f"{API}/jobs", json={"name": "j", "task": "demo"})
    await api.patch(f"{API}/jobs/j", json={}, headers={"X-Request-ID": "nothing"})
    assert await store.pool.fetchval("select count(*) from audit where request_id = 'nothing'") == 0
