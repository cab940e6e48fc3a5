"""Races of runs that overlap, on real connections: never two under way, nobody waits for ever, each ends once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest

from bellringer.core.leases import Holding
from bellringer.core.policies import Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine import claim, settle
from bellringer.engine import tick as ticking
from bellringer.engine.claim import ClaimSpec, TenantCursor
from bellringer.engine.reap import reap
from bellringer.engine.tick import TickLimits
from bellringer.schedule import every
from bellringer.schedule.instants import EPOCH
from bellringer.store import cohorts, queue, runs
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.queue import ClaimedRun

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

WAITING = [Overlap.SKIP, Overlap.QUEUE, Overlap.COLLAPSE, Overlap.REPLACE]
START = (EPOCH, UUID(int=0))
SILENCE = timedelta(minutes=30)
SPEED = 5


@asynccontextmanager
async def unfinished(harness: EngineHarness) -> AsyncIterator[EngineHarness]:
    """A harness whose steps are all in one transaction, which commits at the end."""
    connection = await asyncpg.connect(
        harness.store.dsn, server_settings={"search_path": "bellringer", "timezone": "UTC"}
    )
    try:
        async with connection.transaction():
            store = Store(cast("asyncpg.Pool[asyncpg.Record]", connection), harness.store.dsn)
            store.days = set(harness.store.days)
            yield type(harness)(store, harness.catalog, harness.noon, harness.tenant, harness.holding)
    finally:
        await connection.close()


async def meanwhile(step: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin a step, and give it time to come as far as it can."""
    begun = asyncio.ensure_future(step)
    await asyncio.sleep(0.15)
    return begun


async def under_way(harness: EngineHarness, overlap: Overlap, **more: Any) -> tuple[UUID, ClaimSpec, ClaimedRun]:
    """A job of every ten seconds whose first run is under way, at 10."""
    job = await harness.job("job", every("10s"), overlap=overlap, **more)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    return job, seat, await harness.claim_one(seat)


async def sweep(store: Store) -> None:
    """What a scheduler does every few seconds."""
    after: tuple[Any, UUID] | None = START
    while after is not None:
        after = await queue.unblock_orphans(store, after, 1000)
    await queue.decide_overlaps(store, 1000)


async def endings(harness: EngineHarness, job: UUID) -> dict[float, list[str]]:
    """How each run of the schedule ended, as often as it did."""
    found: dict[float, list[str]] = {second: [] for second in await harness.fired(job)}
    for row in await harness.sql("select scheduled_for, ends_as from attempts where job_id = $1 and slot = 0", job):
        if row["ends_as"] is not None:
            found[harness.seconds(row["scheduled_for"])].append(row["ends_as"])
    return found


# Two at once, in a known order


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_settle_waits_for_the_tick_that_saw_its_run_and_then_lets_the_next_go(
    harness: EngineHarness, overlap: Overlap
) -> None:
    job, seat, first = await under_way(harness, overlap)
    await harness.set_clock(harness.after(19.5))
    async with unfinished(harness) as other:
        assert (await other.tick(lead=1)).fired.fired == 1
        settling = await meanwhile(harness.end(seat, first))
        assert not settling.done()
    assert await settling == 1
    await harness.set_clock(harness.after(20))
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_tick_that_meets_a_settle_leaves_no_run_waiting(harness: EngineHarness, overlap: Overlap) -> None:
    job, seat, first = await under_way(harness, overlap)
    await harness.set_clock(harness.after(19.5))
    async with unfinished(harness) as other:
        assert await other.end(seat, first) == 1
        ticking_ = await meanwhile(harness.tick(lead=1))
    await ticking_
    await harness.set_clock(harness.after(20))
    await sweep(harness.store)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_tick_that_meets_a_cancel_leaves_no_run_waiting(harness: EngineHarness, overlap: Overlap) -> None:
    job = await harness.job("job", every("10s"), overlap=overlap)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    await harness.set_clock(harness.after(19.5))
    async with unfinished(harness) as other:
        assert await other.cancel(harness.key(job, 10)) is State.CANCELLED
        ticking_ = await meanwhile(harness.tick(lead=1))
    await ticking_
    await harness.set_clock(harness.after(20))
    await sweep(harness.store)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
