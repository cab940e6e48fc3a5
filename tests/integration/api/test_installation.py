"""Tasks, pools, workers and the parts of the cluster: what all tenants share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self
from uuid import uuid4

import httpx2
import pytest

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.store import leases, queue, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import NodeHeartbeat, PostgresLeases
from bellringer.store.workers import WorkerRegistration
from bellringer.worker.service import Worker, WorkerSettings


def report(days: int, title: str = "x") -> None:
    """Write a report."""


async def nap() -> None:
    await asyncio.sleep(60)


def registry() -> Registry:
    known = Registry()
    known.add(make_task(report, name="shop.report", pool="long", timeout="10m"))
    known.add(make_task(nap, name="nap"))
    return known


class Running:
    """A real worker, in this test's loop."""

    def __init__(self, store: Store, pools: dict[str, int]) -> None:
        self.stop = asyncio.Event()
        self.worker = Worker(store, registry(), SystemClock(), WorkerSettings(pools=pools, name="w1"))

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.worker.run(self.stop))
        await self.worker.started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop.set()
        await self.task


async def test_tasks_show_what_they_take_and_who_knows_them(api: httpx2.AsyncClient, store: Store) -> None:
    async with Running(store, {"short": 2}) as running:
        listed = (await api.get("/api/v1/tasks")).json()
        assert [(t["name"], t["workers"]) for t in listed["items"]] == [("nap", 1), ("shop.report", 1)]
        one = (await api.get("/api/v1/tasks/shop.report")).json()
        assert (one["doc"], one["known_by"]) == (
            "Write a report.",
            [{"worker_id": running.worker.worker_id, "name": "w1"}],
        )
        assert one["defaults"] == {"pool": "long", "timeout": 600.0}
        assert one["schema"]["required"] == ["days"]
        assert one["schema"]["properties"]["days"]["type"] == "integer"
    assert (await api.get("/api/v1/tasks/shop.report")).json()["workers"] == 0


