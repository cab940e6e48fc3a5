"""Pools' bounds and the routing of jobs, over the API, and the figures by which workers are added."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import pytest

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.store import pools, queue, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog, TaskDescription
from bellringer.store.workers import WorkerRegistration
from bellringer.worker import slots
from bellringer.worker.service import Worker, WorkerSettings

BOUNDS = {"concurrency": 100, "rate": "50/s", "timeout": "60s"}


async def _job(api: httpx2.AsyncClient, **document: Any) -> dict[str, Any]:
    made = await api.post("/api/v1/jobs", json={"name": "j", "task": "t", **document})
    assert made.status_code in {201, 202}, made.text
    answer: dict[str, Any] = (await api.get("/api/v1/jobs/j")).json()
    return answer


# Bounds


async def test_a_pools_bounds_are_kept_and_shown(api: httpx2.AsyncClient) -> None:
    before = (await api.get("/api/v1/pools/short")).json()
    assert (before["concurrency"], before["rate"], before["timeout"]) == (None, None, None)
    made = await api.put("/api/v1/pools/short", json=BOUNDS)
    assert (made.status_code, made.json()["concurrency"], made.json()["rate"]) == (200, 100, 50)
    listed = {p["name"]: p for p in (await api.get("/api/v1/pools")).json()["items"]}
    assert (listed["short"]["timeout"], listed["long"]["timeout"]) == ("1m", None)
    after = (await api.put("/api/v1/pools/short", json={"rate": "30/m"})).json()
    assert (after["concurrency"], after["rate"], after["timeout"]) == (None, 0.5, None), "what is left out is gone"


@pytest.mark.parametrize(("given", "kept"), [(50, 50), (0.5, 0.5), ("50", 50), ("90/m", 1.5), ("1/h", 1 / 3600)])
async def test_rates_may_be_written_by_the_second_the_minute_or_the_hour(
    api: httpx2.AsyncClient, given: object, kept: float
) -> None:
    assert (await api.put("/api/v1/pools/short", json={"rate": given})).json()["rate"] == pytest.approx(kept)


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"concurrency": 0}, "limit", "/concurrency"),
        ({"concurrency": -1}, "limit", "/concurrency"),
        ({"concurrency": 10**9}, "limit", "/concurrency"),
        ({"concurrency": 1.5}, "type", "/concurrency"),
        ({"rate": 0}, "limit", "/rate"),
        ({"rate": -1}, "rate_invalid", "/rate"),
        ({"rate": "50/d"}, "rate_invalid", "/rate"),
        ({"rate": "fast"}, "rate_invalid", "/rate"),
        ({"rate": "٣/s"}, "rate_invalid", "/rate"),
        ({"rate": 1e300}, "rate_invalid", "/rate"),
        ({"timeout": "0s"}, "limit", "/timeout"),
        ({"timeout": "31d"}, "limit", "/timeout"),
        ({"timeout": "soon"}, "duration_invalid", "/timeout"),
    ],
)
async def test_bad_bounds_are_refused(
    api: httpx2.AsyncClient, body: dict[str, object], code: str, pointer: str
) -> None:
    problem = (await api.put("/api/v1/pools/short", json=body)).json()
    assert (problem["status"], problem["code"], problem["errors"][0]["pointer"]) == (422, code, pointer)
    assert (await api.get("/api/v1/pools/short")).json()["concurrency"] is None


async def test_all_bad_bounds_are_reported_at_once(api: httpx2.AsyncClient) -> None:
    problem = (await api.put("/api/v1/pools/short", json={"rate": "x", "timeout": "x", "concurrency": 0})).json()
    assert {e["pointer"] for e in problem["errors"]} == {"/rate", "/timeout", "/concurrency"}


async def test_a_change_of_bounds_is_in_the_audit(api: httpx2.AsyncClient, store: Store) -> None:
    await api.put("/api/v1/pools/short", json=BOUNDS)
    fields = "action, before ->> 'rate', after ->> 'rate', after ->> 'concurrency'"
    [entry] = await store.pool.fetch(f"select {fields} from audit where target = 'short'")
    assert tuple(entry) == ("pool.changed", None, "50", "100")


async def test_the_document_of_the_api_reports_bounds(api: httpx2.AsyncClient) -> None:
    shapes = (await api.get("/api/v1/openapi.json")).json()["components"]["schemas"]
    assert {"concurrency", "rate", "timeout"} <= shapes["PoolRequest"]["properties"].keys()
    assert {"concurrency", "rate", "timeout"} <= shapes["Pool"]["properties"].keys()
    assert "expected_duration" in shapes["JobRequest"]["properties"]


# Routing


@pytest.mark.parametrize(
    ("document", "pool", "routed"),
    [
        ({}, "short", True),
        ({"expected_duration": "5m"}, "long", True),
        ({"expected_duration": 61}, "long", True),
        ({"expected_duration": "1m"}, "short", True),
        ({"expected_duration": "5m", "pool": "short"}, "short", False),
        ({"pool": "long"}, "long", False),
        ({"task": None, "http": {"url": "https://example.com/"}, "expected_duration": "5m"}, "http", False),
    ],
)
async def test_a_job_without_a_pool_goes_by_what_is_expected(
    api: httpx2.AsyncClient, document: dict[str, Any], pool: str, routed: bool
) -> None:
    given = {key: value for key, value in {"name": "j", "task": "t", **document}.items() if value is not None}
    made = await api.post("/api/v1/jobs", json=given)
    assert made.status_code in {201, 202}, made.text
    job = (await api.get("/api/v1/jobs/j")).json()
    assert (job["pool"], job["routed"]) == (pool, routed)
    bulk = await api.post("/api/v1/jobs/bulk", json={"items": [{**given, "name": f"b{n}"} for n in range(3)]})
    assert bulk.status_code < 300, bulk.text
    assert (await api.get("/api/v1/jobs/b2")).json()["pool"] == pool


async def test_a_changed_expectation_moves_a_job_and_a_named_pool_keeps_it(api: httpx2.AsyncClient) -> None:
    assert (await _job(api))["pool"] == "short"
    shown = (await api.patch("/api/v1/jobs/j", json={"expected_duration": "10m"})).json()
    assert (shown["pool"], shown["expected_duration"]) == ("long", "10m")
    assert (await api.patch("/api/v1/jobs/j", json={"pool": "short"})).json()["pool"] == "short"
    assert (await api.patch("/api/v1/jobs/j", json={"expected_duration": "20m"})).json()["pool"] == "short"
    again = (await api.patch("/api/v1/jobs/j", json={"pool": None})).json()
    assert (again["pool"], again["routed"]) == ("long", True)
    assert (await api.patch("/api/v1/jobs/j", json={"expected_duration": None})).json()["pool"] == "short"


@pytest.mark.parametrize("length", ["0s", "31d", "soon", -1])
async def test_bad_expectations_are_refused(api: httpx2.AsyncClient, length: object) -> None:
    answer = await api.post("/api/v1/jobs", json={"name": "j", "task": "t", "expected_duration": length})
    problem = answer.json()
    assert (answer.status_code, problem["errors"][0]["pointer"]) == (422, "/expected_duration")


async def test_a_dry_run_shows_where_a_job_would_go(api: httpx2.AsyncClient) -> None:
    await _job(api)
    found = await api.patch("/api/v1/jobs/j", params={"dry_run": "true"}, json={"expected_duration": "5m"})
    changes = {c["field"]: (c["before"], c["after"]) for c in found.json()["changes"]}
    assert changes == {"expected_duration": (None, "5m"), "pool": ("short", "long")}


async def test_what_code_expects_of_its_task_routes_jobs_and_sends(api: httpx2.AsyncClient, catalog: Catalog) -> None:
    task = make_task(lambda: None, name="slow", expected_duration="5m")
    await catalog.task_ids(["slow"])
    told = TaskDescription(name="slow", schema="{}", doc="", defaults='{"expected_duration": 300.0}')
    await catalog.describe_tasks([told])
    assert task.defaults == {"expected_duration": 300.0}
    assert (await _job(api, task="slow"))["pool"] == "long"
    sent = (await api.post("/api/v1/jobs/execute", json={"task": "slow"})).json()
    other = (await api.post("/api/v1/jobs/execute", json={"task": "slow", "expected_duration": "1s"})).json()
    assert (sent["pool"], other["pool"]) == ("long", "short")


# Timeouts


async def nap() -> None:
    await asyncio.sleep(60)


async def test_a_pools_timeout_ends_attempts_whose_job_says_none(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bellringer.worker.service.POOL_TIMEOUTS_REFRESH_SECONDS", 0.1)
    assert slots.POOL_TIMEOUTS_REFRESH_SECONDS == 10
    await api.put("/api/v1/pools/short", json={"timeout": "200ms"})
    registry = Registry()
    registry.add(make_task(nap, name="nap"))
    worker = Worker(store, registry, SystemClock(), WorkerSettings(pools={"short": 4}))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    order = {"task": "nap", "retry": 1}
    bounded = (await api.post("/api/v1/jobs/execute", json=order)).json()["run_id"]
    own = (await api.post("/api/v1/jobs/execute", json={**order, "timeout": "50s"})).json()["run_id"]
    run = await _ended(api, bounded)
    assert (run["state"], run["attempts"][0]["outcome"]) == ("dead", "timed_out")
    assert "200ms" in run["attempts"][0]["error"]["message"]
    assert (await api.get(f"/api/v1/runs/{own}")).json()["state"] == "running", "its own counts"
    await api.put("/api/v1/pools/short", json={"timeout": "300ms"})
    async with asyncio.timeout(20):
        while worker._pool_timeouts._timeouts["short"].total_seconds() != 0.3:  # noqa: ASYNC110 - it reads by itself
            await asyncio.sleep(0.05)
    await api.post(f"/api/v1/runs/{own}/cancel")
    stop.set()
    await running


async def _ended(api: httpx2.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            run: dict[str, Any] = (await api.get(f"/api/v1/runs/{run_id}")).json()
            if run["state"] not in {"queued", "running", "retrying"}:
                return run
            await asyncio.sleep(0.1)


# Signals


async def test_metrics_show_what_waits_in_a_pool_and_who_is_there(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    tasks = await catalog.task_ids(["nap"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 8}, task_ids=list(tasks.values()))
    number = await workers.join(store, who)
    for _ in range(7):
        await api.post("/api/v1/jobs/execute", json={"task": "nap"})
    await api.put("/api/v1/pools/short", json={"concurrency": 10})
    await store.pool.execute("update queue set available_at = available_at - interval '90 s'")
    those = "select ctid from queue where worker_id is null and blocked = 0 limit"
    first = f"update queue set {{}} where ctid = any (array({those} {{}}))"
    await store.pool.execute(first.format(f"worker_id = {number}, attempt = 1, claimed_at = now()", 4))
    await store.pool.execute(first.format("blocked = 64, sent_at = now()", 1))
    text = (await api.get("/metrics")).text

    def value(name: str, labels: str = 'pool="short"') -> float:
        found = re.search(rf"^bellringer_pool_{name}\{{{re.escape(labels)}\}} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    counts = [value("runs", f'pool="short",state="{state}"') for state in ("ready", "sent", "busy")]
    assert counts == [2, 1, 4]
    assert (value("slots"), value("workers"), value("saturation"), value("concurrency_used")) == (8, 1, 0.5, 0.5)
    assert value("oldest_waiting_seconds") >= 90
    assert value("oldest_waiting_seconds", 'pool="long"') == 0


async def test_what_waits_where_there_is_no_worker_at_all_is_a_signal_too(
    api: httpx2.AsyncClient, store: Store
) -> None:
    """Somebody has to start the first."""
    for _ in range(3):
        await api.post("/api/v1/jobs/execute", json={"task": "nap", "pool": "long"})
    await store.pool.execute("update queue set available_at = available_at - interval '90 s'")
    await queue.park_unknown_tasks(store, 100)
    [long] = [signal for signal in await pools.autoscaling_signals(store) if signal.pool == "long"]
    assert (long.ready, long.workers, long.slots) == (3, 0, 0)
    assert long.oldest >= 90