@pytest.mark.parametrize("order", ["settle first", "decision first"])
async def test_a_settle_and_a_decision_at_once_end_each_run_once(
    harness: EngineHarness, overlap: Overlap, order: str
) -> None:
    job, seat, first = await under_way(harness, overlap)
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    await harness.set_clock(harness.after(20))
    async with unfinished(harness) as other:
        if order == "settle first":
            assert await other.end(seat, first) == 1
            second = await meanwhile(queue.decide_overlaps(harness.store, 100))
        else:
            await queue.decide_overlaps(other.store, 100)
            second = await meanwhile(harness.end(seat, first))
    await second
    await sweep(harness.store)
    await harness.end(seat, await harness.claim(seat))
    assert await harness.queued(job) == []
    ends = await endings(harness, job)
    assert ends[10] == ["succeeded"]
    assert ends[20] == (["skipped"] if overlap is Overlap.SKIP else ["succeeded"])


async def test_a_settle_that_meets_a_decision_on_the_same_run_is_written(harness: EngineHarness) -> None:
    job, seat, first = await under_way(harness, Overlap.COLLAPSE)
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    await harness.set_clock(harness.after(29.5))
    await harness.tick_all(lead=1)
    await harness.set_clock(harness.after(30))
    async with unfinished(harness) as other:
        assert await queue.decide_overlaps(other.store, 100) == 1  # 30 is coalesced into 20
        settling = await meanwhile(harness.end(seat, first))
        assert not settling.done()
    assert await settling == 1
    await sweep(harness.store)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)
    assert (await endings(harness, job))[30] == ["skipped"]


async def test_two_runs_of_a_job_that_end_at_once_leave_no_run_waiting_forever(harness: EngineHarness) -> None:
    job, seat, first = await under_way(harness, Overlap.QUEUE)
    await harness.trigger(job)
    manual = await harness.claim_one(seat)
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    async with unfinished(harness) as one, unfinished(harness) as two:
        assert await one.end(seat, first) == 1
        assert await two.end(seat, manual) == 1  # each still sees the other
    await sweep(harness.store)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_two_decisions_at_once_end_each_run_once(harness: EngineHarness) -> None:
    job, _, _ = await under_way(harness, Overlap.SKIP)
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    await harness.set_clock(harness.after(20))
    async with unfinished(harness) as other:
        assert await queue.decide_overlaps(other.store, 100) == 1
        second = await meanwhile(queue.decide_overlaps(harness.store, 100))
        assert await second == 0  # it is passed over, not waited for
    assert (await endings(harness, job))[20] == ["skipped"]


async def test_a_decision_to_replace_does_not_wait_for_a_settle(harness: EngineHarness) -> None:
    job, seat, first = await under_way(harness, Overlap.REPLACE)
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    await harness.set_clock(harness.after(20))
    async with unfinished(harness) as other:
        assert await other.end(seat, first) == 1
        deciding = await meanwhile(queue.decide_overlaps(harness.store, 100))
        assert deciding.done()
    await sweep(harness.store)
    assert await harness.state(first.key) is State.SUCCEEDED
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_reaper_and_a_settle_at_once_free_what_waits_once(harness: EngineHarness, overlap: Overlap) -> None:
    job, seat, first = await under_way(harness, overlap, retry=Retry(1))
    await harness.set_clock(harness.after(19.5))
    await harness.tick_all(lead=1)
    await harness.silence_worker(seat)
    async with unfinished(harness) as other:
        assert await other.end(seat, first) == 1
        reaping = await meanwhile(reap(harness.store, harness.catalog, SILENCE))
    assert await reaping == 0
    await harness.set_clock(harness.after(20))
    await sweep(harness.store)
    assert (await harness.claim_one(await harness.join_worker())).key == harness.key(job, 20)
    assert (await endings(harness, job))[10] == ["succeeded"]


