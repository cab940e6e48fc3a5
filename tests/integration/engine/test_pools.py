"""Pools: their bounds hold for all workers together, and what waits for them says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.engine import explain
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.explain import ExplainReason
from bellringer.store import pools, queue
from bellringer.store.pools import PoolSettings

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

CLAIMERS = 8
READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), 1, $2, 0, 1, $3, 'send', '{}'
from generate_series(1, $1)
"""
UNDER_WAY = "select count(*) from queue where pool_id = 1 and (worker_id is not null or blocked & 64 = 64)"


async def bound(harness: EngineHarness, **settings: float) -> None:
    await pools.save_pool(harness.store, "short", PoolSettings(**settings), who="me")  # type: ignore[arg-type]


async def fill(harness: EngineHarness, runs: int, *, priority: int = 5) -> None:
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    await harness.sql(READY, runs, task_id, priority)


async def reasons(harness: EngineHarness) -> dict[str, ExplainReason]:
    sent = await harness.send()
    told = await explain.load_run_explanation(harness.store, sent.key, tenant_id=harness.tenant)
    return {reason.code: reason for reason in told.reasons}


# Concurrency


async def test_no_more_than_its_concurrency_is_under_way_though_eight_claim_at_once(harness: EngineHarness) -> None:
    await bound(harness, concurrency=5)
    await fill(harness, 120)
    seats = [await harness.join_worker() for _ in range(CLAIMERS)]
    seen: list[int] = []
    ended = 0

    async def work(seat: ClaimSpec) -> None:
        nonlocal ended
        while ended < 120:
            taken = await harness.claim(seat, 10)
            seen.append(await harness.value(UNDER_WAY))
            if taken:
                await harness.end(seat, taken)
                ended += len(taken)
            await asyncio.sleep(0.005)

    async with asyncio.timeout(120):
        await asyncio.gather(*(work(seat) for seat in seats))
    assert ended == 120, "each run was claimed once"
    assert 1 <= max(seen) <= 5


async def test_a_lower_bound_stops_nothing_and_lets_nothing_start_until_there_is_room(harness: EngineHarness) -> None:
    await fill(harness, 10)
    seat = await harness.join_worker()
    taken = await harness.claim(seat, 6)
    await bound(harness, concurrency=3)
    assert (len(taken), await harness.claim(seat, 6)) == (6, [])
    await harness.end(seat, taken[:4])
    assert len(await harness.claim(seat, 6)) == 1
    await bound(harness)
    assert len(await harness.claim(seat, 6)) == 3, "all that was left"


async def test_what_a_broker_has_counts_as_under_way(harness: EngineHarness) -> None:
    await bound(harness, concurrency=4)
    await fill(harness, 10)
    seat = await harness.join_worker()
    sent = "select * from claim(null, 1::smallint, $1, 3, -1, 0, 3, 200) where job_id is not null"
    assert len(await harness.sql(sent, list(seat.task_ids))) == 3
    assert len(await harness.claim(seat, 10)) == 1
    assert await harness.claim(seat, 10) == []


async def test_a_bound_holds_for_runs_that_share_a_limit_too(harness: EngineHarness) -> None:
    await bound(harness, concurrency=3)
    jobs = [await harness.job(f"job {n}", max_concurrency=2) for n in range(4)]
    for job in jobs:
        await harness.trigger(job)
        await harness.trigger(job)
    await fill(harness, 10)
    seat = await harness.join_worker()
    for _ in range(5):
        await harness.claim(seat, 10)
        assert await harness.value(UNDER_WAY) <= 3
    assert await harness.value(UNDER_WAY) == 3


async def test_a_pool_without_room_leaves_the_others_alone(harness: EngineHarness) -> None:
    await bound(harness, concurrency=1)
    await fill(harness, 3)
    assert len(await harness.claim(await harness.join_worker(), 5)) == 1
    await harness.send(pool="long")
    assert len(await harness.claim(await harness.join_worker(pool="long"), 5)) == 1


# Rate


