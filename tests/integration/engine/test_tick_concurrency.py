"""Many at once, on real connections and a clock that runs: every occurrence gets exactly one run or gap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from bellringer.core.leases import Holding
from bellringer.engine import tick as ticking
from bellringer.engine.tick import TickLimits
from bellringer.errors import Conflict
from bellringer.schedule import every
from bellringer.store import cohorts
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SPEED = 5  # a job of every second strikes every 200 ms
LEASE = timedelta(minutes=5)


class Node:
    """A scheduler in miniature: reads its hands, fires them, with a connection pool of its own."""

    def __init__(self, store: Store, lead: float = 1.0, most: int = 8000) -> None:
        self.store = store
        self.catalog = Catalog(store)
        self.pace = TickLimits(lead=timedelta(seconds=lead), max_runs=most)
        self.holding = Holding(uuid4(), {})
        self.refused = 0
        self.fired = 0

    async def take(self, want: int) -> None:
        taken = await PostgresLeases(self.store, LEASE).acquire(self.holding.holder, want)
        self.holding = Holding(self.holding.holder, {**self.holding.tokens, **taken})

    async def once(self) -> int:
        """One pass; a refused shard is forgotten."""
        now = await self.store.now()
        shards = sorted(self.holding.tokens)
        hands = await cohorts.upcoming(self.store, shards, now + self.pace.lead, 1000)
        if not hands:
            return 0
        ticked = await ticking.tick(self.store, self.catalog, self.holding, hands, now, self.pace)
        if ticked.fired.refused:
            self.refused += 1
            kept = {s: t for s, t in self.holding.tokens.items() if s not in ticked.fired.refused}
            self.holding = Holding(self.holding.holder, kept)
        self.fired += ticked.fired.fired
        return len(hands)

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.once()
            await asyncio.sleep(0.005)


class Client:
    """Registers, edits, pauses and resumes jobs of its own, without a rest."""

    def __init__(self, harness: EngineHarness, number: int) -> None:
        self.harness = harness
        self.number = number
        self.chance = random.Random(number)
        self.jobs: list[UUID] = []
        self.done = 0

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            job = self.chance.choice(self.jobs) if self.jobs else None
            what = self.chance.choice(["create", "change", "change", "pause", "resume", "rest"])
            interval = every(self.chance.choice(["1s", "2s"]))
            if what == "create" or job is None:
                self.jobs.append(await self.harness.job(f"job {self.number} {self.done}", interval))
            elif what == "change":
                await self.harness.change(job, self.harness.definition(f"job {self.number} {job}", interval))
            elif what == "pause":
                await self.harness.pause(job)
            elif what == "resume":
                await self.harness.resume(job)
            else:
                await asyncio.sleep(self.chance.random() * 0.1)
            self.done += 1


async def run_for(seconds: float, stop: asyncio.Event, *work: Coroutine[None, None, None]) -> None:
    async def ring_off() -> None:
        await asyncio.sleep(seconds)
        stop.set()

    await asyncio.gather(ring_off(), *work)


async def test_the_checker_of_these_tests_sees_what_is_missing_and_what_is_too_much(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.set_clock(harness.after(5))
    await harness.tick_all()
    assert await harness.verify(harness.after(5)) == []
    await harness.sql("delete from runs where scheduled_for = $1", harness.after(2))
    assert await harness.verify(harness.after(5)) == [f"{job}: 2.0 missed"]
    await harness.sql("update runs set scheduled_for = $1 where scheduled_for = $2", harness.after(2), harness.after(3))
    await harness.sql(
        "insert into gaps (job_id, from_at, to_at, reason, recorded_at) values ($1, $2, $3, 'misfire', $3)",
        job,
        harness.after(3),
        harness.after(4.5),
    )
    assert await harness.verify(harness.after(5)) == [f"{job}: 4.0 run and gap"]
    await harness.sql(
        "update runs set scheduled_for = $1 where scheduled_for = $2", harness.after(4.2), harness.after(4)
    )
    assert await harness.verify(harness.after(5)) == [f"{job}: 4.2 not asked for"]


async def test_jobs_that_come_change_and_pause_while_their_cohorts_fire_miss_nothing(harness: EngineHarness) -> None:
    await harness.sql("update cluster set shards = 2")
    await harness.start_clock(SPEED)
    second = await Store.open(harness.store.dsn)
    nodes = [Node(harness.store, most=20), Node(second)]  # the one in small chunks, with its cursor
    for node in nodes:
        await node.take(1)
    clients = [Client(harness, number) for number in range(6)]
    stop = asyncio.Event()
    await run_for(7, stop, *(node.work(stop) for node in nodes), *(c.work(stop) for c in clients))
    until = await harness.now()
    while any([await node.once() for node in nodes]):  # what was due when the clients stopped
        if await harness.now() > until + timedelta(seconds=10):
            break
    assert sum(client.done for client in clients) > 100
    assert sum(node.fired for node in nodes) > 300
    assert await harness.verify(until) == []
    await second.close()


async def test_two_schedulers_that_take_shards_from_each_other_fire_each_occurrence_once(
    harness: EngineHarness,
) -> None:
    await harness.sql("update cluster set shards = 4")
    await harness.sql("delete from leases where shard >= 4")
    await harness.register(*(harness.definition(f"job {n}", every("1s")) for n in range(30)))
    await harness.start_clock(SPEED)
    second = await Store.open(harness.store.dsn)
    nodes = [Node(harness.store, most=5), Node(second, lead=0)]
    stop = asyncio.Event()

    async def fight() -> None:
        turn = 0
        while not stop.is_set():
            await harness.sql("update leases set expires_at = '-infinity'")
            await nodes[turn % 2].take(4)  # the other still believes that it holds them
            turn += 1
            await asyncio.sleep(0.1 + 0.1 * random.random())

    await run_for(5, stop, fight(), *(node.work(stop) for node in nodes))
    until = await harness.now()
    await harness.sql("update leases set expires_at = '-infinity'")
    await nodes[0].take(4)
    while await nodes[0].once():
        if await harness.now() > until + timedelta(seconds=10):
            break
    assert min(node.refused for node in nodes) >= 1  # else nothing was tried
    assert await harness.verify(until) == []
    assert await harness.value("select count(*) from runs") > 500
    await second.close()


async def test_a_takeover_waits_for_a_transaction_that_holds_the_fence(harness: EngineHarness) -> None:
    old = await harness.hold()
    shards, tokens = old.tokens_for([0])
    keeper = PostgresLeases(harness.store, LEASE)
    async with harness.store.pool.acquire() as firing, firing.transaction():
        assert await firing.fetchval("select bellringer.fence($1, $2, $3)", old.holder, shards, tokens) == []
        await harness.sql("update leases set expires_at = '-infinity' where shard > 0")
        taking = asyncio.create_task(
            harness.sql("update leases set holder = $1, token = token + 1 where shard = 0", uuid4())
        )
        taken = await keeper.acquire(uuid4(), 64)
        assert 0 not in taken
        assert len(taken) == 63
        await asyncio.sleep(0.1)
        assert not taking.done()
    await taking
    assert await harness.value("select bellringer.fence($1, $2, $3)", old.holder, shards, tokens) == [0]


async def test_a_fence_that_waited_for_a_takeover_refuses_the_old_holder(harness: EngineHarness) -> None:
    old = await harness.hold()
    shards, tokens = old.tokens_for([0, 1])
    async with harness.store.pool.acquire() as taking, taking.transaction():
        await taking.execute("update leases set holder = $1, token = token + 1 where shard = 0", uuid4())
        fencing = asyncio.create_task(harness.value("select bellringer.fence($1, $2, $3)", old.holder, shards, tokens))
        await asyncio.sleep(0.1)
        assert not fencing.done()
    assert await fencing == [0]


async def test_a_lease_is_granted_to_one_of_many_that_ask_at_once(harness: EngineHarness) -> None:
    keeper = PostgresLeases(harness.store, LEASE)
    grants = await asyncio.gather(*(keeper.acquire(uuid4(), 20) for _ in range(8)))
    shards = [shard for grant in grants for shard in grant]
    assert len(shards) == len(set(shards))


async def test_names_stay_unique_whatever_their_case_when_many_register_at_once(harness: EngineHarness) -> None:
    names = ["Report", "report", "REPORT", "rePort"] * 3
    answers = await asyncio.gather(*(harness.job(name, every("1h")) for name in names), return_exceptions=True)
    assert sum(isinstance(answer, UUID) for answer in answers) == 1
    assert all(isinstance(answer, UUID | Conflict) for answer in answers)
    assert await harness.value("select count(*) from members") == 1
