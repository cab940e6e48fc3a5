"""Moves of leases are logged with their cause, and the log never stands in the way of a lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from bellringer.store import leases
from bellringer.store.connection_pool import Store, connect
from bellringer.store.leases import NodeHeartbeat, PostgresLeases

LEASE = timedelta(seconds=30)
HOUR = timedelta(hours=1)


async def join(store: Store, name: str) -> UUID:
    node_id = uuid4()
    await leases.record_heartbeat(store, NodeHeartbeat(node_id=node_id, name=name, host="h", pid=1, version="1"))
    return node_id


async def expire(store: Store, *shards: int) -> None:
    await store.pool.execute(
        "update leases set expires_at = clock_timestamp() - interval '1 s' where shard = any ($1)", list(shards)
    )


async def moves(store: Store) -> list[leases.LeaseMoveRow]:
    return await leases.list_moves(store, await leases.read_clock(store) - HOUR, None, 1000)


async def test_each_change_of_a_holder_is_logged_with_its_cause(store: Store) -> None:
    keeper, one, other = PostgresLeases(store, LEASE), await join(store, "one"), await join(store, "other")
    await keeper.acquire(one, 2, [4, 5])
    await expire(store, 4)
    await keeper.acquire(other, 1, [4])
    await keeper.install(one, {4: 1})
    tokens = {lease.shard: lease.token for lease in await leases.list_leases(store)}
    await keeper.release(one, {4: tokens[4], 5: tokens[5]})
    found = [(m.shard, m.cause, m.previous_node, m.node) for m in reversed(await moves(store))]
    assert sorted(found[:2]) == [(4, "acquired", None, "one"), (5, "acquired", None, "one")]
    assert found[2:4] == [(4, "expired", "one", "other"), (4, "replaced", "other", "one")]
    assert sorted(found[4:]) == [(4, "released", "one", None), (5, "released", "one", None)]


async def test_a_lease_says_for_how_long_its_holder_has_it(store: Store) -> None:
    keeper, one = PostgresLeases(store, LEASE), await join(store, "one")
    tokens = await keeper.acquire(one, 1, [7])
    await store.pool.execute("update leases set acquired_at = acquired_at - interval '90 s' where shard = 7")
    assert await keeper.renew(one, tokens) == {7}
    held = {lease.shard: lease.held_seconds for lease in await leases.list_leases(store)}
    assert held[7] is not None
    assert 90 <= held[7] < 120
    assert held[8] is None
    await keeper.release(one, tokens)
    assert await store.pool.fetchval("select acquired_at from leases where shard = 7") is None


async def test_renewals_log_nothing(store: Store) -> None:
    keeper, one = PostgresLeases(store, LEASE), await join(store, "one")
    tokens = await keeper.acquire(one, 64)
    before = await moves(store)
    for _ in range(3):
        assert len(await keeper.renew(one, tokens)) == 64
    await leases.set_regions(store, {1: "eu"})
    assert await moves(store) == before
    assert len(before) == 64


async def test_a_locked_log_neither_fails_nor_delays_grants_and_releases(store: Store) -> None:
    keeper, one = PostgresLeases(store, LEASE), await join(store, "one")
    holder = await connect(store.dsn)
    try:
        async with holder.transaction():
            await holder.execute("lock table bellringer.lease_moves in access exclusive mode")
            async with asyncio.timeout(10):
                tokens = await keeper.acquire(one, 64)
                assert len(tokens) == 64
                await keeper.release(one, tokens)
    finally:
        await holder.close()
    assert await moves(store) == []
    assert len(await keeper.acquire(one, 64)) == 64
    assert len(await moves(store)) == 64


async def test_a_failing_log_fails_no_grant(store: Store) -> None:
    keeper, one = PostgresLeases(store, LEASE), await join(store, "one")
    await store.pool.execute("alter table lease_moves add constraint full_disk check (false) not valid")
    tokens = await keeper.acquire(one, 3)
    assert len(tokens) == 3
    assert len(await keeper.renew(one, tokens)) == 3
    await keeper.release(one, tokens)
    assert await moves(store) == []


async def test_the_log_is_bounded(store: Store) -> None:
    await store.pool.execute(
        "insert into lease_moves (at, shard, cause, token) select clock_timestamp() - n * interval '1 minute', 1,"
        " 'acquired', 1 from generate_series(1, 100) n order by n desc"
    )
    await store.pool.execute("update lease_moves set at = at - interval '3 days' where move_id <= 10")
    await leases.prune_moves(store)
    assert await store.pool.fetchval("select count(*) from lease_moves") == 90


async def test_no_more_than_the_latest_moves_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, one = PostgresLeases(store, LEASE), await join(store, "one")
    await keeper.release(one, await keeper.acquire(one, 64))
    monkeypatch.setattr(leases, "MAX_MOVES_KEPT", 64)
    await leases.prune_moves(store)
    assert {move.cause for move in await moves(store)} == {"released"}
    assert len(await moves(store)) == 64
