"""Why a node does not start, and runs of nodes in lists, on the command line."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from tests.support.manual_worker import ManualWorker, join_worker, ok, start

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Ask = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
async def run_id(url: str, store: Store, catalog: Catalog) -> str:
    """A run of `etl` whose map has run, and which waits for a signal."""
    worker: ManualWorker = await join_worker(store, catalog)
    worker.acts = {"extract": ok([1, 2])}
    async with httpx2.AsyncClient(base_url=url, timeout=20) as api:
        made = await start(
            api,
            {"name": "extract"},
            {"name": "transform", "over": {"node": "extract"}, "takes": {"x": {"item": True}}},
            {"name": "approve", "signal": {}, "after": ["transform"]},
            {"name": "load", "after": ["approve"]},
        )
    await worker.all()
    return made


async def test_why_of_a_node(ask: Ask, run_id: str) -> None:
    first, fix, *others = (await ask("why", run_id, "--node", "load"))[0].splitlines()
    assert first.startswith("etl/load at ")
    assert first.endswith(": the node waits for approve (waiting)")
    assert fix.endswith(f"fix: bellringer why {run_id} --node approve")
    assert others == []
    told = json.loads((await ask("why", run_id, "--node", "approve", "-o", "json"))[0])
    assert (told["reasons"][0]["code"], told["workflow"]["node"]) == ("waits_for_signal", "approve")
    whole = (await ask("runs", "explain", run_id))[0]
    assert "the workflow is running: 2 of 4 nodes have ended; waits for the signal approve" in whole
    assert (await ask("why", run_id))[0].startswith("etl")
    assert "no such node" in (await ask("why", run_id, "--node", "nowhere", code=4))[1]
    assert "--node needs the id of a workflow run" in (await ask("why", "etl", "--node", "load", code=2))[1]


async def test_runs_of_nodes_have_names(ask: Ask, run_id: str) -> None:
    head, *rows = (await ask("runs", "list"))[0].splitlines()
    assert head.split()[:2] == ["STATE", "JOB"]
    named = {row.split()[1]: row for row in rows}
    assert set(named) == {"etl", "etl/extract", "etl/transform[0]", "etl/transform[1]", "etl/approve"}
    node = named["etl/transform[1]"].split()[-1]
    shown = (await ask("runs", "get", node))[0]
    assert f"etl/transform[1] of {run_id}" in shown
    assert "etl/transform[1]" in (await ask("runs", "explain", node))[0].splitlines()[0]