async def test_no_more_than_its_rate_starts_though_eight_claim_at_once(harness: EngineHarness) -> None:
    rate, loop = 40, asyncio.get_running_loop()
    await bound(harness, rate=rate)
    await fill(harness, 2_000)
    seats = [await harness.join_worker() for _ in range(CLAIMERS)]
    started, began = 0, loop.time()

    async def work(seat: ClaimSpec) -> None:
        nonlocal started
        while loop.time() - began < 3:
            taken = await harness.claim(seat, 25)
            started += len(taken)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(work(seat) for seat in seats))
    most = rate + rate * (loop.time() - began)  # a second's worth may be saved up
    assert 0.5 * most <= started <= most + 1


async def test_what_was_not_started_is_not_taken_off_the_rate(harness: EngineHarness) -> None:
    await bound(harness, rate=20)
    await fill(harness, 2)
    await fill(harness, 3, priority=-5)  # behind live work
    seat = await harness.join_worker()
    taken, _ = await claim(harness.store, seat, 20, TenantCursor(), background=1)
    assert len(taken) == 3
    assert await harness.value("select credit from pool_rates") >= 20 - 3
    assert len(await harness.claim(seat, 20)) == 2
    before = await harness.sql("select * from pool_rates")
    assert await harness.claim(seat, 20) == []
    assert await harness.sql("select * from pool_rates") == before, "a look that finds nothing writes nothing"


async def test_a_rate_below_one_a_second_starts_one_at_a_time(harness: EngineHarness) -> None:
    await bound(harness, rate=1 / 3600)
    await fill(harness, 5)
    seat = await harness.join_worker()
    assert len(await harness.claim(seat, 5)) == 1
    assert await harness.claim(seat, 5) == []
    await harness.sql("update pool_rates set at = at - interval '1 hour'")
    assert len(await harness.claim(seat, 5)) == 1


async def test_a_pool_without_bounds_is_claimed_without_its_lock(harness: EngineHarness) -> None:
    await fill(harness, 5)
    seat = await harness.join_worker()
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.execute(
            "select pg_advisory_xact_lock($1, 1)", AdvisoryLock.POOL
        )  # as a claim of a pool with bounds would
        assert len(await harness.claim(seat, 3)) == 3
        await other.execute("update pools set concurrency = 100 where name = 'long'")
    assert await harness.value("select count(*) from pool_rates") == 0


async def test_who_finds_a_pool_with_bounds_taken_gets_nothing_and_waits_for_no_one(harness: EngineHarness) -> None:
    await bound(harness, concurrency=100)
    await fill(harness, 5)
    seat = await harness.join_worker()
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock($1, 1)", AdvisoryLock.POOL)
        assert await harness.claim(seat, 3) == []
    assert len(await harness.claim(seat, 3)) == 3


async def test_what_is_given_back_makes_room(harness: EngineHarness) -> None:
    await bound(harness, concurrency=2)
    await fill(harness, 3)
    seat = await harness.join_worker()
    taken = await harness.claim(seat, 5)
    await queue.give_back(harness.store, seat.worker_id, [(c.key, c.attempt) for c in taken])
    assert len(await harness.claim(seat, 5)) == 2


# Why


async def test_a_run_shows_that_its_pool_is_at_its_concurrency(harness: EngineHarness) -> None:
    await bound(harness, concurrency=2)
    await fill(harness, 2)
    assert len(await harness.claim(await harness.join_worker(), 5)) == 2
    reason = (await reasons(harness))["pool_concurrency"]
    assert reason.holds is True
    assert "2 of at most 2 runs" in reason.text
    assert reason.fix == "bellringer pools set short --concurrency 4"


async def test_a_run_shows_that_its_pool_is_at_its_rate(harness: EngineHarness) -> None:
    await bound(harness, rate=0.01)
    await fill(harness, 1)
    assert len(await harness.claim(await harness.join_worker(), 5)) == 1
    reason = (await reasons(harness))["pool_rate"]
    assert reason.holds is True
    assert "0.01 runs per second" in reason.text


async def test_a_pool_that_has_room_is_not_in_the_way(harness: EngineHarness) -> None:
    await bound(harness, rate=5, concurrency=5)
    await harness.join_worker()
    found = await reasons(harness)
    assert not {"pool_rate", "pool_concurrency"} & found.keys()
    assert "ready" in found
