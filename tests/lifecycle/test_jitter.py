"""Jitter: a job's runs start a constant while after their time, and nothing is lost or doubled by it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.errors import InvalidInput
from bellringer.policies import Misfire, Overlap, jitter_by
from bellringer.runs import State
from bellringer.schedule import every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

MINUTE = timedelta(minutes=1)


async def by(bench: Bench, job: UUID) -> float:
    """By how many seconds the runs of a job start after their time."""
    return float(await bench.value("select extract(epoch from jitter_by)::float8 from jobs where job_id = $1", job))


async def starts(bench: Bench, job: UUID) -> dict[float, float]:
    """From when what waits may be claimed, by its time; both in seconds after noon."""
    rows = await bench.sql("select scheduled_for, available_at from queue where job_id = $1 order by 1", job)
    return {bench.seconds(due): bench.seconds(available) for due, available in rows}


async def jittered(bench: Bench, **more: object) -> tuple[UUID, float]:
    """A job of every hour that starts within the minute after it."""
    job = await bench.job("job", every("1h"), jitter=MINUTE, **more)
    amount = await by(bench, job)
    assert 1 < amount < 59  # else these tests would show nothing
    return job, amount


# The amount


def test_the_amount_lies_within_the_jitter_and_is_spread_evenly() -> None:
    amounts = [jitter_by(f"1:job {n}", MINUTE) / MINUTE for n in range(4000)]
    assert min(amounts) >= 0
    assert max(amounts) < 1
    tenths = [sum(tenth / 10 <= a < (tenth + 1) / 10 for a in amounts) for tenth in range(10)]
    assert min(tenths) > 320
    assert max(tenths) < 480


def test_the_amount_is_always_the_same_and_differs_by_tenant_and_name() -> None:
    assert jitter_by("1:job", MINUTE) == jitter_by("1:job", MINUTE)
    assert len({jitter_by(seed, MINUTE) for seed in ("1:job", "2:job", "1:jobs")}) == 3


def test_without_jitter_there_is_none() -> None:
    assert jitter_by("1:job", None) == timedelta(0)


@pytest.mark.parametrize("jitter", [timedelta(0), timedelta(seconds=-1), timedelta(hours=12, seconds=1)])
async def test_a_jitter_out_of_bounds_is_refused(bench: Bench, jitter: timedelta) -> None:
    with pytest.raises(InvalidInput):
        await bench.job("job", every("1h"), jitter=jitter)


# Firing


@pytest.mark.parametrize("lead", [0, 1])
async def test_every_run_starts_the_same_while_after_its_time_and_never_before(bench: Bench, lead: int) -> None:
    job, amount = await jittered(bench)
    seat = await bench.seat()
    for hour in (3600, 7200):
        await bench.set_clock(bench.after(hour - lead))
        await bench.tick_all(lead=lead)
        assert await starts(bench, job) == {hour: hour + amount}
        await bench.set_clock(bench.after(hour + amount - 0.001))
        assert await bench.claim(seat) == []
        await bench.set_clock(bench.after(hour + amount))
        claimed = await bench.claim_one(seat)
        assert claimed.key == bench.key(job, hour)
        await bench.end(seat, claimed)


async def test_a_limited_run_is_not_claimed_before_it_may_start(bench: Bench) -> None:
    _, amount = await jittered(bench, max_concurrency=1)
    seat = await bench.seat()
    await bench.set_clock(bench.after(3600))
    await bench.tick_all()
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(3600 + amount))
    assert len(await bench.claim(seat)) == 1


async def test_a_run_is_late_so_long_after_it_might_have_started(bench: Bench) -> None:
    job, amount = await jittered(bench, late_after=timedelta(seconds=30))
    await bench.set_clock(bench.after(3600))
    await bench.tick_all()
    late = await bench.value("select late_at from queue where job_id = $1", job)
    assert bench.seconds(late) == 3600 + amount + 30


async def test_a_late_fire_keeps_the_jitter_from_the_time_of_the_occurrence(bench: Bench) -> None:
    job, amount = await jittered(bench)
    await bench.set_clock(bench.after(3650))
    await bench.tick_all()
    assert await starts(bench, job) == {3600: 3600 + amount}


async def test_the_grace_counts_from_the_time_of_the_occurrence(bench: Bench) -> None:
    job, _ = await jittered(bench, misfire=Misfire.SKIP)
    await bench.set_clock(bench.after(3661))
    await bench.tick_all()
    assert await bench.fired(job) == []
    assert len(await bench.gaps(job)) == 1


async def test_a_retry_and_a_run_by_hand_have_no_jitter(bench: Bench) -> None:
    job, _ = await jittered(bench)
    manual = await bench.trigger(job)
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    assert claimed.key == manual
    await bench.fail(seat, claimed)
    await bench.retry(manual)
    assert (await bench.claim_one(seat)).key == manual


async def test_jobs_of_one_herd_are_spread_over_the_jitter(bench: Bench) -> None:
    await bench.register(*(bench.definition(f"job {n}", every("1h"), jitter=MINUTE) for n in range(300)))
    await bench.set_clock(bench.after(3600))
    await bench.tick_all()
    rows = await bench.sql("select extract(epoch from available_at - scheduled_for)::float8 from queue")
    tenths = [sum(6 * tenth <= row[0] < 6 * (tenth + 1) for row in rows) for tenth in range(10)]
    assert sum(tenths) == 300
    assert min(tenths) > 10


# Between the time and the start


async def between(bench: Bench) -> tuple[UUID, float]:
    """A run of 3600 whose time has come, and that may not start yet."""
    job, amount = await jittered(bench)
    await bench.set_clock(bench.after(3600))
    await bench.tick_all()
    await bench.set_clock(bench.after(3600 + amount / 2))
    return job, amount


async def test_a_pause_between_holds_it_and_a_resume_lets_it_go(bench: Bench) -> None:
    job, amount = await between(bench)
    seat = await bench.seat()
    await bench.pause(job)
    await bench.set_clock(bench.after(3600 + amount + 1))
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert [c.key for c in await bench.claim(seat)] == [bench.key(job, 3600)]
    await bench.tick_all()
    assert await bench.fired(job) == [3600]
    assert not any(gap["from_at"] <= 3600 < gap["to_at"] for gap in await bench.gaps(job))


async def test_an_edit_between_neither_loses_nor_doubles_it(bench: Bench) -> None:
    job, amount = await between(bench)
    await bench.change(job, bench.definition("job", every("30m"), jitter=MINUTE))
    assert await bench.fired(job) == await bench.queued(job) == [3600]
    await bench.set_clock(bench.after(5400))
    await bench.tick_all()
    assert await bench.fired(job) == [3600, 5400]
    assert (await starts(bench, job))[5400] == 5400 + amount


async def test_an_edit_that_adds_or_removes_the_jitter_holds_from_the_next_occurrence_on(bench: Bench) -> None:
    job, amount = await between(bench)
    await bench.change(job, bench.definition("job", every("1h")))
    await bench.set_clock(bench.after(7200))
    await bench.tick_all()
    assert await starts(bench, job) == {3600: 3600 + amount, 7200: 7200}


async def test_an_edit_right_before_the_time_neither_loses_nor_doubles_what_the_lead_has_born(bench: Bench) -> None:
    await bench.share_shard()
    job, amount = await jittered(bench)
    await bench.job("keeper", every("1h"))
    await bench.set_clock(bench.after(3599.5))
    await bench.tick_all(lead=1)
    await bench.change(job, bench.definition("job", every("1h"), jitter=MINUTE))
    assert await starts(bench, job) == {3600: 3600 + amount}
    await bench.set_clock(bench.after(3600))
    await bench.tick_all(lead=1)
    assert await bench.fired(job) == [3600]


async def test_a_deletion_between_cancels_it(bench: Bench) -> None:
    job, _ = await between(bench)
    await bench.retire(job)
    assert await bench.queued(job) == []
    assert await bench.state(bench.key(job, 3600)) is State.CANCELLED


async def test_an_edit_while_the_hand_is_behind_keeps_the_jitter(bench: Bench) -> None:
    job, amount = await jittered(bench, misfire=Misfire.FIRE_ONCE)
    await bench.set_clock(bench.after(3600.5))
    await bench.change(job, bench.definition("job", every("1h"), jitter=MINUTE, misfire=Misfire.FIRE_ONCE))
    await bench.tick_all()
    assert await starts(bench, job) == {3600: 3600 + amount}


async def test_two_jobs_of_one_name_in_two_tenants_start_apart(bench: Bench) -> None:
    await bench.sql("insert into tenants (name) values ('other')")
    mine, _ = await jittered(bench)
    theirs = await bench.of(2).job("job", every("1h"), jitter=MINUTE)
    assert await by(bench, mine) != await by(bench, theirs)


async def test_overlap_with_jitter_longer_than_the_interval_keeps_the_order(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), jitter=MINUTE, overlap=Overlap.QUEUE)
    amount = await by(bench, job)
    assert amount > 20
    seat = await bench.seat()
    for second in (10, 20, 30):
        await bench.set_clock(bench.after(second))
        await bench.tick_all()
    await bench.set_clock(bench.after(30 + amount))
    for second in (10, 20, 30):
        await queue.decide(bench.store, 100)
        claimed = await bench.claim_one(seat)
        assert claimed.key == bench.key(job, second)
        await bench.end(seat, claimed)
