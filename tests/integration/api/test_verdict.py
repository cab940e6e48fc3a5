"""The verdict of the overview for each state in which an installation or a tenant can be, read through the API."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.integration.api.conftest import Work
from tests.integration.api.test_ownership import declare
from tests.support.silent_proxy import SilentProxy

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.loop_progress import track_loop
from bellringer.core.runs import Ending, Outcome
from bellringer.engine import freeze
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

API = "/api/v1"
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "m"}, final="no")
TROUBLE = """
insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at) values ($1, 1, $2, now(), now(), now())
"""


@pytest.fixture(autouse=True)
async def scheduler(store: Store) -> None:
    """All shards are held, so that nothing is wrong with the installation."""
    await store.pool.execute("update leases set holder = gen_random_uuid(), expires_at = now() + interval '1 hour'")


async def create(api: httpx2.AsyncClient, name: str = "a", **fields: Any) -> UUID:
    made = await api.post(f"{API}/jobs", json={"name": name, "task": "demo", **fields})
    assert made.is_success, made.text
    return UUID(made.json()["job_id"])


async def verdict(api: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"{API}/overview")).json()["verdict"]
    return found


async def kinds(api: httpx2.AsyncClient) -> list[str]:
    return [problem["kind"] for problem in (await verdict(api))["problems"]]


@pytest.mark.usefixtures("work")
async def test_all_is_well_with_a_worker_and_a_job(api: httpx2.AsyncClient) -> None:
    await create(api)
    assert await verdict(api) == {
        "tone": "good",
        "text": "All is well: 1 job, and nothing is late or failing.",
        "problems": [],
    }


async def test_without_any_worker_nothing_is_well(api: httpx2.AsyncClient) -> None:
    assert (await verdict(api))["text"] == "There are no jobs yet."
    await create(api)
    assert (await verdict(api))["text"] == "No task worker is connected: only HTTP jobs can run."
    await api.post(f"{API}/jobs/a/run", json={})
    found = await verdict(api)
    assert (found["tone"], found["text"]) == ("bad", "No task worker is connected: 1 run is waiting in pool “short”.")
    assert found["problems"][0]["link"] == "workers"


async def test_jobs_that_need_no_worker_are_well_without_one(api: httpx2.AsyncClient) -> None:
    made = await api.post(f"{API}/jobs", json={"name": "http", "http": {"url": "https://example.com"}})
    assert made.is_success, made.text
    await create(api, "paused")
    await api.post(f"{API}/jobs/paused/pause", json={})
    assert (await verdict(api))["problems"] == []


@pytest.mark.usefixtures("work")
async def test_a_suspended_tenant_is_not_well(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api)
    await freeze.suspend(store, 1)
    found = await verdict(api)
    assert (found["tone"], found["text"]) == ("bad", "The tenant “default” is suspended: none of its jobs run.")
    assert found["problems"][0]["fix"] == "bellringer tenants unsuspend default"


@pytest.mark.usefixtures("work")
async def test_paused_tasks_are_reported_until_they_resume(api: httpx2.AsyncClient) -> None:
    await create(api)
    await api.post(f"{API}/tasks/demo/pause", json={"reason": "the bank is down"})
    found = await verdict(api)
    assert (found["tone"], found["text"]) == ("warn", "Task “demo” is paused (the bank is down): its runs wait.")
    await api.post(f"{API}/tasks/demo/resume", json={})
    assert (await verdict(api))["problems"] == []


async def test_a_run_whose_worker_is_gone_is_stranded(api: httpx2.AsyncClient, store: Store, work: Work) -> None:
    await create(api)
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(None) == 1
    assert await kinds(api) == []
    await store.pool.execute("update workers set seen_at = now() - interval '15 seconds'")
    found = await verdict(api)
    assert (found["tone"], found["text"]) == (
        "warn",
        "1 run is held by workers that have sent no heartbeat for 10 seconds.",
    )
    await store.pool.execute("update workers set seen_at = now() - interval '1 minute'")
    await store.pool.execute("update queue set claimed_at = now() - interval '1 minute'")
    found = await verdict(api)
    assert (found["tone"], found["text"]) == ("bad", "1 run is claimed, but no live worker executes it.")


async def test_stranded_runs_of_other_tenants_are_not_counted(
    api: httpx2.AsyncClient, store: Store, work: Work
) -> None:
    await create(api)
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(None) == 1
    await store.pool.execute("insert into tenants (name) values ('theirs')")
    await store.pool.execute("update queue set tenant_id = (select max(tenant_id) from tenants)")
    await store.pool.execute("update queue set claimed_at = now() - interval '1 minute'")
    assert "stranded" not in await kinds(api)


@pytest.mark.usefixtures("work")
async def test_a_slow_database_is_reported(
    api: httpx2.AsyncClient, store: Store, tenants: Store, catalog: Catalog
) -> None:
    await create(api)
    async with SilentProxy(store.dsn) as proxy:
        through = await Store.open(proxy.address, size=1)
        app = create_app(through, catalog, tenants, version="1", clock=SystemClock())
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=60) as far:
            assert (await verdict(far))["problems"] == []
            proxy.delay_seconds = 0.15
            found = await verdict(far)
        await through.close()
    assert [problem["kind"] for problem in found["problems"]] == ["database_slow"]
    assert found["tone"] == "warn"
    assert found["text"].startswith("The database is slow: 1")


@pytest.mark.usefixtures("work")
async def test_a_stalled_loop_is_reported(api: httpx2.AsyncClient) -> None:
    await create(api)
    with track_loop("fire", limit_seconds=-1.0):
        found = await verdict(api)
    assert (found["tone"], found["text"]) == ("bad", "The background loop “server fire” of the server has stalled.")
    assert (await verdict(api))["problems"] == []


@pytest.mark.usefixtures("work")
async def test_orphans_are_reported_beside_failing_jobs(api: httpx2.AsyncClient, store: Store) -> None:
    failing = await create(api, "failing")
    await store.pool.execute(TROUBLE, failing, "dead")
    await declare(store, "sync", version="1")
    await declare(store, version="2")
    found = await verdict(api)
    assert (found["tone"], found["text"]) == ("bad", "Job “failing” is failing; 1 more problem needs attention.")
    assert [(one["kind"], one["count"]["value"]) for one in found["problems"]] == [("failing", 1), ("orphaned", 1)]
    assert (
        "Job “sync” still fires, but the code of the app “billing” no longer declares it."
        in found["problems"][1]["text"]
    )


@pytest.mark.usefixtures("work")
async def test_late_jobs_are_counted_by_kind(api: httpx2.AsyncClient, store: Store) -> None:
    for name, kind in {"a": "late", "b": "missed", "c": "skipping", "d": "unknown_task"}.items():
        await store.pool.execute(TROUBLE, await create(api, name), kind)
    found = await verdict(api)
    assert found["text"] == "Job “b” missed an occurrence, and has not succeeded since; 2 more problems need attention."
    assert {one["kind"]: one["count"]["value"] for one in found["problems"]} == {"missed": 1, "late": 1, "skipping": 1}


async def test_a_dead_run_shows_in_the_series_and_the_lateness_has_both_percentiles(
    api: httpx2.AsyncClient, work: Work
) -> None:
    await create(api)
    await api.post(f"{API}/jobs/a/run", json={})
    assert await work(FAILED) == 1
    found = (await api.get(f"{API}/overview")).json()
    [point] = [one for one in found["series"]["points"] if one["lateness_p99_ms"] is not None]
    assert 0 <= point["lateness_p50_ms"] <= point["lateness_p99_ms"]
    assert [one["kind"] for one in found["verdict"]["problems"]] == ["dead_letters"]
