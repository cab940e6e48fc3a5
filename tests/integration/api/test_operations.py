"""Operations over HTTP: what is asked for many is counted, worked off, told of and aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from bellringer.client import AsyncClient
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.errors import Conflict
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

Work = Callable[[Ending | None], Awaitable[int]]
BULK = "/api/v1/bulk"


async def create(api: httpx2.AsyncClient, count: int, **fields: Any) -> list[str]:
    """Jobs `job 0`, `job 1` …; answers their ids."""
    made = []
    for n in range(count):
        response = await api.post("/api/v1/jobs", json={"name": f"job {n}", "task": "demo", **fields})
        assert response.status_code == 202, response.text
        made.append(response.json()["job_id"])
    return made


async def ask(api: httpx2.AsyncClient, action: str, **fields: Any) -> dict[str, Any]:
    response = await api.post(BULK, json={"action": action, **fields})
    assert response.status_code == 202, response.text
    operation: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/api/v1/operations/{operation['operation_id']}"
    return operation


async def finish(api: httpx2.AsyncClient, store: Store, catalog: Catalog, operation: dict[str, Any]) -> dict[str, Any]:
    turn = OperationCursor()
    for _ in range(100):
        await run_operations(store, catalog, turn)
        found: dict[str, Any] = (await api.get(f"/api/v1/operations/{operation['operation_id']}")).json()
        if found["state"] != "running":
            return found
    raise AssertionError("it never ends")


async def test_jobs_are_paused_and_resumed_by_a_filter(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await create(api, 3, tags=["books"])
    await api.post("/api/v1/jobs", json={"name": "other", "task": "demo"})
    paused = await ask(api, "jobs.pause", filter={"tag": "books"}, expected_count=3, reason="the audit")
    assert (paused["total"], paused["who"]) == ({"value": 3, "relation": "eq"}, "local")
    done = await finish(api, store, catalog, paused)
    assert (done["state"], done["done"], done["failed"], done["ended_at"] is not None) == ("done", 3, 0, True)
    jobs = {job["name"]: job for job in (await api.get("/api/v1/jobs")).json()["items"]}
    assert jobs["job 1"]["paused"]["reason"] == "the audit"
    assert jobs["other"]["paused"] is None
    resumed = await finish(api, store, catalog, await ask(api, "jobs.resume", filter={"state": "paused"}))
    assert (resumed["done"], resumed["items"]) == (3, None)
    jobs = {job["name"]: job for job in (await api.get("/api/v1/jobs")).json()["items"]}
    assert all(job["paused"] is None for job in jobs.values())


async def test_jobs_are_run_and_deleted_by_name(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    first, second = await create(api, 2)
    ran = await finish(api, store, catalog, await ask(api, "jobs.run", ids=["job 0", second, first], reason="again"))
    assert (ran["named"], ran["done"]) == (2, 2)
    assert ran["items"] == [{"id": first, "name": "job 0"}, {"id": second, "name": "job 1"}]
    runs = (await api.get("/api/v1/runs", params={"cause": "manual"})).json()["items"]
    assert {run["job_id"] for run in runs} == {first, second}
    assert {run["reason"] for run in runs} == {"again"}
    deleted = await finish(api, store, catalog, await ask(api, "jobs.delete", ids=["job 0"]))
    assert (deleted["done"], deleted["items"]) == (1, [{"id": first, "name": None}])
    assert (await api.get(f"/api/v1/jobs/{first}")).status_code == 404


async def test_runs_are_cancelled_by_the_filters_of_their_list(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog, work: Work
) -> None:
    await create(api, 1)
    kept = (await api.post("/api/v1/jobs/execute", json={"task": "demo", "pool": "long"})).json()["run_id"]
    for _ in range(60):
        await api.post("/api/v1/jobs/job 0/run")
    plan = await api.post(
        BULK, json={"action": "runs.cancel", "filter": {"job": "job 0", "state": "queued"}, "dry_run": True}
    )
    assert (plan.status_code, plan.json()["count"]) == (200, {"value": 60, "relation": "eq"})
    assert len(plan.json()["sample"]) == 10
    operation = await ask(api, "runs.cancel", filter={"job": "job 0", "state": ["queued"]}, reason="enough")
    done = await finish(api, store, catalog, operation)
    assert (done["done"], done["skipped"], done["filter"]["states"]) == (60, 0, ["queued"])
    left = (await api.get("/api/v1/runs", params={"state": "queued"})).json()["items"]
    assert [run["run_id"] for run in left] == [kept]


async def test_dead_runs_are_retried_and_what_needs_nothing_is_skipped(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog, work: Work
) -> None:
    made = [
        (await api.post("/api/v1/jobs/execute", json={"task": "demo", "retry": 1})).json()["run_id"] for _ in range(3)
    ]
    await work(Ending(outcome=Outcome.FAILED, error={"type": "E", "message": "m"}))
    ended = (await api.post("/api/v1/jobs/execute", json={"task": "demo"})).json()["run_id"]
    await work(Ending(outcome=Outcome.OK))
    done = await finish(api, store, catalog, await ask(api, "runs.retry", ids=[*made, ended]))
    assert (done["done"], done["skipped"], done["failed"]) == (3, 1, 0)


@pytest.mark.parametrize(("expected", "status"), [(100, 202), (101, 202), (99, 202), (102, 409), (0, 409)])
async def test_a_count_that_differs_is_refused(api: httpx2.AsyncClient, expected: int, status: int) -> None:
    document = [{"name": f"job {n}", "task": "demo", "tags": ["many"]} for n in range(100)]
    for job in document:
        await api.post("/api/v1/jobs", json=job)
    body = {"action": "jobs.pause", "filter": {"tag": "many"}, "expected_count": expected}
    answer = await api.post(BULK, json=body)
    assert answer.status_code == status
    if status == 409:
        assert answer.json()["code"] == "count_differs"
        assert (await api.get("/api/v1/operations")).json()["items"] == []


async def test_an_operation_is_aborted(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await create(api, 3)
    operation = await ask(api, "jobs.pause", filter={}, rate=1)
    assert await run_operations(store, catalog, OperationCursor()) == 1
    path = f"/api/v1/operations/{operation['operation_id']}"
    running = (await api.get(path)).json()
    assert (running["state"], running["done"], running["eta"] is not None) == ("running", 1, True)
    for _ in range(2):
        aborted = await api.post(f"{path}/abort")
        assert (aborted.status_code, aborted.json()["state"]) == (200, "aborted")
    await store.pool.execute("update operations set paced_at = '-infinity'")
    assert await run_operations(store, catalog, OperationCursor()) == 0
    finished = await finish(api, store, catalog, await ask(api, "jobs.resume", filter={}))
    refused = await api.post(f"/api/v1/operations/{finished['operation_id']}/abort")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")


async def test_operations_are_listed_newest_first(api: httpx2.AsyncClient) -> None:
    made = [(await ask(api, "jobs.pause", filter={"tag": f"t{n}"}))["operation_id"] for n in range(3)]
    first = (await api.get("/api/v1/operations", params={"limit": 2})).json()
    rest = (await api.get("/api/v1/operations", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [o["operation_id"] for o in first["items"] + rest["items"]] == made[::-1]


@pytest.mark.parametrize("id_", ["op_0", "op_99", "op_x", "op_01", "x", "op_99999999999999999999"])
async def test_an_unknown_operation_is_not_found(api: httpx2.AsyncClient, id_: str) -> None:
    for answer in (await api.get(f"/api/v1/operations/{id_}"), await api.post(f"/api/v1/operations/{id_}/abort")):
        assert (answer.status_code, answer.json()["detail"]) == (404, "there is no such operation")


async def test_another_tenants_operation_is_not_there(api: httpx2.AsyncClient, store: Store) -> None:
    operation = await ask(api, "jobs.pause", filter={})
    await store.pool.execute("update operations set tenant_id = 99")
    assert (await api.get(f"/api/v1/operations/{operation['operation_id']}")).status_code == 404
    assert (await api.get("/api/v1/operations")).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"action": "jobs.explode", "filter": {}}, "/action", "choice"),
        ({"action": "jobs.pause"}, "/ids", "conflicting_fields"),
        ({"action": "jobs.pause", "filter": {}, "ids": ["a"]}, "/ids", "conflicting_fields"),
        ({"action": "jobs.pause", "ids": []}, "/ids", "limit"),
        ({"action": "jobs.pause", "ids": ["no such job"]}, "/ids/0", "id_invalid"),
        ({"action": "runs.cancel", "ids": ["run_x"]}, "/ids/0", "id_invalid"),
        ({"action": "runs.cancel", "filter": {"state": "ded"}}, "/filter/state", "state_unknown"),
        ({"action": "runs.cancel", "filter": {"sate": "dead"}}, "/filter/sate", "unknown_field"),
        ({"action": "jobs.pause", "filter": {"state": "x"}}, "/filter/state", "choice"),
        ({"action": "jobs.pause", "filter": {"tag": ""}}, "/filter/tag", "limit"),
        ({"action": "dead_letters.discard", "filter": {"task": "x" * 300}}, "/filter/task", "limit"),
        ({"action": "jobs.pause", "filter": {}, "rate": 0}, "/rate", "limit"),
        ({"action": "jobs.pause", "filter": {}, "expected_count": -1}, "/expected_count", "limit"),
        ({"action": "jobs.pause", "filter": {}, "reason": "x" * 2000}, "/reason", "limit"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    api: httpx2.AsyncClient, body: dict[str, Any], pointer: str, code: str
) -> None:
    refused = await api.post(BULK, json=body)
    assert refused.status_code == 422, refused.text
    assert [(fault["pointer"], fault["code"]) for fault in refused.json()["errors"]] == [(pointer, code)]


async def test_a_scheduler_works_it_off(api: httpx2.AsyncClient, store: Store) -> None:
    await create(api, 60, tags=["books"])
    stop, clock = asyncio.Event(), SystemClock()
    node = Scheduler(store, PostgresLeases(store, timedelta(seconds=5)), clock, SchedulerSettings())
    running = asyncio.create_task(node.run(stop))
    try:
        operation = await ask(api, "jobs.pause", filter={"tag": "books"}, expected_count=60)
        path = f"/api/v1/operations/{operation['operation_id']}"
        async with asyncio.timeout(60):
            while (found := (await api.get(path)).json())["state"] == "running":
                await clock.sleep(0.1)
        assert (found["state"], found["done"]) == ("done", 60)
    finally:
        stop.set()
        await running


async def test_the_client_asks_for_many(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await create(api, 2)
    transport = api._transport
    async with AsyncClient("http://test", transport=transport) as client:
        plan = await client.plan_bulk("jobs.pause", filter={})
        assert (plan.count.value, len(plan.sample)) == (2, 2)
        with pytest.raises(Conflict):
            await client.bulk("jobs.pause", filter={}, expected_count=5)
        operation = await client.bulk("jobs.pause", filter={}, expected_count=2, rate=60)
        assert (await client.operation(operation.operation_id)).state == "running"
        assert (await client.abort_operation(operation.operation_id)).state == "aborted"
        assert [o.operation_id for o in (await client.operations()).items] == [operation.operation_id]
