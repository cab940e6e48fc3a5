"""Why, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest
import uvicorn

from bellringer.api.app import create_app
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

Work = Callable[[Ending | None], Awaitable[int]]


async def _create(api: httpx2.AsyncClient, **fields: Any) -> None:
    response = await api.post("/api/v1/jobs", json={"name": "a/b c", "task": "demo", **fields})
    assert response.status_code == 202, response.text


async def test_a_job_shows_why_it_does_not_run(api: httpx2.AsyncClient, work: Work) -> None:
    await _create(api, schedule={"cron": "30 2 1 1 *"})
    await api.post("/api/v1/jobs/a%2Fb%20c/pause", json={"reason": "INC-42"})
    response = await api.get("/api/v1/jobs/a%2Fb%20c/why")
    found = response.json()
    assert response.status_code == 200
    assert (found["job"], found["task"]) == ("a/b c", "demo")
    assert found["run_id"] is found["state"] is found["at"] is None
    assert found["next_at"].endswith("-01-01T02:30:00Z")
    paused = found["reasons"][0]
    assert (paused["code"], paused["holds"], paused["fix"]) == ("job_paused", True, "bellringer jobs resume 'a/b c'")
    assert paused["text"].startswith("the job was paused by local ")
    assert paused["text"].endswith(" (INC-42), until resumed")
    assert [(r["code"], r["holds"]) for r in found["reasons"][1:]] == [
        ("shard_unheld", True),
        ("staffed", "ok"),
    ]


async def test_a_time_of_a_job_is_explained(api: httpx2.AsyncClient) -> None:
    await _create(api, schedule={"cron": "30 2 * * *", "tz": "Europe/Paris"})
    past = await api.get("/api/v1/jobs/a%2Fb%20c/why", params={"at": "2026-01-05T02:30"})
    assert past.json()["at"] == "2026-01-05T01:30:00Z"
    assert [reason["code"] for reason in past.json()["reasons"]] == ["before_job"]
    coming = await api.get("/api/v1/jobs/a%2Fb%20c/why", params={"at": "2101-07-01T02:30:00+02:00"})
    assert "in_future" in [reason["code"] for reason in coming.json()["reasons"]]


@pytest.mark.parametrize("text", ["soon", "02:30", "2026-02-30T00:00", "1800-01-01T00:00", ""])
async def test_a_time_that_cannot_be_read_is_refused(api: httpx2.AsyncClient, text: str) -> None:
    await _create(api)
    response = await api.get("/api/v1/jobs/a%2Fb%20c/why", params={"at": text})
    assert (response.status_code, response.json()["code"]) == (422, "datetime_invalid")


async def test_a_run_is_explained(api: httpx2.AsyncClient, work: Work) -> None:
    run = (await api.post("/api/v1/jobs/execute", json={"task": "demo"})).json()
    where = f"/api/v1/runs/{run['run_id']}/explain"
    ready = (await api.get(where)).json()
    assert (ready["run_id"], ready["state"], ready["job"]) == (run["run_id"], "queued", None)
    assert [reason["code"] for reason in ready["reasons"]] == ["ready", "staffed"]
    await work(None)
    assert (await api.get(where)).json()["reasons"][0]["code"] == "running"


@pytest.mark.parametrize(
    ("path", "status"),
    [("jobs/nothing/why", 404), ("runs/run_x/explain", 404), ("jobs/nothing/why?when=x", 422)],
)
async def test_what_is_not_there_cannot_be_explained(api: httpx2.AsyncClient, path: str, status: int) -> None:
    assert (await api.get(f"/api/v1/{path}")).status_code == status


@pytest.fixture
async def url(store: Store, catalog: Catalog, tenants: Store) -> AsyncIterator[str]:
    """A real server on a free port, in this test's own loop."""
    app = create_app(store, catalog, tenants, version="1.2.3", clock=SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def _call(*arguments: str) -> str:
    """In a process of its own: the server logs to this one's output."""
    command = (sys.executable, "-m", "bellringer", *arguments)
    called = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    told, complaints = await called.communicate()
    assert (called.returncode, complaints) == (0, b"")
    return told.decode()


async def test_the_command_line_prints_reasons_and_fixes(api: httpx2.AsyncClient, url: str, work: Work) -> None:
    await _create(api, schedule={"cron": "30 2 1 1 *"})
    await api.post("/api/v1/jobs/a%2Fb%20c/pause", json={"reason": "INC-42"})
    first, paused, unheld, fine, coming = (await _call("why", "a/b c", "--url", url)).splitlines()
    assert first.startswith("a/b c: the job was paused by local ")
    assert first.endswith("(INC-42), until resumed")
    assert paused.startswith("  ✕ the job is paused ")
    assert paused.endswith("   fix: bellringer jobs resume 'a/b c'")
    assert unheld.endswith("   fix: bellringer scheduler")
    assert paused.index("fix:") == unheld.index("fix:")
    assert fine == "  ✓ 1 live worker of pool short knows the task, 0 of 4 slots busy"
    assert coming.endswith("-01-01 02:30Z (if resumed before then)")
    document = json.loads(await _call("why", "a/b c", "2026-01-05T02:30", "--url", url, "-o", "json"))
    assert document["reasons"][0]["code"] == "before_job"


async def test_the_command_line_explains_a_run(api: httpx2.AsyncClient, url: str, work: Work) -> None:
    run = (await api.post("/api/v1/jobs/execute", json={"task": "demo"})).json()
    await work(None)
    shown = await _call("runs", "explain", run["run_id"], "--url", url)
    assert shown.startswith("demo at ")
    assert ": running on worker-" in shown
    assert shown.endswith(f"  run: {run['run_id']}, running\n")
