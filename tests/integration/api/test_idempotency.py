"""Idempotency-Key: one effect and one answer, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import app as application
from bellringer.api.app import create_app
from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http import idempotency_quota
from bellringer.api.http.operation import operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.clock import SystemClock
from bellringer.engine.prune import Retention, prune
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.wakeups import COHORTS_CHANNEL, Wakeups
from bellringer.wire.models import Empty
from bellringer.wire.routes import Route

JOBS = "/api/v1/jobs"
EXECUTE = f"{JOBS}/execute"
SLOW = "/api/v1/slow"
FILL = "/api/v1/tenants-of-this-test"


class Recorder(Wakeups):
    """Notes, with each hint, how many jobs others can see at that moment."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, SystemClock())
        self.hints: list[tuple[str, int]] = []

    async def send(self, channel: str, payload: str = "") -> None:
        self.hints.append((channel, await self._store.pool.fetchval("select count(*) from jobs")))


class PausingApi:
    """An API with two tenants, and an operation that waits in the middle of its work."""

    def __init__(self, store: Store) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.wakeups = Recorder(store)
        self.client: httpx2.AsyncClient

    async def post(self, path: str, key: str | None, body: Any = None, **headers: str) -> httpx2.Response:
        named = {"Idempotency-Key": key} if key is not None else {}
        return await self.client.post(path, json=body or {}, headers={**named, **headers})


@pytest.fixture
async def pausing_api(
    store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PausingApi]:
    made = PausingApi(store)

    @operation(Route("test", "POST", "/test", Empty, body=Empty, body_optional=True), role=Role.EDITOR)
    async def slow(call: RequestContext) -> Response:
        await call.body(Empty)
        await call.store.pool.execute("insert into limits (tenant_id, key, most) values ($1, 'x', 1)", call.tenant_id)
        made.reached.set()
        await made.go_on.wait()
        await call.store.pool.fetchval("select 1")
        return reply(Empty())

    @operation(Route("test", "POST", "/test", Empty, body=Empty, body_optional=True), role=Role.ADMIN, everywhere=True)
    async def fill(call: RequestContext) -> Response:
        count = await call.service.store.pool.fetchval("select count(*) from tenants")
        await call.service.store.pool.execute("insert into tenants (name) values ($1)", f"t{count}")
        return reply(Empty())

    extra = {SLOW: {"POST": slow}, FILL: {"POST": fill}}
    monkeypatch.setattr(application, "ROUTES", {**ROUTES, **extra})
    await store.pool.execute("insert into tenants (name) values ('other')")
    clock = SystemClock()
    app = create_app(store, catalog, tenants, version="1", clock=clock, wakeups=made.wakeups)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as client:
        made.client = client
        yield made


def job(name: str = "bell") -> dict[str, Any]:
    return {"name": name, "task": "demo", "schedule": {"every": "1h"}}


async def count(store: Store, table: str) -> int:
    found: int = await store.pool.fetchval(f"select count(*) from {table}")
    return found


