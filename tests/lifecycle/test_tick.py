"""Tick: every hand that strikes becomes runs, once, under the fence, however late or crowded it is."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from bellringer.leases import Holding
from bellringer.lifecycle.tick import Pace, plan
from bellringer.policies import Retry
from bellringer.runs import State
from bellringer.schedule import cron, every
from bellringer.store import cohorts
from bellringer.store.cohorts import Hand, Move
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def crowd(bench: Bench, size: int, interval: str = "10s") -> list[UUID]:
    """Jobs of one cohort, in the order in which it fires them."""
    await bench.share_shard()
    definitions = [bench.definition(f"job {interval} {n}", every(interval)) for n in range(size)]
    return sorted(taken.job_id for taken in await bench.register(*definitions))


# On time


async def test_a_strike_fires_each_member_once_and_moves_the_hand(bench: Bench) -> None:
    jobs = await crowd(bench, 5)
    await bench.set_clock(bench.after(10))
    ticked = await bench.tick()
    assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (5, 1, False)
    assert [hand.next_at for hand in ticked.hands] == [bench.after(20)]
    assert (await bench.tick()).fired.fired == 0
    assert [await bench.fired(job) for job in jobs] == [[10]] * 5
    assert await bench.value("select count(*) from queue where available_at = $1", bench.after(10)) == 5


async def test_a_run_says_by_which_lease_and_of_which_revision_it_was_born(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.seize()
    holding = await bench.seize()
    await bench.set_clock(bench.after(11))
    await bench.tick()
    [row] = await bench.sql("select * from runs")
    assert (row["token"], row["revision"]) == (holding.tokens[row["shard"]], 1)
    assert (row["fired_at"], row["cause"], row["born_as"]) == (bench.after(11), "schedule", "queued")
    assert await bench.state(bench.key(job, 10)) is State.QUEUED


async def test_nothing_fires_before_its_time_by_the_databases_clock(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    [hand] = await bench.hands(bench.after(10))
    await bench.set_clock(bench.after(9.999999))
    move = Move(hand, bench.after(20))
    fired = await cohorts.tick(bench.store, await bench.hold(), [move], Pace(lead=timedelta(0), most=100), None)
    assert (fired.fired, fired.moved) == (0, 0)
    assert await bench.fired(job) == []


async def test_what_is_fired_ahead_waits_in_the_queue_for_its_instant(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(9))
    await bench.tick(lead=1)
    assert await bench.fired(job) == [10]
    seat = await bench.seat()
    await bench.set_clock(bench.after(9.999999))
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(10))
    assert len(await bench.claim(seat)) == 1


# In chunks


async def test_a_large_cohort_fires_in_chunks_that_follow_its_cursor(bench: Bench) -> None:
    jobs = await crowd(bench, 7)
    await bench.set_clock(bench.after(10))
    for fired, cursor in ((3, jobs[2]), (3, jobs[5])):
        ticked = await bench.tick(most=3)
        assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (fired, 0, True)
        assert await bench.value("select cursor from cohorts") == cursor
    ticked = await bench.tick(most=3)
    assert (ticked.fired.fired, ticked.fired.moved, ticked.fired.cut) == (1, 1, False)
    assert await bench.value("select cursor from cohorts") is None
    assert [await bench.fired(job) for job in jobs] == [[10]] * 7


async def test_a_cohort_as_large_as_the_chunk_fires_at_once(bench: Bench) -> None:
    await crowd(bench, 3)
    await bench.set_clock(bench.after(10))
    ticked = await bench.tick(most=3)
    assert (ticked.fired.fired, ticked.fired.cut) == (3, False)


async def test_another_holder_finishes_the_chunks_of_one_that_crashed(bench: Bench) -> None:
    jobs = await crowd(bench, 7)
    await bench.set_clock(bench.after(10))
    await bench.tick(most=3)
    other = await bench.seize()
    await bench.tick_all(other, most=3)
    assert [await bench.fired(job) for job in jobs] == [[10]] * 7


async def test_members_that_are_not_active_do_not_fill_a_chunk(bench: Bench) -> None:
    await bench.share_shard()
    for n in range(4):
        await bench.job(f"to come {n}", every("10s"), starts_at=bench.after(100))
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    ticked = await bench.tick(most=2)
    assert (ticked.fired.fired, ticked.fired.cut) == (1, False)
    assert await bench.fired(job) == [10]


async def test_only_whole_cohorts_fire_where_many_do_not_fit(bench: Bench) -> None:
    for interval in ("1s", "2s", "5s", "10s"):
        await crowd(bench, 3, interval)
    await bench.sql("update cohorts set next_at = $1", bench.after(10))
    await bench.set_clock(bench.after(10))
    first = await bench.tick(most=7)
    assert (first.fired.fired, first.fired.moved, first.fired.cut) == (6, 2, False)
    assert await bench.value("select count(*) from cohorts where cursor is not null") == 0
    second = await bench.tick(most=7)
    assert (second.fired.fired, second.fired.moved) == (6, 2)
    assert await bench.hands() == []


async def test_a_small_cohort_before_a_large_one_fires_alone(bench: Bench) -> None:
    await crowd(bench, 2, "2s")
    await crowd(bench, 9, "10s")
    await bench.sql("update cohorts set next_at = $1", bench.after(10))
    await bench.set_clock(bench.after(10))
    assert [(await bench.tick(most=5)).fired.fired for _ in range(4)] == [2, 5, 4, 0]


async def test_an_occurrence_that_exists_already_is_passed_over(bench: Bench) -> None:
    jobs = await crowd(bench, 3)
    await bench.set_clock(bench.after(10))
    await bench.tick()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim(seat))
    await bench.sql("delete from runs where job_id = $1", jobs[1])
    await bench.sql("update cohorts set next_at = $1", bench.after(10))
    ticked = await bench.tick()
    assert (ticked.fired.fired, ticked.fired.moved) == (1, 1)
    assert [await bench.fired(job) for job in jobs] == [[10]] * 3
    assert await bench.value("select array_agg(job_id) from queue") == [jobs[1]]


async def test_a_hand_that_moved_meanwhile_is_not_moved_again(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    [stale] = await bench.hands(bench.after(10))
    await bench.set_clock(bench.after(20))
    await bench.tick_all()
    fired = await cohorts.tick(bench.store, bench.holding, [Move(stale, bench.after(15))], Pace(most=100), None)
    assert (fired.fired, fired.moved) == (0, 0)
    [hand] = await bench.hands(bench.after(60))
    assert hand.next_at == bench.after(30)


# Under the fence


async def test_a_stale_token_is_refused_and_nothing_is_written(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    old = await bench.hold()
    await bench.seize()
    await bench.set_clock(bench.after(10))
    [hand] = await bench.hands()
    refused = (await bench.tick(old)).fired.refused
    assert refused == {hand.shard}
    assert await bench.fired(job) == await bench.queued(job) == []
    assert await bench.hands() == [hand]


async def test_a_token_in_another_holders_name_is_refused(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    holding = await bench.hold()
    await bench.set_clock(bench.after(10))
    thief = Holding(uuid4(), holding.tokens)
    assert (await bench.tick(thief)).fired.refused


async def test_one_lost_shard_refuses_the_whole_call(bench: Bench) -> None:
    await bench.register(*(bench.definition(f"job {n}", every("10s")) for n in range(20)))
    holding = await bench.hold()
    await bench.set_clock(bench.after(10))
    lost = (await bench.hands())[0].shard
    await bench.sql("update leases set token = token + 1 where shard = $1", lost)
    ticked = await bench.tick(holding)
    assert ticked.fired.refused == {lost}
    assert await bench.value("select count(*) from runs") == 0


async def test_a_released_lease_is_free_at_once_and_its_old_holder_refused(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    old = await bench.hold()
    await PostgresLeases(bench.store).release(old.holder, old.tokens)
    new = await bench.hold()
    assert new.tokens.keys() == old.tokens.keys()
    await bench.set_clock(bench.after(10))
    assert (await bench.tick(old)).fired.refused
    assert (await bench.tick(new)).fired.fired == 1


async def test_a_lease_that_ran_out_still_writes_until_another_takes_it(bench: Bench) -> None:
    """Time says who may try; only the token says who may write."""
    await bench.job("job", every("10s"))
    holding = await bench.hold()
    await bench.sql("update leases set expires_at = '-infinity'")
    await bench.set_clock(bench.after(10))
    assert (await bench.tick(holding)).fired.fired == 1


async def test_a_stale_holder_can_neither_jump_nor_ring(bench: Bench) -> None:
    await bench.job("job", every("10s"))
    await bench.send(at=bench.after(20))
    old = await bench.hold()
    new = await bench.seize()
    await bench.set_clock(bench.after(1000))
    assert (await bench.tick(old)).fired.refused
    assert await bench.value("select count(*) from gaps") == 0
    bench.holding = old
    assert (await bench.ring()).refused == set(old.tokens)
    bench.holding = new
    assert (await bench.ring()).fired == 1


async def test_a_renewal_keeps_only_what_is_still_held(bench: Bench) -> None:
    keeper = PostgresLeases(bench.store)
    holding = await bench.hold()
    await bench.sql("update leases set token = token + 1, holder = gen_random_uuid() where shard = 5")
    held = await keeper.renew(holding.holder, holding.tokens)
    assert held == holding.tokens.keys() - {5}


# Late


async def test_a_hand_that_is_late_within_the_grace_walks_every_occurrence(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(65))
    await bench.tick_all(grace=60)
    assert await bench.fired(job) == [10, 20, 30, 40, 50, 60]
    assert await bench.gaps(job) == []


async def test_a_hand_that_is_later_than_the_grace_fires_its_latest_instant_and_records_a_gap(
    bench: Bench,
) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(75))
    assert (await bench.tick(grace=60)).fired.missed == 6
    await bench.tick_all(grace=60)
    assert await bench.fired(job) == [70]
    assert await bench.gaps(job) == [{"from_at": 10, "to_at": 70, "count": 6, "reason": "misfire", "into_at": 70}]
    [hand] = await bench.hands(bench.after(100))
    assert hand.next_at == bench.after(80)


async def test_a_single_late_occurrence_runs_however_late(bench: Bench) -> None:
    job = await bench.job("job", every("1h"))
    await bench.set_clock(bench.after(7000))
    await bench.tick_all(grace=60)
    assert await bench.fired(job) == [3600]
    assert await bench.gaps(job) == []


async def test_a_job_of_every_second_resumes_after_a_year_in_less_than_a_second(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    also = await bench.job("also", cron("* * * * *", tz="Europe/Berlin"))
    year = 366 * 86_400
    await bench.set_clock(bench.after(year))
    started = time.monotonic()
    await bench.tick_all()
    assert time.monotonic() - started < 1
    assert await bench.fired(job) == [year]
    [gap] = await bench.gaps(job)
    assert gap["count"] == year - 1
    assert await bench.fired(also) == [year]


async def test_a_job_that_came_during_the_outage_has_a_gap_from_its_birth(bench: Bench) -> None:
    await bench.share_shard()
    await bench.job("old", every("10s"))
    await bench.set_clock(bench.after(45))
    new = await bench.job("new", every("10s"))
    await bench.set_clock(bench.after(125))
    newest = await bench.job("newest", every("10s"))
    await bench.tick_all()
    assert await bench.fired(new) == [120]
    [gap] = await bench.gaps(new)
    assert (gap["from_at"], gap["to_at"], gap["into_at"]) == (45.000001, 120, 120)
    assert await bench.fired(newest) == []
    assert await bench.gaps(newest) == []


async def test_a_jump_in_the_middle_of_chunks_counts_what_each_member_missed(bench: Bench) -> None:
    jobs = await crowd(bench, 4)
    await bench.set_clock(bench.after(10))
    await bench.tick(most=2)
    await bench.set_clock(bench.after(105))
    await bench.tick_all()
    assert [await bench.fired(job) for job in jobs] == [[10, 100], [10, 100], [100], [100]]
    gaps = [(await bench.gaps(job))[0] for job in jobs]
    assert [gap["from_at"] for gap in gaps] == [10.000001, 10.000001, 10, 10]
    assert [gap["count"] for gap in gaps] == [8, 8, 9, 9]
    assert {gap["to_at"] for gap in gaps} == {100}


async def test_a_job_that_ended_before_the_latest_instant_does_not_fire_there(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), ends_at=bench.after(35))
    await bench.set_clock(bench.after(105))
    await bench.tick_all()
    assert await bench.fired(job) == []
    [gap] = await bench.gaps(job)
    assert gap["into_at"] is None


async def test_a_crash_between_the_jump_and_the_strike_loses_nothing(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(105))
    await bench.tick()  # jumps; then the node is gone
    await bench.set_clock(bench.after(300))
    await bench.seize()
    await bench.tick_all()
    assert await bench.fired(job) == [300]
    gaps = await bench.gaps(job)
    assert [(gap["from_at"], gap["to_at"]) for gap in gaps] == [(10, 100), (100, 300)]


def test_a_plan_works_out_each_schedule_and_instant_once() -> None:
    class Counting:
        calls = 0

        def next_after(self, t: datetime) -> datetime:
            self.calls += 1
            return t + timedelta(seconds=1)

    schedule = Counting()
    moment = datetime.fromisoformat("2030-01-01T00:00:00Z")
    hands = [Hand(moment, shard, 1) for shard in range(64)]
    planned = plan(hands, {1: schedule}, moment, Pace())  # type: ignore[dict-item]
    assert schedule.calls == 1
    assert [move.hand for move in planned.moves] == hands


# Timers


async def test_timers_ring_in_order_and_no_more_than_asked(bench: Bench) -> None:
    for seconds in (30, 10, 20):
        await bench.send(at=bench.after(seconds))
    await bench.sql("update timers set shard = 0")
    await bench.set_clock(bench.after(60))
    assert [(await bench.ring(most=2)).fired for _ in range(3)] == [2, 1, 0]
    rows = await bench.sql("select scheduled_for from queue order by ctid")
    assert sorted(bench.seconds(row[0]) for row in rows[:2]) == [10, 20]


async def test_a_far_retry_of_a_paused_job_rings_into_a_held_row(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), retry=Retry(delays=["5m"]))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.pause(job)
    await bench.set_clock(bench.after(400))
    assert (await bench.ring()).moved == 1
    assert await bench.state(bench.key(job, 10)) is State.BLOCKED


async def test_a_far_retry_comes_back_as_the_same_run(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), retry=Retry(delays=["5m", "5m"]))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.set_clock(bench.after(309.9))
    assert (await bench.ring()).moved == 0
    await bench.set_clock(bench.after(310))
    assert (await bench.ring()).moved == 1
    claimed = await bench.claim_one(seat)
    assert (claimed.key, claimed.attempt) == (bench.key(job, 10), 2)
    assert await bench.fired(job) == [10]


@pytest.mark.parametrize("lead", [0, 5])
async def test_a_timer_that_rings_ahead_is_available_at_its_instant(bench: Bench, lead: int) -> None:
    sent = await bench.send(at=bench.after(10))
    await bench.set_clock(bench.after(10 - lead))
    await bench.ring(lead=lead)
    assert (await bench.run(sent.key)).available_at == bench.after(10)
