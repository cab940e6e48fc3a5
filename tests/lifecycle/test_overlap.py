"""Overlap: what becomes of an occurrence whose predecessor is unfinished when its time comes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.reap import reap
from bellringer.policies import Misfire, Missed, Overlap, Retry
from bellringer.runs import RunKey, State
from bellringer.schedule import at, every
from bellringer.schedule.instants import EPOCH
from bellringer.store import queue
from bellringer.store.queue import Claimed

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

WAITING = [Overlap.SKIP, Overlap.QUEUE, Overlap.COLLAPSE, Overlap.REPLACE]  # all that do not allow
SILENCE = timedelta(minutes=30)


async def begin(bench: Bench, overlap: Overlap, **more: Any) -> tuple[UUID, Seat, Claimed]:
    """A job of every ten seconds, and its first run, under way at 10."""
    job = await bench.job("job", every("10s"), overlap=overlap, **more)
    seat = await bench.seat()
    await strike(bench, 10)
    return job, seat, await bench.claim_one(seat)


async def strike(bench: Bench, *seconds: float, lead: float = 0) -> None:
    """Fire, at each of these times, what strikes then; with a lead, and decide."""
    for second in seconds:
        await bench.set_clock(bench.after(second))
        await bench.tick_all(lead=lead)
        await queue.decide(bench.store, 1000)


async def ended(bench: Bench, key: RunKey) -> tuple[str, str | None, RunKey | None]:
    """How a run ended without a try: as what, why, and because of which run."""
    query = "select ends_as, error from attempts where job_id = $1 and scheduled_for = $2 and slot = $3 and attempt = 0"
    [row] = await bench.sql(query, key.job_id, key.scheduled_for, key.slot)
    error = json.loads(row["error"])
    run = error.get("run")
    if run is None:
        return row["ends_as"], error["reason"], None
    when = await bench.value("select $1::text::timestamptz", run["scheduled_for"])
    return row["ends_as"], error["reason"], RunKey(key.job_id, when, run["slot"])


async def states(bench: Bench, job: UUID) -> dict[float, State]:
    """The state of each run of the schedule, by its time in seconds after noon."""
    return {second: await bench.state(bench.key(job, second)) for second in await bench.fired(job)}


async def free_all(bench: Bench, most: int = 1000) -> None:
    """Sweep once over all that waits."""
    after = await queue.free_orphans(bench.store, (EPOCH, UUID(int=0)), most)
    for _ in range(100):
        if after is None:
            return
        after = await queue.free_orphans(bench.store, after, most)
    raise AssertionError("the sweep never came to its end")


# Each policy, when its time comes


async def test_skip_ends_an_occurrence_and_names_the_run_in_its_way(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP)
    await strike(bench, 20)
    assert await bench.state(bench.key(job, 20)) is State.SKIPPED
    assert await ended(bench, bench.key(job, 20)) == ("skipped", "overlap", first.key)
    assert await bench.queued(job) == [10]
    await bench.end(seat, first)
    await strike(bench, 30)
    assert (await bench.claim_one(seat)).key == bench.key(job, 30)


async def test_skip_is_what_a_job_does_that_says_nothing(bench: Bench) -> None:
    assert bench.definition("job", overlap=Overlap.SKIP).overlap is type(bench.definition())(name="x", task="y").overlap


async def test_allow_runs_side_by_side(bench: Bench) -> None:
    job, seat, _ = await begin(bench, Overlap.ALLOW)
    await strike(bench, 20, 30)
    assert [c.key for c in await bench.claim(seat)] == [bench.key(job, 20), bench.key(job, 30)]


async def test_queue_runs_all_one_by_one_in_order(bench: Bench) -> None:
    job, seat, current = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30, 40)
    for second in (20, 30, 40):
        assert await bench.claim(seat) == []
        assert await bench.state(bench.key(job, second)) is State.BLOCKED
        await bench.end(seat, current)
        current = await bench.claim_one(seat)
        assert current.key == bench.key(job, second)


async def test_collapse_lets_one_wait_and_coalesces_the_others_into_it(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.COLLAPSE)
    await strike(bench, 20, 30, 40)
    assert await states(bench, job) == {10: State.RUNNING, 20: State.BLOCKED, 30: State.SKIPPED, 40: State.SKIPPED}
    for second in (30, 40):
        assert await ended(bench, bench.key(job, second)) == ("skipped", "coalesced", bench.key(job, 20))
    await bench.end(seat, first)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_collapse_lets_the_next_wait_once_the_waiting_one_has_started(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.COLLAPSE)
    await strike(bench, 20, 30)
    await bench.end(seat, first)
    second = await bench.claim_one(seat)
    await strike(bench, 40, 50)
    assert await ended(bench, bench.key(job, 50)) == ("skipped", "coalesced", bench.key(job, 40))
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == bench.key(job, 40)


async def test_replace_asks_the_running_one_to_stop_and_starts_when_it_has(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 20)
    assert await queue.cancels(bench.store, seat.worker_id) == [(first.key, 1)]
    assert await bench.claim(seat) == []
    await bench.fail(seat, first)  # it stops
    assert await bench.state(first.key) is State.CANCELLED
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_replace_ends_a_waiting_one_and_names_what_replaced_it(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.REPLACE)
    seat = await bench.seat()
    await strike(bench, 10, 20)
    assert await ended(bench, bench.key(job, 10)) == ("cancelled", "replaced", bench.key(job, 20))
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_replace_replaces_the_replacement_that_waits(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 20, 30)
    assert await ended(bench, bench.key(job, 20)) == ("cancelled", "replaced", bench.key(job, 30))
    await bench.fail(seat, first)
    assert (await bench.claim_one(seat)).key == bench.key(job, 30)
    assert await bench.queued(job) == [30]


async def test_replace_lets_one_that_ends_well_in_spite_of_it_have_succeeded(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 20)
    await bench.end(seat, first)
    assert await bench.state(first.key) is State.SUCCEEDED
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


# What a predecessor is


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_run_that_is_ready_and_not_yet_claimed_is_a_predecessor(bench: Bench, overlap: Overlap) -> None:
    job = await bench.job("job", every("10s"), overlap=overlap)
    seat = await bench.seat()
    await strike(bench, 10, 20)
    assert len(await bench.claim(seat)) == 1
    assert (
        await states(bench, job)
        == {
            Overlap.SKIP: {10: State.RUNNING, 20: State.SKIPPED},
            Overlap.QUEUE: {10: State.RUNNING, 20: State.BLOCKED},
            Overlap.COLLAPSE: {10: State.RUNNING, 20: State.BLOCKED},
            Overlap.REPLACE: {10: State.CANCELLED, 20: State.RUNNING},
        }[overlap]
    )


@pytest.mark.parametrize("wait", ["5s", "12h"])
async def test_a_retry_is_a_predecessor_however_far_it_is(bench: Bench, wait: str) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP, retry=Retry(delays=[wait]))
    await bench.set_clock(bench.after(16))
    await bench.fail(seat, first)
    assert await bench.timers(job) == []
    await strike(bench, 20)
    assert await ended(bench, bench.key(job, 20)) == ("skipped", "overlap", first.key)


async def test_replace_ends_a_retry_that_waits(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE, retry=Retry(delays=["12h"]))
    await bench.fail(seat, first)
    await strike(bench, 20)
    assert await bench.state(first.key) is State.CANCELLED
    assert await ended(bench, first.key) == ("cancelled", "replaced", bench.key(job, 20))
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_far_retry_from_before_the_job_stopped_to_allow_waits_for_its_turn(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.ALLOW, retry=Retry(delays=["15m"]))
    await bench.fail(seat, first)
    assert await bench.timers(job) == [910]
    await bench.change(job, bench.definition("job", every("15m"), overlap=Overlap.QUEUE))
    await strike(bench, 900)
    second = await bench.claim_one(seat)
    await bench.set_clock(bench.after(910))
    await bench.ring()
    assert await bench.claim(seat) == []
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == first.key


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_manual_run_is_never_blocked(bench: Bench, overlap: Overlap) -> None:
    job, seat, _ = await begin(bench, overlap)
    manual = await bench.trigger(job)
    assert (await bench.claim_one(seat)).key == manual


async def test_a_manual_run_is_a_predecessor(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.SKIP)
    seat = await bench.seat()
    manual = await bench.trigger(job)
    claimed = await bench.claim_one(seat)
    await strike(bench, 10)
    assert await ended(bench, bench.key(job, 10)) == ("skipped", "overlap", manual)
    await bench.end(seat, claimed)
    await strike(bench, 20)
    assert await bench.queued(job) == [20]


async def test_a_run_of_another_job_is_no_predecessor(bench: Bench) -> None:
    _, seat, _ = await begin(bench, Overlap.SKIP)
    other = await bench.job("other", every("20s"), overlap=Overlap.SKIP)
    await strike(bench, 20)
    assert (await bench.claim_one(seat)).key == bench.key(other, 20)


async def test_a_dead_run_is_no_predecessor(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP, retry=Retry(1))
    await bench.fail(seat, first)
    assert await bench.state(first.key) is State.DEAD
    await strike(bench, 20)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_redriven_run_of_a_job_that_does_not_overlap_waits_for_its_turn(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE, retry=Retry(1))
    await bench.fail(seat, first)
    await strike(bench, 20)
    second = await bench.claim_one(seat)
    assert await bench.redrive(first.key) == 1
    assert await bench.claim(seat) == []  # else two of the schedule were under way at once
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == first.key
    assert job == first.key.job_id


# The time between birth and decision


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_predecessor_that_ends_between_birth_and_time_lets_the_run_go(bench: Bench, overlap: Overlap) -> None:
    job, seat, first = await begin(bench, overlap)
    await strike(bench, 19.2, lead=1)
    assert await bench.state(bench.key(job, 20)) is State.BLOCKED
    assert await queue.cancels(bench.store, seat.worker_id) == []  # its time has not come
    await bench.set_clock(bench.after(19.5))
    await bench.end(seat, first)
    assert await bench.state(bench.key(job, 20)) is State.QUEUED
    assert await bench.claim(seat) == []
    await strike(bench, 20)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
async def test_the_same_when_the_predecessor_is_cancelled_before_it_started(bench: Bench, overlap: Overlap) -> None:
    job = await bench.job("job", every("10s"), overlap=overlap)
    seat = await bench.seat()
    await strike(bench, 10)
    await strike(bench, 19.2, lead=1)
    await bench.cancel(bench.key(job, 10))
    await strike(bench, 20)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_predecessor_that_ends_a_moment_after_the_time_does_not_save_a_run_nobody_looked_at(
    bench: Bench,
) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP)
    await strike(bench, 19.2, lead=1)
    await bench.set_clock(bench.after(20.1))
    await bench.end(seat, first)
    assert await bench.state(bench.key(job, 20)) is State.SKIPPED
    assert await ended(bench, bench.key(job, 20)) == ("skipped", "overlap", first.key)  # and it is known which


async def test_so_does_one_that_is_cancelled(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.SKIP)
    await strike(bench, 10)
    await strike(bench, 19.2, lead=1)
    await bench.set_clock(bench.after(20.1))
    await bench.cancel(bench.key(job, 10))
    assert await ended(bench, bench.key(job, 20)) == ("skipped", "overlap", bench.key(job, 10))


async def test_collapse_does_not_let_two_run_because_it_was_decided_late(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.COLLAPSE)
    await strike(bench, 20)
    await strike(bench, 29.5, lead=1)
    await bench.set_clock(bench.after(30.1))
    await bench.end(seat, first)  # before anybody decided on 30, whose time came while 20 was waiting
    await queue.decide(bench.store, 1000)
    assert await ended(bench, bench.key(job, 30)) == ("skipped", "coalesced", bench.key(job, 20))


async def test_replace_that_is_decided_late_needs_to_replace_nothing(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 19.2, lead=1)
    await bench.set_clock(bench.after(20.1))
    await bench.end(seat, first)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_late_tick_decides_at_once(bench: Bench) -> None:
    job, _, first = await begin(bench, Overlap.SKIP)
    await bench.set_clock(bench.after(25))
    await bench.tick()
    assert await ended(bench, bench.key(job, 20)) == ("skipped", "overlap", first.key)


async def test_what_has_jitter_is_decided_when_it_may_start(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.ALLOW)
    await bench.change(job, bench.definition("job", every("10s"), overlap=Overlap.SKIP, jitter=timedelta(seconds=9)))
    by = await bench.value("select extract(epoch from jitter_by)::float8 from jobs where job_id = $1", job)
    assert by > 0.5
    await strike(bench, 20)
    await queue.decide(bench.store, 1000)
    assert await bench.state(bench.key(job, 20)) is State.BLOCKED
    await bench.set_clock(bench.after(20 + by / 2))
    await bench.end(seat, first)
    assert await bench.state(bench.key(job, 20)) is State.QUEUED


# Several at once


@pytest.mark.parametrize("overlap", WAITING)
async def test_two_schedules_that_strike_in_one_pass_do_not_overlap(bench: Bench, overlap: Overlap) -> None:
    job = await bench.job("job", every("2s"), every("3s"), overlap=overlap)
    seat = await bench.seat()
    await bench.set_clock(bench.after(3.5))
    await bench.tick()  # one call for both hands: neither run was in the queue before it
    await queue.decide(bench.store, 1000)
    assert await bench.fired(job) == [2, 3]
    assert len(await bench.claim(seat)) == 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_change_while_hands_run_ahead_does_not_let_runs_overlap(bench: Bench, overlap: Overlap) -> None:
    definition = bench.definition("job", every("1s"), overlap=overlap)
    await bench.job("other", every("1s"))  # it keeps the hand where it is
    await bench.share_shard()
    [job] = [r.job_id for r in await bench.register(definition)]
    await bench.tick_all(lead=5)
    await bench.change(job, definition)  # what was born ahead is born anew, all in one statement
    seat = await bench.seat()
    assert await bench.queued(job) == [1, 2, 3, 4, 5]
    for second in (1, 2, 3):
        await bench.set_clock(bench.after(second))
        await queue.decide(bench.store, 1000)
        await bench.claim(seat)
        assert await bench.value("select count(*) from queue where job_id = $1 and worker_id is not null", job) <= 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_an_edit_while_two_hands_are_behind_does_not_let_runs_overlap(bench: Bench, overlap: Overlap) -> None:
    definition = bench.definition("job", every("20s"), every("30s"), overlap=overlap)
    [registered] = await bench.register(definition)
    seat = await bench.seat()
    await bench.set_clock(bench.after(35))
    await bench.change(registered.job_id, definition)
    await queue.decide(bench.store, 1000)
    assert len(await bench.claim(seat)) == 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_thousands_of_jobs_overlap_at_once_and_each_has_one_under_way(bench: Bench, overlap: Overlap) -> None:
    count = 2000
    await bench.register(*(bench.definition(f"job {n}", every("10s"), overlap=overlap) for n in range(count)))
    seat = await bench.seat()
    await strike(bench, 10)
    first = await bench.claim(seat, count)
    assert len(first) == count
    await strike(bench, 20, 30)
    for _ in range(3):
        await queue.decide(bench.store, count)
    assert await bench.claim(seat, count) == []
    await bench.end(seat, first)
    after = await bench.claim(seat, count)
    assert len(after) == (0 if overlap is Overlap.SKIP else count)
    kept = {"skip": 0, "queue": 2, "collapse": 1, "replace": 1}[overlap]
    assert await bench.value("select count(*) from queue") == kept * count
    skipped, cancelled = {"skip": (2, 0), "queue": (0, 0), "collapse": (1, 0), "replace": (0, 1)}[overlap]
    tally = await bench.value("select count(*) from attempts where attempt = 0 and ends_as = 'skipped'")
    assert tally == skipped * count
    assert (
        await bench.value("select count(*) from attempts where attempt = 0 and ends_as = 'cancelled'")
        == cancelled * count
    )


# Catch-ups and backfills


async def catching_up(bench: Bench, overlap: Overlap) -> tuple[UUID, Seat, Claimed]:
    """A job of every ten seconds whose catch-up of 10 is under way, at 15."""
    job = await bench.job("job", every("10s"), overlap=overlap)
    await bench.set_clock(bench.after(15))
    await bench.sql("update cohorts set next_at = $1", bench.after(20))
    await bench.sql(
        "insert into runs select job_id, $2, 0, $3, 0, tenant_id, task_id, revision, shard, pool_id, priority - 10,"
        " 'catchup', null, 'queued', null, null from jobs where job_id = $1",
        job,
        bench.after(10),
        bench.after(15),
    )
    await bench.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause) select job_id, $2, 0, $3, tenant_id, task_id, revision, shard, pool_id, priority - 10,"
        " 'catchup' from jobs where job_id = $1",
        job,
        bench.after(10),
        bench.after(15),
    )
    seat = await bench.seat()
    return job, seat, await bench.claim_one(seat)


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_live_occurrence_waits_for_a_catch_up_and_is_not_skipped_for_it(bench: Bench, overlap: Overlap) -> None:
    job, seat, caught = await catching_up(bench, overlap)
    await strike(bench, 20)
    assert await bench.state(bench.key(job, 20)) is State.BLOCKED
    assert await queue.cancels(bench.store, seat.worker_id) == []
    await bench.set_clock(bench.after(25))
    await bench.end(seat, caught)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_nor_when_a_live_predecessor_was_there_at_its_birth_and_not_at_its_time(bench: Bench) -> None:
    job, seat, caught = await catching_up(bench, Overlap.SKIP)
    await bench.trigger(job)
    manual = await bench.claim_one(seat)
    await strike(bench, 19.2, lead=1)
    await bench.end(seat, manual)
    await strike(bench, 20)
    assert await bench.state(bench.key(job, 20)) is State.BLOCKED
    await bench.set_clock(bench.after(25))
    await bench.end(seat, caught)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_nor_when_the_catch_up_ends_before_anybody_decided(bench: Bench) -> None:
    job, seat, caught = await catching_up(bench, Overlap.SKIP)
    await bench.trigger(job)
    manual = await bench.claim_one(seat)
    await strike(bench, 19.2, lead=1)
    await bench.end(seat, manual)
    await bench.set_clock(bench.after(20.1))
    await bench.end(seat, caught)
    await queue.decide(bench.store, 1000)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_the_next_live_occurrence_is_skipped_for_the_live_one_that_waits(bench: Bench) -> None:
    job, _, _ = await catching_up(bench, Overlap.SKIP)
    await strike(bench, 20, 30)
    assert await ended(bench, bench.key(job, 30)) == ("skipped", "overlap", bench.key(job, 20))


async def test_replace_does_not_cancel_a_catch_up(bench: Bench) -> None:
    job, seat, caught = await catching_up(bench, Overlap.REPLACE)
    await strike(bench, 20, 30)
    assert await queue.cancels(bench.store, seat.worker_id) == []
    assert await ended(bench, bench.key(job, 20)) == ("cancelled", "replaced", bench.key(job, 30))
    await bench.end(seat, caught)
    assert (await bench.claim_one(seat)).key == bench.key(job, 30)


# Ends by other ways


async def test_a_waiting_run_goes_when_the_one_before_it_dies_on_a_vanished_worker(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE, retry=Retry(1))
    await strike(bench, 20)
    await bench.vanish(seat)
    assert await reap(bench.store, bench.names, SILENCE) == 1
    assert await bench.state(first.key) is State.DEAD
    other = await bench.seat()
    assert (await bench.claim_one(other)).key == bench.key(job, 20)


async def test_a_waiting_run_waits_on_when_the_one_before_it_is_retried(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE, retry=Retry(delays=["5s"]))
    await strike(bench, 20)
    await bench.fail(seat, first)
    assert await bench.claim(seat) == []
    await bench.pass_time(5)
    again = await bench.claim_one(seat)
    assert again.key == first.key
    assert await bench.state(bench.key(job, 20)) is State.BLOCKED


async def test_replace_ends_an_attempt_of_a_vanished_worker_and_goes_on(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 20)
    await bench.vanish(seat)
    await reap(bench.store, bench.names, SILENCE)
    assert await bench.state(first.key) is State.CANCELLED
    assert (await bench.claim_one(await bench.seat())).key == bench.key(job, 20)


async def test_a_waiting_run_goes_when_what_was_asked_to_stop_is_given_back(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.REPLACE)
    await strike(bench, 20)
    assert await queue.give_back(bench.store, seat.worker_id, [(first.key, 1)]) == 1
    assert await bench.state(first.key) is State.CANCELLED
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_a_run_that_is_given_back_stays_before_those_that_wait(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20)
    await queue.give_back(bench.store, seat.worker_id, [(first.key, 1)])
    assert [c.key for c in await bench.claim(seat)] == [bench.key(job, 10)]


async def test_a_waiting_run_that_is_cancelled_holds_up_nobody(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    assert await bench.cancel(bench.key(job, 20)) is State.CANCELLED
    await bench.end(seat, first)
    assert (await bench.claim_one(seat)).key == bench.key(job, 30)


async def test_a_paused_job_keeps_its_order(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await bench.pause(job)
    await bench.end(seat, first)
    assert await bench.claim(seat) == []
    await bench.resume(job)
    second = await bench.claim_one(seat)
    assert second.key == bench.key(job, 20)
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == bench.key(job, 30)


async def test_a_job_that_was_deleted_leaves_nothing_waiting(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await bench.retire(job)
    assert await bench.queued(job) == [10]
    await bench.end(seat, first)
    assert await bench.queued(job) == []


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_changed_policy_leaves_nobody_waiting_for_ever(bench: Bench, overlap: Overlap) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await strike(bench, 39.5, lead=1)
    await bench.change(job, bench.definition("job", every("1h"), overlap=overlap))
    await bench.end(seat, first)
    for _ in range(4):
        await free_all(bench)
        await queue.decide(bench.store, 1000)
        claimed = await bench.claim(seat)
        assert len(claimed) <= 1 or overlap is Overlap.ALLOW
        await bench.end(seat, claimed)
    assert await bench.queued(job) == []


async def test_a_job_that_allows_from_now_on_lets_all_that_wait_go(bench: Bench) -> None:
    job, seat, _ = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await bench.change(job, bench.definition("job", every("1h"), overlap=Overlap.ALLOW))
    assert [c.key for c in await bench.claim(seat)] == [bench.key(job, 20), bench.key(job, 30)]


async def test_a_limited_run_that_waits_comes_back_limited(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE, max_concurrency=1)
    await strike(bench, 20)
    assert await bench.value("select blocked from queue where scheduled_for = $1", bench.after(20)) == 32 | 2
    await bench.end(seat, first)
    assert await bench.value("select blocked from queue where job_id = $1", job) == 32
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


# One-shots


async def test_a_one_shot_waits_for_a_run_by_hand_rather_than_to_be_lost(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(10)), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    await bench.trigger(job)
    manual = await bench.claim_one(seat)
    await bench.set_clock(bench.after(10))
    await bench.ring()
    assert await bench.claim(seat) == []
    await bench.end(seat, manual)
    assert (await bench.claim_one(seat)).key == bench.key(job, 10)


# The sweep


async def test_the_sweep_frees_a_run_that_waits_for_nothing(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await bench.sql("delete from queue where scheduled_for = $1", first.key.scheduled_for)  # two that saw each other
    await free_all(bench)
    assert (await bench.claim_one(seat)).key == bench.key(job, 20)


async def test_the_sweep_leaves_those_that_wait_for_something(bench: Bench) -> None:
    _, seat, _ = await begin(bench, Overlap.QUEUE)
    await strike(bench, 20, 30)
    await free_all(bench)
    assert await bench.claim(seat) == []


async def test_the_sweep_comes_to_all_that_wait_for_one_instant_however_few_it_takes_at_a_time(bench: Bench) -> None:
    await bench.register(*(bench.definition(f"job {n}", every("10s"), overlap=Overlap.QUEUE) for n in range(7)))
    seat = await bench.seat()
    await strike(bench, 10)
    claimed = await bench.claim(seat)
    await strike(bench, 20)
    rows = await bench.sql("select job_id from queue where scheduled_for = $1 order by ctid", bench.after(20))
    orphan = rows[-1]["job_id"]  # the others wait for good reason
    await bench.sql("delete from queue where job_id = $1 and worker_id is not null", orphan)
    await free_all(bench, most=2)
    assert [c.key.job_id for c in await bench.claim(seat)] == [orphan]
    assert len(claimed) == 7


async def test_an_overlap_with_a_missed_occurrence_is_the_missed_ones_fate(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP, misfire=Misfire.FIRE_ONCE)
    await bench.set_clock(bench.after(605))
    await bench.tick_all()
    assert await bench.fired(job) == [10, 600]
    assert await ended(bench, bench.key(job, 600)) == ("skipped", "overlap", first.key)
    [gap] = await bench.gaps(job)
    assert (gap["from_at"], gap["to_at"], gap["count"]) == (20, 600, 58)
    assert seat.worker_id


async def test_resume_lets_the_latest_wait_for_what_still_runs(bench: Bench) -> None:
    job, seat, first = await begin(bench, Overlap.SKIP)
    await bench.pause(job)
    await bench.set_clock(bench.after(45))
    await bench.resume(job, Missed.LATEST)
    [row] = await bench.sql("select cause, from_at from backfills where job_id = $1", job)
    assert (row["cause"], bench.seconds(row["from_at"])) == ("catchup", 40)
    await bench.end(seat, first)
