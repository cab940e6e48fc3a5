"""Pools: their bounds hold for all workers together, and what waits for them says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bellringer.lifecycle import explain
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.reasons import Reason
from bellringer.store import installation, queue
from bellringer.store.installation import PoolSettings

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

CLAIMERS = 8
READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), 1, $2, 0, 1, $3, 'send', '{}'
from generate_series(1, $1)
"""
UNDER_WAY = "select count(*) from queue where pool_id = 1 and (worker_id is not null or blocked & 64 = 64)"


async def bound(bench: Bench, **settings: float) -> None:
    await installation.keep_pool(bench.store, "short", PoolSettings(**settings), who="me")  # type: ignore[arg-type]


async def fill(bench: Bench, runs: int, *, priority: int = 5) -> None:
    task_id = (await bench.names.task_ids(["greet"]))["greet"]
    await bench.sql(READY, runs, task_id, priority)


async def reasons(bench: Bench) -> dict[str, Reason]:
    sent = await bench.send()
    told = await explain.run(bench.store, sent.key, tenant_id=bench.tenant)
    return {reason.code: reason for reason in told.reasons}


# Concurrency


async def test_no_more_than_its_concurrency_is_under_way_though_eight_claim_at_once(bench: Bench) -> None:
    await bound(bench, concurrency=5)
    await fill(bench, 120)
    seats = [await bench.seat() for _ in range(CLAIMERS)]
    seen: list[int] = []
    ended = 0

    async def work(seat: Seat) -> None:
        nonlocal ended
        while ended < 120:
            taken = await bench.claim(seat, 10)
            seen.append(await bench.value(UNDER_WAY))
            if taken:
                await bench.end(seat, taken)
                ended += len(taken)
            await asyncio.sleep(0.005)

    async with asyncio.timeout(120):
        await asyncio.gather(*(work(seat) for seat in seats))
    assert ended == 120, "each run was claimed once"
    assert 1 <= max(seen) <= 5


async def test_a_lower_bound_stops_nothing_and_lets_nothing_start_until_there_is_room(bench: Bench) -> None:
    await fill(bench, 10)
    seat = await bench.seat()
    taken = await bench.claim(seat, 6)
    await bound(bench, concurrency=3)
    assert (len(taken), await bench.claim(seat, 6)) == (6, [])
    await bench.end(seat, taken[:4])
    assert len(await bench.claim(seat, 6)) == 1
    await bound(bench)
    assert len(await bench.claim(seat, 6)) == 3, "all that was left"


async def test_what_a_broker_has_counts_as_under_way(bench: Bench) -> None:
    await bound(bench, concurrency=4)
    await fill(bench, 10)
    seat = await bench.seat()
    sent = "select * from claim(null, 1::smallint, $1, 3, -1, 0, 3, 200) where job_id is not null"
    assert len(await bench.sql(sent, list(seat.task_ids))) == 3
    assert len(await bench.claim(seat, 10)) == 1
    assert await bench.claim(seat, 10) == []


async def test_a_bound_holds_for_runs_that_share_a_limit_too(bench: Bench) -> None:
    await bound(bench, concurrency=3)
    jobs = [await bench.job(f"job {n}", max_concurrency=2) for n in range(4)]
    for job in jobs:
        await bench.trigger(job)
        await bench.trigger(job)
    await fill(bench, 10)
    seat = await bench.seat()
    for _ in range(5):
        await bench.claim(seat, 10)
        assert await bench.value(UNDER_WAY) <= 3
    assert await bench.value(UNDER_WAY) == 3


async def test_a_pool_without_room_leaves_the_others_alone(bench: Bench) -> None:
    await bound(bench, concurrency=1)
    await fill(bench, 3)
    assert len(await bench.claim(await bench.seat(), 5)) == 1
    await bench.send(pool="long")
    assert len(await bench.claim(await bench.seat(pool="long"), 5)) == 1


# Rate


