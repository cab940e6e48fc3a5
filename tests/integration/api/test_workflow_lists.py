"""Workflow runs and the runs of their nodes in the places that list, count and explain runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.support.manual_worker import API, ManualWorker, failed, join_worker, ok, start

from bellringer.api.endpoints import workflows as workflow_endpoints
from bellringer.api.endpoints.overview import summarize_runs
from bellringer.core.runs import Ending, Outcome
from bellringer.store import change_counters, overview
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

MAP: tuple[dict[str, Any], ...] = (
    {"name": "list"},
    {"name": "each", "over": {"node": "list"}, "takes": {"x": {"item": True}}},
    {"name": "approve", "signal": {"timeout": "1h"}},
)


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


async def get(api: httpx2.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(f"{API}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def job_of(api: httpx2.AsyncClient) -> str:
    job_id: str = (await get(api, "jobs/etl"))["job_id"]
    return job_id


async def half_way(api: httpx2.AsyncClient, worker: ManualWorker) -> str:
    """A workflow run of which two elements run, and a signal is waited for."""
    worker.acts = {"list": ok([1, 2])}
    run_id = await start(api, *MAP)
    await worker.step()
    await worker.step()
    await worker.step(hold=True)
    return run_id


async def test_lists_name_the_nodes_of_workflow_runs(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    run_id = await half_way(api, worker)
    found = (await get(api, "runs"))["items"]
    named = {run["workflow"]["node"]: run for run in found if "workflow" in run}
    assert set(named) == {"list", "each[0]", "each[1]"}  # what waits for its time is not born
    node = named["each[1]"]
    assert node["workflow"] == {"run_id": run_id, "job_id": await job_of(api), "job": "etl", "node": "each[1]"}
    assert (node["job"], node["cause"], node["state"], node["lateness_ms"]) == (None, "workflow", "running", None)
    [root] = [run for run in found if "workflow" not in run]
    assert (root["run_id"], root["job"], root["state"], root["blocked"]) == (run_id, "etl", "running", [])
    assert root["lateness_ms"] is not None
    by_cause = (await get(api, "runs", cause="workflow"))["items"]
    assert len(by_cause) == 3
    assert [run["run_id"] for run in (await get(api, "runs", job="etl"))["items"]] == [run_id]
    waiting = (await get(api, "runs", state="waiting"))["items"]
    assert [run["workflow"]["node"] for run in waiting] == ["approve"]


async def test_a_workflow_run_whose_nodes_are_under_way_counts_as_running(
    api: httpx2.AsyncClient, worker: ManualWorker
) -> None:
    run_id = await half_way(api, worker)
    running = (await get(api, "runs", state="running"))["items"]
    assert {run["run_id"] for run in running} >= {run_id}
    assert len(running) == 3
    mixed = (await get(api, "runs", state="running,blocked"))["items"]
    assert len(mixed) == 3
    counts = (await get(api, "runs/counts"))["states"]
    assert {state: count["value"] for state, count in counts.items() if count["value"]} == {
        "running": 3, "succeeded": 1, "waiting": 1,
    }  # fmt: skip
    text = (await api.get("/metrics")).text
    depths = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if "{" in line}
    assert depths['bellringer_queue_depth{pool="short",state="running"}'] == 3
    assert depths['bellringer_queue_depth{pool="short",state="ready"}'] == 0
    assert depths['bellringer_queue_depth{pool="short",state="blocked"}'] == 0


async def test_only_the_workflow_run_is_a_dead_letter_and_an_event(
    api: httpx2.AsyncClient, worker: ManualWorker
) -> None:
    worker.acts = {"list": ok([1, 2]), "each": failed()}
    run_id = await start(api, *MAP[:2])
    await worker.all()
    letters = (await get(api, "dead-letters"))["items"]
    assert [(letter["run_id"], letter["job"]) for letter in letters] == [(run_id, "etl")]
    events = (await get(api, "events"))["items"]
    assert [(event["kind"], event["job"], event["run_id"]) for event in events] == [("dead", "etl", run_id)]
    assert len((await get(api, "runs", state="dead"))["items"]) == 3  # with its two elements
    strip = (await get(api, "jobs/strips", ids=await job_of(api)))["items"][0]
    assert [run["state"] for run in strip["runs"]] == ["dead"]
    assert (await get(api, "jobs/etl/stats"))["attempts"] == 1
    [day] = (await get(api, "jobs/etl/days"))["days"]
    assert (day["runs"], day["failed"]) == (1, 1)
    ledger = (await get(api, "jobs/etl/ledger"))["items"]
    assert [item["run_id"] for item in ledger] == [run_id]


async def test_the_overview_takes_no_node_for_a_late_run_and_no_workflow_for_a_task(
    api: httpx2.AsyncClient, worker: ManualWorker, store: Store
) -> None:
    worker.acts = {"list": ok([1, 2])}
    run_id = await start(api, *MAP[:2])
    await worker.all()
    told = await get(api, "overview")
    assert [(task["task"], task["attempts"]) for task in told["tasks"]["items"]] == [("demo", 3)]
    now = await store.now()
    looked = summarize_runs(await overview.load_attempts(store, 1, now - timedelta(hours=1), now, 100), 100)
    assert [key.id for key in looked.lateness()] == [run_id]
    assert looked.busiest(10) == [UUID(await job_of(api))]


async def test_a_node_says_why_it_does_not_start(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    run_id = await half_way(api, worker)
    root = await get(api, f"runs/{run_id}/explain")
    assert [reason["code"] for reason in root["reasons"]] == ["nodes_under_way"]
    assert "workflow" not in root
    told = await get(api, f"runs/{run_id}/nodes/why", node="approve")
    assert (told["state"], told["run_id"], told["job"]) == ("waiting", None, "etl")
    assert told["workflow"] == {"run_id": run_id, "job_id": told["job_id"], "job": "etl", "node": "approve"}
    assert told["reasons"][0]["fix"] == f"bellringer workflows signal {run_id} approve"
    element = await get(api, f"runs/{run_id}/nodes/why", node="each[1]")
    assert (element["state"], element["task"], element["reasons"][0]["code"]) == ("running", "demo", "running")
    own = await get(api, f"runs/{element['run_id']}/explain")
    assert own["workflow"]["node"] == "each[1]"
    assert [reason["code"] for reason in own["reasons"]] == ["running", "node_of"]
    for node, status in (("nowhere", 404), ("each[9]", 404), ("", 422)):
        answer = await api.get(f"{API}/runs/{run_id}/nodes/why", params={"node": node})
        assert answer.status_code == status, answer.text
    missing = await api.get(f"{API}/runs/{run_id}/nodes/why")
    assert (missing.status_code, missing.json()["code"]) == (422, "missing_field")
    plain = (await api.post(f"{API}/jobs/execute", json={"task": "demo"})).json()["run_id"]
    assert (await api.get(f"{API}/runs/{plain}/nodes/why", params={"node": "a"})).status_code == 404


async def test_the_pulse_beats_when_a_workflow_run_goes_on_without_a_worker(
    api: httpx2.AsyncClient, worker: ManualWorker, store: Store
) -> None:
    run_id = await start(api, {"name": "a", "signal": {}}, {"name": "b", "signal": {}, "after": ["a"]})
    await worker.step()
    seen = [(await change_counters.load_counters(store, [1]))[1].runs]
    for name in ("a", "b"):
        assert (await api.post(f"{API}/runs/{run_id}/signals/{name}", json={})).json() == {"taken": True}
        seen.append((await change_counters.load_counters(store, [1]))[1].runs)
    assert len(set(seen)) == 3


async def test_a_retry_of_a_node_that_waits_for_its_backoff_is_retried_now(
    api: httpx2.AsyncClient, worker: ManualWorker
) -> None:
    error = {"type": "ValueError", "message": "no"}
    worker.acts = {"a": Ending(outcome=Outcome.FAILED, error=error)}
    run_id = await start(api, {"name": "a", "retry": {"attempts": 3, "delays": ["1h", "1h"]}})
    await worker.step()
    await worker.step()
    told = await get(api, f"runs/{run_id}/nodes/why", node="a")
    assert (told["state"], told["reasons"][0]["code"]) == ("retrying", "waits_for_retry")
    assert told["reasons"][0]["fix"] == f"bellringer runs retry {told['run_id']}"
    hastened = await api.post(f"{API}/runs/{told['run_id']}/retry")
    assert hastened.status_code == 202, hastened.text
    due = await get(api, f"runs/{run_id}/nodes/why", node="a")
    assert (due["state"], due["reasons"][0]["code"]) == ("retrying", "shard_unheld")  # it only waits for a scheduler


async def test_workflows_are_filtered_and_counted_by_the_state_of_their_last_run(
    api: httpx2.AsyncClient, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d"):
        body = {"workflow": {"nodes": [{"name": "x", "task": "demo"}]}}
        assert (await api.put(f"{API}/jobs/{name}", json=body)).status_code in {200, 201}
    for name, act in (("a", ok()), ("c", failed())):
        await api.post(f"{API}/jobs/{name}/run", json={})
        worker.acts = {"x": act}
        await worker.all()
    await api.post(f"{API}/jobs/d/run", json={})

    async def names(**query: Any) -> list[str]:
        return [one["name"] for one in (await get(api, "workflows", **query))["items"]]

    assert await names(state="succeeded") == ["a"]
    assert await names(state="dead,none") == ["b", "c"]
    assert await names(state="none", q="c") == []
    page = await get(api, "workflows", count="bounded", limit=1)
    one = {"value": 1, "relation": "eq"}
    assert page["states"] == {"succeeded": one, "none": one, "dead": one, "queued": one}
    assert "states" not in await get(api, "workflows")
    monkeypatch.setattr(workflow_endpoints, "MAX_WORKFLOWS_SCANNED", 2)
    first = await get(api, "workflows", state="dead")
    assert (first["items"], bool(first["next_cursor"])) == ([], True)
    second = await get(api, "workflows", state="dead", cursor=first["next_cursor"])
    assert [one["name"] for one in second["items"]] == ["c"]
    counted = (await get(api, "workflows", count="bounded"))["states"]
    assert counted == {state: {"value": 1, "relation": "gte"} for state in ("succeeded", "none")}
