"""How far behind a cluster is: hands and timers that should have struck, and what waits in the pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx2

from bellringer.access import Caller, Role
from bellringer.api.render import documents
from bellringer.store import leases
from bellringer.store.connection_pool import Store
from bellringer.store.leases import NodeHeartbeat, PostgresLeases, ShardRow
from bellringer.store.pools import PoolSignal

from .conftest import Work


async def _lag(api: httpx2.AsyncClient) -> Any:
    return (await api.get("/api/v1/cluster")).json()["lag"]


async def test_a_cohort_that_should_have_fired_is_behind(api: httpx2.AsyncClient, store: Store) -> None:
    node = uuid4()
    await leases.record_heartbeat(store, NodeHeartbeat(node_id=node, name="n1", host="h", pid=1, version="1", skew=0.1))
    await PostgresLeases(store).acquire(node, 64)
    await api.post("/api/v1/jobs", json={"name": "a", "task": "demo", "schedule": {"every": "1h"}})
    lag = await _lag(api)
    assert (lag["firing"], lag["shards"]) == (0, [])
    shard = await store.pool.fetchval("update cohorts set next_at = now() - interval '90 s' returning shard")
    lag = await _lag(api)
    [late] = lag["shards"]
    assert (late["shard"], late["node"], late["late"]) == (shard, "n1", lag["firing"])
    assert 90 <= lag["firing"] < 300
    shown = (await api.get("/api/v1/cluster/shards")).json()["items"]
    assert [row["shard"] for row in shown if row["late"] >= 90] == [shard]
    assert {row["late"] for row in shown if row["shard"] != shard} == {0}


async def test_a_timer_that_is_due_is_behind_too(api: httpx2.AsyncClient, store: Store) -> None:
    await api.post("/api/v1/jobs/execute", json={"task": "demo", "delay": "1h"})
    assert (await _lag(api))["firing"] == 0
    shard = await store.pool.fetchval("update timers set due_at = now() - interval '30 s' returning shard")
    [late] = (await _lag(api))["shards"]
    assert (late["shard"], late["node"]) == (shard, None)
    assert late["late"] >= 30


async def test_what_waits_in_a_pool_is_ready_sent_or_running(api: httpx2.AsyncClient, store: Store, work: Work) -> None:
    async def short() -> Any:
        return next(pool for pool in (await _lag(api))["pools"] if pool["pool"] == "short")

    for _ in range(3):
        await api.post("/api/v1/jobs/execute", json={"task": "demo"})
    await store.pool.execute("update queue set available_at = now() - interval '45 s'")
    found = await short()
    assert (found["ready"], found["sent"], found["running"]) == (3, 0, 0)
    assert found["oldest"] >= 45
    await store.pool.execute("update queue set blocked = 64, sent_at = now()")  # a broker has them all
    found = await short()
    assert (found["ready"], found["sent"], found["running"]) == (0, 3, 0)
    await store.pool.execute("update queue set blocked = 0, sent_at = null")
    assert await work(None) == 3
    found = await short()
    assert (found["ready"], found["sent"], found["running"], found["oldest"]) == (0, 0, 3, 0)


def test_a_tenant_does_not_see_pools_that_only_others_name() -> None:
    served = PoolSignal(pool="short", ready=1, sent=0, busy=0, oldest=1.0, workers=1, slots=4, concurrency=None)
    signals = [served, replace(served, pool="secret-merger", workers=0)]
    never: dict[str, None] = {"region": None, "next_at": None, "timer_at": None}
    row = ShardRow(shard=7, holder=uuid4(), node="inner-host-4711", token=1, late=2.0, **never)
    tenant = documents.render_lag([row], signals, {}, Caller(tenant_id=2, tenant="beta", role=Role.VIEWER, who="t"))
    assert [pool.pool for pool in tenant.pools] == ["short"]
    assert [shard.node for shard in tenant.shards] != ["inner-host-4711"]
    everywhere = Caller(tenant_id=2, tenant="beta", role=Role.OPERATOR, who="r", everywhere=True)
    root = documents.render_lag([row], signals, {"short": 3}, everywhere)
    assert [pool.unread for pool in root.pools] == [3, None]
    assert [pool.pool for pool in root.pools] == ["short", "secret-merger"]
    assert [shard.node for shard in root.shards] == ["inner-host-4711"]
