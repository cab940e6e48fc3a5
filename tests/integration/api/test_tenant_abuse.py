"""What a hostile tenant tries over the API. Each of these is a hole as long as its test fails; see the names."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from bellringer.access import Role
from bellringer.access.api_keys import generate_api_key
from bellringer.access.jwt_tokens import PublicKeys, TokenRules, TokenVerifier
from bellringer.api.app import create_app
from bellringer.api.endpoint_table import ROUTES
from bellringer.api.http.auth import UNSCOPED_TAG, Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.egress.secret_box import generate_secret_key as make_box_key
from bellringer.egress.settings import Egress
from bellringer.egress.webhook_signatures import generate_secret
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.store import api_keys, forecast, leases, workers
from bellringer.store import interned_names as catalog_module
from bellringer.store import tenants as people
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription
from bellringer.store.leases import NodeHeartbeat
from bellringer.store.workers import WorkerRegistration
from bellringer.wire import decode
from bellringer.wire.jobs import JobRequest

API: Final = "/api/v1"
HOOK: Final = "https://example.com/hook"


class Clock(SystemClock):
    """Goes on by hand."""

    at = 1000.0

    def monotonic(self) -> float:
        return self.at


@dataclass(frozen=True, kw_only=True)
class Town:
    """Two tenants, alpha and beta, at one API with a authenticator."""

    api: httpx2.AsyncClient
    store: Store
    catalog: Catalog
    clock: Clock

    async def key(self, tenant: str | None, role: str, name: str | None = None, **terms: Any) -> dict[str, str]:
        made = generate_api_key()
        name = name or made.key_id
        tenant_id = await self.catalog.tenant_id(tenant) if tenant else None
        await api_keys.add(self.store, made, tenant_id=tenant_id, name=name, role=role, who="test", **terms)
        return {"Authorization": f"Bearer {made.text}"}

    async def post(self, who: dict[str, str], path: str, body: Any = None, **headers: str) -> httpx2.Response:
        return await self.api.post(f"{API}{path}", json=body or {}, headers={**who, **headers})

    async def get(self, who: dict[str, str], path: str, **query: str) -> httpx2.Response:
        return await self.api.get(f"{API}{path}", params=query, headers=who)

    async def quota(self, tenant: str, **quotas: Any) -> None:
        await self.store.pool.execute(
            "update tenants set quotas = $2::jsonb where name = $1", tenant, json.dumps(quotas)
        )
        self.clock.at += 10


@pytest.fixture
async def town(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[Town]:
    await store.pool.execute("insert into tenants (name) values ('alpha'), ('beta')")
    clock = Clock()
    authenticator = Authenticator(store, catalog, AuthSettings(), clock)
    egress = Egress.read((), (make_box_key("k1"),))
    app = create_app(
        store, catalog, tenants, version="1", clock=SystemClock(), authenticator=authenticator, egress=egress
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=60) as api:
        yield Town(api=api, store=store, catalog=catalog, clock=clock)


# What all tenants share, used up by one


async def test_a_tenant_cannot_use_up_the_pools_of_all(town: Town) -> None:
    """Pools have 32,767 numbers for the whole installation, and a sequence takes none back."""
    beta = await town.key("beta", "editor")
    last = "select last_value from bellringer.pools_pool_id_seq"
    before = await town.store.pool.fetchval(last)
    items = [{"name": f"j{i}", "task": "demo", "pool": f"p{i}"} for i in range(9_000)]
    for atomic in (True, False):
        answer = await town.post(beta, "/jobs/bulk", {"items": items, "atomic": atomic})
        assert answer.status_code == (422 if atomic else 207), answer.text[:300]
    assert {item["code"] for item in answer.json()["items"]} == {"pool_unknown"}
    assert await town.store.pool.fetchval(last) == before


async def test_a_pool_that_no_one_made_is_refused_wherever_it_is_named(town: Town) -> None:
    beta = await town.key("beta", "editor")
    await town.catalog.pool_ids(["reports"])
    made = await town.post(beta, "/jobs", {"name": "honest", "task": "demo", "pool": "reports"})
    assert made.status_code == 202, made.text
    job = {"name": "other", "task": "demo", "pool": "shrot"}
    answers = [
        await town.post(beta, "/jobs", job),
        await town.post(beta, "/jobs", job, **{"Idempotency-Key": "once"}),
        await town.post(beta, "/jobs/execute", {"task": "demo", "pool": "shrot"}),
        await town.api.patch(f"{API}/jobs/honest", json={"pool": "shrot"}, headers=beta),
        await town.api.patch(f"{API}/jobs/honest?dry_run=true", json={"pool": "shrot"}, headers=beta),
    ]
    for answer in answers:
        [fault] = answer.json()["errors"]
        assert (answer.status_code, fault["code"], fault["pointer"]) == (422, "pool_unknown", "/pool"), answer.text
        assert "'short'" in fault["hint"]
    assert not await town.store.pool.fetchval("select exists (select from pools where name = 'shrot')")


async def test_a_tenant_makes_up_only_so_many_tasks(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused for another reason may leave names behind, but never more than these."""
    monkeypatch.setattr(catalog_module, "MAX_UNKNOWN_TASKS", 5)
    alpha, beta = await town.key("alpha", "editor"), await town.key("beta", "editor")

    async def execute(who: dict[str, str], task: str) -> int:
        return (await town.post(who, "/jobs/execute", {"task": task})).status_code

    assert [await execute(beta, f"task{i}") for i in range(6)] == [202] * 5 + [429]
    items = [{"name": f"j{i}", "task": f"bulk{i}"} for i in range(6)]
    refused = await town.post(alpha, "/jobs/bulk", {"items": items})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert await town.store.pool.fetchval("select count(*) from tasks where name like 'bulk%'") == 0
    assert await execute(alpha, "task5") == 202, "each tenant has its own"
    assert [await execute(beta, "task5"), await execute(beta, "task0"), await execute(beta, "more")] == [202, 202, 429]
    worker = Catalog(town.store)
    known = TaskDescription(name="task0", schema="{}", doc="", defaults="{}")
    await worker.task_ids(["task0"])
    await worker.describe_tasks([known])
    assert [await execute(beta, "more"), await execute(beta, "too much")] == [202, 429], "one is made up no longer"


