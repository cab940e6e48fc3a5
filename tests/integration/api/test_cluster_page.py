"""What the cluster page of the console reads: moves of leases, and the health of the database server."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from bellringer.store import leases, server_stats
from bellringer.store.connection_pool import Store, connect
from bellringer.store.leases import NodeHeartbeat, PostgresLeases


async def join(store: Store, name: str) -> UUID:
    node_id = uuid4()
    await leases.record_heartbeat(store, NodeHeartbeat(node_id=node_id, name=name, host="h", pid=1, version="1"))
    return node_id


async def test_moves_of_leases_are_listed_latest_first_in_pages(api: httpx2.AsyncClient, store: Store) -> None:
    keeper, one, other = PostgresLeases(store), await join(store, "one"), await join(store, "other")
    tokens = await keeper.acquire(one, 3, [0, 1, 2])
    await keeper.release(one, {2: tokens[2]})
    await keeper.acquire(other, 1, [2])
    items: list[Any] = []
    cursor: dict[str, str] = {}
    since = set()
    while True:
        page = (await api.get("/api/v1/cluster/moves", params={"limit": 2, **cursor})).json()
        assert len(page["items"]) <= 2
        items += page["items"]
        since.add(page["since"])
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(since) == 1  # all pages show the same period
    newest, released, *granted = items
    assert (newest["shard"], newest["cause"], newest["node"], newest["previous"]) == (2, "acquired", "other", None)
    assert newest["holder"] == str(other)
    assert (released["cause"], released["previous_node"], released["holder"]) == ("released", "one", None)
    assert {(move["shard"], move["cause"], move["node"]) for move in granted} == {
        (n, "acquired", "one") for n in range(3)
    }
    shown = (await api.get("/api/v1/cluster")).json()["leases"]
    assert 0 <= shown[2]["held_seconds"] <= shown[0]["held_seconds"] < 60
    assert shown[9]["held_seconds"] is None


async def test_moves_before_the_period_are_left_out(api: httpx2.AsyncClient, store: Store) -> None:
    await PostgresLeases(store).acquire(await join(store, "one"), 2)
    await store.pool.execute("update lease_moves set at = at - interval '5 hours' where shard = 0")
    for hours, shards in ((1, {1}), (6, {0, 1})):
        page = (await api.get("/api/v1/cluster/moves", params={"hours": hours})).json()
        assert {move["shard"] for move in page["items"]} == shards


async def test_the_health_of_the_database(api: httpx2.AsyncClient, store: Store) -> None:
    found = (await api.get("/api/v1/cluster/database")).json()
    assert found["version"].split(".")[0].isdigit()
    assert 0 < found["round_trip_seconds"] < 5
    assert 0 < found["connections"]["used"] <= found["connections"]["max"]
    assert found["database_bytes"] > 1_000_000
    assert (found["long_transactions"], found["missing_partitions"]) == ([], 0)
    await store.pool.execute("drop table bellringer.logs_" + (await store.now()).strftime("%Y%m%d"))
    assert (await api.get("/api/v1/cluster/database")).json()["missing_partitions"] == 1


async def test_an_old_transaction_is_shown(
    api: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_stats, "LONG_TRANSACTION", server_stats.LONG_TRANSACTION / 300)
    session = await connect(store.dsn)
    try:
        async with session.transaction():
            await session.execute("set local application_name = 'report'")
            await asyncio.sleep(0.3)
            found = (await api.get("/api/v1/cluster/database")).json()["long_transactions"]
            [oldest] = [transaction for transaction in found if transaction["application"] == "report"]
            assert oldest["seconds"] >= 0.2
            assert oldest["state"] == "idle in transaction"
            assert oldest["pid"] == await session.fetchval("select pg_backend_pid()")
    finally:
        await session.close()