async def test_tasks_go_by_pages(api: httpx2.AsyncClient, store: Store) -> None:
    async with Running(store, {"short": 2}):
        first = (await api.get("/api/v1/tasks?limit=1")).json()
        second = (await api.get("/api/v1/tasks", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [t["name"] for page in (first, second) for t in page["items"]] == ["nap", "shop.report"]
    assert second["next_cursor"] is None


async def test_a_task_that_only_a_job_names_is_not_reported_to_others(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/v1/jobs", json={"name": "a", "task": "secret.of.a.tenant"})
    assert made.status_code == 202
    assert (await api.get("/api/v1/tasks")).json()["items"] == []
    missing, named = await api.get("/api/v1/tasks/x"), await api.get("/api/v1/tasks/secret.of.a.tenant")
    assert (named.status_code, named.json()["detail"]) == (404, missing.json()["detail"])


async def test_pools_show_what_waits_and_who_works(api: httpx2.AsyncClient, store: Store, catalog: Catalog) -> None:
    await catalog.pool_ids(["named"])
    for _ in range(3):
        await api.post("/api/v1/jobs/execute", json={"task": "nap"})
    await api.post("/api/v1/jobs/execute", json={"task": "nap", "pool": "named", "priority": 9})
    pools = {p["name"]: p for p in (await api.get("/api/v1/pools")).json()["items"]}
    assert {"long", "named", "short"} <= pools.keys(), "the person at this machine sees all"
    short = pools["short"]
    assert (short["ready"], short["workers"], short["slots"], short["busy"]) == (3, 0, 0, 0)
    assert short["oldest"] >= 0
    assert pools["long"]["oldest"] is None
    async with Running(store, {"short": 2}):
        await _until(api, "/api/v1/pools/short", lambda p: p["busy"] >= 2)
        short = (await api.get("/api/v1/pools/short")).json()
        assert (short["workers"], short["slots"]) == (1, 2)
        for run in (await api.get("/api/v1/runs")).json()["items"]:
            await api.post(f"/api/v1/runs/{run['run_id']}/cancel")


async def test_nothing_of_a_paused_pool_is_claimed_until_it_goes_on(
    api: httpx2.AsyncClient, store: Store, catalog: Catalog
) -> None:
    await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    held = await api.put("/api/v1/pools/short", json={"description": "quick ones", "paused": True, "reason": "why"})
    paused = held.json()["paused"]
    assert (held.status_code, paused["by"], paused["reason"]) == (200, "local", "why")
    assert await _claimed(store, catalog) == 0
    again = (await api.put("/api/v1/pools/short", json={"paused": True})).json()
    assert again["paused"]["at"] == paused["at"], "it is the same pause"
    freed = (await api.put("/api/v1/pools/short", json={"description": "quick ones"})).json()
    assert (freed["paused"], freed["description"]) == (None, "quick ones")
    assert await _claimed(store, catalog) == 1


async def test_why_shows_that_the_pool_is_paused(api: httpx2.AsyncClient) -> None:
    run = (await api.post("/api/v1/jobs/execute", json={"task": "demo"})).json()
    await api.put("/api/v1/pools/short", json={"paused": True, "reason": "the disk is full"})
    told = (await api.get(f"/api/v1/runs/{run['run_id']}/explain")).json()
    [reason] = [r for r in told["reasons"] if r["code"] == "pool_paused"]
    assert reason["holds"] is True
    assert "the disk is full" in reason["text"]


async def test_a_pool_is_made_by_describing_it(api: httpx2.AsyncClient) -> None:
    assert (await api.get("/api/v1/pools/gpu")).status_code == 404
    made = await api.put("/api/v1/pools/gpu", json={"description": "with a card"})
    assert (made.status_code, made.json()["name"], made.json()["description"]) == (200, "gpu", "with a card")
    assert (await api.get("/api/v1/pools/gpu")).json() == made.json()


@pytest.mark.parametrize(
    ("name", "body", "code", "pointer"),
    [
        ("%00", {}, "name_charset", None),
        ("x" * 300, {}, "name_charset", None),
        ("gpu", {"description": "x" * 1001}, "limit", "/description"),
        ("gpu", {"reason": "x" * 1001}, "limit", "/reason"),
        ("gpu", {"slots": 5}, "unknown_field", "/slots"),
        ("gpu", {"paused": "yes"}, "type", "/paused"),
    ],
)
async def test_bad_pools_are_refused(
    api: httpx2.AsyncClient, name: str, body: dict[str, object], code: str, pointer: str | None
) -> None:
    problem = (await api.put(f"/api/v1/pools/{name}", json=body)).json()
    assert (problem["status"], problem["code"]) == (422, code)
    assert pointer is None or problem["errors"][0]["pointer"] == pointer
    assert (await api.get("/api/v1/pools/gpu")).status_code == 404


async def test_a_quiet_worker_finishes_and_claims_no_more(api: httpx2.AsyncClient, store: Store) -> None:
    async with Running(store, {"short": 2}) as running:
        path = f"/api/v1/workers/{running.worker.worker_id}"
        asked = await api.post(f"{path}/quiet")
        assert (asked.status_code, asked.json()["asked"]) == (202, "quiet")
        await _until(api, path, lambda w: w["state"] == "draining")
        await api.post("/api/v1/jobs/execute", json={"task": "nap"})
        await asyncio.sleep(0.6)  # three of its looks
        assert (await api.get("/api/v1/pools/short")).json()["ready"] == 1
        assert not running.task.done()


async def test_a_worker_that_is_asked_to_stop_ends(api: httpx2.AsyncClient, store: Store) -> None:
    async with Running(store, {"short": 2}) as running:
        path = f"/api/v1/workers/{running.worker.worker_id}"
        await api.post(f"{path}/stop")
        assert (await api.post(f"{path}/quiet")).json()["asked"] == "stop", "it is not asked for less"
        async with asyncio.timeout(30):
            await running.task
        assert (await api.get(path)).json()["state"] == "stopped"
        gone = await api.post(f"{path}/quiet")
        assert (gone.status_code, gone.json()["code"]) == (409, "state_conflict")


async def test_a_servers_own_worker_is_not_stopped_alone(api: httpx2.AsyncClient, store: Store) -> None:
    who = WorkerRegistration(name="s-http", host="h", pid=1, version="1", pools={"http": 4}, task_ids=[])
    number = await workers.join(store, who)
    assert (await api.post(f"/api/v1/workers/{number}/stop")).status_code == 409
    assert (await api.post(f"/api/v1/workers/{number}/quiet")).status_code == 202


@pytest.mark.parametrize("number", ["0", "99", "-1", "x", "1e3", "9" * 30, "٣", "%00"])
async def test_workers_that_are_not_there(api: httpx2.AsyncClient, number: str) -> None:
    answers = [await api.get(f"/api/v1/workers/{number}"), await api.post(f"/api/v1/workers/{number}/quiet")]
    assert {(a.status_code, a.json()["detail"]) for a in answers} == {(404, "there is no such worker")}


async def test_the_parts_of_the_cluster(api: httpx2.AsyncClient, store: Store) -> None:
    node = uuid4()
    await leases.record_heartbeat(store, NodeHeartbeat(node_id=node, name="n1", host="h", pid=1, version="1", skew=0.1))
    await PostgresLeases(store).acquire(node, 10)
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "schedule": {"every": "1h"}})
    await api.post("/api/v1/jobs/execute", json={"task": "demo", "delay": "1h"})
    nodes, shards, held = [
        (await api.get(f"/api/v1/cluster/{part}")).json()["items"] for part in ("nodes", "shards", "leases")
    ]
    assert [n["name"] for n in nodes] == ["n1"]
    assert len(shards) == len(held) == 64
    assert sum(s["node"] == "n1" for s in shards) == sum(row["node"] == "n1" for row in held) == 10
    assert sum(s["next_at"] is not None for s in shards) == 1
    assert sum(s["timer_at"] is not None for s in shards) == 1


async def _claimed(store: Store, catalog: Catalog) -> int:
    tasks, pools = await catalog.task_ids(["demo"]), await catalog.pool_ids(["short"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[tasks["demo"]])
    seat = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pools["short"], task_ids=[tasks["demo"]])
    taken, _ = await claim(store, seat, 10, TenantCursor())
    await queue.give_back(store, seat.worker_id, [(c.key, c.attempt) for c in taken])
    return len(taken)


async def _until(api: httpx2.AsyncClient, path: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds((await api.get(path)).json()):  # noqa: ASYNC110 - what is waited for is a row
            await asyncio.sleep(0.1)