async def test_tasks_made_up_at_once_are_counted_one_after_the_other(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "MAX_UNKNOWN_TASKS", 5)
    beta = await town.key("beta", "operator")
    answers = await asyncio.gather(*(town.post(beta, "/jobs/execute", {"task": f"t{i}"}) for i in range(20)))
    assert sorted(answer.status_code for answer in answers) == [202] * 5 + [429] * 15


async def test_a_tenant_has_only_so_many_freezes(town: Town) -> None:
    """A tick compares every due job of every tenant with every freeze of every tenant (functions/schedule/tick.sql)."""
    beta = await town.key("beta", "operator")
    await town.store.pool.execute("""
        insert into freezes (tenant_id, name, from_at, to_at, policy, tags, made_by, made_at)
        select tenant_id, 'f' || n, now() + interval '300 days', now() + interval '301 days', 'skip', '{x}', 'me', now()
        from tenants t, generate_series(1, 10000) n where t.name = 'beta'""")
    answer = await town.post(beta, "/freezes", {"name": "one more", "to": "1d"})
    assert 400 <= answer.status_code < 500, answer.text


async def test_many_unknown_fields_cost_no_more_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 20 faults are told, but each of 50,000 fields is compared with all known ones, while all others wait."""
    compared = 0

    def counted(*args: Any, **terms: Any) -> list[str]:
        nonlocal compared
        compared += 1
        return get_close_matches(*args, **terms)

    monkeypatch.setattr(decode, "get_close_matches", counted)
    with pytest.raises(decode.DecodeErrors):
        decode.read(JobRequest, {f"concurency_limt{n}": 1 for n in range(1_000)})
    assert compared <= 10 * decode.MOST_FAULTS


# Tokens


class Later(SystemClock):
    """A day later, whenever told."""

    def __init__(self) -> None:
        self.more = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.more


async def test_a_key_that_the_issuer_withdrew_is_no_longer_taken(tmp_path: Path) -> None:
    """Keys are read again only for an unknown kid: one that leaked, and was taken out of the JWKS, is good for ever."""

    def jwk(kid: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
        return {**document, "kid": kid, "use": "sig"}

    stolen, fresh = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    where = tmp_path / "jwks.json"
    where.write_text(json.dumps({"keys": [jwk("old", stolen), jwk("new", fresh)]}))
    clock = Later()
    tokens = TokenVerifier(TokenRules(issuer="i", audience="a"), PublicKeys(str(where), clock), clock)
    claims: dict[str, Any] = {"iss": "i", "aud": "a", "sub": "eve", "tenant": "default", "role": "admin"}
    claims |= {"exp": datetime.now(UTC).timestamp() + 10 * 86400}
    token = jwt.encode(claims, stolen, algorithm="ES256", headers={"kid": "old"})
    assert await tokens.read(token) is not None
    where.write_text(json.dumps({"keys": [jwk("new", fresh)]}))
    clock.more = 86400.0
    assert await tokens.read(token) is None


# What others see


async def test_the_schedules_of_others_are_not_reported_by_moves_of_time_zones(town: Town) -> None:
    """Every viewer of every tenant reads `/cluster/tz-moves`: there are the crons and zones of all tenants."""
    alpha, beta = await town.key("alpha", "editor"), await town.key("beta", "viewer")
    await town.api.put(f"{API}/calendars/merger-with-acme", json={"dates": ["2031-01-01"]}, headers=alpha)
    schedule = {"cron": "7 3 * * *", "tz": "Asia/Kathmandu", "calendar": "merger-with-acme"}
    made = await town.post(alpha, "/jobs", {"name": "close the books", "task": "demo", "schedule": schedule})
    assert made.status_code == 202, made.text
    await town.store.pool.execute("""
        with v as (insert into tz_versions (version) values ('2031x') returning tz_id)
        insert into tz_moves (tz_id, schedule_id, shard, moved_at, old_next, new_next)
        select v.tz_id, c.schedule_id, c.shard, now(), now(), now() from v, cohorts c""")
    for _ in range(64):
        await forecast.recount_oldest_shard(town.store, range(64))
    answer = await town.get(beta, "/cluster/tz-moves")
    assert (answer.status_code, answer.json()["items"]) == (200, [])
    [own] = (await town.get(alpha, "/cluster/tz-moves")).json()["items"]
    assert (own["schedule"]["tz"], own["jobs"]) == ("Asia/Kathmandu", 1)


async def test_on_which_machines_it_runs_is_reported_to_the_installation_alone(town: Town) -> None:
    # The pids are longer than the fraction of a second, which is told beside them and may end in any six digits.
    who = WorkerRegistration(name="w", host="inner-host", pid=471_100_001, version="1", pools={"short": 4}, task_ids=[])
    number = await workers.join(town.store, who)
    node = NodeHeartbeat(
        node_id=UUID(int=1), name="inner-host-471100002", host="inner-host", pid=471_100_002, version="1"
    )
    await leases.record_heartbeat(town.store, node)
    await leases.PostgresLeases(town.store).acquire(node.node_id, 64)
    tenant, watcher = await town.key("beta", "admin"), await town.key(None, "viewer")
    everywhere = await town.key(None, "operator")
    for path in ("/workers", f"/workers/{number}", "/cluster", "/cluster/nodes", "/cluster/leases", "/cluster/shards"):
        for key in (tenant, watcher):
            answer = await town.get(key, path)
            assert answer.status_code == 200
            assert "inner-host" not in answer.text, path
            assert "4711000" not in answer.text, path
    assert (await town.get(everywhere, "/workers")).json()["items"][0]["host"] == "inner-host"
    assert (await town.get(everywhere, "/cluster/nodes")).json()["items"][0]["name"] == "inner-host-471100002"


# Roles and scopes


async def test_a_replay_sends_what_an_authors_secret_signs_nowhere_else(town: Town) -> None:
    editor, operator = await town.key("beta", "editor"), await town.key("beta", "operator")
    made = await town.post(editor, "/jobs", {"name": "hook", "http": {"url": HOOK, "secret": generate_secret()}})
    assert made.status_code == 202, made.text
    run = (await town.post(operator, "/jobs/hook/run")).json()
    await town.post(operator, f"/runs/{run['run_id']}/cancel")
    elsewhere = {"kwargs": {"url": "https://evil.example/", "method": "PUT"}}
    again = await town.post(operator, f"/runs/{run['run_id']}/replay", elsewhere)
    assert again.status_code == 422, again.text


async def test_a_replay_takes_no_secret_of_another_job(town: Town) -> None:
    editor, operator = await town.key("beta", "editor"), await town.key("beta", "operator")
    made = await town.post(editor, "/jobs", {"name": "hook", "http": {"url": HOOK, "secret": generate_secret()}})
    own = await town.post(operator, "/jobs/execute", {"http": {"url": "https://evil.example/"}})
    run_id = own.json()["run_id"]
    await town.post(operator, f"/runs/{run_id}/cancel")
    signed = {"kwargs": {"sign": True, "secret": {"id": made.json()["http"]["secret"]["id"]}}}
    again = await town.post(operator, f"/runs/{run_id}/replay", signed)
    assert again.status_code == 422, again.text


async def test_credentials_in_the_headers_of_a_call_are_not_shown_to_viewers(town: Town) -> None:
    """The hint to a URL with a user in it says: send what proves who you are as a header."""
    editor, viewer = await town.key("beta", "editor"), await town.key("beta", "viewer")
    target = {"url": HOOK, "headers": {"Authorization": "Bearer s3cr3t-of-the-shop"}}
    await town.post(editor, "/jobs", {"name": "hook", "http": target})
    run = (await town.post(editor, "/jobs/execute", {"http": target})).json()
    for path in ("/jobs/hook", "/jobs", "/jobs/hook/revisions/1", f"/runs/{run['run_id']}"):
        answer = await town.get(viewer, path)
        assert answer.status_code == 200
        assert "s3cr3t-of-the-shop" not in answer.text, path


@pytest.mark.parametrize(
    ("action", "about"),
    [("jobs.delete", "jobs"), ("jobs.run", "jobs"), ("runs.cancel", "runs"), ("dead_letters.discard", "dead letters")],
)
async def test_a_key_for_operations_does_nothing_to_what_it_is_not_for(town: Town, action: str, about: str) -> None:
    editor = await town.key("beta", "editor")
    await town.post(editor, "/jobs", {"name": "victim", "task": "demo"})
    narrow = await town.key("beta", "editor", scopes=("operations",))
    answer = await town.post(narrow, "/bulk", {"action": action, "filter": {}})
    assert answer.status_code == 403, f"a key without the scope {about!r}: {answer.text}"
    wide = await town.key("beta", "editor", scopes=("operations", about))
    assert (await town.post(wide, "/bulk", {"action": action, "filter": {}})).status_code == 202


async def test_two_keys_of_one_name_are_distinguished_by_the_audit(town: Town) -> None:
    """Or who may make keys would make one that history takes for a colleague's."""
    admin, ops = await town.key("beta", "admin"), await town.key(None, "editor", name="deploy")
    honest = await town.key("beta", "editor", name="deploy")
    for name in ("deploy", "Deploy"):
        twin = await town.post(admin, "/api-keys", {"name": name, "role": "editor"})
        assert (twin.status_code, twin.json()["code"]) == (409, "name_taken")
    await town.post(honest, "/jobs", {"name": "one", "task": "demo"})
    await town.post(ops, "/jobs", {"name": "two", "task": "demo"}, **{"X-Tenant": "beta"})
    rows = (await town.get(admin, "/audit", action="job.created")).json()["items"]
    assert sorted(row["who"] for row in rows) == ["installation-key:deploy", "key:deploy"]


