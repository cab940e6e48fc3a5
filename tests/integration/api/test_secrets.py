"""Secrets by name: written by administrators, read by nobody; warnings about missing ones; hidden values everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from tests.integration.worker.secret_app import app as secret_app

from bellringer.access.api_keys import generate_api_key
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.codecs import aesgcm, decrypt
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.store import api_keys
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.worker.output.echo import CaptureSettings
from bellringer.worker.service import Worker, WorkerSettings

API = "/api/v1"
VALUE = "sk_live_51Hx-very-secret"
CARD = "4111222233334444"
TOKEN = "tok_abcdef"
WHO = "ada lovelace"
EGRESS = Egress.read((), (generate_secret_key("k1"),))
CODEC = aesgcm([generate_secret_key("p1")])


def client_of(store: Store, catalog: Catalog, tenants: Store, **more: Any) -> httpx2.AsyncClient:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=EGRESS, **more)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20)


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(store, catalog, tenants) as client:
        yield client


@pytest.fixture
async def worker(store: Store, request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    """A worker that executes `secret_app`, with the codec that the test gives as parameter."""
    stop = asyncio.Event()
    settings = WorkerSettings(
        pools={"short": 8},
        grace=timedelta(seconds=1),
        capture=CaptureSettings(level="info"),
        secret_box=EGRESS.box,
        codec=getattr(request, "param", None),
    )
    made = Worker(store, secret_app.registry, SystemClock(), settings)
    working = asyncio.create_task(made.run(stop))
    await made.started.wait()
    yield made
    stop.set()
    await working


async def ended(api: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    answer = await api.get(f"{API}/runs/{run_id}/wait", params={"timeout": 20})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_secret_is_set_listed_and_deleted_but_never_shown(api: httpx2.AsyncClient, store: Store) -> None:
    made = await api.put(f"{API}/secrets/stripe", json={"value": VALUE, "tasks": ["pay"], "note": "of the shop"})
    assert made.status_code == 200, made.text
    assert made.json() | {"name": "stripe", "version": 1, "key": "k1", "tasks": ["pay"], "origins": []} == made.json()
    again = (await api.put(f"{API}/secrets/stripe", json={"value": f"{VALUE}2"})).json()
    assert (again["version"], again["tasks"], again["note"]) == (2, ["pay"], "of the shop")  # restrictions are kept
    origins = ["https://API.example.com/path"]
    other = await api.put(f"{API}/secrets/a.hook", json={"value": VALUE, "origins": origins, "tasks": []})
    assert other.json()["origins"] == ["https://api.example.com"]
    page = (await api.get(f"{API}/secrets", params={"limit": 1})).json()
    rest = (await api.get(f"{API}/secrets", params={"cursor": page["next_cursor"]})).json()
    assert [item["name"] for item in page["items"] + rest["items"]] == ["a.hook", "stripe"]
    assert (await api.delete(f"{API}/secrets/stripe")).status_code == 204
    assert (await api.get(f"{API}/secrets/stripe")).status_code == 404
    assert (await api.delete(f"{API}/secrets/stripe")).status_code == 404
    audit = (await api.get(f"{API}/audit", params={"kind": "named_secret"})).json()["items"]
    assert [entry["action"].partition(".")[2] for entry in audit] == ["deleted", "created", "changed", "created"]
    assert audit[2]["after"]["version"] == 2
    assert '"sealed":"hidden, changed"' in (await api.get(f"{API}/audit/export")).text
    rows = [
        row[0]
        for row in await store.pool.fetch("select t::text from named_secrets t union all select t::text from audit t")
    ]
    assert VALUE not in "".join(rows)


@pytest.mark.parametrize(
    ("name", "body", "pointer"),
    [
        ("..", {"value": VALUE}, ""),
        ("a b", {"value": VALUE}, ""),
        ("x", {"value": "abc"}, "/value"),
        ("x", {"value": "x" * 20_000}, "/value"),
        ("x", {"value": "nul\0nul"}, "/value"),
        ("x", {"value": VALUE, "origins": ["ftp://x"]}, "/origins"),
        ("x", {"value": VALUE, "tasks": ["t"] * 60}, "/tasks"),
    ],
)
async def test_invalid_secrets_are_refused(
    api: httpx2.AsyncClient, name: str, body: Mapping[str, Any], pointer: str
) -> None:
    answer = await api.put(f"{API}/secrets/{name.replace('..', '%2E%2E')}", json=body)
    assert answer.status_code == 422, answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer] * bool(pointer)
    assert VALUE not in answer.text


async def test_only_administrators_write_and_only_editors_read(store: Store, catalog: Catalog, tenants: Store) -> None:
    authenticator = Authenticator(store, catalog, AuthSettings(), SystemClock())
    tenant_id = await catalog.tenant_id("default")
    async with client_of(store, catalog, tenants, authenticator=authenticator) as api:
        statuses = {}
        for role in ("viewer", "operator", "editor", "admin"):
            key = generate_api_key()
            await api_keys.add(store, key, tenant_id=tenant_id, name=role, role=role, who="test")
            headers = {"authorization": f"Bearer {key.text}"}
            statuses[role] = (
                (await api.get(f"{API}/secrets", headers=headers)).status_code,
                (await api.put(f"{API}/secrets/x", json={"value": VALUE}, headers=headers)).status_code,
                (await api.delete(f"{API}/secrets/x", headers=headers)).status_code,
            )
    assert statuses == {
        "viewer": (403, 403, 403), "operator": (403, 403, 403), "editor": (200, 403, 403), "admin": (200, 200, 204)
    }  # fmt: skip


async def test_a_job_that_refers_to_a_missing_secret_gets_a_warning(api: httpx2.AsyncClient) -> None:
    job = {"name": "j", "task": "length", "kwargs": {"value": {"$secret": "absent"}}}
    [warning] = [
        w for w in (await api.post(f"{API}/jobs", json=job)).json()["warnings"] if w["code"] == "secret_missing"
    ]
    assert "absent" in warning["detail"]
    await api.put(f"{API}/secrets/absent", json={"value": VALUE})
    changed = await api.put(f"{API}/jobs/j", json={**job, "tags": ["x"]})
    assert "secret_missing" not in changed.text


ORDER: dict[str, Any] = {
    "task": "pay",
    "args": [WHO],
    "kwargs": {"card": {"number": CARD, "brand": "visa"}, "items": [{"token": TOKEN, "n": 1}]},
    "retry": 1,
}


async def shown(api: httpx2.AsyncClient, run_id: str, job: str | None) -> dict[str, str]:
    """All that the API shows about a run and its job, by path."""
    paths = [f"/runs/{run_id}{part}" for part in ("", "/result", "/attempts", "/attempts/1", "/logs", "/explain")]
    paths += ["/runs", "/events", "/dead-letters", "/audit", "/overview"]
    if job is not None:
        paths += [f"/jobs/{job}", "/jobs", f"/jobs/{job}/revisions/1", f"/jobs/{job}/revisions/2", f"/jobs/{job}/runs"]
    found = {path: (await api.get(f"{API}{path}")).text for path in paths}
    exported = (await api.get(f"{API}/audit/export")).text
    lines = (await api.get(f"{API}/runs/{run_id}/logs", headers={"accept": "text/plain"})).text
    return {**found, "export": exported, "lines": lines}


async def test_hidden_values_are_shown_nowhere(api: httpx2.AsyncClient, worker: Worker, store: Store) -> None:
    sent = await api.post(f"{API}/jobs/execute", json=ORDER)
    run = await ended(api, sent.json()["run_id"])
    assert run["state"] == "succeeded", run
    assert run["args"] == ["***"]
    assert run["kwargs"] == {"card": {"number": "***", "brand": "visa"}, "items": [{"token": "***", "n": 1}]}
    assert run["result"] == {
        "card": {"number": "***", "brand": "visa"},
        "items": [{"token": "***", "n": 1}],
        "amount": 5,
    }
    broken = {**ORDER, "name": "job", "kwargs": {**ORDER["kwargs"], "card": {"number": CARD, "broken": True}}}
    assert (await api.put(f"{API}/jobs/job", json=broken)).status_code == 201
    assert (await api.patch(f"{API}/jobs/job", json={"tags": ["x"]})).status_code == 200
    failed = await ended(api, (await api.post(f"{API}/jobs/job/run")).json()["run_id"])
    assert failed["error"]["message"] == "card *** refused for ***"
    assert failed["progress"] is None or failed["progress"]["details"]["card"]["number"] == "***"
    await asyncio.sleep(0.5)  # log lines are written in batches
    for run_id, job in ((run["run_id"], None), (failed["run_id"], "job")):
        pages = await shown(api, run_id, job)
        assert "paying with *** and *** for ***" in pages["lines"]
        for path, text in pages.items():
            for value in (CARD, TOKEN, WHO):
                assert value not in text, (path, text)
    stored = await store.pool.fetchval("select spec::text from jobs where name = 'job'")
    assert CARD in stored  # the worker needs it
    for table in ("attempts", "logs", "dead_letters", "events"):
        rows = await store.pool.fetch(f"select t::text from {table} t where t::text like $1", f"%{CARD}%")
        # Only in results and in progress, which later runs and attempts need.
        assert all("amount" in row[0] or "seen" in row[0] for row in rows), table


async def test_a_client_that_sends_a_hidden_value_back_keeps_it(api: httpx2.AsyncClient, store: Store) -> None:
    await api.put(f"{API}/jobs/job", json={**ORDER, "redact": ["card.number", "args[0]"]})
    read = (await api.get(f"{API}/jobs/job")).json()
    assert (read["kwargs"]["card"]["number"], read["args"], read["redact"]) == (
        "***",
        ["***"],
        ["card.number", "args[0]"],
    )
    again = {"task": "pay", "args": read["args"], "kwargs": read["kwargs"], "redact": read["redact"], "retry": 1}
    assert (await api.put(f"{API}/jobs/job", json={**again, "priority": 7})).json()["priority"] == 7
    spec = json.loads(await store.pool.fetchval("select spec::text from jobs where name = 'job'"))
    assert (spec["kwargs"]["card"]["number"], spec["args"]) == (CARD, [WHO])
    await api.patch(f"{API}/jobs/job", json={"kwargs": {"card": {"number": "5555666677778888"}}})
    [change] = (await api.get(f"{API}/jobs/job/revisions/3")).json()["changes"]
    assert (change["field"], change["after"]["card"]["number"]) == ("kwargs", "***")
    refused = await api.put(f"{API}/jobs/job", json={**ORDER, "redact": ["a..b"]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/redact/0")


@pytest.mark.parametrize("worker", [CODEC], indirect=True)
async def test_a_server_with_a_codec_encrypts_and_the_database_sees_nothing(
    store: Store, catalog: Catalog, tenants: Store, worker: Worker
) -> None:
    async with client_of(store, catalog, tenants, payload_codec=CODEC) as api:
        sent = (await api.post(f"{API}/jobs/execute", json=ORDER)).json()
        run = await ended(api, sent["run_id"])
        assert run["state"] == "succeeded", run
        job = {**ORDER, "name": "job"}
        first = (await api.put(f"{API}/jobs/job", json=job)).json()
        second = (await api.put(f"{API}/jobs/job", json=job)).json()
        assert first["revision"] == second["revision"] == 1  # equal arguments are no change
        bulk = await api.post(f"{API}/runs/bulk", json={"items": [ORDER, ORDER]})
        assert bulk.status_code == 202, bulk.text
        for item in bulk.json()["items"]:
            assert (await ended(api, item["run_id"]))["state"] == "succeeded"
        triggered = await api.post(f"{API}/jobs/job/run", json={"kwargs": {"card": {"number": CARD, "broken": True}}})
        assert (await ended(api, triggered.json()["run_id"]))["error"]["message"] == "card *** refused for ***"
    assert run["result"].keys() == {"$encrypted"}
    assert decrypt(CODEC, run["result"], tenant="default")["card"]["number"] == CARD
    for table in ("jobs", "runs", "queue", "attempts", "logs", "dead_letters", "events", "audit", "job_revisions"):
        rows = await store.pool.fetch(f"select t::text from {table} t")
        assert not any(value in row[0] for row in rows for value in (CARD, TOKEN, WHO)), table
