"""Incident controls over the API: pauses of tasks, and bulk changes of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from bellringer.api.endpoints import metrics
from bellringer.core.runs import Ending, Outcome
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

if TYPE_CHECKING:
    from tests.integration.api.conftest import Work

OK = Ending(outcome=Outcome.OK)


async def test_a_paused_task_starts_nothing_until_it_is_resumed(api: httpx2.AsyncClient, work: Work) -> None:
    for _ in range(3):
        assert (await api.post("/api/v1/jobs/execute", json={"task": "demo"})).status_code == 202
    paused = await api.post("/api/v1/tasks/demo/pause", json={"reason": "bank down", "until": "30m"})
    assert paused.status_code == 200, paused.text
    body = paused.json()
    assert (body["held"], body["ready"], body["paused"]["reason"]) == (3, 0, "bank down")
    assert body["paused"]["until"] is not None
    assert await work(OK) == 0
    run = (await api.get("/api/v1/runs")).json()["items"][0]
    assert (run["state"], run["blocked"]) == ("blocked", ["task_paused"])
    why = (await api.get(f"/api/v1/runs/{run['run_id']}/explain")).json()
    assert why["reasons"][0]["code"] == "task_paused"
    listed = {item["name"]: item for item in (await api.get("/api/v1/tasks")).json()["items"]}
    assert listed["demo"]["paused"]["by"] == body["paused"]["by"]
    resumed = await api.post("/api/v1/tasks/demo/resume")
    assert (resumed.status_code, resumed.json()["paused"], resumed.json()["held"]) == (200, None, 0)
    assert await work(OK) == 3
    actions = [entry["action"] for entry in (await api.get("/api/v1/audit")).json()["items"]]
    assert {"task.paused", "task.resumed"} <= set(actions)
    kinds = [event["kind"] for event in (await api.get("/api/v1/events")).json()["items"]]
    assert kinds == ["task_resumed", "task_paused"]


async def test_a_resume_may_be_gradual(api: httpx2.AsyncClient, work: Work) -> None:
    for _ in range(3):
        await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    await api.post("/api/v1/tasks/demo/pause")
    resumed = (await api.post("/api/v1/tasks/demo/resume", json={"rate": "6/h"})).json()
    assert (resumed["held"], resumed["paused"]["rate"]) == (3, pytest.approx(6 / 3600))
    assert await work(OK) == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("unheard/pause", {}, 404),
        ("demo/pause", {"until": "yesterday"}, 422),
        ("demo/pause", {"until": "2001-01-01T00:00:00Z"}, 422),
        ("demo/resume", {}, 409),
        ("demo/resume", {"rate": "fast"}, 422),
    ],
)
async def test_requests_that_make_no_sense_are_refused(
    api: httpx2.AsyncClient, work: Work, path: str, body: dict[str, Any], status: int
) -> None:
    refused = await api.post(f"/api/v1/tasks/{path}", json=body)
    assert refused.status_code == status, refused.text


async def test_a_dry_run_shows_the_changes_by_field(api: httpx2.AsyncClient) -> None:
    for name, attempts in (("a", 5), ("b", 1)):
        made = await api.post("/api/v1/jobs", json={"name": name, "task": "demo", "retry": {"attempts": attempts}})
        assert made.status_code == 202
    order = {"action": "jobs.update", "filter": {"task": "demo"}, "changes": {"retry": {"attempts": 1}}}
    plan = (await api.post("/api/v1/bulk", json={**order, "dry_run": True})).json()
    assert (plan["count"]["value"], plan["examined"]) == (2, 2)
    assert plan["changes"] == [
        {"field": "retry", "jobs": 1, "sample": [{"job": "a", "before": {"attempts": 5}, "after": {"attempts": 1}}]}
    ]
    assert (await api.get("/api/v1/jobs/a")).json()["retry"] == {"attempts": 5}, "nothing is changed"


async def test_an_update_runs_and_is_reverted(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "retry": {"attempts": 5}})
    order = {"action": "jobs.update", "filter": {}, "changes": {"retry": 1, "timeout": "10s"}, "reason": "storm"}
    begun = await api.post("/api/v1/bulk", json=order)
    assert begun.status_code == 202, begun.text
    operation = begun.json()["operation_id"]
    await run_operations(store, catalog, OperationCursor())
    job = (await api.get("/api/v1/jobs/a")).json()
    assert (job["retry"], job["timeout"]) == ({"attempts": 1}, "10s")
    reverted = await api.post(f"/api/v1/operations/{operation}/revert")
    assert (reverted.status_code, reverted.json()["reverts"]) == (202, operation)
    await run_operations(store, catalog, OperationCursor())
    job = (await api.get("/api/v1/jobs/a")).json()
    assert (job["retry"], job["timeout"]) == ({"attempts": 5}, None)


@pytest.mark.parametrize(
    ("order", "pointer"),
    [
        ({"action": "jobs.update", "filter": {}}, "/changes"),
        ({"action": "jobs.pause", "filter": {}, "changes": {"pool": "long"}}, "/changes"),
        ({"action": "jobs.update", "filter": {}, "changes": {}}, "/changes"),
        ({"action": "jobs.update", "filter": {}, "changes": {"priority": 12}}, "/changes/priority"),
        ({"action": "jobs.update", "filter": {}, "changes": {"pool": "nowhere"}}, "/changes/pool"),
        ({"action": "jobs.revert", "filter": {}}, "/action"),
    ],
)
async def test_updates_that_no_job_can_take_are_refused(
    api: httpx2.AsyncClient, order: dict[str, Any], pointer: str
) -> None:
    refused = await api.post("/api/v1/bulk", json=order)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer


async def test_other_operations_cannot_be_reverted(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo"})
    begun = (await api.post("/api/v1/bulk", json={"action": "jobs.pause", "filter": {}})).json()
    refused = await api.post(f"/api/v1/operations/{begun['operation_id']}/revert")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_revertible")


async def test_the_load_of_a_tenant_is_shown_with_its_usage(api: httpx2.AsyncClient, work: Work) -> None:
    for _ in range(3):
        await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    found = (await api.get("/api/v1/tenants/default/usage")).json()["load"]
    assert (found["ready"], found["running"], found["held"], found["retried"]) == (3, 0, 0, 0)
    assert found["oldest"] >= 0


async def test_the_cluster_shows_silent_claims_connections_and_skew(api: httpx2.AsyncClient) -> None:
    found = (await api.get("/api/v1/cluster")).json()
    assert found["silent_claims"] == 0
    assert 0 < found["connections"]["open"] <= found["connections"]["max"]
    shards = (await api.get("/api/v1/cluster/shards")).json()
    assert (shards["due_skew"], shards["fired_skew"], shards["items"][0]["fired"]) == (0, 0, 0)


async def test_the_metrics_name_a_bounded_number_of_tenants(
    api: httpx2.AsyncClient, work: Work, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_TENANT_LABELS", 2)
    await store.pool.execute("insert into tenants (name) select 'tenant ' || n from generate_series(1, 5) n")
    await store.pool.execute(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority,"
        " cause, spec) select gen_random_uuid(), now(), 0, now(), tenant_id, 1, 0, 1, 5, 'send', '{}'"
        " from tenants cross join generate_series(1, tenant_id) where name like 'tenant %'"
    )
    text = (await api.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("bellringer_tenant_runs{") and 'ready"' in line]
    named = [line for line in lines if 'tenant="tenant ' in line]
    assert len(named) == 2
    assert any('tenant="other"' in line for line in lines)
    assert 'state="max"}' in text
    assert "bellringer_silent_claims 0.0" in text
    assert 'bellringer_shard_fired{shard="63"}' in text
    assert "bellringer_missed_ratio 0.0" in text