async def test_a_name_is_free_again_when_its_key_is_good_no_more(town: Town) -> None:
    admin = await town.key("beta", "admin")
    asked = {"name": "deploy", "role": "editor"}
    made = await asyncio.gather(*(town.post(admin, "/api-keys", asked) for _ in range(5)))
    assert sorted(answer.status_code for answer in made) == [201, 409, 409, 409, 409]
    [first] = [answer.json()["key_id"] for answer in made if answer.status_code == 201]
    rotated = await town.post(admin, f"/api-keys/{first}/rotate", {"grace": "1d"})
    assert rotated.status_code == 201, rotated.text  # the same one with another secret
    for key_id in (first, rotated.json()["key_id"]):
        assert (await town.post(admin, "/api-keys", asked)).status_code == 409
        await town.api.delete(f"{API}/api-keys/{key_id}", headers=admin)
    assert (await town.post(admin, "/api-keys", asked)).status_code == 201


# Quotas and suspension


async def test_runs_by_an_operation_count_against_the_rate_of_sends(town: Town) -> None:
    """One `POST /jobs/{id}/run` is counted; 10,000 of them by `POST /bulk` are not."""
    editor = await town.key("beta", "editor")
    for n in range(20):
        assert (await town.post(editor, "/jobs", {"name": f"j{n}", "task": "demo"})).status_code == 202
    await town.quota("beta", fires_per_minute=2)
    statuses = []
    for _ in range(3):
        answer = await town.post(editor, "/bulk", {"action": "jobs.run", "filter": {}})
        statuses.append(answer.status_code)
    turn = OperationCursor()
    for _ in range(20):
        await run_operations(town.store, town.catalog, turn)
    made = await town.store.pool.fetchval("select count(*) from runs where cause = 'manual'")
    assert made <= 2, f"{made} runs in a minute, {statuses}"


