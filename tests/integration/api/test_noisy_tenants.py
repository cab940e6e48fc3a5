"""One tenant's DNS names, operations, limits and webhooks do not delay other tenants."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.egress.guarded_connect import EgressGuard, HostResolver
from bellringer.egress.http_call import CallFailure, CallFailureKind, HttpRequest, send_request
from bellringer.egress.secret_box import generate_secret_key as make_box_key
from bellringer.egress.settings import Egress
from bellringer.egress.urls import parse_url
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.webhooks import deliver_events
from bellringer.store import events, workers
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind, NewEvent
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

API: Final = "/api/v1"


async def test_names_that_never_resolve_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call gives up after 0.1 s, its look-up does not: without shares, many such calls would stop those of all."""
    free = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *args: Any, **terms: Any) -> Any:
        if host.endswith("tarpit.example"):
            free.wait(60)
            raise socket.gaierror("no answer")
        return real("127.0.0.1", *args, **terms)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    short = timedelta(milliseconds=100)
    asked = [HttpRequest(url=parse_url(f"https://n{n}.tarpit.example/"), timeout=short) for n in range(200)]
    lookups = HostResolver()
    hostile, other = EgressGuard(resolver=lookups.of(1)), EgressGuard(resolver=lookups.of(2))
    try:
        ends = await asyncio.gather(*(send_request(request, hostile, time.monotonic) for request in asked))
        assert all(isinstance(end, CallFailure) and end.trouble is CallFailureKind.TIMEOUT for end in ends)
        honest = HttpRequest(url=parse_url("https://honest.example/"), timeout=timedelta(seconds=5))
        end = await send_request(honest, other, time.monotonic)
        assert isinstance(end, CallFailure)
        assert end.trouble is CallFailureKind.RESOLVE, end  # it was resolved, to this machine
    finally:
        free.set()
    end = await send_request(replace(honest, timeout=timedelta(seconds=20)), hostile, time.monotonic)
    assert isinstance(end, CallFailure)
    assert end.trouble is CallFailureKind.RESOLVE, end  # once its threads have come back, it has its share again


async def test_operations_of_one_tenant_do_not_hold_up_anothers(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    """They are taken by their numbers: 10,000 of one tenant are 10,000 passes of up to 3 s before the next one's."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    beta = {"X-Tenant": "beta"}
    for n in range(3):
        await api.post(f"{API}/jobs", json={"name": f"j{n}", "task": "demo"}, headers=beta)
    await api.post(f"{API}/jobs", json={"name": "mine", "task": "demo"})
    for _ in range(60):
        await api.post(f"{API}/bulk", json={"action": "jobs.run", "filter": {}}, headers=beta)
    mine = (await api.post(f"{API}/bulk", json={"action": "jobs.pause", "filter": {}})).json()
    turn = OperationCursor()
    for _ in range(10):
        await run_operations(store, catalog, turn)
    now = (await api.get(f"{API}/operations/{mine['operation_id']}")).json()
    assert now["state"] == "done"


async def test_many_limits_do_not_buy_more_than_a_tenants_share(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    """Half of every batch goes to runs that share a limit, key by key and not tenant by tenant."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    for tenant, count in (("beta", 1_000), ("default", 1)):
        items = [
            {"name": f"j{n}", "task": "demo", "concurrency_key": f"k{n}", "concurrency_limit": 1} for n in range(count)
        ]
        headers = {"X-Tenant": tenant}
        assert (await api.post(f"{API}/jobs/bulk", json={"items": items}, headers=headers)).status_code == 201
        asked = await api.post(f"{API}/bulk", json={"action": "jobs.run", "filter": {}}, headers=headers)
        assert asked.status_code == 202, asked.text
    turn = OperationCursor()
    for _ in range(60):
        await run_operations(store, catalog, turn)
    assert await store.pool.fetchval("select count(*) from queue") == 1_001
    tasks, pools = await catalog.task_ids(["demo"]), await catalog.pool_ids(["short"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    seat = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pools["short"], task_ids=[tasks["demo"]])
    taken, _ = await claim(store, seat, 10, TenantCursor())
    assert 1 in {claimed.tenant_id for claimed in taken}


async def test_endpoints_made_at_once_are_counted_too(store: Store, catalog: Catalog, tenants: Store) -> None:
    egress = Egress.read((), (make_box_key("k1"),))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=egress)
    body = {"url": "https://example.com/"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=60) as api:
        await asyncio.gather(*(api.post(f"{API}/webhook-endpoints", json=body) for _ in range(80)))
    assert await store.pool.fetchval("select count(*) from webhook_endpoints") <= 50


async def test_the_webhooks_of_one_tenant_do_not_hold_up_anothers(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    """A pass takes the 50 endpoints of the lowest numbers that have news: who has 50, and always news, has them all."""
    await store.pool.execute("insert into tenants (name) values ('beta')")
    beta = await catalog.tenant_id("beta")
    egress = Egress.read((), (make_box_key("k1"),))
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=egress)
    body = {"url": "https://example.com/", "kinds": ["outgrown"]}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://t", timeout=60) as api:
        for _ in range(50):
            await api.post(f"{API}/webhook-endpoints", json=body, headers={"X-Tenant": "beta"})
        mine = (await api.post(f"{API}/webhook-endpoints", json={"url": "https://example.com/"})).json()["endpoint_id"]
        await tell(store, *[beta] * 600)
        await tell(store, 1)
        for _ in range(5):
            await deliver_events(store, catalog)
        sent = (await api.get(f"{API}/webhook-endpoints/{mine}/deliveries")).json()["items"]
    assert len(sent) == 1


async def tell(store: Store, *tenants: int) -> None:
    """Something late for each of them."""
    now = await store.now()
    news = [
        NewEvent(tenant_id=t, kind=EventKind.LATE, key=RunKey(uuid4(), now), data={"late_after": 90}) for t in tenants
    ]
    assert (await events.record(store, now, news))[EventKind.LATE] == len(tenants)
