"""Tick: every hand that strikes becomes runs, once, under the fence, however late or crowded it is."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from bellringer.core.leases import Holding
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine.tick import TickLimits, plan_moves
from bellringer.schedule import cron, every
from bellringer.store import cohorts
from bellringer.store.cohorts import Cohort, CohortMove
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def crowd(harness: EngineHarness, size: int, interval: str = "10s") -> list[UUID]:
    """Jobs of one cohort, in the order in which it fires them."""
    await harness.share_shard()
    definitions = [harness.definition(f"job {interval} {n}", every(interval)) for n in range(size)]
    return sorted(taken.job_id for taken in await harness.register(*definitions))


# On time


async def test_a_tick_fires_each_member_once_and_moves_the_cohort(harness: EngineHarness) -> None:
    jobs = await crowd(harness, 5)
    await harness.set_clock(harness.after(10))
    ticked = await harness.tick()
    assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (5, 1, False)
    assert [hand.next_at for hand in ticked.cohorts] == [harness.after(20)]
    assert (await harness.tick()).fired.fired == 0
    assert [await harness.fired(job) for job in jobs] == [[10]] * 5
    assert await harness.value("select count(*) from queue where available_at = $1", harness.after(10)) == 5


async def test_a_run_says_by_which_lease_and_of_which_revision_it_was_created(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.seize()
    holding = await harness.seize()
    await harness.set_clock(harness.after(11))
    await harness.tick()
    [row] = await harness.sql("select * from runs")
    assert (row["token"], row["revision"]) == (holding.tokens[row["shard"]], 1)
    assert (row["fired_at"], row["cause"], row["initial_state"]) == (harness.after(11), "schedule", "queued")
    assert await harness.state(harness.key(job, 10)) is State.QUEUED


async def test_nothing_fires_before_its_time_by_the_databases_clock(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    [hand] = await harness.due_cohorts(harness.after(10))
    await harness.set_clock(harness.after(9.999999))
    move = CohortMove(hand, harness.after(20))
    fired = await cohorts.tick(
        harness.store, await harness.hold(), [move], TickLimits(lead=timedelta(0), max_runs=100), None
    )
    assert (fired.fired, fired.moved) == (0, 0)
    assert await harness.fired(job) == []


async def test_what_is_fired_ahead_waits_in_the_queue_for_its_instant(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(9))
    await harness.tick(lead=1)
    assert await harness.fired(job) == [10]
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(9.999999))
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(10))
    assert len(await harness.claim(seat)) == 1


# In chunks


async def test_a_large_cohort_fires_in_chunks_that_follow_its_cursor(harness: EngineHarness) -> None:
    jobs = await crowd(harness, 7)
    await harness.set_clock(harness.after(10))
    for fired, cursor in ((3, jobs[2]), (3, jobs[5])):
        ticked = await harness.tick(most=3)
        assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (fired, 0, True)
        assert await harness.value("select cursor from cohorts") == cursor
    ticked = await harness.tick(most=3)
    assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (1, 1, False)
    assert await harness.value("select cursor from cohorts") is None
    assert [await harness.fired(job) for job in jobs] == [[10]] * 7


async def test_a_cohort_as_large_as_the_chunk_fires_at_once(harness: EngineHarness) -> None:
    await crowd(harness, 3)
    await harness.set_clock(harness.after(10))
    ticked = await harness.tick(most=3)
    assert (ticked.fired.fired, ticked.fired.cut) == (3, False)


async def test_another_holder_finishes_the_chunks_of_one_that_crashed(harness: EngineHarness) -> None:
    jobs = await crowd(harness, 7)
    await harness.set_clock(harness.after(10))
    await harness.tick(most=3)
    other = await harness.seize()
    await harness.tick_all(other, most=3)
    assert [await harness.fired(job) for job in jobs] == [[10]] * 7


async def test_members_that_are_not_active_do_not_fill_a_chunk(harness: EngineHarness) -> None:
    await harness.share_shard()
    for n in range(4):
        await harness.job(f"to come {n}", every("10s"), starts_at=harness.after(100))
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    ticked = await harness.tick(most=2)
    assert (ticked.fired.fired, ticked.fired.cut) == (1, False)
    assert await harness.fired(job) == [10]


async def test_only_whole_cohorts_fire_where_many_do_not_fit(harness: EngineHarness) -> None:
    for interval in ("1s", "2s", "5s", "10s"):
        await crowd(harness, 3, interval)
    await harness.sql("update cohorts set next_at = $1", harness.after(10))
    await harness.set_clock(harness.after(10))
    first = await harness.tick(most=7)
    assert (first.fired.fired, first.fired.moved, first.fired.cut) == (6, 2, False)
    assert await harness.value("select count(*) from cohorts where cursor is not null") == 0
    second = await harness.tick(most=7)
    assert (second.fired.fired, second.fired.moved) == (6, 2)
    assert await harness.due_cohorts() == []


async def test_a_small_cohort_before_a_large_one_fires_alone(harness: EngineHarness) -> None:
    await crowd(harness, 2, "2s")
    await crowd(harness, 9, "10s")
    await harness.sql("update cohorts set next_at = $1", harness.after(10))
    await harness.set_clock(harness.after(10))
    assert [(await harness.tick(most=5)).fired.fired for _ in range(4)] == [2, 5, 4, 0]


async def test_an_occurrence_that_exists_already_is_passed_over(harness: EngineHarness) -> None:
    jobs = await crowd(harness, 3)
    await harness.set_clock(harness.after(10))
    await harness.tick()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    await harness.sql("delete from runs where job_id = $1", jobs[1])
    await harness.sql("update cohorts set next_at = $1", harness.after(10))
    ticked = await harness.tick()
    assert (ticked.fired.fired, ticked.fired.moved) == (1, 1)
    assert [await harness.fired(job) for job in jobs] == [[10]] * 3
    assert await harness.value("select array_agg(job_id) from queue") == [jobs[1]]


async def test_a_cohort_that_moved_meanwhile_is_not_moved_again(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    [stale] = await harness.due_cohorts(harness.after(10))
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    fired = await cohorts.tick(
        harness.store, harness.holding, [CohortMove(stale, harness.after(15))], TickLimits(max_runs=100), None
    )
    assert (fired.fired, fired.moved) == (0, 0)
    [hand] = await harness.due_cohorts(harness.after(60))
    assert hand.next_at == harness.after(30)


# Under the fence


async def test_a_stale_token_is_refused_and_nothing_is_written(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    old = await harness.hold()
    await harness.seize()
    await harness.set_clock(harness.after(10))
    [hand] = await harness.due_cohorts()
    refused = (await harness.tick(old)).fired.refused
    assert refused == {hand.shard}
    assert await harness.fired(job) == await harness.queued(job) == []
    assert await harness.due_cohorts() == [hand]


async def test_a_token_in_another_holders_name_is_refused(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    holding = await harness.hold()
    await harness.set_clock(harness.after(10))
    thief = Holding(uuid4(), holding.tokens)
    assert (await harness.tick(thief)).fired.refused


async def test_one_lost_shard_refuses_the_whole_call(harness: EngineHarness) -> None:
    await harness.register(*(harness.definition(f"job {n}", every("10s")) for n in range(20)))
    holding = await harness.hold()
    await harness.set_clock(harness.after(10))
    lost = (await harness.due_cohorts())[0].shard
    await harness.sql("update leases set token = token + 1 where shard = $1", lost)
    ticked = await harness.tick(holding)
    assert ticked.fired.refused == {lost}
    assert await harness.value("select count(*) from runs") == 0


async def test_a_released_lease_is_free_at_once_and_its_old_holder_refused(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    old = await harness.hold()
    await PostgresLeases(harness.store).release(old.holder, old.tokens)
    new = await harness.hold()
    assert new.tokens.keys() == old.tokens.keys()
    await harness.set_clock(harness.after(10))
    assert (await harness.tick(old)).fired.refused
    assert (await harness.tick(new)).fired.fired == 1


async def test_a_lease_that_ran_out_still_writes_until_another_takes_it(harness: EngineHarness) -> None:
    """Time says who may try; only the token says who may write."""
    await harness.job("job", every("10s"))
    holding = await harness.hold()
    await harness.sql("update leases set expires_at = '-infinity'")
    await harness.set_clock(harness.after(10))
    assert (await harness.tick(holding)).fired.fired == 1


async def test_a_stale_holder_can_neither_jump_nor_fire(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"))
    await harness.send(at=harness.after(20))
    old = await harness.hold()
    new = await harness.seize()
    await harness.set_clock(harness.after(1000))
    assert (await harness.tick(old)).fired.refused
    assert await harness.value("select count(*) from gaps") == 0
    harness.holding = old
    assert (await harness.ring()).refused == set(old.tokens)
    harness.holding = new
    assert (await harness.ring()).fired == 1


async def test_a_renewal_keeps_only_what_is_still_held(harness: EngineHarness) -> None:
    keeper = PostgresLeases(harness.store)
    holding = await harness.hold()
    await harness.sql("update leases set token = token + 1, holder = gen_random_uuid() where shard = 5")
    held = await keeper.renew(holding.holder, holding.tokens)
    assert held == holding.tokens.keys() - {5}


# Late


async def test_a_cohort_that_is_late_within_the_grace_walks_every_occurrence(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(65))
    await harness.tick_all(grace=60)
    assert await harness.fired(job) == [10, 20, 30, 40, 50, 60]
    assert await harness.gaps(job) == []


async def test_a_cohort_that_is_later_than_the_grace_fires_its_latest_instant_and_records_a_gap(
    harness: EngineHarness,
) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(75))
    assert (await harness.tick(grace=60)).fired.missed == 6
    await harness.tick_all(grace=60)
    assert await harness.fired(job) == [70]
    assert await harness.gaps(job) == [{"from_at": 10, "to_at": 70, "count": 6, "reason": "misfire", "into_at": 70}]
    [hand] = await harness.due_cohorts(harness.after(100))
    assert hand.next_at == harness.after(80)


async def test_a_single_late_occurrence_runs_however_late(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"))
    await harness.set_clock(harness.after(7000))
    await harness.tick_all(grace=60)
    assert await harness.fired(job) == [3600]
    assert await harness.gaps(job) == []


async def test_a_job_of_every_second_resumes_after_a_year_in_less_than_a_second(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    also = await harness.job("also", cron("* * * * *", tz="Europe/Berlin"))
    year = 366 * 86_400
    await harness.set_clock(harness.after(year))
    started = time.monotonic()
    await harness.tick_all()
    assert time.monotonic() - started < 1
    assert await harness.fired(job) == [year]
    [gap] = await harness.gaps(job)
    assert gap["count"] == year - 1
    assert await harness.fired(also) == [year]


async def test_a_job_that_came_during_the_outage_has_a_gap_from_its_creation(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.job("old", every("10s"))
    await harness.set_clock(harness.after(45))
    new = await harness.job("new", every("10s"))
    await harness.set_clock(harness.after(125))
    newest = await harness.job("newest", every("10s"))
    await harness.tick_all()
    assert await harness.fired(new) == [120]
    [gap] = await harness.gaps(new)
    assert (gap["from_at"], gap["to_at"], gap["into_at"]) == (45.000001, 120, 120)
    assert await harness.fired(newest) == []
    assert await harness.gaps(newest) == []


async def test_a_jump_in_the_middle_of_chunks_counts_what_each_member_missed(harness: EngineHarness) -> None:
    jobs = await crowd(harness, 4)
    await harness.set_clock(harness.after(10))
    await harness.tick(most=2)
    await harness.set_clock(harness.after(105))
    await harness.tick_all()
    assert [await harness.fired(job) for job in jobs] == [[10, 100], [10, 100], [100], [100]]
    gaps = [(await harness.gaps(job))[0] for job in jobs]
    assert [gap["from_at"] for gap in gaps] == [10.000001, 10.000001, 10, 10]
    assert [gap["count"] for gap in gaps] == [8, 8, 9, 9]
    assert {gap["to_at"] for gap in gaps} == {100}


async def test_a_job_that_ended_before_the_latest_instant_does_not_fire_there(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), ends_at=harness.after(35))
    await harness.set_clock(harness.after(105))
    await harness.tick_all()
    assert await harness.fired(job) == []
    [gap] = await harness.gaps(job)
    assert gap["into_at"] is None


async def test_a_crash_between_the_fast_forward_and_the_tick_loses_nothing(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(105))
    await harness.tick()  # jumps; then the node is gone
    await harness.set_clock(harness.after(300))
    await harness.seize()
    await harness.tick_all()
    assert await harness.fired(job) == [300]
    gaps = await harness.gaps(job)
    assert [(gap["from_at"], gap["to_at"]) for gap in gaps] == [(10, 100), (100, 300)]


def test_a_plan_works_out_each_schedule_and_instant_once() -> None:
    class Counting:
        calls = 0

        def next_after(self, t: datetime) -> datetime:
            self.calls += 1
            return t + timedelta(seconds=10)

    schedule = Counting()
    moment = datetime.fromisoformat("2030-01-01T00:00:00Z")
    hands = [Cohort(moment, shard, 1) for shard in range(64)]
    planned = plan_moves(hands, {1: schedule}, moment, TickLimits())  # type: ignore[dict-item]
    assert schedule.calls == 1
    assert [move.cohort for move in planned.moves] == hands


# Timers


async def test_timers_fire_in_order_and_no_more_than_asked(harness: EngineHarness) -> None:
    for seconds in (30, 10, 20):
        await harness.send(at=harness.after(seconds))
    await harness.sql("update timers set shard = 0")
    await harness.set_clock(harness.after(60))
    assert [(await harness.ring(most=2)).fired for _ in range(3)] == [2, 1, 0]
    rows = await harness.sql("select scheduled_for from queue order by ctid")
    assert sorted(harness.seconds(row[0]) for row in rows[:2]) == [10, 20]


async def test_a_far_retry_of_a_paused_job_fires_into_a_held_row(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), retry=Retry(delays=["5m"], jitter=0))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.pause(job)
    await harness.set_clock(harness.after(400))
    assert (await harness.ring()).moved == 1
    assert await harness.state(harness.key(job, 10)) is State.BLOCKED


async def test_a_far_retry_comes_back_as_the_same_run(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), retry=Retry(delays=["5m", "5m"], jitter=0))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.set_clock(harness.after(309.9))
    assert (await harness.ring()).moved == 0
    await harness.set_clock(harness.after(310))
    assert (await harness.ring()).moved == 1
    claimed = await harness.claim_one(seat)
    assert (claimed.key, claimed.attempt) == (harness.key(job, 10), 2)
    assert await harness.fired(job) == [10]


@pytest.mark.parametrize("lead", [0, 5])
async def test_a_timer_that_fires_ahead_is_available_at_its_instant(harness: EngineHarness, lead: int) -> None:
    sent = await harness.send(at=harness.after(10))
    await harness.set_clock(harness.after(10 - lead))
    await harness.ring(lead=lead)
    assert (await harness.run(sent.key)).available_at == harness.after(10)
