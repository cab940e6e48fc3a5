"""Keys, tenants, quotas and limits over the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

KEYS: Final = "/api/v1/api-keys"
MASTERS: Final = "/api/v1/installation-keys"
TENANTS: Final = "/api/v1/tenants"
JOBS: Final = "/api/v1/jobs"
ROOT: Final = "r" * 40


class Clock(SystemClock):
    """Every look is five seconds later, so that nothing that was read is still fresh."""

    at = 0.0

    def monotonic(self) -> float:
        self.at += 5
        return self.at


@pytest.fixture
async def root(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[httpx2.AsyncClient]:
    """The operator, at a door that asks everyone."""
    authenticator = Authenticator(store, catalog, AuthSettings(root_key=ROOT), Clock())
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock(), authenticator=authenticator)
    transport = httpx2.ASGITransport(app=app)
    headers = by(ROOT)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=20) as client:
        yield client


def by(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def made(root: httpx2.AsyncClient, path: str = KEYS, **terms: Any) -> dict[str, Any]:
    headers = terms.pop("headers", None)
    answer = await root.post(path, json={"name": "k", "role": "admin", **terms}, headers=headers)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{path}/{answer.json()['key_id']}"
    assert answer.headers["cache-control"] == "no-store"
    shown: dict[str, Any] = answer.json()
    return shown


async def test_a_keys_secret_is_shown_once_and_never_kept(root: httpx2.AsyncClient, store: Store) -> None:
    new = await made(root, name="deploy", role="editor", scopes=["jobs", "runs"], expires="30d")
    assert new["key"].startswith(f"br_{new['key_id']}_")
    secret = new["key"].split("_", 2)[2]
    again = (await root.get(f"{KEYS}/{new['key_id']}")).json()
    assert again == {**{name: value for name, value in new.items() if name != "key"}, "last_used_at": None}
    assert (again["state"], again["created_by"], again["role"], again["scopes"]) == (
        "active", "root", "editor", ["jobs", "runs"],
    )  # fmt: skip
    listed = (await root.get(KEYS)).json()["items"]
    assert listed == [again]
    assert (await root.get("/api/v1/jobs", headers=by(new["key"]))).status_code == 200
    for table in ("api_keys", "idempotency_keys", "audit"):
        rows = await store.pool.fetch(f"select t::text as row from {table} t")
        assert not [row for row in rows if secret in row["row"]], table


async def test_an_idempotency_key_does_not_keep_a_secret(root: httpx2.AsyncClient, store: Store) -> None:
    named = {"Idempotency-Key": "once"}
    first, second = await made(root, headers=named), await made(root, name="another", headers=named)
    assert first["key"] != second["key"]
    assert await store.pool.fetchval("select count(*) from idempotency_keys") == 0


async def test_a_revoked_key_is_reported_as_such_and_opens_nothing(root: httpx2.AsyncClient) -> None:
    new = await made(root)
    path = f"{KEYS}/{new['key_id']}"
    for _ in range(2):
        assert (await root.delete(path)).status_code == 204
    assert (await root.get(path)).json()["state"] == "revoked"
    assert (await root.get(KEYS, headers=by(new["key"]))).status_code == 401
    assert (await root.post(f"{path}/rotate")).status_code == 409


async def test_a_rotated_key_lives_on_for_the_grace(root: httpx2.AsyncClient, store: Store) -> None:
    old = await made(root, name="deploy", role="viewer", scopes=["jobs"])
    new = (await root.post(f"{KEYS}/{old['key_id']}/rotate", json={"grace": "10m"})).json()
    assert (new["name"], new["role"], new["scopes"], new["expires_at"]) == ("deploy", "viewer", ["jobs"], None)
    for key in (old, new):
        assert (await root.get(JOBS, headers=by(key["key"]))).status_code == 200
    shown = (await root.get(f"{KEYS}/{old['key_id']}")).json()
    assert shown["replaced_by"] == new["key_id"]
    left = await store.pool.fetchval("select expires_at - now() from api_keys where key_id = $1", old["key_id"])
    assert 500 < left.total_seconds() <= 600
    assert (await root.post(f"{KEYS}/{old['key_id']}/rotate")).status_code == 409  # once
    at_once = await root.post(f"{KEYS}/{new['key_id']}/rotate", json={"grace": 0})
    assert at_once.status_code == 201
    assert (await root.get(JOBS, headers=by(new["key"]))).status_code == 401


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"name": "k"}, "/role", "missing_field"),
        ({"name": "k", "role": "owner"}, "/role", "choice"),
        ({"name": "", "role": "viewer"}, "/name", None),
        ({"name": "k", "role": "viewer", "scopes": ["jobs", "jbos"]}, "/scopes/1", "choice"),
        ({"name": "k", "role": "viewer", "expires": "2020-01-01T00:00:00Z"}, "/expires", "limit"),
        ({"name": "k", "role": "viewer", "expires": 0}, "/expires", "limit"),
        ({"name": "k", "role": "viewer", "hash": "00"}, "/hash", "unknown_field"),
        ({"name": "k", "role": "viewer", "tenant_id": 2}, "/tenant_id", "unknown_field"),
    ],
)
async def test_a_key_that_is_invalid(
    root: httpx2.AsyncClient, body: dict[str, Any], pointer: str, code: str | None
) -> None:
    answer = await root.post(KEYS, json=body)
    fault = answer.json()["errors"][0]
    assert (answer.status_code, fault["pointer"]) == (422, pointer)
    assert code is None or fault["code"] == code


async def test_who_may_do_some_things_gets_no_key_for_more(root: httpx2.AsyncClient) -> None:
    whole = await made(root)
    some = by((await made(root, name="some", scopes=["access", "jobs"]))["key"])
    for scopes in ([], ["access", "runs"]):
        refused = await root.post(KEYS, json={"name": "k", "role": "viewer", "scopes": scopes}, headers=some)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await root.post(f"{KEYS}/{whole['key_id']}/rotate", headers=some)).status_code == 403
    made_by_some = await root.post(KEYS, json={"name": "less", "role": "viewer", "scopes": ["jobs"]}, headers=some)
    assert made_by_some.status_code == 201


async def test_only_admins_see_keys_and_only_the_installation_its_own(root: httpx2.AsyncClient) -> None:
    editor, admin = await made(root, name="editor", role="editor"), await made(root)
    master = await made(root, MASTERS, role="viewer")
    assert (await root.get(KEYS, headers=by(editor["key"]))).status_code == 403
    missing = (await root.get("/api/v1/nowhere", headers=by(admin["key"]))).json()
    for path in (MASTERS, f"{MASTERS}/{master['key_id']}", TENANTS, f"{TENANTS}/default", f"{TENANTS}/default/usage"):
        answer = await root.get(path, headers=by(admin["key"]))
        assert answer.status_code == 404
        assert {**answer.json(), "request_id": ""} == {**missing, "request_id": ""}
    assert (await root.get(f"{KEYS}/{master['key_id']}", headers=by(admin["key"]))).status_code == 404
    assert [key["key_id"] for key in (await root.get(MASTERS)).json()["items"]] == [master["key_id"]]
    assert len((await root.get(KEYS)).json()["items"]) == 2
    assert (await root.get(f"{MASTERS}/{editor['key_id']}")).status_code == 404
    seen = (await root.get("/api/v1/whoami", headers={**by(master["key"]), "X-Tenant": "default"})).json()
    assert (seen["everywhere"], seen["role"]) == (True, "viewer")
    assert (await root.get(MASTERS, headers=by(master["key"]))).status_code == 403
    assert (await root.delete(f"{MASTERS}/{master['key_id']}")).status_code == 204
    assert (await root.get(JOBS, headers=by(master["key"]))).status_code == 401


async def test_keys_are_listed_by_pages(root: httpx2.AsyncClient) -> None:
    ids = [(await made(root, name=f"k{n}"))["key_id"] for n in range(5)]
    first = (await root.get(KEYS, params={"limit": 3})).json()
    rest = (await root.get(KEYS, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [key["key_id"] for key in first["items"] + rest["items"]] == ids
    assert rest["next_cursor"] is None


async def test_whoami_shows_the_authenticated_caller(root: httpx2.AsyncClient) -> None:
    assert (await root.get("/api/v1/whoami")).json() == {
        "who": "root", "role": "admin", "tenant": "default", "everywhere": True, "scopes": [], "origin": "127.0.0.1",
    }  # fmt: skip
    key = await made(root, name="ci", role="viewer", scopes=["runs"])
    seen = (await root.get("/api/v1/whoami", headers=by(key["key"]))).json()
    assert (seen["who"], seen["role"], seen["everywhere"], seen["scopes"]) == ("key:ci", "viewer", False, ["runs"])


async def test_a_tenant_is_made_changed_suspended_and_goes_on(root: httpx2.AsyncClient) -> None:
    made_ = await root.post(TENANTS, json={"name": "acme", "weight": 2, "quotas": {"jobs": 5}})
    assert (made_.status_code, made_.headers["location"]) == (201, f"{TENANTS}/acme")
    assert made_.json()["quotas"] == {"jobs": 5}
    assert (await root.post(TENANTS, json={"name": "acme"})).json()["code"] == "name_taken"
    path = f"{TENANTS}/acme"
    patch = {
        "quotas": {"jobs": None, "in_flight": 7, "fires_per_minute": 1.5},
        "objective": {"target": 0.99, "within": 2},
    }
    changed = (await root.patch(path, json=patch)).json()
    assert (changed["weight"], changed["quotas"]) == (2, {"in_flight": 7, "fires_per_minute": 1.5})
    assert changed["objective"] == {"target": 0.99, "within": 2}
    assert (await root.get(path)).json() == changed
    key = by((await made(root, headers={"X-Tenant": "acme"}))["key"])
    assert (await root.patch(path, json={"suspended": True})).json()["suspended_at"] is not None
    job = {"name": "bell", "task": "demo", "schedule": {"every": "1h"}}
    assert (await root.post(JOBS, json=job, headers=key)).json()["code"] == "tenant_suspended"
    assert (await root.get("/api/v1/tenant", headers=key)).json()["name"] == "acme"
    assert (await root.patch(path, json={"suspended": False, "quotas": None})).json()["quotas"] == {}
    assert (await root.post(JOBS, json=job, headers=key)).is_success
    assert [tenant["name"] for tenant in (await root.get(TENANTS)).json()["items"]] == ["acme", "default"]
    page = (await root.get(TENANTS, params={"limit": 1})).json()
    rest = (await root.get(TENANTS, params={"cursor": page["next_cursor"]})).json()
    assert [tenant["name"] for tenant in rest["items"]] == ["default"]
    assert (await root.patch(f"{TENANTS}/nobody", json={})).status_code == 404


@pytest.mark.parametrize("name", ["", " acme", "acme\n", "glöckner", "x" * 64, "a/b"])
async def test_a_tenants_name_is_plain(root: httpx2.AsyncClient, name: str) -> None:
    answer = await root.post(TENANTS, json={"name": name})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name")


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"weight": 0}, "/weight"),
        ({"weight": -1}, "/weight"),
        ({"weight": "much"}, "/weight"),
        ({"quotas": {"jbos": 1}}, "/quotas"),
        ({"quotas": {"jobs": -1}}, "/quotas/jobs"),
        ({"quotas": {"jobs": 1.5}}, "/quotas/jobs"),
        ({"quotas": {"jobs": True}}, "/quotas/jobs"),
        ({"quotas": {"jobs": "many"}}, "/quotas/jobs"),
        ({"objective": {"target": 1}}, "/objective/target"),
        ({"objective": {"goal": 1}}, "/objective"),
        ({"suspended": "yes"}, "/suspended"),
        ({"name": "other"}, "/name"),
    ],
)
async def test_what_a_tenant_cannot_be(root: httpx2.AsyncClient, patch: dict[str, Any], pointer: str) -> None:
    answer = await root.patch(f"{TENANTS}/default", json=patch)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await root.get(f"{TENANTS}/default")).json()["quotas"] == {}


async def test_limits_show_what_is_used_and_what_is_left(root: httpx2.AsyncClient) -> None:
    await root.patch(f"{TENANTS}/default", json={"quotas": {"jobs": 1, "payload_bytes": 100}})
    job = {"name": "bell", "task": "demo", "schedule": {"every": "30s"}}
    assert (await root.post(JOBS, json=job)).is_success
    told = (await root.get("/api/v1/limits")).json()
    assert told["quotas"] == [
        {"name": "jobs", "used": 1, "most": 1},
        {"name": "fires_per_minute", "used": 2, "most": None},
        {"name": "in_flight", "used": 0, "most": None},
        {"name": "payload_bytes", "used": None, "most": 100},
        {"name": "api_per_minute", "used": None, "most": None},
    ]
    assert (told["body_bytes"], told["payload_bytes"], told["page_items"]) == (1 << 20, 1 << 18, 200)
    usage = (await root.get(f"{TENANTS}/default/usage")).json()
    assert (usage["tenant"], usage["items"]) == ("default", told["quotas"])
    assert usage["load"]["ready"] == usage["load"]["running"] == 0
    refused = await root.post(JOBS, json={**job, "name": "two"})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["retryable"]) == (429, "quota_exceeded", False)
    assert "retry-after" not in refused.headers
    assert problem["detail"] == "the tenant may have 1 jobs"


async def test_a_change_of_a_tenant_names_who_did_it(root: httpx2.AsyncClient, store: Store) -> None:
    await root.patch(f"{TENANTS}/default", json={"weight": 3})
    key = await made(root)
    rows = await store.pool.fetch(
        "select who, action, coalesce(after, '{}')::text as after from audit order by audit_id"
    )
    assert {row["who"] for row in rows} == {"root"}
    assert len(rows) == 2
    assert key["key"].split("_", 2)[2] not in str([dict(row) for row in rows])
