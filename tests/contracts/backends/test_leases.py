"""What every keeper of leases keeps to, whoever grants them: one suite for memory, PostgreSQL and etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from tools.servers import Etcd

from bellringer.backends.etcd import EtcdLeases
from bellringer.backends.etcd_address import EtcdAddress
from bellringer.core.jobs import Definition
from bellringer.core.leases import Holding, LeaseKeeper, MemoryLeases
from bellringer.engine.register import create
from bellringer.engine.tick import TickLimits, tick
from bellringer.schedule import every
from bellringer.store import cohorts
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

LEASE = timedelta(seconds=2)  # the shortest that etcd knows
SHARDS = 64


@dataclass(frozen=True)
class Node:
    """One that asks for leases, by a keeper of its own."""

    keeper: LeaseKeeper
    holder: UUID = field(default_factory=uuid4)

    async def take(self, want: int, among: range | None = None) -> Mapping[int, int]:
        return await self.keeper.acquire(self.holder, want, among)

    async def renew(self, tokens: Mapping[int, int]) -> frozenset[int]:
        return await self.keeper.renew(self.holder, tokens)

    async def release(self, tokens: Mapping[int, int]) -> None:
        await self.keeper.release(self.holder, tokens)


Join = Callable[[], Node]


@pytest.fixture(params=["memory", "postgresql", "etcd"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def join(kind: str, request: pytest.FixtureRequest, store: Store) -> AsyncIterator[Join]:
    """Lets one more node join."""
    nodes: list[Node] = []
    if kind == "memory":
        shared = MemoryLeases(SHARDS, time.monotonic, LEASE)
        make: Callable[[], LeaseKeeper] = lambda: shared  # noqa: E731
    elif kind == "postgresql":
        make = lambda: PostgresLeases(store, LEASE)  # noqa: E731
    else:
        etcd: Etcd = request.getfixturevalue("etcd_server")
        address = EtcdAddress.read(f"{etcd.address}/test-{uuid4().hex}", "x")
        make = lambda: EtcdLeases(PostgresLeases(store, LEASE), address, LEASE)  # noqa: E731

    def another() -> Node:
        nodes.append(Node(make()))
        return nodes[-1]

    yield another
    for node in nodes:
        await node.keeper.close()


async def until(holds: Callable[[], Awaitable[object]], seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - the event is another server's
            await asyncio.sleep(0.05)


async def test_a_shard_has_one_holder_at_a_time(join: Join) -> None:
    one, other = join(), join()
    first = await one.take(40)
    second = await other.take(SHARDS)
    assert (len(first), len(second)) == (40, 24)
    assert first.keys() | second.keys() == set(range(SHARDS))
    assert await one.take(SHARDS) == {}


async def test_nodes_that_ask_at_the_same_moment_never_get_the_same_shard(join: Join) -> None:
    nodes = [join() for _ in range(6)]
    taken = await asyncio.gather(*(node.take(30) for node in nodes))
    shards = [shard for tokens in taken for shard in tokens]
    assert len(shards) == len(set(shards)) > 0

    async def all_taken() -> bool:
        for node in nodes:  # who has met another finds the rest the next time
            shards.extend(await node.take(30))
        return len(shards) >= SHARDS

    await until(all_taken)
    assert sorted(shards) == list(range(SHARDS))


async def test_a_node_gets_as_many_as_it_wants_and_only_of_those_that_it_names(join: Join) -> None:
    node = join()
    assert await node.take(3, range(10, 20)) != {}
    taken = await node.take(100, range(10, 20))
    assert len(taken) == 7
    assert taken.keys() <= set(range(10, 20))
    assert await node.take(5, range(0)) == {}
    assert await node.take(0, range(20, 30)) == {}
    assert (await node.take(2, range(62, 64))).keys() == {62, 63}


async def test_tokens_grow_with_every_grant_whoever_gets_it(join: Join) -> None:
    nodes, last = [join(), join()], 0
    for turn in range(6):
        node = nodes[turn % 2]
        tokens = await node.take(1, range(7, 8))
        assert tokens[7] > last
        last = tokens[7]
        await node.release(tokens)


async def test_only_what_is_ours_is_renewed(join: Join) -> None:
    one, other = join(), join()
    mine, theirs = await one.take(3, range(3)), await other.take(3, range(3, 6))
    assert await one.renew(mine) == {0, 1, 2}
    assert await one.renew(theirs) == frozenset()
    mine = {**await one.take(3, range(3)), **mine}
    assert await one.renew({shard: token + 1 for shard, token in mine.items()}) == frozenset(), "a token of no grant"
    assert await other.renew(theirs) == {3, 4, 5}
    assert await one.renew({}) == frozenset()


async def test_what_is_released_is_free_at_once(join: Join) -> None:
    one, other = join(), join()
    mine = await one.take(SHARDS)
    await one.release({5: mine[5], 9: mine[9]})
    taken = await other.take(SHARDS)
    assert taken.keys() == {5, 9}
    assert all(taken[shard] > mine[shard] for shard in taken)
    await one.release({5: mine[5]})  # too late: it is another's
    assert await other.renew(taken) == {5, 9}


async def test_what_is_not_renewed_becomes_free_and_its_old_holder_learns_so(join: Join) -> None:
    stopped, other = join(), join()
    old = await stopped.take(4, range(4))
    kept = await other.take(4, range(4, 8))
    new: dict[int, int] = {}

    async def taken_over() -> bool:
        assert await other.renew({**kept, **new}) == {**kept, **new}.keys(), "who renews keeps what it has"
        new.update(await other.take(4, range(4)))
        return len(new) == 4

    await until(taken_over)
    assert all(new[shard] > old[shard] for shard in old)
    assert await stopped.renew(old) == frozenset()
    assert await other.renew(new) == new.keys()


async def test_who_renews_keeps_its_shards_for_longer_than_a_lease(join: Join) -> None:
    node, other = join(), join()
    mine = await node.take(2, range(2))
    end = time.monotonic() + 2 * LEASE.total_seconds()
    while time.monotonic() < end:
        assert await node.renew(mine) == {0, 1}
        assert await other.take(2, range(2)) == {}
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("kind", ["postgresql", "etcd"])  # the fence is the database's
async def test_a_stale_token_is_refused_by_a_real_tick(join: Join, store: Store, catalog: Catalog) -> None:
    definition = Definition(name="job", task="demo", schedules=(every("1h"),))
    await create(store, catalog, [definition], tenant_id=1, who="test")
    await store.pool.execute("update members set active_since = now() - interval '1 minute'")
    await store.pool.execute("update cohorts set next_at = date_trunc('second', now())")
    one, other = join(), join()
    old = await one.take(SHARDS)
    await one.release(old)
    new = await other.take(SHARDS)
    assert len(new) == SHARDS

    async def ticked(node: Node, tokens: Mapping[int, int]) -> tuple[int, bool]:
        now = await store.now()
        hands = await cohorts.upcoming(store, list(range(SHARDS)), now, 10)
        fired = (await tick(store, catalog, Holding(node.holder, tokens), hands, now, TickLimits())).fired
        return fired.fired, bool(fired.refused)

    assert await ticked(one, old) == (0, True)
    assert await ticked(one, new) == (0, True), "a token alone is not enough: it names its holder"
    assert await store.pool.fetchval("select count(*) from runs") == 0
    assert await ticked(other, new) == (1, False)
