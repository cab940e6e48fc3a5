"""Secrets in the URL, the headers and the body of a target: sent, and shown to nobody, nor readable in the database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.integration.egress.conftest import Receiver, Shop

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import decode_run_id
from bellringer.egress.settings import Egress
from bellringer.egress.target_secrets import is_secret_name
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

JOBS = "/api/v1/jobs"
S = "s3cr3t"
SET = {"$secret": {"set": True}}
TABLES = ("jobs", "job_revisions", "runs", "queue", "attempts", "audit", "events", "logs", "idempotency_keys")


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store, egress: Egress) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), egress=egress)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as client:
        yield client


async def nowhere_open(store: Store) -> None:
    for table in TABLES:
        for row in await store.pool.fetch(f"select t::text from bellringer.{table} t"):
            assert S not in row[0], (table, row[0])


def target(url: str) -> dict[str, Any]:
    return {
        "url": f"{url}?team=1&access_token={S}-url&page=2",
        "headers": {"x-api-key": f"{S}-header", "x-marked": {"$secret": f"{S}-marked"}, "x-team": "a"},
        "body": {
            "n": 1,
            "user": {"name": "ana", "password": f"{S}-password"},
            "credentials": {"deep": [f"{S}-deep", 7]},
            "note": {"$secret": f"{S}-note"},
            "pin": {"$secret": 4711},
        },
    }


async def test_secrets_are_sent_and_shown_nowhere(
    api: httpx2.AsyncClient, shop: Shop, store: Store, receiver: Receiver
) -> None:
    answer = await api.post(JOBS, json={"name": "hook", "http": target(receiver.url)})
    assert answer.status_code == 202, answer.text
    shown = answer.json()["http"]
    assert shown["url"] == f"{receiver.url}?team=1&access_token=***&page=2"
    assert shown["headers"] == {"x-api-key": {"set": True}, "x-marked": {"set": True}, "x-team": "a"}
    assert shown["body"] == {
        "n": 1, "user": {"name": "ana", "password": SET}, "credentials": {"deep": [SET, 7]}, "note": SET, "pin": SET,
    }  # fmt: skip
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    [sent] = receiver.received
    assert sent.target.endswith(f"?team=1&access_token={S}-url&page=2")
    assert (sent.headers["x-api-key"], sent.headers["x-marked"]) == (f"{S}-header", f"{S}-marked")
    assert json.loads(sent.body) == {
        "n": 1,
        "user": {"name": "ana", "password": f"{S}-password"},
        "credentials": {"deep": [f"{S}-deep", 7]},
        "note": f"{S}-note",
        "pin": 4711,
    }
    for path in (JOBS, f"{JOBS}/hook", f"{JOBS}/hook/revisions/1", f"/api/v1/runs/{run['run_id']}", "/api/v1/audit"):
        text = (await api.get(path)).text
        assert S not in text, (path, text)
        assert "sealed" not in text, (path, text)
    await nowhere_open(store)


async def test_what_was_answered_can_be_sent_back(
    api: httpx2.AsyncClient, shop: Shop, store: Store, receiver: Receiver
) -> None:
    await api.post(JOBS, json={"name": "hook", "http": target(receiver.url)})
    shown = (await api.patch(f"{JOBS}/hook", json={"http": {"timeout": "5s"}})).json()
    for again in (shown["http"], {**target(receiver.url), "timeout": "5s"}):
        for answer in (
            await api.patch(f"{JOBS}/hook", json={"http": again}),
            await api.put(f"{JOBS}/hook", json={"http": again}),
        ):
            assert answer.status_code == 200, answer.text
            assert (answer.json()["http"], answer.json()["revision"]) == (shown["http"], shown["revision"])
    changed = await api.patch(f"{JOBS}/hook", json={"http": {"body": {"user": {"password": "n3w"}, "n": 2}}})
    assert changed.json()["http"]["body"]["user"] == {"name": "ana", "password": SET}
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    [sent] = receiver.received
    body = json.loads(sent.body)
    assert (body["user"]["password"], body["note"], body["n"]) == ("n3w", f"{S}-note", 2)
    await nowhere_open(store)


async def test_a_whole_url_can_be_secret(api: httpx2.AsyncClient, shop: Shop, store: Store, receiver: Receiver) -> None:
    origin = receiver.url.removesuffix("/hook")
    url = f"{origin}/services/T0/B0/{S}"
    made = (await api.post(JOBS, json={"name": "hook", "http": {"url": {"$secret": url}, "body": "hi"}})).json()
    assert made["http"]["url"] == f"{origin}/***"
    echoed = await api.put(f"{JOBS}/hook", json={"http": made["http"]})
    assert (echoed.status_code, echoed.json()["revision"]) == (200, 1), echoed.text
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    assert receiver.received[0].target == f"/services/T0/B0/{S}"
    assert S not in (await api.get(f"/api/v1/runs/{run['run_id']}")).text
    await nowhere_open(store)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.9:8081/?access_token=***"},
        {"url": "http://127.0.0.9:8081/***"},
        {"body": {"other": SET}},
        {"body": {"user": {"password": {"$sealed": "dev:AAAA"}}}},
        {"headers": {"x-never": {"set": True}}},
    ],
    ids=["another host", "a whole url", "another place", "forged", "a header"],
)
async def test_a_secret_stays_with_its_place_and_host(
    api: httpx2.AsyncClient, receiver: Receiver, change: dict[str, Any]
) -> None:
    await api.post(JOBS, json={"name": "hook", "http": target(receiver.url)})
    refused = await api.patch(f"{JOBS}/hook", json={"http": change})
    assert (refused.status_code, refused.json()["code"]) == (422, "secret_unknown"), refused.text
    moved = await api.patch(f"{JOBS}/hook", json={"http": {"url": "http://127.0.0.9:8080/"}})
    assert (moved.status_code, moved.json()["code"]) == (422, "secret_unknown"), moved.text


async def test_a_send_and_another_body_of_a_run_hide_them_too(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    sent = await api.post(f"{JOBS}/execute", json={"http": target(receiver.url)})
    assert sent.status_code == 202, sent.text
    await shop.ended(decode_run_id(sent.json()["run_id"]))
    assert S not in (await api.get(f"/api/v1/runs/{sent.json()['run_id']}")).text
    await api.post(JOBS, json={"name": "hook", "http": {"url": receiver.url}})
    other = {"body": {"password": f"{S}-other", "note": {"$secret": f"{S}-note"}, "n": 3}}
    run = (await api.post(f"{JOBS}/hook/run", json={"kwargs": other})).json()
    assert S not in json.dumps(run)
    await shop.ended(decode_run_id(run["run_id"]))
    assert json.loads(receiver.received[-1].body) == {"password": f"{S}-other", "note": f"{S}-note", "n": 3}
    shown = (await api.get(f"/api/v1/runs/{run['run_id']}")).json()
    assert shown["kwargs"]["body"] == {"password": SET, "note": SET, "n": 3}


async def test_without_keys_a_secret_is_refused_rather_than_stored_open(
    store: Store, catalog: Catalog, tenants: Store, receiver: Receiver
) -> None:
    keyless = Egress.read(["127.0.0.0/8"], ())
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=keyless)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        for http, pointer in (
            ({"url": f"{receiver.url}?token=x"}, "/http/url"),
            ({"url": receiver.url, "body": {"password": "x"}}, "/http/body/password"),
        ):
            refused = await client.post(JOBS, json={"name": "hook", "http": http})
            assert (refused.status_code, refused.json()["code"]) == (422, "secrets_off"), refused.text
            assert refused.json()["errors"][0]["pointer"] == pointer
        plain = await client.post(JOBS, json={"name": "hook", "http": {"url": receiver.url, "body": {"n": 1}}})
        assert plain.status_code == 202, plain.text


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("password", "PASSWORD", "userPassword", "db_passwd", "accessToken", "auth")),
        *((name, True) for name in ("api_key", "apiKey", "X-API-KEY", "private-key", "client_secret", "Authorization")),
        *((name, False) for name in ("author", "keyboard", "key", "monkey", "passenger", "tokenizer", "primary_key")),
    ],
)
def test_fields_that_hold_secrets_are_known_by_their_names(name: str, is_one: bool) -> None:
    assert is_secret_name(name) is is_one


@pytest.mark.parametrize(("name", "is_one"), [("key", True), ("sig", True), ("token", True), ("page", False)])
def test_parameters_of_a_query_that_hold_secrets(name: str, is_one: bool) -> None:
    assert is_secret_name(name, in_query=True) is is_one
