"""Jobs that are workflows over the API: made, changed, listed; their graphs, versions and differences."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.support.manual_worker import API, ManualWorker, document, join_worker, start

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

ETL = document(
    {"name": "extract", "takes": {"region": {"param": "region"}}},
    {"name": "transform", "over": {"node": "extract"}, "takes": {"x": {"item": True}}, "max_parallel": 20},
    {"name": "load", "takes": {"counts": {"node": "transform"}}, "after": ["extract"]},
    {"name": "weekend", "after": [{"node": "load", "is": None}]},
    {"name": "undo", "undoes": "extract"},
    params={"region": {"default": {"value": "eu"}}},
    output="load",
)


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


async def made(api: httpx2.AsyncClient, name: str = "etl", **more: Any) -> dict[str, Any]:
    answer = await api.post(f"{API}/jobs", json={"name": name, "workflow": ETL, **more})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def test_a_job_is_a_workflow(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    job = await made(api, kwargs={"region": "us"}, schedule={"every": "1h"}, expected_duration="2h")
    assert (job["task"], job["pool"], job["kwargs"]) == ("workflow", "short", {"region": "us"})
    assert job["workflow"]["nodes"] == 5
    read = (await api.get(f"{API}/jobs/etl")).json()
    assert read == job
    listed = (await api.get(f"{API}/jobs", params={"task": "workflow"})).json()["items"]
    assert [item["workflow"] for item in listed] == [job["workflow"]]
    plain = (await api.post(f"{API}/jobs", json={"name": "plain", "task": "demo"})).json()
    assert "workflow" not in plain


LARGE = "x" * 2_000


@pytest.mark.parametrize(
    ("workflow", "pointer"),
    [
        (document({"name": "a", "kwargs": {"x": LARGE}}), "/workflow/nodes/0"),
        (document({"name": "a"}, {"name": "b", "takes": {"x": {"value": LARGE}}}), "/workflow/nodes/1"),
        (document({"name": "a", "over": {"value": [LARGE]}, "takes": {"x": {"item": True}}}), "/workflow/nodes/0"),
        (document({"name": "a"}, params={"p": {"default": {"value": LARGE}}}), "/workflow/params"),
        (
            document({"name": "a", "workflow": document({"name": "b", "kwargs": {"x": LARGE}})}),
            "/workflow/nodes/0/workflow/nodes/0",
        ),
    ],
    ids=["kwargs", "takes", "over", "params", "inner"],
)
async def test_nodes_are_bounded_as_the_arguments_of_jobs_are(
    api: httpx2.AsyncClient, worker: ManualWorker, store: Store, workflow: dict[str, Any], pointer: str
) -> None:
    await store.pool.execute("""update tenants set quotas = '{"payload_bytes": 1000}'""")
    answer = await api.post(f"{API}/jobs", json={"name": "large", "workflow": workflow})
    assert (answer.status_code, answer.json()["code"]) == (422, "payload_too_large"), answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert await store.pool.fetchval("select count(*) from jobs") == 0


async def test_the_graph_of_a_job(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    job = await made(api)
    graph = (await api.get(f"{API}/jobs/etl/graph")).json()
    assert (graph["version"], graph["revision"]) == (job["workflow"]["version"], 1)
    assert (graph["output"], graph["params"]) == ("load", {"region": {"default": {"value": "eu"}}})
    assert [node["name"] for node in graph["nodes"]] == ["extract", "transform", "load", "weekend", "undo"]
    assert graph["nodes"][1] == {
        "name": "transform", "kind": "task", "task": "demo", "map": True, "when": "all_success", "undoes": None,
        "max_items": 10_000, "max_parallel": 20, "pool": "short",
    }  # fmt: skip
    assert (graph["nodes"][4]["undoes"], graph["nodes"][0]["max_items"]) == ("extract", None)
    assert graph["edges"] == [
        {"from": "extract", "to": "transform"},
        {"from": "extract", "to": "load"},
        {"from": "transform", "to": "load"},
        {"from": "load", "to": "weekend", "is": None},
    ]
    assert graph["document"] == ETL


async def test_a_workflow_inside_is_named(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    await made(api)
    outer = document(
        {"name": "one", "workflow": "etl"}, {"name": "two", "workflow": ETL}, {"name": "t", "task": "demo"}
    )
    await made(api, "outer", workflow=outer)
    nodes = (await api.get(f"{API}/jobs/outer/graph")).json()["nodes"]
    assert [(n["kind"], n["task"], n["pool"]) for n in nodes] == [
        ("workflow", "etl", None), ("workflow", None, None), ("task", "demo", "short"),
    ]  # fmt: skip


async def test_versions_and_what_differs(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    first = (await made(api))["workflow"]["version"]
    nodes = [{**node, "timeout": "5m"} if node["name"] == "load" else node for node in ETL["nodes"]]
    changed = {**ETL, "nodes": [*nodes[:3], {"name": "mail", "task": "demo", "after": ["load"]}], "max_parallel": 9}
    patched = await api.patch(f"{API}/jobs/etl", json={"workflow": changed})
    assert patched.status_code == 200, patched.text
    second = patched.json()["workflow"]["version"]
    assert (patched.json()["revision"], patched.json()["workflow"]["nodes"]) == (2, 4)

    difference = (await api.get(f"{API}/jobs/etl/graph/difference")).json()
    assert difference == {
        "from": first, "to": second, "added": ["mail"], "removed": ["weekend", "undo"],
        "changed": [{"name": "load", "fields": ["timeout"]}],
        "edges_added": [{"from": "load", "to": "mail"}],
        "edges_removed": [{"from": "load", "to": "weekend", "is": None}],
        "fields": ["max_parallel"],
    }  # fmt: skip
    back = await api.get(f"{API}/jobs/etl/graph/difference", params={"from": second, "to": first})
    assert back.json()["added"] == ["weekend", "undo"]

    rolled = await api.post(f"{API}/jobs/etl/rollback", json={"revision": 1})
    assert (rolled.json()["revision"], rolled.json()["workflow"]["version"]) == (3, first)
    versions = (await api.get(f"{API}/jobs/etl/graph/versions")).json()["items"]
    assert [(v["version"], v["revision"]) for v in versions] == [(second, 2), (first, 1)]
    old = await api.get(f"{API}/jobs/etl/graph", params={"version": second})
    assert (old.json()["revision"], len(old.json()["nodes"])) == (2, 4)
    by_revision = await api.get(f"{API}/jobs/etl/graph", params={"revision": 2})
    assert by_revision.json() == old.json()
    told = (await api.get(f"{API}/jobs/etl/revisions/2")).json()["changes"]
    assert [change["field"] for change in told] == ["workflow"]


async def test_a_patch_that_leaves_the_workflow_out_keeps_its_version(
    api: httpx2.AsyncClient, worker: ManualWorker
) -> None:
    job = await made(api)
    patched = (await api.patch(f"{API}/jobs/etl", json={"priority": 7, "kwargs": {"region": "us"}})).json()
    assert (patched["workflow"], patched["priority"], patched["kwargs"]) == (job["workflow"], 7, {"region": "us"})
    same = (await api.put(f"{API}/jobs/other", json={"workflow": ETL})).json()
    again = await api.put(f"{API}/jobs/other", json={"workflow": ETL})
    assert (again.status_code, again.json()["revision"], again.json()["workflow"]) == (200, 1, same["workflow"])
    task = await api.patch(f"{API}/jobs/etl", json={"workflow": None, "task": "demo"})
    assert (task.json()["task"], "workflow" in task.json()) == ("demo", False)
    gone = await api.get(f"{API}/jobs/etl/graph")
    assert (gone.status_code, gone.json()["detail"]) == (404, "the job is not a workflow")
    assert (await api.get(f"{API}/jobs/etl/graph", params={"revision": 1})).status_code == 200


async def test_a_dry_run_shows_that_the_workflow_changes(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    await made(api)
    answer = await api.patch(f"{API}/jobs/etl?dry_run=true", json={"workflow": document({"name": "a"})})
    assert [(c["field"], c["after"]["nodes"]) for c in answer.json()["changes"]] == [("workflow", 1)]
    answer = await api.patch(f"{API}/jobs/etl?dry_run=true", json={"workflow": None, "task": "demo"})
    assert {c["field"] for c in answer.json()["changes"]} >= {"workflow", "task"}
    assert (await api.get(f"{API}/jobs/etl")).json()["revision"] == 1


@pytest.mark.parametrize(
    ("body", "code", "pointer", "says"),
    [
        ({"workflow": {}}, "missing_field", "/workflow/nodes", "nodes is missing"),
        ({"workflow": {"nodes": []}}, "limit", "/workflow/nodes", "1 to"),
        (
            {"workflow": document({"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]})},
            "cycle", "/workflow/nodes/0", "a → b → a",
        ),
        ({"workflow": document({"name": "a", "task": "no.task"})}, "unknown_task", "/workflow/nodes/0/task", "no.task"),
        ({"workflow": document({"name": "a", "after": ["x"]})}, "unknown_node", "/workflow/nodes/0/after/0", "'x'"),
        ({"workflow": ETL, "kwargs": {"land": "eu"}}, "unexpected_argument", "/kwargs/land", "no param 'land'"),
        (
            {"workflow": document({"name": "a"}, params={"n": {}}), "schedule": {"every": "1h"}},
            "missing_argument", "/kwargs/n", "the required param 'n' is missing",
        ),
        ({"workflow": ETL, "args": [1]}, "type", "/args", "a workflow takes keyword arguments only"),
        ({"workflow": ETL, "task": "demo"}, "conflicting_fields", "/workflow", "task are both given"),
        ({"workflow": ETL, "http": {"url": "https://example.com"}}, "conflicting_fields", "/workflow", "http are both"),
        ({"task": "workflow"}, "name_reserved", "/task", "built-in"),
        ({"task": "wait"}, "name_reserved", "/task", "built-in"),
        ({"workflow": [1]}, "type", "/workflow", ""),
        (
            {"workflow": document({"name": "s", "workflow": "nowhere"})},
            "unknown_workflow", "/workflow/nodes/0/workflow", "nowhere",
        ),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_with_its_place(
    api: httpx2.AsyncClient, worker: ManualWorker, body: dict[str, Any], code: str, pointer: str, says: str
) -> None:
    refused = await api.post(f"{API}/jobs", json={"name": "bad", **body})
    fault = refused.json()["errors"][0]
    assert (refused.status_code, fault["code"], fault["pointer"]) == (422, code, pointer)
    assert says in fault["detail"]
    assert (await api.get(f"{API}/jobs/bad")).status_code == 404


async def test_many_workflows_at_once(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    items = [{"name": f"w{n}", "workflow": ETL, "kwargs": {"region": f"r{n}"}} for n in range(5)]
    done = await api.post(f"{API}/jobs/bulk", json={"items": items})
    assert done.status_code == 201, done.text
    told = [item["job"]["workflow"] for item in done.json()["items"]]
    assert told == [told[0]] * 5
    assert told[0]["nodes"] == 5
    mixed: list[dict[str, Any]] = [
        {"name": "good", "workflow": ETL},
        {"name": "bad", "workflow": ETL, "kwargs": {"x": 1}},
    ]
    each = await api.post(f"{API}/jobs/bulk", json={"items": mixed, "atomic": False})
    assert [item["status"] for item in each.json()["items"]] == [201, 422]
    none = await api.post(f"{API}/jobs/bulk", json={"items": [{**item, "name": item["name"] + "!"} for item in mixed]})
    assert (none.status_code, none.json()["errors"][0]["pointer"]) == (422, "/items/1/kwargs/x")


async def test_workflows_are_listed_by_name_with_their_last_run(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    for name in ("c", "A", "b"):
        await made(api, name)
    await api.post(f"{API}/jobs", json={"name": "plain", "task": "demo"})
    run_id = (await api.post(f"{API}/jobs/b/run")).json()["run_id"]
    await api.post(f"{API}/jobs/c/pause")
    page = (await api.get(f"{API}/workflows", params={"limit": 2})).json()
    assert [(w["name"], w["nodes"], w["paused"]) for w in page["items"]] == [("A", 5, False), ("b", 5, False)]
    assert page["items"][0]["last"] is None
    assert page["items"][1]["last"] == {"run_id": run_id, "state": "queued", "started_at": None, "finished_at": None}
    rest = (await api.get(f"{API}/workflows", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert ([(w["name"], w["paused"]) for w in rest["items"]], rest["next_cursor"]) == ([("c", True)], None)
    assert [w["name"] for w in (await api.get(f"{API}/workflows", params={"q": "A"})).json()["items"]] == ["A"]


async def test_a_manual_run_takes_the_params_of_the_workflow(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    await made(api)
    refused = await api.post(f"{API}/jobs/etl/run", json={"kwargs": {"regoin": "us"}})
    assert (refused.status_code, refused.json()["errors"][0]["hint"]) == (422, "did you mean region?")
    refused = await api.post(f"{API}/jobs/etl/run", json={"args": [1]})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/args")
    run = (await api.post(f"{API}/jobs/etl/run", json={"kwargs": {"region": "us"}})).json()
    assert (run["kwargs"], run["has_nodes"], run["blocked"], "workflow" in run) == ({"region": "us"}, True, [], False)
    await worker.all()
    ended = (await api.get(f"{API}/runs/{run['run_id']}")).json()
    assert (ended["state"], ended["reason"]) == (
        "dead",
        "node transform failed: the value to map over is not a list",
    )
    refused = await api.post(f"{API}/runs/{run['run_id']}/replay", json={"kwargs": {"x": 1}})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/kwargs/x")
    again = await api.post(f"{API}/runs/{run['run_id']}/replay", json={"kwargs": {"region": "ap"}})
    assert (again.status_code, again.json()["kwargs"]) == (202, {"region": "ap"})


async def test_a_manual_run_gives_what_the_job_leaves_open(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    await made(api, workflow=document({"name": "a"}, params={"n": {}}))
    refused = await api.post(f"{API}/jobs/etl/run")
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "missing_argument")
    assert (await api.post(f"{API}/jobs/etl/run", json={"kwargs": {"n": 1}})).status_code == 202


async def test_a_deleted_job_stops_its_nodes_where_that_is_wanted(
    api: httpx2.AsyncClient, worker: ManualWorker, store: Store
) -> None:
    await start(api, {"name": "a"}, {"name": "b", "after": ["a"]})
    await worker.step()
    assert (await api.delete(f"{API}/jobs/etl", params={"runs": "cancel"})).status_code == 204
    assert await store.pool.fetchval("select count(*) from queue where cancel_requested and blocked & 128 = 128") == 1


async def test_what_is_not_there(api: httpx2.AsyncClient, worker: ManualWorker) -> None:
    await made(api)
    await api.post(f"{API}/jobs", json={"name": "plain", "task": "demo"})
    for path in ("graph?version=99", "graph?revision=99", "graph/difference?from=99", "graph/difference?to=99"):
        assert (await api.get(f"{API}/jobs/etl/{path}")).status_code == 404, path
    for path in ("graph?version=0", "graph?version=x", "graph?version=1&revision=1", "graph?versoin=1"):
        assert (await api.get(f"{API}/jobs/etl/{path}")).status_code == 422, path
    for path in ("graph", "graph/difference"):
        assert (await api.get(f"{API}/jobs/plain/{path}")).status_code == 404, path
    assert (await api.get(f"{API}/jobs/plain/graph/versions")).json()["items"] == []
    other = (await made(api, "other", workflow=document({"name": "a"})))["workflow"]["version"]
    assert (await api.get(f"{API}/jobs/etl/graph", params={"version": other})).status_code == 404