async def test_what_a_tenant_asked_for_rests_while_it_is_suspended(town: Town) -> None:
    editor = await town.key("beta", "editor")
    for n in range(3):
        await town.post(editor, "/jobs", {"name": f"j{n}", "task": "demo"})
    asked = await town.post(editor, "/bulk", {"action": "jobs.delete", "filter": {}})
    assert asked.status_code == 202, asked.text
    await people.change(town.store, await town.catalog.tenant_id("beta"), suspended=True)
    turn = OperationCursor()
    for _ in range(5):
        await run_operations(town.store, town.catalog, turn)
    assert await town.store.pool.fetchval("select count(*) from jobs where deleted_at is null") == 3


# The whole table


async def test_every_route_asks_for_its_role_and_its_scope(town: Town) -> None:
    """All routes by all roles below the one that is needed, by a key of another scope, and without one."""
    by_role = {role: await town.key("beta", role.word) for role in Role}
    narrow = {tag: await town.key("beta", "admin", scopes=(tag,)) for tag in ("runs", "freezes")}
    for path, methods in ROUTES.items():
        for method, operation in methods.items():
            if operation.role is None:
                continue
            place = re.sub(r"\{\w+\}", "nothing", path)

            async def status(headers: dict[str, str], method: str = method, place: str = place) -> int:
                return (await town.api.request(method, place, headers=headers)).status_code

            assert await status({}) == 401, (method, path)
            refused = 404 if operation.everywhere else 403
            below = [role for role in Role if role < operation.role or operation.everywhere]
            assert [await status(by_role[role]) for role in below] == [refused] * len(below), (method, path)
            if operation.tag != UNSCOPED_TAG and not operation.everywhere:
                other = "freezes" if operation.tag == "runs" else "runs"
                assert await status(narrow[other]) == 403, (method, path)