async def test_the_same_request_again_gets_the_first_answer_and_has_no_effect(
    pausing_api: PausingApi, store: Store
) -> None:
    first = await pausing_api.post(JOBS, "a", job())
    again = await pausing_api.post(JOBS, "a", job())
    assert (first.status_code, again.status_code) == (202, 202)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content
    for name in ("etag", "location", "content-type"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert await count(store, "jobs") == 1


async def test_every_order_with_a_new_key_makes_a_run_of_its_own(pausing_api: PausingApi, store: Store) -> None:
    runs = [(await pausing_api.post(EXECUTE, key, {"task": "demo"})).json()["run_id"] for key in ("a", "b", "a", "b")]
    assert runs[:2] == runs[2:]
    assert await count(store, "runs") == 2


async def test_a_key_in_the_body_keeps_its_own_meaning(pausing_api: PausingApi) -> None:
    order = {"task": "demo", "key": "k"}
    first = await pausing_api.post(EXECUTE, "a", order)
    other = await pausing_api.post(EXECUTE, "b", order)
    assert (first.status_code, other.status_code) == (202, 200)
    assert other.json()["run_id"] == first.json()["run_id"]


async def test_a_key_with_another_request_is_refused(pausing_api: PausingApi, store: Store) -> None:
    await pausing_api.post(JOBS, "a", job())
    for body in (job("other"), {**job(), "priority": 3}):
        refused = await pausing_api.post(JOBS, "a", body)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert await count(store, "jobs") == 1


async def test_the_path_and_the_media_type_are_part_of_the_request(pausing_api: PausingApi) -> None:
    ids = [(await pausing_api.post(JOBS, None, job(name))).json()["job_id"] for name in ("one", "two")]
    assert (await pausing_api.post(f"{JOBS}/{ids[0]}/pause", "a")).status_code == 200
    assert (await pausing_api.post(f"{JOBS}/{ids[1]}/pause", "a")).json()["code"] == "idempotency_key_reused"
    assert (await pausing_api.post(f"{JOBS}/{ids[1]}/resume", "a")).status_code == 200  # another route, another key


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "x" * 300, "ä".encode().decode("latin-1"), "a\tb"])
async def test_keys_that_cannot_be_kept_are_refused(pausing_api: PausingApi, store: Store, key: str) -> None:
    headers = {b"idempotency-key": key.encode("latin-1"), b"content-type": b"application/json"}
    refused = await pausing_api.client.post(JOBS, json=job(), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency_key_invalid")
    assert await count(store, "jobs") == 0


async def test_two_keys_in_one_request_are_refused(pausing_api: PausingApi) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    refused = await pausing_api.client.post(JOBS, json=job(), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency_key_invalid")


async def test_another_tenants_key_is_a_new_one(pausing_api: PausingApi, store: Store) -> None:
    mine = await pausing_api.post(JOBS, "a", job())
    theirs = await pausing_api.post(JOBS, "a", job("theirs"), **{"X-Tenant": "other"})
    assert (mine.status_code, theirs.status_code) == (202, 202)
    assert "idempotency-replayed" not in theirs.headers
    assert await store.pool.fetchval("select count(distinct tenant_id) from jobs") == 2


async def test_a_second_request_meanwhile_is_asked_to_retry(pausing_api: PausingApi, store: Store) -> None:
    first = asyncio.create_task(pausing_api.post(SLOW, "a"))
    await pausing_api.reached.wait()
    second = await pausing_api.post(SLOW, "a")
    assert (second.status_code, second.json()["code"]) == (409, "in_progress")
    assert second.headers["retry-after"] == "1"
    pausing_api.go_on.set()
    assert (await first).status_code == 200
    assert (await pausing_api.post(SLOW, "a")).headers["idempotency-replayed"] == "true"
    assert await count(store, "limits") == 1


async def test_many_at_once_have_one_effect(pausing_api: PausingApi, store: Store) -> None:
    answers = await asyncio.gather(*(pausing_api.post(JOBS, "a", job()) for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert {a.json()["code"] for a in answers if a.status_code == 409} <= {"in_progress"}
    assert len({a.content for a in answers if a.status_code == 202}) == 1
    assert await count(store, "jobs") == 1


async def test_after_a_crash_in_the_middle_there_is_neither_effect_nor_answer(
    pausing_api: PausingApi, store: Store
) -> None:
    first = asyncio.create_task(pausing_api.post(SLOW, "a"))
    await pausing_api.reached.wait()
    killed = await store.pool.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where state = 'idle in transaction' and datname = current_database()"
    )
    assert killed == 1
    pausing_api.go_on.set()
    assert (await first).status_code == 503
    assert (await count(store, "limits"), await count(store, "idempotency_keys")) == (0, 0)
    again = await pausing_api.post(SLOW, "a")
    assert (again.status_code, "idempotency-replayed" in again.headers) == (200, False)
    assert await count(store, "limits") == 1


async def test_a_refusal_is_not_kept(pausing_api: PausingApi, store: Store) -> None:
    await pausing_api.post(JOBS, None, job())
    taken = await pausing_api.post(JOBS, "a", job())
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    invalid = await pausing_api.post(JOBS, "a", {"name": "bell"})
    assert invalid.status_code == 422
    assert await count(store, "idempotency_keys") == 0
    assert (await pausing_api.post(JOBS, "a", job("mended"))).status_code == 202


async def test_a_refused_body_is_refused_as_ever(pausing_api: PausingApi) -> None:
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    large = await pausing_api.client.post(JOBS, content=b" " * (2 << 20), headers=headers)
    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
    broken = await pausing_api.client.post(JOBS, content=b"{", headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (400, "json_invalid")


async def test_wake_ups_come_after_the_commit(pausing_api: PausingApi) -> None:
    assert (await pausing_api.post(JOBS, "a", job())).status_code == 202
    assert pausing_api.wakeups.hints == [(COHORTS_CHANNEL, 1)]
    await pausing_api.post(JOBS, "a", job())
    assert len(pausing_api.wakeups.hints) == 1


async def test_installation_wide_requests_are_kept_with_their_effect(pausing_api: PausingApi, store: Store) -> None:
    before = await count(store, "tenants")
    first, again = await pausing_api.post(FILL, "a"), await pausing_api.post(FILL, "a")
    assert (first.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert await count(store, "tenants") == before + 1
    assert (await pausing_api.post(FILL, None)).status_code == 200
    assert await count(store, "tenants") == before + 2


async def test_keys_are_forgotten_after_a_day(pausing_api: PausingApi, store: Store) -> None:
    await pausing_api.post(JOBS, "a", job())
    await store.pool.execute("update idempotency_keys set made_at = made_at - interval '25 hours'")
    refused = await pausing_api.post(JOBS, "a", job())  # the key is new again, but the name is taken
    assert refused.json()["code"] == "name_taken"
    assert (await pausing_api.post(JOBS, "a", job("later"))).status_code == 202
    await store.pool.execute("update idempotency_keys set made_at = made_at - interval '25 hours'")
    await prune(store, await store.now(), Retention())
    assert await count(store, "idempotency_keys") == 0


async def test_without_a_key_nothing_is_kept(pausing_api: PausingApi, store: Store) -> None:
    assert (await pausing_api.post(JOBS, None, job())).status_code == 202
    assert await count(store, "idempotency_keys") == 0


@pytest.fixture
async def bounded(
    store: Store, catalog: Catalog, tenants: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    """An API that keeps three blocks of answers of one tenant, and thirty of all."""
    monkeypatch.setattr(idempotency_quota, "RECOUNT_SECONDS_NEAR_FULL", 0.2)
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), idempotency_keys=3)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20
    ) as client:
        yield client


async def execute(client: httpx2.AsyncClient, key: str, **headers: str) -> tuple[int, str | None]:
    answer = await client.post(EXECUTE, json={"task": "demo"}, headers={"Idempotency-Key": key, **headers})
    return answer.status_code, answer.json().get("code")


async def test_a_tenant_has_so_many_kept_answers(bounded: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute("insert into tenants (name) values ('other')")
    assert [await execute(bounded, key) for key in "abc"] == [(202, None)] * 3
    assert await execute(bounded, "d") == (429, "quota_exceeded")
    assert await count(store, "runs") == 3
    assert await execute(bounded, "a") == (202, None)  # the first answer, once more
    assert await execute(bounded, "d", **{"X-Tenant": "other"}) == (202, None)
    without = await bounded.post(EXECUTE, json={"task": "demo"})
    assert without.status_code == 202
    await store.pool.execute("update idempotency_keys set made_at = made_at - interval '25 hours'")
    await asyncio.sleep(0.3)
    assert await execute(bounded, "d") == (202, None)  # expired answers make room
    assert await count(store, "idempotency_keys") == 1


async def test_all_tenants_together_have_so_many_kept_answers(bounded: httpx2.AsyncClient, store: Store) -> None:
    await store.pool.execute(
        """insert into idempotency_keys (tenant_id, route, key, fingerprint, status, headers, body, made_at)
           select 100 + n, '/x', 'k', '', 200, '{}', '', bellringer.now() from generate_series(1, 30) n"""
    )
    assert await execute(bounded, "a") == (429, "quota_exceeded")


async def test_a_long_answer_counts_several_times(bounded: httpx2.AsyncClient) -> None:
    items = [{"name": f"j{n}", "task": "demo"} for n in range(60)]
    made = await bounded.post(f"{JOBS}/bulk", json={"items": items}, headers={"Idempotency-Key": "many"})
    assert made.status_code == 201
    assert len(made.content) > 3 * 4096
    assert await execute(bounded, "a") == (429, "quota_exceeded")
