"""Apps, orphans and drift over REST."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from bellringer import App, every
from bellringer.store.connection_pool import Store
from bellringer.store.tenant_scope import ScopedStore

JOBS = "/api/v1/jobs"
APPS = "/api/v1/apps"


async def declare(store: Store, *names: str, version: str | None, app: str = "billing", **options: Any) -> None:
    made = App(store.dsn, name=app, version=version)
    for name in names:
        made.schedule(every("1h"), **options)(made.task(name=name)(lambda: None))
    async with made:
        await made.adeclare()


@pytest.fixture
async def orphan(store: Store) -> None:
    """A job `sync` that version 2 of its app no longer declares, and a job `report` that it does."""
    await declare(store, "report", "sync", version="1")
    await declare(store, "report", version="2")


async def get(api: httpx2.AsyncClient, path: str, **query: str) -> Any:
    answer = await api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.usefixtures("orphan")
async def test_jobs_say_which_app_and_version_declares_them(api: httpx2.AsyncClient) -> None:
    report, sync = await get(api, f"{JOBS}/report"), await get(api, f"{JOBS}/sync")
    assert (report["app"], report["app_version"], report["orphaned_at"]) == ("billing", "2", None)
    assert (sync["app"], sync["app_version"], sync["orphaned_at"] is not None) == ("billing", "1", True)
    assert "drift" not in sync


@pytest.mark.usefixtures("orphan")
@pytest.mark.parametrize("sort", ["id", "name"])
async def test_lists_filter_by_app_and_orphans(api: httpx2.AsyncClient, store: Store, sort: str) -> None:
    await declare(store, "mail", version="1", app="mail")
    await api.post(JOBS, json={"name": "by hand", "task": "demo"})

    async def names(**query: str) -> list[str]:
        found = await get(api, JOBS, sort=sort, **query)
        return sorted(job["name"] for job in found["items"])

    assert await names(orphaned="true") == ["sync"]
    assert await names(orphaned="false") == ["by hand", "mail", "report"]
    assert await names(app="billing") == ["report", "sync"]
    assert await names(app="billing", orphaned="false") == ["report"]
    assert await names(app="nobody") == []
    assert await names(orphaned="true", state="enabled") == ["sync"]
    assert await names(orphaned="true", state="paused") == []
    assert await names(orphaned="true", state="failing") == []
    await store.pool.execute(
        "insert into troubles select job_id, tenant_id, 'dead', now(), now(), now() from jobs where name = 'sync'"
    )
    assert await names(orphaned="true", state="failing") == ["sync"]
    assert (await api.get(JOBS, params={"orphaned": "yes"})).status_code == 422


async def test_drift_is_shown_until_the_code_overrides_it(api: httpx2.AsyncClient, store: Store) -> None:
    await declare(store, "sync", version="1")
    answer = await api.patch(f"{JOBS}/sync", json={"priority": 9, "tags": ["slow"]})
    assert answer.status_code == 200
    [warning] = [one for one in answer.json()["warnings"] if one["code"] == "declared_by_code"]
    assert warning["pointer"] == "/priority"
    assert warning["detail"] == "the next start of the app billing overrides this change of priority, tags"
    drift = (await get(api, f"{JOBS}/sync"))["drift"]
    assert drift["revision"] == 1
    assert drift["by"]
    assert drift["at"]
    assert {one["field"]: (one["declared"], one["current"]) for one in drift["fields"]} == {
        "priority": (5, 9), "tags": ([], ["slow"]),
    }  # fmt: skip
    await declare(store, "sync", version="2")
    assert "drift" not in await get(api, f"{JOBS}/sync")
    [event] = (await get(api, "/api/v1/events", kind="overridden"))["items"]
    assert (event["job"], event["run_id"], event["data"]["version"]) == ("sync", None, "2")


async def test_a_pause_and_a_disabled_job_outlive_a_deploy(api: httpx2.AsyncClient, store: Store) -> None:
    await declare(store, "report", "sync", version="1")
    await api.post(f"{JOBS}/sync/pause", json={"reason": "INC-42"})
    answer = await api.patch(f"{JOBS}/report", json={"enabled": False})
    assert "declared_by_code" not in {one["code"] for one in answer.json().get("warnings", [])}
    await declare(store, "report", "sync", version="2", tags=["new"])
    report, sync = await get(api, f"{JOBS}/report"), await get(api, f"{JOBS}/sync")
    assert (sync["tags"], sync["paused"]["reason"]) == (["new"], "INC-42")
    assert (report["tags"], report["enabled"]) == (["new"], False)
    assert [one["field"] for one in report["drift"]["fields"]] == ["enabled"]


@pytest.mark.usefixtures("orphan")
async def test_apps_are_listed_with_versions_jobs_and_orphans(api: httpx2.AsyncClient, store: Store) -> None:
    await declare(store, "mail", version=None, app="mail")
    items = (await get(api, APPS))["items"]
    assert [(one["name"], one["version"], one["jobs"]["value"], one["orphans"]["value"]) for one in items] == [
        ("billing", "2", 1, 1), ("mail", None, 1, 0),
    ]  # fmt: skip
    first = await get(api, APPS, limit="1")
    assert [one["name"] for one in (await get(api, APPS, cursor=first["next_cursor"]))["items"]] == ["mail"]
    found = await get(api, f"{APPS}/billing")
    assert [(one["version"], one["current"]) for one in found["versions"]] == [("2", True), ("1", False)]
    assert (await api.get(f"{APPS}/nobody")).status_code == 404


@pytest.mark.usefixtures("orphan")
async def test_an_earlier_version_can_be_activated(api: httpx2.AsyncClient, store: Store) -> None:
    answer = await api.post(f"{APPS}/billing/activate", json={"version": "1"})
    assert answer.status_code == 200
    assert [one["version"] for one in answer.json()["versions"] if one["current"]] == ["1"]
    await declare(store, "report", "sync", version="1")
    assert (await get(api, JOBS, orphaned="true"))["items"] == []
    [entry] = (await get(api, "/api/v1/audit", kind="app", action="app.changed"))["items"][:1]
    assert (entry["target"], entry["after"]["version"]) == ("billing", "1")
    for app, version in (("billing", "7"), ("nobody", "1")):
        assert (await api.post(f"{APPS}/{app}/activate", json={"version": version})).status_code == 404


@pytest.mark.usefixtures("orphan")
async def test_another_tenant_sees_and_activates_nothing(store: Store, tenants: Store) -> None:
    theirs = await store.pool.fetchval("insert into tenants (name) values ('theirs') returning tenant_id")
    scoped = ScopedStore(tenants, theirs, None)
    assert await scoped.pool.fetchval("select count(*) from apps") == 0
    assert await scoped.pool.fetchval("select count(*) from app_versions") == 0
    assert not await scoped.pool.fetchval("select activate_app_version($1, 'billing', '1', 'x')", theirs)


@pytest.mark.usefixtures("orphan")
async def test_an_orphan_needs_attention_and_is_explained(api: httpx2.AsyncClient) -> None:
    overview = await get(api, "/api/v1/overview")
    [item] = [one for one in overview["attention"] if one["kind"] == "orphaned"]
    assert (item["job"], item["tone"], item["fix"]) == ("sync", "warn", "bellringer why sync")
    reasons = (await get(api, f"{JOBS}/sync/why"))["reasons"]
    [reason] = [one for one in reasons if one["code"] == "orphaned"]
    assert "the app billing no longer declares the job" in reason["text"]
    assert "version 1 was the last that did" in reason["text"]
    await api.post(f"{JOBS}/sync/pause")
    overview = await get(api, "/api/v1/overview")
    assert [one for one in overview["attention"] if one["kind"] == "orphaned"] == []


async def test_several_orphans_are_one_item(api: httpx2.AsyncClient, store: Store) -> None:
    await declare(store, *(f"job{n}" for n in range(12)), version="1")
    await declare(store, version="2")
    [item] = [one for one in (await get(api, "/api/v1/overview"))["attention"] if one["kind"] == "orphaned"]
    assert item["text"].startswith("More than 8 jobs still fire")
    assert item["fix"] == "bellringer jobs list --orphaned"


@pytest.mark.usefixtures("orphan")
async def test_orphans_are_counted_by_a_metric(api: httpx2.AsyncClient) -> None:
    assert "bellringer_orphaned_jobs 1.0" in (await api.get("/metrics")).text
