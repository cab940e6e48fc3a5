"""Freezes, limits, pauses and revivals where they meet: what is held must go, and not before its time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.errors import Conflict
from bellringer.lifecycle import freeze
from bellringer.policies import Limit, Missed, Overlap, Retry
from bellringer.schedule import at, every
from bellringer.store import freezes, queue, runs

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def frozen(bench: Bench, start: float, end: float, policy: str = "defer") -> int:
    made = await bench.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at)"
        " values ($1, 'peak', $2, $3, $4, 'me', bellringer.now()) returning freeze_id",
        bench.tenant,
        bench.after(start),
        bench.after(end),
        policy,
    )
    number: int = made[0][0]
    return number


async def strike(bench: Bench, seconds: float) -> None:
    await bench.set_clock(bench.after(seconds))
    await bench.tick_all()


async def test_what_a_freeze_holds_keeps_no_earlier_run_from_going(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    await frozen(bench, 25, 86_400)
    await strike(bench, 10)
    first = await bench.claim_one(seat)
    await strike(bench, 20)  # it waits for the first
    await strike(bench, 30)  # it is held by the freeze
    await bench.end(seat, first)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_lifted_freeze_lets_nothing_go_before_its_time(bench: Bench) -> None:
    await bench.job("soon", every("10s"))
    await bench.job("spread", every("10s"), jitter=timedelta(hours=1))
    seat = await bench.seat()
    number = await frozen(bench, 0, 600)
    await bench.set_clock(bench.after(9.2))
    await bench.tick_all(lead=1)
    await queue.thaw(bench.store, 100)
    await freeze.lift(bench.store, number, tenant_id=bench.tenant)
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(10))
    await queue.thaw(bench.store, 100)
    assert [claimed.name for claimed in await bench.claim(seat)] == ["soon"]
    late = await bench.value("select available_at - scheduled_for from queue where worker_id is null")
    assert late == (await bench.value("select jitter_by from jobs where name = 'spread'"))


async def test_a_freeze_that_is_amended_lets_nothing_go_before_its_time(bench: Bench) -> None:
    await bench.job("soon", every("10s"))
    seat = await bench.seat()
    number = await frozen(bench, 0, 600)
    await bench.set_clock(bench.after(9.2))
    await bench.tick_all(lead=1)
    await freezes.amend(bench.store, bench.tenant, number, bench.after(9.5), None)
    await queue.thaw(bench.store, 100)
    assert await bench.claim(seat) == []


async def test_one_run_of_a_job_with_several_schedules_stands_for_all_in_a_freeze_that_collapses(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), every("15s"), every("20s"))
    await frozen(bench, 0, 600, "collapse")
    await bench.set_clock(bench.after(20))
    await bench.tick_all()
    states = await bench.sql("select born_as::text, reason from runs where job_id = $1 order by scheduled_for", job)
    assert [row["born_as"] for row in states] == ["blocked", "skipped", "skipped"]
    assert all("peak" in row["reason"] for row in states)


async def test_a_redrive_that_is_under_way_is_seen_by_the_tick(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.SKIP, retry=Retry(1))
    seat = await bench.seat()
    await strike(bench, 10)
    await bench.fail(seat, await bench.claim_one(seat))
    async with bench.store.pool.acquire() as other:
        redriving = other.transaction()
        await redriving.start()
        query = "select bellringer.redrive($1, $2, $3, $4)"
        assert await other.fetchval(query, bench.tenant, [job], [bench.after(10)], [0]) == 1
        await bench.set_clock(bench.after(20))
        ticking = asyncio.create_task(bench.tick_all())
        await asyncio.sleep(0.3)
        assert not ticking.done()  # it waits for the shard
        await redriving.commit()
        await ticking
    assert len(await bench.claim(seat)) == 1


async def test_a_one_shot_that_a_pause_covered_is_accounted_for(bench: Bench) -> None:
    for missed in Missed:
        job = await bench.job(f"once {missed}", at(await bench.now() + timedelta(seconds=10)))
        await bench.pause(job)
        await bench.pass_time(60)
        await bench.resume(job, missed)
        assert len(await bench.gaps(job)) == 1, missed


async def test_a_change_that_is_refused_changes_no_limit(bench: Bench) -> None:
    job = await bench.job("job", limit=Limit("db", 5))
    with pytest.raises(Conflict):
        await bench.change(job, bench.definition("job", limit=Limit("db", 1)), revision=7)
    assert await bench.value("select most from limits where key = 'db'") == 5
    await bench.change(job, bench.definition("job", limit=Limit("db", 1)))
    assert await bench.value("select most from limits where key = 'db'") == 1


async def test_a_job_that_lost_its_delay_while_a_run_ended_has_no_stray_run(bench: Bench) -> None:
    job = await bench.job("job", every("1h"))
    await bench.sql(
        "insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause,"
        " rearms) select job_id, $2, 0, $2, shard, pool_id, priority, tenant_id, task_id, 'schedule', true from jobs"
        " where job_id = $1",
        job,
        bench.after(20),
    )
    await bench.set_clock(bench.after(20))
    await bench.ring()
    assert await runs.of_job(bench.store, job, bench.tenant, None, 10) == []
