"""References to named secrets in HTTP targets: sent to allowed origins only, and shown nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest
from tests.integration.egress.conftest import Receiver, Shop

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.runs import State, decode_run_id
from bellringer.egress.settings import Egress
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.worker.built_in_tasks import http_registry
from bellringer.worker.service import Worker, WorkerSettings

API = "/api/v1"
VALUE = "tok_live_8RsT-secret"


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store, egress: Egress) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), egress=egress)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as client:
        yield client


@pytest.fixture
async def shop(store: Store, catalog: Catalog, egress: Egress) -> AsyncIterator[Shop]:
    clock, stop = SystemClock(), asyncio.Event()
    settings = WorkerSettings(pools={HTTP_TASK: 4}, name="http", grace=timedelta(seconds=1), secret_box=egress.box)
    worker = Worker(store, http_registry(store, egress, clock), clock, settings)
    working = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    yield Shop(store, catalog, egress, await catalog.tenant_id("default"))
    stop.set()
    await working


async def test_headers_and_bodies_get_the_value_at_the_allowed_origin_only(
    api: httpx2.AsyncClient, shop: Shop, store: Store, receiver: Receiver
) -> None:
    receiver.answers = [(200, {}, f'{{"you sent": "{VALUE}"}}'.encode())]
    header = {"$secret": {"name": "partner", "prefix": "Bearer "}}
    target = {
        "url": receiver.url,
        "headers": {"Authorization": header},
        "body": {"password": {"$secret": {"name": "partner"}}},
    }
    job = await api.put(f"{API}/jobs/hook", json={"http": target, "retry": 1})
    assert "secret_missing" in job.text
    assert job.json()["http"]["headers"] == {"authorization": header}
    assert job.json()["http"]["body"] == target["body"]
    await api.put(f"{API}/secrets/partner", json={"value": VALUE})
    refused = await shop.ended(decode_run_id((await api.post(f"{API}/jobs/hook/run")).json()["run_id"]))
    assert (refused.state, refused.error["type"]) == (State.DEAD, "secret_forbidden")
    assert receiver.received == []
    await api.put(f"{API}/secrets/partner", json={"value": VALUE, "origins": [receiver.url]})
    run_id = (await api.post(f"{API}/jobs/hook/run")).json()["run_id"]
    run = await shop.ended(decode_run_id(run_id))
    assert run.state is State.SUCCEEDED, run.error
    [sent] = receiver.received
    assert sent.headers["authorization"] == f"Bearer {VALUE}"
    assert json.loads(sent.body) == {"password": VALUE}
    assert json.loads(run.result["body"]) == {"you sent": "***"}  # a receiver that echoes it does not leak it
    same = await api.put(f"{API}/jobs/hook", json={"http": job.json()["http"], "retry": 1})
    assert same.json()["revision"] == 1  # what the API shows can be sent back
    for path in ("/jobs/hook", "/jobs", f"/runs/{run_id}", f"/runs/{run_id}/logs", "/audit", "/events", "/secrets"):
        assert VALUE not in (await api.get(f"{API}{path}")).text, path
    for table in ("jobs", "runs", "attempts", "audit", "logs", "events", "named_secrets", "job_revisions", "breakers"):
        assert not [r for r in await store.pool.fetch(f"select t::text from {table} t") if VALUE in r[0]], table
