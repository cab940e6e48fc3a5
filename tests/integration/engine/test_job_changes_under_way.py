"""Jobs that are changed while their runs wait or execute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bellringer.core.policies import Limit, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.errors import Conflict
from bellringer.schedule import delay, every
from bellringer.store import runs

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


DAY = 86_400


async def test_a_job_can_be_paused_after_days_without_a_scheduler(harness: EngineHarness) -> None:
    job = await harness.job("job", every("5d", anchor=harness.noon))
    await harness.set_clock(harness.after(8 * DAY))
    await harness.pause(job)
    assert (await harness.read(job)).paused_at is not None


async def test_a_delay_job_that_is_edited_while_a_far_retry_waits_keeps_one_chain(harness: EngineHarness) -> None:
    patient = Retry(delays=["10m"], jitter=0)
    job = await harness.job("job", delay("1m"), retry=patient)
    await harness.set_clock(harness.after(60))
    await harness.ring()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))  # its next attempt is ten minutes away
    await harness.change(job, harness.definition("job", delay("2m"), retry=patient))
    assert len(await harness.timers(job)) == 1


async def test_a_run_that_waits_while_its_job_is_edited_keeps_task_and_arguments_together(
    harness: EngineHarness,
) -> None:
    job = await harness.job("job", every("1s"), task="greet", args=["hello"])
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    await harness.change(job, harness.definition("job", every("1s"), task="delete_account", args=["everything"]))
    seat = await harness.join_worker("greet", "delete_account")
    claimed = await harness.claim_one(seat)
    tasks = await harness.catalog.task_ids(["greet", "delete_account"])
    assert (claimed.task_id, claimed.spec.args) in [
        (tasks["greet"], ["hello"]),
        (tasks["delete_account"], ["everything"]),
    ]


async def test_a_dead_run_whose_job_was_changed_is_redriven_with_task_and_arguments_together(
    harness: EngineHarness,
) -> None:
    job = await harness.job("job", every("1s"), task="greet", args=["hello"], retry=Retry(1))
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    seat = await harness.join_worker("greet", "delete_account")
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.change(job, harness.definition("job", task="delete_account", args=["everything"]))
    await harness.redrive(harness.key(job, 1))
    claimed = await harness.claim_one(seat)
    tasks = await harness.catalog.task_ids(["greet", "delete_account"])
    assert (claimed.task_id, claimed.spec.args) in [
        (tasks["greet"], ["hello"]),
        (tasks["delete_account"], ["everything"]),
    ]


async def strike(harness: EngineHarness, seconds: float) -> None:
    await harness.set_clock(harness.after(seconds))
    await harness.tick_all()


async def test_a_redrive_that_is_under_way_is_seen_by_the_tick(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.SKIP, retry=Retry(1))
    seat = await harness.join_worker()
    await strike(harness, 10)
    await harness.fail(seat, await harness.claim_one(seat))
    async with harness.store.pool.acquire() as other:
        redriving = other.transaction()
        await redriving.start()
        query = "select bellringer.redrive($1, $2, $3, $4)"
        assert await other.fetchval(query, harness.tenant, [job], [harness.after(10)], [0]) == 1
        await harness.set_clock(harness.after(20))
        ticking = asyncio.create_task(harness.tick_all())
        await asyncio.sleep(0.3)
        assert not ticking.done()  # it waits for the shard
        await redriving.commit()
        await ticking
    assert len(await harness.claim(seat)) == 1


async def test_a_change_that_is_refused_changes_no_limit(harness: EngineHarness) -> None:
    job = await harness.job("job", limit=Limit("db", 5))
    with pytest.raises(Conflict):
        await harness.change(job, harness.definition("job", limit=Limit("db", 1)), revision=7)
    assert await harness.value("select most from limits where key = 'db'") == 5
    await harness.change(job, harness.definition("job", limit=Limit("db", 1)))
    assert await harness.value("select most from limits where key = 'db'") == 1


async def test_a_job_that_lost_its_delay_while_a_run_ended_has_no_stray_run(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"))
    await harness.sql(
        "insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause,"
        " rearms) select job_id, $2, 0, $2, shard, pool_id, priority, tenant_id, task_id, 'schedule', true from jobs"
        " where job_id = $1",
        job,
        harness.after(20),
    )
    await harness.set_clock(harness.after(20))
    await harness.ring()
    assert await runs.of_job(harness.store, job, harness.tenant, None, 10) == []
