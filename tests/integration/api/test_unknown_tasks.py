"""A task that no worker knows: a warning in the answer, or a refusal; and it is shown in the overview."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from bellringer.api.app import create_app
from bellringer.api.http.read_cache import TASK_DEFAULTS_TTL_SECONDS
from bellringer.clock import SystemClock
from bellringer.engine.known_tasks import UnknownTasks
from bellringer.engine.monitor import report_stuck_jobs
from bellringer.store import queue, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription
from bellringer.store.workers import WorkerRegistration

API = "/api/v1"


async def join(store: Store, catalog: Catalog, *tasks: str, pool: str = "short") -> None:
    """A worker that knows these tasks."""
    ids = await catalog.task_ids(tasks)
    await catalog.describe_tasks([TaskDescription(name=t, schema='{"a": 1}', doc="", defaults="{}") for t in tasks])
    task_ids = [ids[task] for task in tasks]
    await workers.join(
        store, WorkerRegistration(name="w", host="h", pid=1, version="0", pools={pool: 10}, task_ids=task_ids)
    )


def job(name: str, task: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": task, "schedule": {"every": "1m"}, **more}


async def test_without_a_worker_there_is_nothing_to_warn_by(api: httpx2.AsyncClient) -> None:
    made = await api.post(f"{API}/jobs", json=job("a", "shop.send"))
    assert made.status_code == 202
    assert "warnings" not in made.json()


async def test_every_way_to_name_an_unknown_task_is_answered_with_a_warning(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    await join(store, catalog, "shop.send")
    typo = {
        "code": "task_unknown",
        "pointer": "/task",
        "detail": (
            "no live worker of pool short knows the task shop.sned; its runs wait until one does, "
            "and the retry, timeout, delivery and pool of its code do not apply to them"
        ),
        "hint": (
            "did you mean shop.send? If not, start a worker that has it, then send again, repeat a PUT, "
            "or set its options with `bellringer jobs update`"
        ),
    }
    made = await api.post(f"{API}/jobs", json=job("a", "shop.sned"))
    assert (made.status_code, made.json()["warnings"]) == (202, [typo])
    put = await api.put(f"{API}/jobs/b", json={"task": "shop.sned"})
    assert (put.status_code, put.json()["warnings"]) == (201, [typo])
    again = await api.put(f"{API}/jobs/b", json={"task": "shop.sned", "priority": 7})
    assert (again.status_code, again.json()["warnings"]) == (200, [typo])
    patched = await api.patch(f"{API}/jobs/b", json={"priority": 8})
    assert (patched.status_code, patched.json()["warnings"]) == (200, [typo])
    sent = await api.post(f"{API}/jobs/execute", json={"task": "shop.sned"})
    assert (sent.status_code, sent.json()["warnings"]) == (202, [typo])
    elsewhere = await api.post(f"{API}/jobs", json=job("l", "shop.send", pool="long"))
    assert elsewhere.json()["warnings"][0]["hint"] == "workers of short know it"
    assert "warnings" not in (await api.get(f"{API}/jobs/a")).json()


async def test_options_of_the_code_apply_as_the_warning_says(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    await join(store, catalog, "shop.send")
    put = await api.put(f"{API}/jobs/a", json={"task": "late"})
    changed = await api.put(f"{API}/jobs/b", json={"task": "late"})
    assert all("do not apply" in answer.json()["warnings"][0]["detail"] for answer in (put, changed))
    await catalog.describe_tasks(
        [TaskDescription(name="late", schema='{"a": 1}', doc="", defaults='{"timeout": 77, "retry": {"attempts": 9}}')]
    )
    await asyncio.sleep(TASK_DEFAULTS_TTL_SECONDS)

    def options(answer: httpx2.Response) -> tuple[Any, Any]:
        return answer.json()["timeout"], answer.json()["retry"]["attempts"]

    patched = await api.patch(f"{API}/jobs/b", json={"priority": 8})
    assert options(patched) == (None, 3)
    patched = await api.patch(f"{API}/jobs/b", json={"timeout": "77s"})
    assert options(patched) == ("1m17s", 3)
    repeated = await api.put(f"{API}/jobs/a", json={"task": "late"})
    assert options(repeated) == ("1m17s", 9)
    [warning] = repeated.json()["warnings"]  # no worker that is live knows it, but one has described it
    assert warning["detail"] == "no live worker of pool short knows the task late; its runs wait until one does"


async def test_known_and_built_in_tasks_have_no_warning(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    await join(store, catalog, "shop.send")
    made = await api.post(f"{API}/jobs", json=job("a", "shop.send"))
    called = await api.post(f"{API}/jobs", json={"name": "h", "http": {"url": "https://example.com/"}})
    assert [answer.status_code for answer in (made, called)] == [202, 202]
    assert "warnings" not in made.json()
    assert "warnings" not in called.json()


@pytest.mark.parametrize("minimal", [True, False])
async def test_a_bulk_is_warned_once_for_each_task(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog, minimal: bool
) -> None:
    await join(store, catalog, "shop.send")
    items = [job(f"j{n}", "shop.send" if n < 250 else "shop.sned") for n in range(500)]
    headers = {"Prefer": "return=minimal"} if minimal else {}
    made = await api.post(f"{API}/jobs/bulk", json={"items": items}, headers=headers)
    assert made.status_code == 201, made.text
    [warning] = made.json()["warnings"]
    assert warning["pointer"] == "/items/250/task"
    assert warning["hint"].startswith("did you mean shop.send?")


def opened(store: Store, catalog: Catalog, tenants: Store, policy: UnknownTasks) -> httpx2.AsyncClient:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock(), unknown_tasks=policy)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test", timeout=20)


async def test_unknown_tasks_are_refused_where_that_is_set(store: Store, catalog: Catalog, tenants: Store) -> None:
    await join(store, catalog, "shop.send")
    async with opened(store, catalog, tenants, "refuse") as api:
        for answer in (
            await api.post(f"{API}/jobs", json=job("a", "shop.sned")),
            await api.put(f"{API}/jobs/a", json={"task": "shop.sned"}),
            await api.post(f"{API}/jobs/execute", json={"task": "shop.sned"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "task_unknown"), answer.text
            assert answer.json()["errors"][0]["pointer"] == "/task"
            assert answer.json()["hint"] == "did you mean shop.send?"
        items = [job("x", "shop.send"), job("y", "shop.sned"), job("z", "shop.sned")]
        refused = await api.post(f"{API}/jobs/bulk", json={"items": items})
        assert [e["pointer"] for e in refused.json()["errors"]] == ["/items/1/task", "/items/2/task"]
        each = await api.post(f"{API}/jobs/bulk", json={"items": items, "atomic": False})
        assert [item["status"] for item in each.json()["items"]] == [201, 422, 422]
        assert await store.pool.fetchval("select count(*) from jobs") == 1
        await store.pool.execute("update workers set state = 'stopped'")  # a deployment: the task is known
        assert (await api.post(f"{API}/jobs", json=job("b", "shop.send"))).status_code == 202


async def test_unknown_tasks_are_accepted_silently_where_that_is_set(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    await join(store, catalog, "shop.send")
    async with opened(store, catalog, tenants, "accept") as api:
        made = await api.post(f"{API}/jobs", json=job("a", "shop.sned"))
        assert (made.status_code, made.json().get("warnings")) == (202, None)


async def test_the_overview_shows_what_waits_for_an_unknown_task(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    await join(store, catalog, "shop.send")
    await store.pool.execute("update leases set holder = gen_random_uuid(), expires_at = now() + interval '1 hour'")
    made = (await api.post(f"{API}/jobs", json={"name": "typo", "task": "shop.sned"})).json()
    await api.post(f"{API}/jobs/typo/run")
    assert (await api.get(f"{API}/overview")).json()["verdict"]["tone"] == "good"
    await store.pool.execute("update queue set available_at = available_at - interval '17 minutes'")
    await queue.park_unknown_tasks(store, 1000)
    await report_stuck_jobs(store, await store.now())
    found = (await api.get(f"{API}/overview")).json()
    text = "No live worker in pool “short” knows the task “shop.sned”: 1 run is waiting. Did you mean “shop.send”?"
    assert (found["verdict"]["tone"], found["verdict"]["text"]) == ("bad", text)
    [problem] = found["verdict"]["problems"]
    assert (problem["kind"], problem["count"]["value"], problem["link"]) == (
        "unknown_task",
        1,
        f"jobs/{made['job_id']}",
    )
    [item] = found["attention"]
    assert (item["kind"], item["tone"], item["text"]) == ("unknown_task", "bad", text)
    assert (item["job"], item["job_id"], item["fix"]) == ("typo", made["job_id"], "bellringer why typo")
    assert found["jobs"]["late"]["value"] == 1
    listed = (await api.get(f"{API}/jobs", params={"state": "late"})).json()["items"]
    assert [entry["name"] for entry in listed] == ["typo"]
    metrics = (await api.get("/metrics")).text
    assert 'bellringer_unknown_tasks{pool="short"} 1.0' in metrics
    assert 'bellringer_pool_runs{pool="short",state="unknown"} 1.0' in metrics
    [waited] = [
        line for line in metrics.splitlines() if line.startswith('bellringer_pool_oldest_waiting_seconds{pool="short"}')
    ]
    assert float(waited.split()[1]) >= 1020
    events = (await api.get(f"{API}/events")).json()["items"]
    assert [(event["kind"], event["job"], event["data"]["task"]) for event in events] == [
        ("unknown_task", "typo", "shop.sned")
    ]
