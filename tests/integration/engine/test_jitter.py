"""Jitter: a job's runs start a constant while after their time, and nothing is lost or doubled by it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.policies import Misfire, Overlap, jitter_for
from bellringer.core.runs import State
from bellringer.errors import InvalidInput
from bellringer.schedule import every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

MINUTE = timedelta(minutes=1)


async def by(harness: EngineHarness, job: UUID) -> float:
    """By how many seconds the runs of a job start after their time."""
    return float(await harness.value("select extract(epoch from jitter_by)::float8 from jobs where job_id = $1", job))


async def starts(harness: EngineHarness, job: UUID) -> dict[float, float]:
    """From when what waits may be claimed, by its time; both in seconds after noon."""
    rows = await harness.sql("select scheduled_for, available_at from queue where job_id = $1 order by 1", job)
    return {harness.seconds(due): harness.seconds(available) for due, available in rows}


async def jittered(harness: EngineHarness, **more: object) -> tuple[UUID, float]:
    """A job of every hour that starts within the minute after it."""
    job = await harness.job("job", every("1h"), jitter=MINUTE, **more)
    amount = await by(harness, job)
    assert 1 < amount < 59  # else these tests would show nothing
    return job, amount


# The amount


def test_the_amount_lies_within_the_jitter_and_is_spread_evenly() -> None:
    amounts = [jitter_for(f"1:job {n}", MINUTE) / MINUTE for n in range(4000)]
    assert min(amounts) >= 0
    assert max(amounts) < 1
    tenths = [sum(tenth / 10 <= a < (tenth + 1) / 10 for a in amounts) for tenth in range(10)]
    assert min(tenths) > 320
    assert max(tenths) < 480


def test_the_amount_is_always_the_same_and_differs_by_tenant_and_name() -> None:
    assert jitter_for("1:job", MINUTE) == jitter_for("1:job", MINUTE)
    assert len({jitter_for(seed, MINUTE) for seed in ("1:job", "2:job", "1:jobs")}) == 3


def test_without_jitter_there_is_none() -> None:
    assert jitter_for("1:job", None) == timedelta(0)


@pytest.mark.parametrize("jitter", [timedelta(0), timedelta(seconds=-1), timedelta(hours=12, seconds=1)])
async def test_a_jitter_out_of_bounds_is_refused(harness: EngineHarness, jitter: timedelta) -> None:
    with pytest.raises(InvalidInput):
        await harness.job("job", every("1h"), jitter=jitter)


# Firing


@pytest.mark.parametrize("lead", [0, 1])
async def test_every_run_starts_the_same_while_after_its_time_and_never_before(
    harness: EngineHarness, lead: int
) -> None:
    job, amount = await jittered(harness)
    seat = await harness.join_worker()
    for hour in (3600, 7200):
        await harness.set_clock(harness.after(hour - lead))
        await harness.tick_all(lead=lead)
        assert await starts(harness, job) == {hour: hour + amount}
        await harness.set_clock(harness.after(hour + amount - 0.001))
        assert await harness.claim(seat) == []
        await harness.set_clock(harness.after(hour + amount))
        claimed = await harness.claim_one(seat)
        assert claimed.key == harness.key(job, hour)
        await harness.end(seat, claimed)


async def test_a_limited_run_is_not_claimed_before_it_may_start(harness: EngineHarness) -> None:
    _, amount = await jittered(harness, max_concurrency=1)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(3600))
    await harness.tick_all()
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(3600 + amount))
    assert len(await harness.claim(seat)) == 1


async def test_a_run_is_late_so_long_after_it_might_have_started(harness: EngineHarness) -> None:
    job, amount = await jittered(harness, late_after=timedelta(seconds=30))
    await harness.set_clock(harness.after(3600))
    await harness.tick_all()
    late = await harness.value("select late_at from queue where job_id = $1", job)
    assert harness.seconds(late) == 3600 + amount + 30


async def test_a_late_fire_keeps_the_jitter_from_the_time_of_the_occurrence(harness: EngineHarness) -> None:
    job, amount = await jittered(harness)
    await harness.set_clock(harness.after(3650))
    await harness.tick_all()
    assert await starts(harness, job) == {3600: 3600 + amount}


async def test_the_grace_counts_from_the_time_of_the_occurrence(harness: EngineHarness) -> None:
    job, _ = await jittered(harness, misfire=Misfire.SKIP)
    await harness.set_clock(harness.after(3661))
    await harness.tick_all()
    assert await harness.fired(job) == []
    assert len(await harness.gaps(job)) == 1


async def test_a_retry_and_a_manual_run_have_no_jitter(harness: EngineHarness) -> None:
    job, _ = await jittered(harness)
    manual = await harness.trigger(job)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert claimed.key == manual
    await harness.fail(seat, claimed)
    await harness.retry(manual)
    assert (await harness.claim_one(seat)).key == manual


async def test_jobs_of_one_herd_are_spread_over_the_jitter(harness: EngineHarness) -> None:
    await harness.register(*(harness.definition(f"job {n}", every("1h"), jitter=MINUTE) for n in range(300)))
    await harness.set_clock(harness.after(3600))
    await harness.tick_all()
    rows = await harness.sql("select extract(epoch from available_at - scheduled_for)::float8 from queue")
    tenths = [sum(6 * tenth <= row[0] < 6 * (tenth + 1) for row in rows) for tenth in range(10)]
    assert sum(tenths) == 300
    assert min(tenths) > 10


# Between the time and the start


async def between(harness: EngineHarness) -> tuple[UUID, float]:
    """A run of 3600 whose time has come, and that may not start yet."""
    job, amount = await jittered(harness)
    await harness.set_clock(harness.after(3600))
    await harness.tick_all()
    await harness.set_clock(harness.after(3600 + amount / 2))
    return job, amount


async def test_a_pause_between_holds_it_and_a_resume_lets_it_go(harness: EngineHarness) -> None:
    job, amount = await between(harness)
    seat = await harness.join_worker()
    await harness.pause(job)
    await harness.set_clock(harness.after(3600 + amount + 1))
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert [c.key for c in await harness.claim(seat)] == [harness.key(job, 3600)]
    await harness.tick_all()
    assert await harness.fired(job) == [3600]
    assert not any(gap["from_at"] <= 3600 < gap["to_at"] for gap in await harness.gaps(job))


async def test_an_edit_between_neither_loses_nor_doubles_it(harness: EngineHarness) -> None:
    job, amount = await between(harness)
    await harness.change(job, harness.definition("job", every("30m"), jitter=MINUTE))
    assert await harness.fired(job) == await harness.queued(job) == [3600]
    await harness.set_clock(harness.after(5400))
    await harness.tick_all()
    assert await harness.fired(job) == [3600, 5400]
    assert (await starts(harness, job))[5400] == 5400 + amount


async def test_an_edit_that_adds_or_removes_the_jitter_holds_from_the_next_occurrence_on(
    harness: EngineHarness,
) -> None:
    job, amount = await between(harness)
    await harness.change(job, harness.definition("job", every("1h")))
    await harness.set_clock(harness.after(7200))
    await harness.tick_all()
    assert await starts(harness, job) == {3600: 3600 + amount, 7200: 7200}


async def test_an_edit_right_before_the_time_neither_loses_nor_doubles_what_the_lead_has_created(
    harness: EngineHarness,
) -> None:
    await harness.share_shard()
    job, amount = await jittered(harness)
    await harness.job("keeper", every("1h"))
    await harness.set_clock(harness.after(3599.5))
    await harness.tick_all(lead=1)
    await harness.change(job, harness.definition("job", every("1h"), jitter=MINUTE))
    assert await starts(harness, job) == {3600: 3600 + amount}
    await harness.set_clock(harness.after(3600))
    await harness.tick_all(lead=1)
    assert await harness.fired(job) == [3600]


async def test_a_deletion_between_cancels_it(harness: EngineHarness) -> None:
    job, _ = await between(harness)
    await harness.retire(job)
    assert await harness.queued(job) == []
    assert await harness.state(harness.key(job, 3600)) is State.CANCELLED


async def test_an_edit_while_the_cohort_is_behind_keeps_the_jitter(harness: EngineHarness) -> None:
    job, amount = await jittered(harness, misfire=Misfire.FIRE_ONCE)
    await harness.set_clock(harness.after(3600.5))
    await harness.change(job, harness.definition("job", every("1h"), jitter=MINUTE, misfire=Misfire.FIRE_ONCE))
    await harness.tick_all()
    assert await starts(harness, job) == {3600: 3600 + amount}


async def test_two_jobs_of_one_name_in_two_tenants_start_apart(harness: EngineHarness) -> None:
    await harness.sql("insert into tenants (name) values ('other')")
    mine, _ = await jittered(harness)
    theirs = await harness.for_tenant(2).job("job", every("1h"), jitter=MINUTE)
    assert await by(harness, mine) != await by(harness, theirs)


async def test_overlap_with_jitter_longer_than_the_interval_keeps_the_order(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), jitter=MINUTE, overlap=Overlap.QUEUE)
    amount = await by(harness, job)
    assert amount > 20
    seat = await harness.join_worker()
    for second in (10, 20, 30):
        await harness.set_clock(harness.after(second))
        await harness.tick_all()
    await harness.set_clock(harness.after(30 + amount))
    for second in (10, 20, 30):
        await queue.decide_overlaps(harness.store, 100)
        claimed = await harness.claim_one(seat)
        assert claimed.key == harness.key(job, second)
        await harness.end(seat, claimed)
