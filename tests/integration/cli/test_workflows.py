"""Workflows on the command line, against a real server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from tests.support.manual_worker import ManualWorker, document, failed, join_worker, ok, start

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Ask = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


NODES = (
    {"name": "extract"},
    {"name": "transform", "over": {"node": "extract"}, "takes": {"x": {"item": True}}},
    {"name": "load", "takes": {"counts": {"node": "transform"}}},
    {"name": "approve", "signal": {}},
    {"name": "rare", "after": [{"node": "load", "is": 7}]},
    {"name": "undo", "undoes": "extract"},
)


@pytest.fixture
async def run_id(url: str, worker: ManualWorker) -> str:
    """A run of `etl` in which one of three elements has failed."""
    worker.acts = {
        "extract": ok(["a", "b", "c"]),
        "transform": lambda c: failed() if c.spec.kwargs["x"] == "b" else ok(1),
    }
    async with httpx2.AsyncClient(base_url=url, timeout=20) as api:
        made = await start(api, *NODES[:5], output="load")
    await worker.all()
    return made


async def test_a_run_is_shown_with_its_nodes(ask: Ask, run_id: str) -> None:
    shown, _ = await ask("workflows", "graph", run_id)
    facts, _, table = shown.partition("\n\n")
    assert "critical path  extract → transform" in facts
    head, *rows = table.splitlines()
    assert head.split() == ["NODE", "STATE", "TOOK", "TRY", "AFTER", "WHY"]
    assert rows[0].startswith("✓  extract ")
    assert rows[1].startswith("✕  transform ×3: 2 ✓ 1 ✕  dead ")
    assert rows[1].endswith("1 of 3 elements did not succeed")
    assert rows[2].startswith("–  load ")
    assert rows[2].endswith("an earlier node failed")
    assert rows[3].startswith("◷  approve ")
    assert rows[3].endswith("waits for signal approve")
    told = json.loads((await ask("workflows", "graph", run_id, "-o", "json"))[0])
    assert (told["run_id"], [node["name"] for node in told["nodes"]][:2]) == (run_id, ["extract", "transform"])
    dead = json.loads((await ask("workflows", "nodes", run_id, "transform", "--state", "dead", "-o", "json"))[0])
    assert [node["reason"] for node in dead] == ["ValueError: no"]
    listed = json.loads((await ask("runs", "list", "-o", "json"))[0])
    assert {run["error"] is None for run in listed if run["state"] == "succeeded"} == {True}
    assert f"bellringer workflows graph {run_id}" in (await ask("runs", "get", run_id))[0]
    assert (await ask("runs", "logs", run_id))[1] == "the run has logged nothing\n"
    names, _ = await ask("workflows", "graph", run_id, "-o", "name")
    assert names.split() == ["extract", "transform", "load", "approve", "rare"]


async def test_a_run_is_steered(ask: Ask, run_id: str, worker: ManualWorker) -> None:
    shown, _ = await ask("workflows", "nodes", run_id, "transform", "--state", "dead")
    assert shown.splitlines()[1].split()[:3] == ["✕", "transform[1]", "dead"]
    assert '"b"' in shown
    assert "ValueError: no" in shown
    worker.acts = {"load": ok(7)}
    assert (await ask("workflows", "retry", run_id, "transform[1]"))[0] == f"{run_id}  running\n"
    assert (await ask("workflows", "signal", run_id, "approve", "--payload", '{"by": "ana"}'))[
        0
    ] == "received by a waiting node\n"
    await worker.all()
    assert (await ask("runs", "get", run_id, "-o", "json"))[0].count('"succeeded"') >= 1
    again = ("workflows", "mark", run_id, "load", "dead", "--reason", "it was wrong")
    assert (await ask(*again))[0].startswith(run_id)
    assert "✕  load" in (await ask("workflows", "graph", run_id))[0]
    missing = (await ask("workflows", "retry", run_id, "nowhere", code=4))[1]
    assert "hint: list them with `bellringer workflows graph RUN`" in missing
    assert "it waits for approve" in (await ask("workflows", "signal", run_id, "other", code=4))[1]


async def test_workflows_and_their_versions_are_shown(ask: Ask, url: str, run_id: str) -> None:
    head, row = (await ask("workflows", "list"))[0].splitlines()
    assert head.split() == ["NAME", "NODES", "VERSION", "NEXT", "LAST", "TOOK", "RUN"]
    assert (row.split()[:2], row.split()[-1]) == (["etl", "5"], run_id)
    assert (await ask("workflows", "diff", "etl"))[1].endswith("is the only version\n")
    assert "5 nodes, version " in (await ask("jobs", "get", "etl"))[0]
    async with httpx2.AsyncClient(base_url=url, timeout=20) as api:
        changed = await api.patch("/api/v1/jobs/etl", json={"workflow": document(*NODES, max_parallel=4)})
        assert changed.status_code == 200, changed.text
    versions = (await ask("workflows", "versions", "etl", "-o", "name"))[0].split()
    assert len(versions) == 2
    shown, _ = await ask("workflows", "diff", "etl")
    assert shown.splitlines() == [
        f"version {versions[1]} → {versions[0]}", "+ undo", "~ workflow: output, max_parallel",
    ]  # fmt: skip
    assert (await ask("workflows", "diff", "etl", versions[0], versions[0]))[1] == "no differences\n"
    graph, _ = await ask("workflows", "graph", "etl", "--version", versions[1])
    assert "transform ≤10000  map of tasks  demo" in graph
    assert "load is 7" in graph
    assert "undo" not in graph
    assert "undoes extract" in (await ask("workflows", "graph", "etl"))[0]
    assert "no such version" in (await ask("workflows", "graph", "etl", "--version", "99", code=4))[1]


async def test_help_has_examples(ask: Ask) -> None:
    for command in ("list", "graph", "nodes", "retry", "mark", "signal", "versions", "diff"):
        shown, _ = await ask("workflows", command, "--help")
        assert f"bellringer workflows {command}" in shown.partition("Examples:")[2], command
