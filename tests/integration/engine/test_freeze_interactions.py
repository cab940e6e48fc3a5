"""Freezes together with overlap policies, amendments and several schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from bellringer.core.policies import Overlap
from bellringer.engine import freeze
from bellringer.schedule import every
from bellringer.store import freezes, queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def frozen(harness: EngineHarness, start: float, end: float, policy: str = "defer") -> int:
    made = await harness.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at)"
        " values ($1, 'peak', $2, $3, $4, 'me', bellringer.now()) returning freeze_id",
        harness.tenant,
        harness.after(start),
        harness.after(end),
        policy,
    )
    number: int = made[0][0]
    return number


async def strike(harness: EngineHarness, seconds: float) -> None:
    await harness.set_clock(harness.after(seconds))
    await harness.tick_all()


async def test_what_a_freeze_holds_keeps_no_earlier_run_from_going(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    await frozen(harness, 25, 86_400)
    await strike(harness, 10)
    first = await harness.claim_one(seat)
    await strike(harness, 20)  # it waits for the first
    await strike(harness, 30)  # it is held by the freeze
    await harness.end(seat, first)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_lifted_freeze_lets_nothing_go_before_its_time(harness: EngineHarness) -> None:
    await harness.job("soon", every("10s"))
    await harness.job("spread", every("10s"), jitter=timedelta(hours=1))
    seat = await harness.join_worker()
    number = await frozen(harness, 0, 600)
    await harness.set_clock(harness.after(9.2))
    await harness.tick_all(lead=1)
    await queue.release_frozen(harness.store, 100)
    await freeze.lift(harness.store, number, tenant_id=harness.tenant)
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(10))
    await queue.release_frozen(harness.store, 100)
    assert [claimed.name for claimed in await harness.claim(seat)] == ["soon"]
    late = await harness.value("select available_at - scheduled_for from queue where worker_id is null")
    assert late == (await harness.value("select jitter_by from jobs where name = 'spread'"))


async def test_a_freeze_that_is_amended_lets_nothing_go_before_its_time(harness: EngineHarness) -> None:
    await harness.job("soon", every("10s"))
    seat = await harness.join_worker()
    number = await frozen(harness, 0, 600)
    await harness.set_clock(harness.after(9.2))
    await harness.tick_all(lead=1)
    await freezes.amend(harness.store, harness.tenant, number, harness.after(9.5), None)
    await queue.release_frozen(harness.store, 100)
    assert await harness.claim(seat) == []


async def test_one_run_of_a_job_with_several_schedules_stands_for_all_in_a_freeze_that_collapses(
    harness: EngineHarness,
) -> None:
    job = await harness.job("job", every("10s"), every("15s"), every("20s"))
    await frozen(harness, 0, 600, "collapse")
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    states = await harness.sql(
        "select initial_state::text, reason from runs where job_id = $1 order by scheduled_for", job
    )
    assert [row["initial_state"] for row in states] == ["blocked", "skipped", "skipped"]
    assert all("peak" in row["reason"] for row in states)
