"""Workflow runs without a job, and waits for several runs, over the API."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from tests.support.manual_worker import ManualWorker, join_worker, ok

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

START = "/api/v1/workflows/runs"
WAIT = "/api/v1/runs/wait"
GRAPH: dict[str, Any] = {
    "params": {"day": {}, "region": {"default": {"value": "eu"}}},
    "output": "two",
    "nodes": [
        {"name": "one", "task": "demo", "takes": {"day": {"param": "day"}}},
        {"name": "two", "task": "demo", "takes": {"got": {"node": "one"}}},
    ],
}


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


async def send(api: httpx2.AsyncClient, count: int) -> list[str]:
    sent = [await api.post("/api/v1/jobs/execute", json={"task": "demo"}) for _ in range(count)]
    return [run.json()["run_id"] for run in sent]


async def test_a_graph_runs_without_a_job(api: httpx2.AsyncClient, worker: ManualWorker, store: Store) -> None:
    worker.acts = {"one": ok(7), "two": lambda run: ok(run.spec.kwargs["got"] + 1)}
    started = await api.post(START, json={"workflow": GRAPH, "params": {"day": "today"}, "key": "k"})
    run_id = started.json()["run_id"]
    assert (started.status_code, started.json()["job"]) == (202, None), started.text
    assert started.headers["location"] == f"/api/v1/runs/{run_id}"
    again = await api.post(START, json={"workflow": GRAPH, "params": {"day": "tomorrow"}, "key": "k"})
    assert (again.status_code, again.json()["run_id"]) == (200, run_id)
    await worker.all()
    ended = (await api.get(f"/api/v1/runs/{run_id}")).json()
    assert (ended["state"], ended["result"]) == ("succeeded", 8)
    graph = (await api.get(f"/api/v1/runs/{run_id}/graph")).json()
    assert [(node["name"], node["state"]) for node in graph["nodes"]] == [("one", "succeeded"), ("two", "succeeded")]
    assert (await api.get(f"/api/v1/runs/{run_id}/explain")).status_code == 200
    assert await store.pool.fetchval("select count(*) from jobs") == 0
    assert await store.pool.fetchval("select count(*) from graphs where keep_until is not null") == 1


async def test_a_started_run_can_be_explained_and_cancelled(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    started = await api.post(START, json={"workflow": GRAPH, "params": {"day": "today"}, "delay": "1h"})
    run_id = started.json()["run_id"]
    reasons = (await api.get(f"/api/v1/runs/{run_id}/explain")).json()["reasons"]
    assert reasons[0]["code"] == "not_due_yet", reasons
    assert (await api.post(f"/api/v1/runs/{run_id}/cancel")).json()["state"] == "cancelled"
    await worker.all()


async def test_the_graph_of_a_job_is_started_by_its_name(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    worker.acts = {"one": ok(1), "two": ok(2)}
    await api.post("/api/v1/jobs", json={"name": "etl", "workflow": GRAPH})
    started = await api.post(START, json={"name": "etl", "params": {"day": "today"}})
    assert (started.status_code, started.json()["job"]) == (202, None)
    await worker.all()
    assert (await api.get(f"/api/v1/runs/{started.json()['run_id']}")).json()["result"] == 2
    assert (await api.get("/api/v1/jobs/etl/runs")).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "missing_field", "/workflow"),
        ({"workflow": GRAPH, "name": "etl"}, "conflicting_fields", "/workflow"),
        ({"name": "etl"}, "unknown_workflow", "/name"),
        ({"workflow": GRAPH}, "missing_argument", "/params/day"),
        ({"workflow": GRAPH, "params": {"day": 1, "dya": 2}}, "unexpected_argument", "/params/dya"),
        ({"workflow": {"nodes": []}}, "limit", "/workflow/nodes"),
        ({"workflow": GRAPH, "params": {"day": 1}, "at": "x", "delay": 1}, "conflicting_fields", "/delay"),
        ({"workflow": GRAPH, "params": {"day": 1}, "at": "2020-01-01T00:00:00Z"}, "run_at_in_past", "/at"),
        ({"workflow": GRAPH, "params": {"day": 1}, "key": ""}, "limit", "/key"),
        ({"workflow": GRAPH, "params": {"day": "x" * 1_000_000}}, "payload_too_large", "/params"),
    ],
)  # fmt: skip
async def test_a_wrong_start_stores_nothing(
    api: httpx2.AsyncClient, worker: ManualWorker, store: Store, body: dict[str, Any], code: str, pointer: str
) -> None:
    refused = await api.post(START, json=body)
    problem = refused.json()
    found = [(fault["code"], fault["pointer"]) for fault in problem.get("errors", [])] or [(problem["code"], pointer)]
    assert refused.status_code in (413, 422), refused.text
    assert (code, pointer) in found, refused.text
    assert await store.pool.fetchval("select count(*) from queue") == 0


async def test_wait_for_all_or_any(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    first = await send(api, 2)
    late = (await api.post("/api/v1/jobs/execute", json={"task": "demo", "delay": "1h"})).json()["run_id"]
    nothing = await api.post(WAIT, json={"ids": first, "timeout": 0})
    assert (nothing.status_code, nothing.json()["ended"], nothing.headers["retry-after"]) == (202, 0, "1")
    waiting = asyncio.ensure_future(api.post(WAIT, json={"ids": [late, *first], "any": True}))
    await asyncio.sleep(0.2)
    await worker.all()
    answer = await waiting
    assert (answer.status_code, answer.json()["ended"]) == (200, 2)
    assert [run["run_id"] for run in answer.json()["items"]] == [late, *first]
    everything = await api.post(WAIT, json={"ids": first, "timeout": 5})
    assert (everything.status_code, everything.json()["ended"]) == (200, 2)
    assert (await api.post(WAIT, json={"ids": [late, *first], "timeout": 0})).status_code == 202


async def test_a_wrong_wait_is_refused(api: httpx2.AsyncClient) -> None:
    [run] = await send(api, 1)
    assert (await api.post(WAIT, json={"ids": []})).status_code == 422
    assert (await api.post(WAIT, json={"ids": [run], "timeout": 61})).status_code == 422
    assert (await api.post(WAIT, json={"ids": [run] * 1001})).status_code == 422
    assert (await api.post(WAIT, json={"ids": [run, "run_1"]})).status_code == 404
    unknown = run[:-1] + ("1" if run[-1] != "1" else "2")
    assert (await api.post(WAIT, json={"ids": [unknown]})).status_code == 404
