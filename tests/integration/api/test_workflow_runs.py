"""Workflow runs from inside over the API: graphs, elements of maps, retries, marks, signals and cancels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from tests.support.manual_worker import API, ManualWorker, document, failed, join_worker, ok, start

from bellringer.access.api_keys import generate_api_key
from bellringer.api.app import create_app
from bellringer.api.http.auth import Authenticator, AuthSettings
from bellringer.client import AsyncClient
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, Outcome
from bellringer.engine import workflow_commands
from bellringer.errors import NotFound
from bellringer.store import api_keys
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

MAP: tuple[dict[str, Any], ...] = (
    {"name": "list"},
    {"name": "each", "over": {"node": "list"}, "takes": {"x": {"item": True}}},
    {"name": "sum", "takes": {"xs": {"node": "each"}}},
)


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


async def graph_of(api: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    answer = await api.get(f"{API}/runs/{run_id}/graph")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def by_name(graph: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in graph["nodes"]}


def states(graph: Mapping[str, Any]) -> dict[str, str]:
    return {node["name"]: node["state"] for node in graph["nodes"]}


async def test_a_run_from_inside_as_it_goes_on(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    worker.acts = {"list": ok([1, 2, 3])}
    run_id = await start(api, *MAP, {"name": "undo", "undoes": "list"}, output="sum")
    before = await graph_of(api, run_id)
    assert (before["state"], before["started_at"], before["job"]) == ("queued", None, "etl")
    assert states(before) == {"list": "blocked", "each": "blocked", "sum": "blocked", "undo": "blocked"}

    await worker.step()  # opened
    await worker.step(hold=True)
    running = by_name(await graph_of(api, run_id))
    assert (running["list"]["state"], running["list"]["attempt"], running["each"]["state"]) == ("running", 1, "blocked")
    assert running["list"]["started_at"] is not None
    node = (await api.get(f"{API}/runs/{running['list']['run_id']}")).json()
    job_id = (await api.get(f"{API}/jobs/etl")).json()["job_id"]
    assert node["workflow"] == {"run_id": run_id, "job_id": job_id, "job": "etl", "node": "list"}
    assert (node["cause"], node["job"], "has_nodes" in node) == ("workflow", None, False)

    await worker.end((worker.held.pop(), ok([1, 2, 3])))
    await worker.step(hold=True)
    graph = await graph_of(api, run_id)
    assert (graph["state"], states(graph)["each"], states(graph)["sum"]) == ("running", "running", "blocked")
    assert by_name(graph)["each"]["map"] == {
        "size": 3, "blocked": 0, "running": 3, "succeeded": 0, "dead": 0, "cancelled": 0, "skipped": 0,
    }  # fmt: skip
    assert (by_name(graph)["each"]["run_id"], by_name(graph)["each"]["started_at"] is not None) == (None, True)
    element = (await api.get(f"{API}/runs/{run_id}/nodes", params={"node": "each[1]"})).json()["items"][0]
    assert (await api.get(f"{API}/runs/{element['run_id']}")).json()["workflow"]["node"] == "each[1]"

    await worker.end(*((claimed, ok()) for claimed in worker.held))
    await worker.all()
    ended = await graph_of(api, run_id)
    assert ended["state"] == "succeeded"
    assert ended["critical_path"]["nodes"] == ["list", "each", "sum"]
    assert 0 < ended["critical_path"]["seconds"] < 60
    nodes = by_name(ended)
    assert [nodes[name]["critical"] for name in ("list", "each", "sum", "undo")] == [True, True, True, False]
    assert (nodes["undo"]["state"], nodes["undo"]["reason"], nodes["undo"]["run_id"]) == ("skipped", "not needed", None)
    assert nodes["each"]["map"]["succeeded"] == 3
    assert (nodes["sum"]["parents"], ended["edges"][1]) == (["each"], {"from": "each", "to": "sum"})
    times = [nodes[n][t] for n in ("list", "each", "sum") for t in ("started_at", "finished_at")]
    assert times == sorted(times)


async def test_the_elements_of_a_map_come_in_pages(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    worker.acts = {
        "list": ok([{"n": n, "text": "x" * 2000 if n == 5 else ""} for n in range(6)]),
        "each": lambda c: failed() if c.spec.kwargs["x"]["n"] in (1, 4) else ok(),
    }
    run_id = await start(api, *MAP)
    await worker.all()
    path = f"{API}/runs/{run_id}/nodes"
    first = (await api.get(path, params={"node": "each", "limit": 4})).json()
    assert [item["name"] for item in first["items"]] == ["each[0]", "each[1]", "each[2]", "each[3]"]
    rest = (await api.get(path, params={"node": "each", "limit": 4, "cursor": first["next_cursor"]})).json()
    assert ([item["index"] for item in rest["items"]], rest["next_cursor"]) == ([4, 5], None)
    assert first["items"][0]["item"] == '{"n": 0, "text": ""}'
    assert len(rest["items"][1]["item"]) == 1024
    dead = (await api.get(path, params={"node": "each", "state": "dead", "limit": 1})).json()
    assert [(item["index"], item["attempt"]) for item in dead["items"]] == [(1, 1)]
    more = await api.get(path, params={"node": "each", "state": "dead", "cursor": dead["next_cursor"]})
    assert [item["name"] for item in more.json()["items"]] == ["each[4]"]
    every = (await api.get(path)).json()["items"]
    assert [item["name"] for item in every[:4]] == ["list", "each", "sum", "each[0]"]
    assert (every[2]["state"], every[2]["reason"], every[2]["run_id"]) == ("skipped", "upstream", None)
    one = (await api.get(path, params={"node": "sum"})).json()["items"]
    assert [(item["name"], item["index"]) for item in one] == [("sum", None)]
    stolen = await api.get(path, params={"node": "each", "cursor": dead["next_cursor"]})
    assert (stolen.status_code, stolen.json()["code"]) == (400, "cursor_invalid")
    for node in ("nowhere", "each[6]", "sum[0]"):
        missing = await api.get(path, params={"node": node})
        assert (missing.status_code, missing.json()["hint"]) == (404, "list them with `bellringer workflows graph RUN`")
    assert (await api.get(path, params={"state": "sleeping"})).status_code == 422


async def test_nodes_are_tried_again(api: httpx2.AsyncClient, worker: ManualWorker, store: Store) -> None:
    worker.acts = {"list": ok([0, 1, 2]), "each": lambda c: failed() if c.spec.kwargs["x"] == 1 else ok()}
    run_id = await start(api, *MAP)
    await worker.all()
    assert (await graph_of(api, run_id))["state"] == "dead"
    path = f"{API}/runs/{run_id}/nodes/retry"
    unknown = await api.post(path, json={"nodes": ["each[1]", "nowhere"]})
    assert (unknown.status_code, unknown.json()["hint"]) == (404, "list them with `bellringer workflows graph RUN`")
    worker.acts = {}
    key = {"Idempotency-Key": "once"}
    done = [await api.post(path, json={"nodes": ["each[1]"]}, headers=key) for _ in range(2)]
    assert [answer.status_code for answer in done] == [202, 202]
    assert done[0].json() == done[1].json() == {"run_id": run_id, "state": "running"}
    in_the_way = await api.post(path, json={"nodes": ["each[1]"]})
    assert (in_the_way.status_code, in_the_way.json()["detail"]) == (409, "the node, or one after it, is running")
    await worker.all()
    graph = await graph_of(api, run_id)
    assert (graph["state"], by_name(graph)["each"]["map"]["succeeded"]) == ("succeeded", 3)
    assert (await api.get(f"{API}/runs/{run_id}")).json()["attempt"] == 2
    assert (await api.post(path)).json()["detail"] == "no node of the workflow run has failed"
    wrong: dict[str, Any]
    for wrong in ({"nodes": []}, {"nodes": [""]}, {"nodes": [1]}, {"names": ["a"]}):
        assert (await api.post(path, json=wrong)).status_code == 422, wrong
    entries = (await api.get(f"{API}/audit", params={"action": "run.nodes_retried"})).json()["items"]
    assert [entry["after"]["nodes"] for entry in entries] == [["each[1]"]]


async def test_a_node_is_marked_manually(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    worker.acts = {"list": failed()}
    run_id = await start(api, *MAP)
    await worker.step()
    await worker.step(hold=True)
    path = f"{API}/runs/{run_id}/nodes/mark"
    body = {"node": "list", "state": "succeeded", "reason": "by hand", "result": [7]}
    running = await api.post(path, json=body)
    assert (running.status_code, running.json()["hint"]) == (409, "cancel it, or wait until it ends")
    await worker.end((worker.held.pop(), failed()))
    assert states(await graph_of(api, run_id)) == {"list": "dead", "each": "skipped", "sum": "skipped"}
    for wrong, pointer in (
        ({**body, "state": "cancelled"}, "/state"), ({**body, "state": "gone"}, "/state"),
        ({**body, "node": ""}, "/node"), ({**body, "reason": "x" * 5000}, "/reason"),
        ({key: value for key, value in body.items() if key != "reason"}, "/reason"),
    ):  # fmt: skip
        refused = await api.post(path, json=wrong)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer), wrong
    assert (await api.post(path, json={**body, "node": "nowhere"})).status_code == 404
    marked = await api.post(path, json=body)
    assert (marked.status_code, marked.json()) == (200, {"run_id": run_id, "state": "running"})
    worker.acts = {"sum": lambda c: ok(c.spec.kwargs["xs"])}
    await worker.all()
    assert states(await graph_of(api, run_id)) == {"list": "succeeded", "each": "succeeded", "sum": "succeeded"}
    entry = (await api.get(f"{API}/audit", params={"action": "run.node_marked"})).json()["items"][0]
    assert entry["after"]["reason"] == "by hand"


async def test_waits_and_signals(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    run_id = await start(
        api,
        {"name": "pause", "wait": {"for": "2h"}},
        {"name": "approve", "signal": {"timeout": "1d"}},
        {"name": "ever", "signal": {"name": "later"}, "after": ["approve"]},
        {"name": "go", "takes": {"by": {"node": "approve", "path": ["by"]}}},
    )
    await worker.all()
    nodes = by_name(await graph_of(api, run_id))
    assert {name: node["state"] for name, node in nodes.items()} == {
        "pause": "waiting", "approve": "waiting", "ever": "blocked", "go": "blocked",
    }  # fmt: skip
    assert nodes["pause"]["due_at"] < nodes["approve"]["due_at"]
    assert (nodes["pause"]["run_id"] is not None, nodes["pause"]["started_at"] is not None) == (True, True)
    assert (nodes["approve"]["signal"], nodes["ever"]["signal"]) == ("approve", "later")
    path = f"{API}/runs/{run_id}/signals"
    missing = await api.post(f"{path}/nowhere", json={})
    assert (missing.status_code, missing.json()["hint"]) == (404, "it waits for approve, later")
    assert (await api.post(f"{path}/later", json={"payload": 1})).json() == {"taken": False}
    assert (await api.post(f"{path}/approve", json={"payload": {"by": "ana"}})).json() == {"taken": True}
    late = await api.post(f"{path}/approve")
    assert (late.status_code, late.json()["detail"]) == (409, "no node waits for that signal any more")
    await worker.all()
    nodes = by_name(await graph_of(api, run_id))
    assert (nodes["ever"]["state"], nodes["go"]["state"]) == ("succeeded", "succeeded")
    assert (await api.get(f"{API}/runs/{nodes['go']['run_id']}")).json()["kwargs"] == {"by": "ana"}
    large = await api.post(f"{path}/approve", json={"payload": "x" * 300_000})
    assert (large.status_code, large.json()["code"]) == (422, "payload_too_large")
    assert (await api.post(f"{path}/%00", json={})).status_code == 422


async def test_a_cancel_stops_the_nodes(api: httpx2.AsyncClient, worker: ManualWorker, store: Store) -> None:
    run_id = await start(api, {"name": "a"}, {"name": "b", "after": ["a"]}, {"name": "s", "signal": {}})
    await worker.step()
    await worker.step(hold=True)
    cancelled = await api.post(f"{API}/runs/{run_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"], cancelled.json()["blocked"]) == (202, "running", [])
    assert await workflow_commands.stop_workflow_runs(store) == 1  # as the steward does
    graph = await graph_of(api, run_id)
    assert (graph["stopped"], states(graph)) == (
        "it was cancelled", {"a": "running", "b": "skipped", "s": "cancelled"},
    )  # fmt: skip
    await worker.end((worker.held.pop(), Ending(outcome=Outcome.CANCELLED)))
    ended = await graph_of(api, run_id)
    assert (ended["state"], by_name(ended)["b"]["reason"]) == ("cancelled", "stopped")
    assert by_name(ended)["a"]["finished_at"] is not None


async def test_a_run_that_never_began_has_nodes_that_never_will(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    run_id = await start(api, *MAP)
    assert (await api.post(f"{API}/runs/{run_id}/cancel")).json()["state"] == "cancelled"
    graph = await graph_of(api, run_id)
    assert (graph["state"], set(states(graph).values())) == ("cancelled", {"skipped"})
    assert (await api.get(f"{API}/runs/{run_id}/nodes")).json() == {"items": [], "next_cursor": None}
    early = await api.post(f"{API}/runs/{run_id}/nodes/retry")
    assert (early.status_code, early.json()["detail"]) == (404, "there is no such workflow run")


async def test_a_run_of_a_workflow_inside_has_a_graph_of_its_own(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    inner = document({"name": "deep"})
    run_id = await start(api, {"name": "sub", "workflow": inner}, {"name": "end", "after": ["sub"]})
    await worker.all()
    outer = by_name(await graph_of(api, run_id))
    assert (outer["sub"]["kind"], outer["sub"]["state"]) == ("workflow", "succeeded")
    graph = await graph_of(api, outer["sub"]["run_id"])
    assert (graph["job"], states(graph)) == ("etl", {"deep": "succeeded"})
    deep = (await api.get(f"{API}/runs/{by_name(graph)['deep']['run_id']}")).json()
    assert (deep["workflow"]["run_id"], deep["workflow"]["job"]) == (outer["sub"]["run_id"], "etl")
    sub = (await api.get(f"{API}/runs/{outer['sub']['run_id']}")).json()
    assert (sub["workflow"]["run_id"], sub["workflow"]["node"], sub["has_nodes"]) == (run_id, "sub", True)


async def test_the_run_of_a_node_is_neither_replayed_nor_retried_by_itself(
    api: httpx2.AsyncClient, worker: ManualWorker
) -> None:
    worker.acts = {"a": failed()}
    run_id = await start(api, {"name": "a"})
    await worker.all()
    node = by_name(await graph_of(api, run_id))["a"]
    refused = await api.post(f"{API}/runs/{node['run_id']}/replay")
    assert (refused.status_code, refused.json()["detail"]) == (409, "this is the run of a node")
    refused = await api.post(f"{API}/runs/{node['run_id']}/retry")
    assert (refused.status_code, refused.json()["detail"]) == (409, "the run is dead")
    assert "bellringer workflows retry" in refused.json()["hint"]
    assert (await api.post(f"{API}/runs/{run_id}/retry")).status_code == 202  # the whole: all that did not go well


async def test_the_client_steers_too(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    """The waiting client does the same on the command line: tests/integration/cli/test_workflows.py."""
    run_id = await start(api, *MAP, {"name": "go", "signal": {}})
    transport = api._transport
    async with AsyncClient("http://test", transport=transport) as client:
        await worker.all()
        assert [(w.name, w.nodes) for w in (await client.workflows(q="et")).items] == [("etl", 4)]
        assert [e.child for e in (await client.job_graph("etl")).edges] == ["each", "sum"]
        [version] = (await client.graph_versions("etl")).items
        assert (await client.graph_difference("etl", before=version.version)).added == []
        assert (await client.run_graph(run_id)).nodes[1].reason == "the value to map over is not a list"
        assert [n.name for n in (await client.run_nodes(run_id, state="dead")).items] == ["each"]
        assert (await client.mark_node(run_id, "list", "succeeded", reason="known", result=[])).state == "running"
        assert (await client.signal(run_id, "go", {"by": "me"})).taken
        await worker.all()
        assert (await client.run(run_id)).state == "succeeded"
        assert (await client.retry_nodes(run_id, ["sum"])).state == "running"
        with pytest.raises(NotFound, match="no such node"):
            await client.mark_node(run_id, "nowhere", "dead", reason="r")


async def test_runs_that_are_none_of_a_workflow(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    run_id = (await api.post(f"{API}/jobs/execute", json={"task": "demo"})).json()["run_id"]
    for path in ("graph", "nodes"):
        assert (await api.get(f"{API}/runs/{run_id}/{path}")).status_code == 404
    body = {"node": "a", "state": "dead", "reason": "r"}
    for path, sent in (("nodes/retry", {}), ("nodes/mark", body), ("signals/x", {})):
        answer = await api.post(f"{API}/runs/{run_id}/{path}", json=sent)
        assert (answer.status_code, answer.json()["detail"]) == (404, "there is no such workflow run")


async def test_a_viewer_looks_and_an_operator_steers(
    store: Store, catalog: Catalog, tenants: Store, worker: ManualWorker
) -> None:
    app = create_app(
        store,
        catalog,
        tenants,
        version="1",
        clock=SystemClock(),
        authenticator=Authenticator(store, catalog, AuthSettings()),
    )
    heads: dict[str, dict[str, str]] = {}
    for role in ("viewer", "operator", "editor"):
        key = generate_api_key()
        await api_keys.add(store, key, tenant_id=1, name=role, role=role, who="test")
        heads[role] = {"Authorization": f"Bearer {key.text}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=20) as api:
        body = {"name": "etl", "workflow": document({"name": "s", "signal": {}})}
        assert (await api.post(f"{API}/jobs", json=body, headers=heads["operator"])).status_code == 403
        assert (await api.post(f"{API}/jobs", json=body, headers=heads["editor"])).status_code == 202
        run = (await api.post(f"{API}/jobs/etl/run", headers=heads["operator"])).json()["run_id"]
        await worker.all()
        for path in (
            f"runs/{run}/graph",
            f"runs/{run}/nodes",
            "jobs/etl/graph",
            "jobs/etl/graph/versions",
            "workflows",
        ):
            assert (await api.get(f"{API}/{path}", headers=heads["viewer"])).status_code == 200, path
        mark = {"node": "s", "state": "dead", "reason": "r"}
        acts: tuple[tuple[str, dict[str, Any], int], ...] = (
            ("signals/s", {}, 200),
            ("nodes/retry", {"nodes": ["s"]}, 202),
            ("nodes/mark", mark, 200),
        )
        for path, sent, status in acts:
            where = f"{API}/runs/{run}/{path}"
            assert (await api.post(where, json=sent, headers=heads["viewer"])).status_code == 403
            assert (await api.post(where, json=sent, headers=heads["operator"])).status_code == status, path