async def test_no_more_than_its_rate_starts_though_eight_claim_at_once(bench: Bench) -> None:
    rate, loop = 40, asyncio.get_running_loop()
    await bound(bench, rate=rate)
    await fill(bench, 2_000)
    seats = [await bench.seat() for _ in range(CLAIMERS)]
    started, began = 0, loop.time()

    async def work(seat: Seat) -> None:
        nonlocal started
        while loop.time() - began < 3:
            taken = await bench.claim(seat, 25)
            started += len(taken)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(work(seat) for seat in seats))
    most = rate + rate * (loop.time() - began)  # a second's worth may be saved up
    assert 0.5 * most <= started <= most + 1


async def test_what_was_not_started_is_not_taken_off_the_rate(bench: Bench) -> None:
    await bound(bench, rate=20)
    await fill(bench, 2)
    await fill(bench, 3, priority=-5)  # behind live work
    seat = await bench.seat()
    taken, _ = await claim(bench.store, seat, 20, Turn(), behind=1)
    assert len(taken) == 3
    assert await bench.value("select credit from pool_rates") >= 20 - 3
    assert len(await bench.claim(seat, 20)) == 2
    before = await bench.sql("select * from pool_rates")
    assert await bench.claim(seat, 20) == []
    assert await bench.sql("select * from pool_rates") == before, "a look that finds nothing writes nothing"


async def test_a_rate_below_one_a_second_starts_one_at_a_time(bench: Bench) -> None:
    await bound(bench, rate=1 / 3600)
    await fill(bench, 5)
    seat = await bench.seat()
    assert len(await bench.claim(seat, 5)) == 1
    assert await bench.claim(seat, 5) == []
    await bench.sql("update pool_rates set at = at - interval '1 hour'")
    assert len(await bench.claim(seat, 5)) == 1


async def test_a_pool_without_bounds_is_claimed_without_its_lock(bench: Bench) -> None:
    await fill(bench, 5)
    seat = await bench.seat()
    async with bench.store.pool.acquire() as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock(88, 1)")  # as a claim of a pool with bounds would
        assert len(await bench.claim(seat, 3)) == 3
        await other.execute("update pools set concurrency = 100 where name = 'long'")
    assert await bench.value("select count(*) from pool_rates") == 0


async def test_who_finds_a_pool_with_bounds_taken_gets_nothing_and_waits_for_nobody(bench: Bench) -> None:
    await bound(bench, concurrency=100)
    await fill(bench, 5)
    seat = await bench.seat()
    async with bench.store.pool.acquire() as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock(88, 1)")
        assert await bench.claim(seat, 3) == []
    assert len(await bench.claim(seat, 3)) == 3


async def test_what_is_given_back_makes_room(bench: Bench) -> None:
    await bound(bench, concurrency=2)
    await fill(bench, 3)
    seat = await bench.seat()
    taken = await bench.claim(seat, 5)
    await queue.give_back(bench.store, seat.worker_id, [(c.key, c.attempt) for c in taken])
    assert len(await bench.claim(seat, 5)) == 2


# Why


async def test_a_run_tells_that_its_pool_is_at_its_concurrency(bench: Bench) -> None:
    await bound(bench, concurrency=2)
    await fill(bench, 2)
    assert len(await bench.claim(await bench.seat(), 5)) == 2
    reason = (await reasons(bench))["pool_concurrency"]
    assert reason.holds is True
    assert "2 of the 2 runs" in reason.text
    assert reason.fix == "bellringer pools set short --concurrency 4"


async def test_a_run_tells_that_its_pool_is_at_its_rate(bench: Bench) -> None:
    await bound(bench, rate=0.01)
    await fill(bench, 1)
    assert len(await bench.claim(await bench.seat(), 5)) == 1
    reason = (await reasons(bench))["pool_rate"]
    assert reason.holds is True
    assert "0.01 runs a second" in reason.text


async def test_a_pool_that_has_room_is_not_in_the_way(bench: Bench) -> None:
    await bound(bench, rate=5, concurrency=5)
    await bench.seat()
    found = await reasons(bench)
    assert not {"pool_rate", "pool_concurrency"} & found.keys()
    assert "ready" in found
