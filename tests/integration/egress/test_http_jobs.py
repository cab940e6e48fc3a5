"""HTTP jobs through the API: what is refused, what is answered, and that a secret is never shown again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from tests.integration.egress.conftest import Receiver, Shop

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import decode_run_id
from bellringer.egress.settings import Egress
from bellringer.egress.webhook_signatures import generate_secret, verify_signature
from bellringer.engine import http_targets, prune
from bellringer.engine.prune import Retention
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

JOBS = "/api/v1/jobs"


@pytest.fixture
async def api(store: Store, catalog: Catalog, tenants: Store, egress: Egress) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), egress=egress)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as client:
        yield client


def job(target: object, **more: object) -> dict[str, object]:
    return {"name": "hook", "http": target, **more}


async def test_a_job_calls_a_url_and_its_secret_is_write_only(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    secret = generate_secret()
    answer = await api.post(JOBS, json=job({"url": receiver.url, "body": {"a": 1}, "secret": secret}))
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert (made["task"], made["pool"], made["kwargs"]) == ("http", "http", {})
    assert made["http"]["url"] == receiver.url
    assert made["http"]["secret"] == {"id": made["http"]["secret"]["id"], "set": True}
    assert secret not in answer.text
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    [sent] = receiver.received
    assert verify_signature(secret, sent.headers, sent.body, datetime.now(UTC)) is None
    for path in (f"{JOBS}/hook", JOBS, f"/api/v1/runs/{run['run_id']}", f"{JOBS}/hook/why"):
        assert secret not in (await api.get(path)).text


async def test_the_receiver_learns_which_occurrence_of_which_job_calls(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    await api.post(JOBS, json=job({"url": receiver.url}, name="nächtlich, 2"))
    run = (await api.post(f"{JOBS}/nächtlich, 2/run")).json()
    key = decode_run_id(run["run_id"])
    await shop.ended(key)
    [sent] = receiver.received
    assert sent.headers["bellringer-job"] == "n%C3%A4chtlich%2C%202"
    assert datetime.fromisoformat(sent.headers["bellringer-scheduled-for"]) == key.scheduled_for
    assert sent.headers["bellringer-attempt"] == "1"


async def test_a_patch_changes_one_thing_and_rotates_the_secret(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    old, new = generate_secret(), generate_secret()
    made = (await api.post(JOBS, json=job({"url": receiver.url, "body": "x", "secret": old}))).json()
    changed = (await api.patch(f"{JOBS}/hook", json={"http": {"timeout": "5s"}})).json()
    assert changed["http"] == {**made["http"], "timeout": "5s"}
    answer = await api.patch(f"{JOBS}/hook", json={"http": {"secret": new}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["http"]["secret"] == made["http"]["secret"]
    echoed = await api.patch(f"{JOBS}/hook", json={"http": answer.json()["http"]})  # as it was answered
    assert echoed.json()["http"] == answer.json()["http"]
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    [sent] = receiver.received
    assert sent.headers["webhook-signature"].count("v1,") == 2
    assert verify_signature(new, sent.headers, sent.body, datetime.now(UTC)) is None
    unsigned = await api.patch(f"{JOBS}/hook", json={"http": {"secret": None, "sign": None}})
    assert "secret" not in unsigned.json()["http"]


async def test_a_change_that_is_refused_leaves_the_secret_as_it_was(
    api: httpx2.AsyncClient, store: Store, egress: Egress, receiver: Receiver
) -> None:
    old, new = generate_secret(), generate_secret()
    target = {"url": receiver.url, "secret": old}
    made = (await api.post(JOBS, json=job(target))).json()
    secret_id, changed = made["http"]["secret"]["id"], {**target, "secret": new}
    unknown = {"http": changed, "schedule": {"cron": "0 0 * * *", "calendar": "nowhere"}}  # found by registration
    for answer in (
        await api.patch(f"{JOBS}/hook", json=unknown),
        await api.put(f"{JOBS}/hook", json=unknown),
        await api.patch(f"{JOBS}/hook", json={"http": changed}, headers={"If-Match": '"7"'}),
    ):
        assert answer.status_code in (412, 422), answer.text
        assert await http_targets.open_secrets(store, egress, secret_id, tenant_id=1) == [old]
    answer = await api.put(f"{JOBS}/hook", json={"http": changed})
    assert answer.status_code == 200, answer.text
    assert await http_targets.open_secrets(store, egress, secret_id, tenant_id=1) == [new, old]


async def test_a_credential_in_a_header_is_write_only_and_stays_with_its_host(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    target = {"url": receiver.url, "headers": {"X-Api-Key": "s3cr3t", "X-Team": "a"}}
    made = (await api.post(JOBS, json=job(target))).json()
    assert made["http"]["headers"] == {"x-api-key": {"set": True}, "x-team": "a"}
    # Changed beside it, echoed, or given once more it stays the same.
    changed = (await api.patch(f"{JOBS}/hook", json={"http": {"timeout": "5s"}})).json()
    for again in (changed["http"], {**changed["http"], "headers": {"x-api-key": "s3cr3t", "x-team": "a"}}):
        for answer in (
            await api.patch(f"{JOBS}/hook", json={"http": again}),
            await api.put(f"{JOBS}/hook", json={"http": again}),
        ):
            assert answer.status_code == 200, answer.text
            assert answer.json()["http"] == changed["http"]
    assert (await api.put(f"{JOBS}/hook", json={"http": again})).json()["revision"] == answer.json()["revision"]
    run = (await api.post(f"{JOBS}/hook/run")).json()
    await shop.ended(decode_run_id(run["run_id"]))
    assert receiver.received[-1].headers["x-api-key"] == "s3cr3t"
    # Who may change the job cannot have it sent to a host of their own, nor in another job or a send.
    elsewhere = "https://evil.example/"
    refused = [
        await api.patch(f"{JOBS}/hook", json={"http": {"url": elsewhere}}),
        await api.put(f"{JOBS}/hook", json={"http": {**made["http"], "url": elsewhere}}),
        await api.post(JOBS, json={"name": "other", "http": made["http"]}),
        await api.post(f"{JOBS}/execute", json={"http": made["http"]}),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(422, "secret_unknown")] * 4
    moved = {"url": elsewhere, "headers": {"x-api-key": "another"}}
    assert (await api.patch(f"{JOBS}/hook", json={"http": moved})).status_code == 200


async def test_a_dry_run_seals_nothing(api: httpx2.AsyncClient, store: Store, receiver: Receiver) -> None:
    await api.post(JOBS, json=job({"url": receiver.url}))
    answer = await api.patch(f"{JOBS}/hook?dry_run=true", json={"http": {"secret": generate_secret()}})
    assert answer.status_code == 200, answer.text
    assert await store.pool.fetchval("select count(*) from bellringer.secrets") == 0


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"name": "x"}, "missing_field", "/task"),
        ({"name": "x", "task": "t", "http": {"url": "https://a.example"}}, "conflicting_fields", "/http"),
        ({"name": "x", "args": [1], "http": {"url": "https://a.example"}}, "conflicting_fields", "/http"),
        ({"name": "x", "task": "http"}, "name_reserved", "/task"),
        ({"name": "x", "http": {"url": "https://169.254.169.254/"}}, "url_forbidden_address", "/http/url"),
        ({"name": "x", "http": {"url": "https://user:pw@a.example/"}}, "url_invalid", "/http/url"),
        ({"name": "x", "http": {"url": "https://a.example", "headers": {"webhook-id": "1"}}}, "header_forbidden", None),
        (
            {"name": "x", "http": {"url": "https://a.example", "headers": {"Bellringer-Job": "y"}}},
            "header_forbidden",
            None,
        ),
        ({"name": "x", "http": {"url": "https://a.example", "headers": {"x": "\r\n"}}}, "header_invalid", None),
        ({"name": "x", "http": {"url": "https://a.example", "secret": "short"}}, "secret_invalid", "/http/secret"),
        ({"name": "x", "http": {"url": "https://a.example", "secret": {"id": "sec_0"}}}, "secret_unknown", None),
        ({"name": "x", "http": {"url": "https://a.example", "secret": {"ID": 1}}}, "type", "/http/secret"),
        ({"name": "x", "http": 7}, None, "/http"),
    ],
)
async def test_a_bad_target_is_refused_and_nothing_is_stored(
    api: httpx2.AsyncClient, store: Store, body: dict[str, object], code: str | None, pointer: str | None
) -> None:
    for path in (JOBS, f"{JOBS}/execute"):
        sent = body if path == JOBS else {name: value for name, value in body.items() if name != "name"}
        answer = await api.post(path, json=sent)
        assert answer.status_code == 422, answer.text
        problem = answer.json()
        errors = problem.get("errors") or [problem]
        assert code is None or code in {error.get("code") for error in errors} | {problem.get("code")}, problem
        assert pointer is None or pointer in {error.get("pointer") for error in errors}, problem
    assert await store.pool.fetchval("select count(*) from bellringer.secrets") == 0
    assert await store.pool.fetchval("select count(*) from bellringer.jobs") == 0


async def test_a_send_may_call_a_url_too(api: httpx2.AsyncClient, shop: Shop, receiver: Receiver) -> None:
    answer = await api.post(f"{JOBS}/execute", json={"http": {"url": receiver.url, "method": "PUT"}})
    assert answer.status_code == 202, answer.text
    run = await shop.ended(decode_run_id(answer.json()["run_id"]))
    assert run.result["status"] == 200
    assert receiver.received[0].method == "PUT"


async def test_sends_that_bring_the_same_secret_keep_it_once(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    secret, other = generate_secret(), generate_secret()
    for given in (secret, secret, other, secret):
        target = {"url": receiver.url, "secret": given}
        answer = await api.post(f"{JOBS}/execute", json={"http": target})
        await shop.ended(decode_run_id(answer.json()["run_id"]))
    assert await shop.store.pool.fetchval("select count(*) from bellringer.secrets") == 2
    last = receiver.received[-1]
    assert verify_signature(secret, last.headers, last.body, datetime.now(UTC)) is None
    # A job that borrows one and replaces it does not change what others send with.
    kept = answer.json()["kwargs"]["secret"]
    assert (await api.post(JOBS, json=job({"url": receiver.url, "secret": kept}))).status_code == 202
    assert (await api.patch(f"{JOBS}/hook", json={"http": {"secret": other}})).status_code == 200
    answer = await api.post(f"{JOBS}/execute", json={"http": {"url": receiver.url, "secret": secret}})
    await shop.ended(decode_run_id(answer.json()["run_id"]))
    last = receiver.received[-1]
    assert verify_signature(secret, last.headers, last.body, datetime.now(UTC)) is None
    assert last.headers["webhook-signature"].count("v1,") == 1


async def test_secrets_that_nothing_needs_any_more_are_forgotten(api: httpx2.AsyncClient, store: Store) -> None:
    async def kept(name: str, target: dict[str, object], path: str = JOBS, **more: object) -> str:
        body = {**({"name": name} if path == JOBS else {}), "http": {"url": "https://a.example/", **target}, **more}
        answer = await api.post(path, json=body)
        assert answer.status_code == 202, answer.text
        made = answer.json()
        return str((made if path == JOBS else {"http": made["kwargs"]})["http"]["secret"]["id"])

    async def left(days: int) -> set[str]:
        """So many days from now, with 30 days of runs and 30 of dead letters."""
        await prune.prune(store, await store.now() + timedelta(days=days), Retention())
        return {row[0] for row in await store.pool.fetch("select secret_id from secrets")}

    lives = await kept("lives", {"secret": generate_secret()})
    taken_off = await kept("rolls", {"secret": generate_secret()})
    await api.patch(f"{JOBS}/rolls", json={"http": {"secret": None, "sign": None}})  # but it may be rolled back
    gone = await kept("gone", {"secret": generate_secret()})
    await api.delete(f"{JOBS}/gone")
    shared = generate_secret()
    sent = await kept("", {"secret": generate_secret()}, f"{JOBS}/execute")
    later = await kept("", {"secret": shared}, f"{JOBS}/execute")
    assert await kept("", {"secret": shared}, f"{JOBS}/execute", delay="100d") == later
    hook = await api.post("/api/v1/webhook-endpoints", json={"url": "https://a.example/"})
    told = hook.json()["secret"]["id"]
    assert await left(59) == {lives, taken_off, gone, sent, later, told}
    assert await left(62) == {lives, taken_off, later, told}
    assert await left(170) == {lives, taken_off, told}


async def test_who_runs_a_job_may_give_another_body_but_no_other_address(
    api: httpx2.AsyncClient, shop: Shop, receiver: Receiver
) -> None:
    await api.post(JOBS, json=job({"url": receiver.url, "secret": generate_secret()}))
    refused = await api.post(f"{JOBS}/hook/run", json={"kwargs": {"url": "https://evil.example/"}})
    assert refused.status_code == 422
    run = (await api.post(f"{JOBS}/hook/run", json={"kwargs": {"body": "mine"}})).json()
    await shop.ended(decode_run_id(run["run_id"]))
    assert [sent.body for sent in receiver.received] == [b"mine"]


async def test_a_send_cannot_sign_with_the_secret_of_a_job(api: httpx2.AsyncClient, receiver: Receiver) -> None:
    made = (await api.post(JOBS, json=job({"url": receiver.url, "secret": generate_secret()}))).json()
    target = {"url": "https://evil.example/", "secret": made["http"]["secret"]}
    answer = await api.post(f"{JOBS}/execute", json={"http": target})
    assert (answer.status_code, answer.json()["code"]) == (422, "secret_unknown")
    assert (await api.post(JOBS, json={"name": "other", "http": target})).status_code == 202  # who may change jobs may


async def test_without_keys_a_secret_is_answered_with_what_to_do(
    store: Store, catalog: Catalog, tenants: Store, receiver: Receiver
) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), egress=Egress())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
        for what in ({"secret": generate_secret()}, {"headers": {"Authorization": "Bearer x"}}):
            answer = await client.post(JOBS, json=job({"url": "https://a.example", **what}))
            assert (answer.status_code, answer.json()["code"]) == (422, "secrets_off")
            assert "secret_keys" in answer.text