async def test_a_claim_passes_over_what_a_tick_looks_at(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    for second in (10, 20):
        await harness.set_clock(harness.after(second))
        if second == 10:
            await harness.tick_all()
    async with unfinished(harness) as other:
        await other.tick()
        assert await harness.claim(seat) == []  # it does not wait
    assert (await harness.claim_one(seat)).key == harness.key(job, 10)


async def test_a_pause_and_a_settle_at_once_hold_what_is_freed(harness: EngineHarness) -> None:
    job, seat, first = await under_way(harness, Overlap.QUEUE)
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    async with unfinished(harness) as other:
        await other.pause(job)
        settling = await meanwhile(harness.end(seat, first))
    assert await settling == 1
    await sweep(harness.store)
    assert await harness.claim(seat) == []
    await harness.resume(job)
    await sweep(harness.store)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


# Everything at once


@dataclass
class Record:
    """What workers did, by one clock: from when to when each attempt was under way at the least."""

    spans: dict[UUID, list[tuple[float, float, RunKey]]] = field(default_factory=lambda: defaultdict(list))
    collisions: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    def overlaps(self, jobs: Sequence[UUID]) -> list[str]:
        found = []
        for job in jobs:
            spans = sorted(self.spans[job])
            for (_, end, one), (start, _, two) in pairwise(spans):
                if start < end:
                    found.append(f"{one} and {two}")
        return found


@dataclass
class Crowd:
    """Schedulers and workers, each with connections of its own, around one database."""

    harness: EngineHarness
    record: Record = field(default_factory=Record)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def steadily(self, name: str, step: Callable[[], Awaitable[Any]], pause: float) -> None:
        """Repeat a step; what two writers cost each other is counted and tried again."""
        while not self.stop.is_set():
            try:
                await step()
            except RETRYABLE_ERRORS as error:
                self.record.collisions[f"{name}: {type(error).__name__}"] += 1
            await asyncio.sleep(pause * random.random())

    async def schedule(self, store: Store, want: int, most: int) -> None:
        """A scheduler: its hands, and the sweeps."""
        catalog = Catalog(store)
        holder = uuid4()
        holding = Holding(holder, await PostgresLeases(store, timedelta(minutes=5)).acquire(holder, want))
        pace = TickLimits(lead=timedelta(seconds=1), max_runs=most)

        async def fire() -> None:
            now = await store.now()
            hands = await cohorts.upcoming(store, sorted(holding.tokens), now + pace.lead, 1000)
            if hands:
                await ticking.tick(store, catalog, holding, hands, now, pace)

        await asyncio.gather(
            self.steadily("fire", fire, 0.02),
            self.steadily("decide", lambda: queue.decide_overlaps(store, 1000), 0.05),
            self.steadily("sweep", lambda: sweep(store), 0.4),
        )

    async def work(self, store: Store, number: int, most: int) -> None:
        """A worker: claims, runs for a while, ends; some attempts fail, some are given back, some workers vanish."""
        chance = random.Random(number)
        seat = await self.harness.join_worker()

        async def once() -> None:
            nonlocal seat
            taken, _ = await claim.claim(store, seat, most, TenantCursor())
            began = monotonic()
            await asyncio.sleep(0.05 * chance.random())
            if chance.random() < 0.03:
                self._note(taken, began)
                await self.harness.silence_worker(seat)
                self.record.lost += len(taken)
                seat = await self.harness.join_worker()
                return
            self._note(taken, began)
            batch = [settle.decide(c, self._ending(chance)) for c in taken]
            await self._insist("settle", lambda: settle.settle(store, seat.worker_id, batch))

        await self.steadily("work", once, 0.01)

    def _note(self, taken: Sequence[ClaimedRun], began: float) -> None:
        ended = monotonic()
        for claimed in taken:
            if claimed.key.slot == 0:
                self.record.spans[claimed.key.job_id].append((began, ended, claimed.key))

    @staticmethod
    def _ending(chance: random.Random) -> Ending:
        if chance.random() < 0.2:
            return Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no", "lineage": []})
        return Ending(outcome=Outcome.OK)

    async def _insist(self, name: str, step: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(20):
            try:
                await step()
                return
            except RETRYABLE_ERRORS as error:
                self.record.collisions[f"{name}: {type(error).__name__}"] += 1
        raise AssertionError("an ending could not be written")

    async def meddle(self, store: Store, jobs: Sequence[UUID]) -> None:
        """An operator: runs by hand, and cancels of whatever is in the queue."""

        async def once() -> None:
            job = random.choice(jobs)
            if random.random() < 0.5:
                await self.harness.trigger(job)
                return
            rows = await store.pool.fetch("select scheduled_for, slot from queue where job_id = $1 limit 3", job)
            for row in rows[-1:]:
                await runs.cancel(store, RunKey(job, row[0], row[1]), self.harness.tenant, "no")

        await self.steadily("meddle", once, 0.02)

    async def reap(self, store: Store) -> None:
        await self.steadily("reap", lambda: reap(store, self.harness.catalog, SILENCE), 0.2)


async def drain(harness: EngineHarness) -> None:
    """Let all that is left come to its end."""
    seat = await harness.join_worker()
    for _ in range(200):
        await reap(harness.store, harness.catalog, SILENCE)
        await sweep(harness.store)
        claimed = await harness.claim(seat, 1000)
        await harness.end(seat, claimed)
        if not await harness.value("select count(*) from queue"):
            return
        await harness.pass_time(1)
    left = await harness.sql("select blocked, worker_id, cause, count(*) from queue group by 1, 2, 3")
    raise AssertionError(f"these never ended: {[tuple(row) for row in left]}")


@pytest.mark.parametrize("meddled", [False, True])
async def test_a_crowd_never_runs_two_of_a_job_and_never_leaves_one_waiting(
    harness: EngineHarness, meddled: bool
) -> None:
    await harness.sql("update cluster set shards = 2")
    policies = [WAITING[n % 4] for n in range(24)]
    definitions = [
        harness.definition(f"job {n}", every("1s"), overlap=overlap, retry=Retry(3, base="1s", cap="2s"))
        for n, overlap in enumerate(policies)
    ]
    jobs = [registered.job_id for registered in await harness.register(*definitions)]
    await harness.start_clock(SPEED)
    stores = [await Store.open(harness.store.dsn, size=3) for _ in range(6)]
    crowd = Crowd(harness)

    async def ring_off() -> None:
        await asyncio.sleep(6)
        crowd.stop.set()

    tasks = [
        ring_off(),
        crowd.schedule(stores[0], 1, 5),
        crowd.schedule(stores[1], 1, 8000),
        *(crowd.work(store, number, 6) for number, store in enumerate(stores[2:5])),
        crowd.reap(stores[5]),
    ]
    if meddled:
        tasks.append(crowd.meddle(stores[5], jobs))
    await asyncio.gather(*tasks)
    await harness.sql("delete from members")  # nothing new is born
    await drain(harness)
    for store in stores:
        await store.close()
    assert sum(map(len, crowd.record.spans.values())) > 200
    assert crowd.record.lost > 0
    assert crowd.record.overlaps(jobs) == []
    await assert_all_ended_once(harness)
    print(dict(crowd.record.collisions))  # told when the test fails


async def assert_all_ended_once(harness: EngineHarness) -> None:
    unended = await harness.value(
        "select count(*) from runs r where (select count(*) from attempts a where a.job_id = r.job_id"
        " and a.scheduled_for = r.scheduled_for and a.slot = r.slot and a.ends_as is not null) <> 1"
    )
    assert unended == 0


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_herd_that_is_settled_while_it_is_fired_comes_through(harness: EngineHarness, overlap: Overlap) -> None:
    """Thousands of predecessors end in batches that cross the order of the fire; a deadlock is tried again."""
    count = 3000
    await harness.sql("update cluster set shards = 4")
    schedules = ["10s", "20s", "5s"]
    await harness.register(
        *(harness.definition(f"job {n}", every(schedules[n % 3]), overlap=overlap) for n in range(count))
    )
    await harness.set_clock(harness.after(20))
    await harness.sql("update cohorts set next_at = $1", harness.after(20))
    assert await harness.tick_all() == count
    seat = await harness.join_worker()
    claimed = await harness.claim(seat, count)
    assert len(claimed) == count
    random.Random(1).shuffle(claimed)
    await harness.set_clock(harness.after(39.5))
    await harness.sql("update cohorts set next_at = $1", harness.after(40))
    second = await Store.open(harness.store.dsn, size=8)
    collisions: Counter[str] = Counter()

    async def insist(name: str, step: Callable[[], Awaitable[Any]]) -> None:
        for _ in range(30):
            try:
                await step()
                return
            except RETRYABLE_ERRORS as error:
                collisions[f"{name}: {type(error).__name__}"] += 1
        raise AssertionError(f"{name} never succeeded: {collisions}")

    async def settle_all() -> None:
        batches = [claimed[n : n + 250] for n in range(0, count, 250)]
        other = type(harness)(second, Catalog(second), harness.noon)
        await asyncio.gather(*(insist("settle", lambda b=b: other.end(seat, b)) for b in batches))  # type: ignore[misc]

    started = monotonic()
    await asyncio.gather(insist("tick", lambda: harness.tick_all(lead=1, most=1000)), settle_all())
    spent = monotonic() - started
    await harness.set_clock(harness.after(40))
    await sweep(harness.store)
    await second.close()
    assert await harness.value("select count(*) from runs") == 2 * count
    assert len(await harness.claim(seat, count)) == count, collisions
    assert spent < 20, collisions
    print(spent, dict(collisions))  # told when the test fails
