"""Jobs that start after another, workflow runs without a job, and waits for several runs, on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from tests.support.manual_worker import ManualWorker, join_worker, ok

from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Ask = Callable[..., Awaitable[tuple[str, str]]]
GRAPH = {"params": {"day": {}}, "nodes": [{"name": "one", "task": "demo", "takes": {"day": {"param": "day"}}}]}


@pytest.fixture
async def worker(store: Store, catalog: Catalog) -> ManualWorker:
    return await join_worker(store, catalog)


async def test_a_job_that_starts_after_another(ask: Ask) -> None:
    await ask("jobs", "create", "extract", "demo", "--every", "1h")
    await ask("jobs", "create", "load", "demo", "--after", "extract", "--after-on", "any")
    shown, _ = await ask("jobs", "get", "load")
    assert "After extract has ended" in shown
    shown, _ = await ask("jobs", "get", "extract")
    assert "load" in next(line for line in shown.splitlines() if "followed by" in line)
    await ask("jobs", "update", "load", "--after-on", "failure")
    assert json.loads((await ask("jobs", "get", "load", "-o", "json"))[0])["after"] == {
        "job": "extract",
        "on": "failure",
    }
    why, _ = await ask("why", "load")
    assert "starts after extract has failed; extract has not run yet" in why
    await ask("jobs", "update", "load", "--after", "none")
    assert json.loads((await ask("jobs", "get", "load", "-o", "json"))[0])["after"] is None
    _, refused = await ask("jobs", "create", "other", "demo", "--after", "nothing", code=2)
    assert "there is no job 'nothing' to start after" in refused


async def test_a_graph_is_started_from_a_file_or_by_name(ask: Ask, worker: ManualWorker, tmp_path: Path) -> None:
    worker.acts = {"one": ok(7)}
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(GRAPH))
    first, _ = await ask("workflows", "start", str(file), "--param", "day=today", "--send-key", "k")
    again, _ = await ask("workflows", "start", str(file), "--param", "day=today", "--send-key", "k", "-o", "json")
    assert first.split()[0] == json.loads(again)["run_id"]
    await worker.all()
    ended, _ = await ask("runs", "wait", first.split()[0], "--timeout", "10s", "-o", "json")
    assert json.loads(ended)["state"] == "succeeded"
    _, refused = await ask("workflows", "start", "etl", code=2)
    assert "there is no workflow 'etl'" in refused
    _, refused = await ask("workflows", "start", str(file), "--param", "day", code=2)
    assert "--param region=eu" in refused
    file.write_text("{")
    _, refused = await ask("workflows", "start", str(file), code=2)
    assert "is not JSON" in refused


async def test_wait_for_several_runs(ask: Ask, url: str, worker: ManualWorker) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=20) as api:
        sent = [await api.post("/api/v1/jobs/execute", json={"task": "demo", "delay": n}) for n in (0, 0, 3600)]
    first, second, late = [run.json()["run_id"] for run in sent]
    _, refused = await ask("runs", "wait", first, second, "--timeout", "0.1s", code=6)
    assert "2 of 2 runs have not ended after 0.1 s" in refused
    await worker.all()
    shown, _ = await ask("runs", "wait", first, second, "--timeout", "30s")
    assert shown.splitlines() == [f"{first}  succeeded", f"{second}  succeeded"]
    shown, _ = await ask("runs", "wait", late, second, "--any", "-o", "json")
    assert [run["run_id"] for run in json.loads(shown)] == [second]
    await ask("runs", "cancel", late)
    await ask("runs", "wait", late, second, code=3)


async def test_a_send_can_wait_for_its_run(ask: Ask, worker: ManualWorker) -> None:
    sending = asyncio.ensure_future(ask("runs", "send", "demo", "--wait", "-o", "json"))
    while not sending.done():
        await worker.all()
        await asyncio.wait([sending], timeout=0.05)
    shown, _ = await sending
    assert json.loads(shown)["state"] == "succeeded"
    _, refused = await ask("runs", "send", "demo", "--wait", "--timeout", "0.1s", code=6)
    assert "has not ended" in refused or "still" in refused
    cancelled = await ask("runs", "send", "demo", "--delay", "1h", "--send-key", "k", "-o", "name")
    await ask("runs", "cancel", cancelled[0].strip())
    shown, _ = await ask("runs", "send", "demo", "--send-key", "k", "--delay", "1h", "--wait", "-o", "name", code=3)
    assert shown == cancelled[0]
