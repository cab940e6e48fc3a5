"""Overlap: what becomes of an occurrence whose predecessor is unfinished when its time comes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Delivery, Misfire, Missed, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.schedule import at, every
from bellringer.schedule.instants import EPOCH
from bellringer.store import queue
from bellringer.store.queue import ClaimedRun

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

WAITING = [Overlap.SKIP, Overlap.QUEUE, Overlap.COLLAPSE, Overlap.REPLACE]  # all that do not allow
SILENCE = timedelta(minutes=30)


async def begin(harness: EngineHarness, overlap: Overlap, **more: Any) -> tuple[UUID, ClaimSpec, ClaimedRun]:
    """A job of every ten seconds, and its first run, under way at 10."""
    job = await harness.job("job", every("10s"), overlap=overlap, **more)
    seat = await harness.join_worker()
    await strike(harness, 10)
    return job, seat, await harness.claim_one(seat)


async def strike(harness: EngineHarness, *seconds: float, lead: float = 0) -> None:
    """Fire, at each of these times, what strikes then; with a lead, and decide."""
    for second in seconds:
        await harness.set_clock(harness.after(second))
        await harness.tick_all(lead=lead)
        await queue.decide_overlaps(harness.store, 1000)


async def ended(harness: EngineHarness, key: RunKey) -> tuple[str, str | None, RunKey | None]:
    """How a run ended without a try: as what, why, and because of which run."""
    query = "select ends_as, error from attempts where job_id = $1 and scheduled_for = $2 and slot = $3 and attempt = 0"
    [row] = await harness.sql(query, key.job_id, key.scheduled_for, key.slot)
    error = json.loads(row["error"])
    run = error.get("run")
    if run is None:
        return row["ends_as"], error["reason"], None
    when = await harness.value("select $1::text::timestamptz", run["scheduled_for"])
    return row["ends_as"], error["reason"], RunKey(key.job_id, when, run["slot"])


async def states(harness: EngineHarness, job: UUID) -> dict[float, State]:
    """The state of each run of the schedule, by its time in seconds after noon."""
    return {second: await harness.state(harness.key(job, second)) for second in await harness.fired(job)}


async def free_all(harness: EngineHarness, most: int = 1000) -> None:
    """Sweep once over all that waits."""
    after = await queue.unblock_orphans(harness.store, (EPOCH, UUID(int=0)), most)
    for _ in range(100):
        if after is None:
            return
        after = await queue.unblock_orphans(harness.store, after, most)
    raise AssertionError("the sweep never came to its end")


# Each policy, when its time comes


async def test_skip_ends_an_occurrence_and_names_the_run_in_its_way(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP)
    await strike(harness, 20)
    assert await harness.state(harness.key(job, 20)) is State.SKIPPED
    assert await ended(harness, harness.key(job, 20)) == ("skipped", "overlap", first.key)
    assert await harness.queued(job) == [10]
    await harness.end(seat, first)
    await strike(harness, 30)
    assert (await harness.claim_one(seat)).key == harness.key(job, 30)


async def test_skip_is_what_a_job_does_that_says_nothing(harness: EngineHarness) -> None:
    assert (
        harness.definition("job", overlap=Overlap.SKIP).overlap
        is type(harness.definition())(name="x", task="y").overlap
    )


async def test_allow_runs_side_by_side(harness: EngineHarness) -> None:
    job, seat, _ = await begin(harness, Overlap.ALLOW)
    await strike(harness, 20, 30)
    assert [c.key for c in await harness.claim(seat)] == [harness.key(job, 20), harness.key(job, 30)]


async def test_queue_runs_all_one_by_one_in_order(harness: EngineHarness) -> None:
    job, seat, current = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30, 40)
    for second in (20, 30, 40):
        assert await harness.claim(seat) == []
        assert await harness.state(harness.key(job, second)) is State.BLOCKED
        await harness.end(seat, current)
        current = await harness.claim_one(seat)
        assert current.key == harness.key(job, second)


async def test_collapse_lets_one_wait_and_coalesces_the_others_into_it(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.COLLAPSE)
    await strike(harness, 20, 30, 40)
    assert await states(harness, job) == {10: State.RUNNING, 20: State.BLOCKED, 30: State.SKIPPED, 40: State.SKIPPED}
    for second in (30, 40):
        assert await ended(harness, harness.key(job, second)) == ("skipped", "coalesced", harness.key(job, 20))
    await harness.end(seat, first)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_collapse_lets_the_next_wait_once_the_waiting_one_has_started(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.COLLAPSE)
    await strike(harness, 20, 30)
    await harness.end(seat, first)
    second = await harness.claim_one(seat)
    await strike(harness, 40, 50)
    assert await ended(harness, harness.key(job, 50)) == ("skipped", "coalesced", harness.key(job, 40))
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == harness.key(job, 40)


async def test_replace_asks_the_running_one_to_stop_and_starts_when_it_has(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 20)
    assert await queue.cancel_requests(harness.store, seat.worker_id) == [(first.key, 1)]
    assert await harness.claim(seat) == []
    await harness.fail(seat, first)  # it stops
    assert await harness.state(first.key) is State.CANCELLED
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_replace_ends_a_waiting_one_and_names_what_replaced_it(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.REPLACE)
    seat = await harness.join_worker()
    await strike(harness, 10, 20)
    assert await ended(harness, harness.key(job, 10)) == ("cancelled", "replaced", harness.key(job, 20))
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_replace_replaces_the_replacement_that_waits(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 20, 30)
    assert await ended(harness, harness.key(job, 20)) == ("cancelled", "replaced", harness.key(job, 30))
    await harness.fail(seat, first)
    assert (await harness.claim_one(seat)).key == harness.key(job, 30)
    assert await harness.queued(job) == [30]


async def test_replace_lets_one_that_ends_well_in_spite_of_it_have_succeeded(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 20)
    await harness.end(seat, first)
    assert await harness.state(first.key) is State.SUCCEEDED
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


# What a predecessor is


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_run_that_is_ready_and_not_yet_claimed_is_a_predecessor(
    harness: EngineHarness, overlap: Overlap
) -> None:
    job = await harness.job("job", every("10s"), overlap=overlap)
    seat = await harness.join_worker()
    await strike(harness, 10, 20)
    assert len(await harness.claim(seat)) == 1
    assert (
        await states(harness, job)
        == {
            Overlap.SKIP: {10: State.RUNNING, 20: State.SKIPPED},
            Overlap.QUEUE: {10: State.RUNNING, 20: State.BLOCKED},
            Overlap.COLLAPSE: {10: State.RUNNING, 20: State.BLOCKED},
            Overlap.REPLACE: {10: State.CANCELLED, 20: State.RUNNING},
        }[overlap]
    )


@pytest.mark.parametrize("wait", ["5s", "12h"])
async def test_a_retry_is_a_predecessor_however_far_it_is(harness: EngineHarness, wait: str) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP, retry=Retry(delays=[wait], jitter=0))
    await harness.set_clock(harness.after(16))
    await harness.fail(seat, first)
    assert await harness.timers(job) == []
    await strike(harness, 20)
    assert await ended(harness, harness.key(job, 20)) == ("skipped", "overlap", first.key)


async def test_replace_ends_a_retry_that_waits(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE, retry=Retry(delays=["12h"], jitter=0))
    await harness.fail(seat, first)
    await strike(harness, 20)
    assert await harness.state(first.key) is State.CANCELLED
    assert await ended(harness, first.key) == ("cancelled", "replaced", harness.key(job, 20))
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_far_retry_from_before_the_job_stopped_to_allow_waits_for_its_turn(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.ALLOW, retry=Retry(delays=["15m"], jitter=0))
    await harness.fail(seat, first)
    assert await harness.timers(job) == [910]
    await harness.change(job, harness.definition("job", every("15m"), overlap=Overlap.QUEUE))
    await strike(harness, 900)
    second = await harness.claim_one(seat)
    await harness.set_clock(harness.after(910))
    await harness.ring()
    assert await harness.claim(seat) == []
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == first.key


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_manual_run_is_never_blocked(harness: EngineHarness, overlap: Overlap) -> None:
    job, seat, _ = await begin(harness, overlap)
    manual = await harness.trigger(job)
    assert (await harness.claim_one(seat)).key == manual


async def test_a_manual_run_is_a_predecessor(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.SKIP)
    seat = await harness.join_worker()
    manual = await harness.trigger(job)
    claimed = await harness.claim_one(seat)
    await strike(harness, 10)
    assert await ended(harness, harness.key(job, 10)) == ("skipped", "overlap", manual)
    await harness.end(seat, claimed)
    await strike(harness, 20)
    assert await harness.queued(job) == [20]


async def test_a_run_of_another_job_is_not_a_predecessor(harness: EngineHarness) -> None:
    _, seat, _ = await begin(harness, Overlap.SKIP)
    other = await harness.job("other", every("20s"), overlap=Overlap.SKIP)
    await strike(harness, 20)
    assert (await harness.claim_one(seat)).key == harness.key(other, 20)


async def test_a_dead_run_is_not_a_predecessor(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP, retry=Retry(1))
    await harness.fail(seat, first)
    assert await harness.state(first.key) is State.DEAD
    await strike(harness, 20)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_redriven_run_of_a_job_that_does_not_overlap_waits_for_its_turn(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE, retry=Retry(1))
    await harness.fail(seat, first)
    await strike(harness, 20)
    second = await harness.claim_one(seat)
    assert await harness.redrive(first.key) == 1
    assert await harness.claim(seat) == []  # else two of the schedule were under way at once
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == first.key
    assert job == first.key.job_id


# The time between birth and decision


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_predecessor_that_ends_between_its_creation_and_its_time_lets_the_run_go(
    harness: EngineHarness, overlap: Overlap
) -> None:
    job, seat, first = await begin(harness, overlap)
    await strike(harness, 19.2, lead=1)
    assert await harness.state(harness.key(job, 20)) is State.BLOCKED
    assert await queue.cancel_requests(harness.store, seat.worker_id) == []  # its time has not come
    await harness.set_clock(harness.after(19.5))
    await harness.end(seat, first)
    assert await harness.state(harness.key(job, 20)) is State.QUEUED
    assert await harness.claim(seat) == []
    await strike(harness, 20)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


@pytest.mark.parametrize("overlap", WAITING)
async def test_the_same_when_the_predecessor_is_cancelled_before_it_started(
    harness: EngineHarness, overlap: Overlap
) -> None:
    job = await harness.job("job", every("10s"), overlap=overlap)
    seat = await harness.join_worker()
    await strike(harness, 10)
    await strike(harness, 19.2, lead=1)
    await harness.cancel(harness.key(job, 10))
    await strike(harness, 20)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_predecessor_that_ends_a_moment_after_the_time_does_not_save_a_run_no_one_looked_at(
    harness: EngineHarness,
) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP)
    await strike(harness, 19.2, lead=1)
    await harness.set_clock(harness.after(20.1))
    await harness.end(seat, first)
    assert await harness.state(harness.key(job, 20)) is State.SKIPPED
    assert await ended(harness, harness.key(job, 20)) == ("skipped", "overlap", first.key)  # and it is known which


async def test_so_does_one_that_is_cancelled(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.SKIP)
    await strike(harness, 10)
    await strike(harness, 19.2, lead=1)
    await harness.set_clock(harness.after(20.1))
    await harness.cancel(harness.key(job, 10))
    assert await ended(harness, harness.key(job, 20)) == ("skipped", "overlap", harness.key(job, 10))


async def test_collapse_does_not_let_two_run_because_it_was_decided_late(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.COLLAPSE)
    await strike(harness, 20)
    await strike(harness, 29.5, lead=1)
    await harness.set_clock(harness.after(30.1))
    await harness.end(seat, first)  # before anybody decided on 30, whose time came while 20 was waiting
    await queue.decide_overlaps(harness.store, 1000)
    assert await ended(harness, harness.key(job, 30)) == ("skipped", "coalesced", harness.key(job, 20))


async def test_replace_that_is_decided_late_needs_to_replace_nothing(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 19.2, lead=1)
    await harness.set_clock(harness.after(20.1))
    await harness.end(seat, first)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_late_tick_decides_at_once(harness: EngineHarness) -> None:
    job, _, first = await begin(harness, Overlap.SKIP)
    await harness.set_clock(harness.after(25))
    await harness.tick()
    assert await ended(harness, harness.key(job, 20)) == ("skipped", "overlap", first.key)


async def test_what_has_jitter_is_decided_when_it_may_start(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.ALLOW)
    await harness.change(
        job, harness.definition("job", every("10s"), overlap=Overlap.SKIP, jitter=timedelta(seconds=9))
    )
    by = await harness.value("select extract(epoch from jitter_by)::float8 from jobs where job_id = $1", job)
    assert by > 0.5
    await strike(harness, 20)
    await queue.decide_overlaps(harness.store, 1000)
    assert await harness.state(harness.key(job, 20)) is State.BLOCKED
    await harness.set_clock(harness.after(20 + by / 2))
    await harness.end(seat, first)
    assert await harness.state(harness.key(job, 20)) is State.QUEUED


# Several at once


@pytest.mark.parametrize("overlap", WAITING)
async def test_two_schedules_that_fire_in_one_pass_do_not_overlap(harness: EngineHarness, overlap: Overlap) -> None:
    job = await harness.job("job", every("2s"), every("3s"), overlap=overlap)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(3.5))
    await harness.tick()  # one call for both hands: neither run was in the queue before it
    await queue.decide_overlaps(harness.store, 1000)
    assert await harness.fired(job) == [2, 3]
    assert len(await harness.claim(seat)) == 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_change_while_cohorts_run_ahead_does_not_let_runs_overlap(
    harness: EngineHarness, overlap: Overlap
) -> None:
    definition = harness.definition("job", every("1s"), overlap=overlap)
    await harness.job("other", every("1s"))  # it keeps the hand where it is
    await harness.share_shard()
    [job] = [r.job_id for r in await harness.register(definition)]
    await harness.tick_all(lead=5)
    await harness.change(job, definition)  # what was born ahead is born anew, all in one statement
    seat = await harness.join_worker()
    assert await harness.queued(job) == [1, 2, 3, 4, 5]
    for second in (1, 2, 3):
        await harness.set_clock(harness.after(second))
        await queue.decide_overlaps(harness.store, 1000)
        await harness.claim(seat)
        assert await harness.value("select count(*) from queue where job_id = $1 and worker_id is not null", job) <= 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_an_edit_while_two_cohorts_are_behind_does_not_let_runs_overlap(
    harness: EngineHarness, overlap: Overlap
) -> None:
    definition = harness.definition("job", every("20s"), every("30s"), overlap=overlap)
    [registered] = await harness.register(definition)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(35))
    await harness.change(registered.job_id, definition)
    await queue.decide_overlaps(harness.store, 1000)
    assert len(await harness.claim(seat)) == 1


@pytest.mark.parametrize("overlap", WAITING)
async def test_thousands_of_jobs_overlap_at_once_and_each_has_one_under_way(
    harness: EngineHarness, overlap: Overlap
) -> None:
    count = 2000
    await harness.register(*(harness.definition(f"job {n}", every("10s"), overlap=overlap) for n in range(count)))
    seat = await harness.join_worker()
    await strike(harness, 10)
    first = await harness.claim(seat, count)
    assert len(first) == count
    await strike(harness, 20, 30)
    for _ in range(3):
        await queue.decide_overlaps(harness.store, count)
    assert await harness.claim(seat, count) == []
    await harness.end(seat, first)
    after = await harness.claim(seat, count)
    assert len(after) == (0 if overlap is Overlap.SKIP else count)
    kept = {"skip": 0, "queue": 2, "collapse": 1, "replace": 1}[overlap]
    assert await harness.value("select count(*) from queue") == kept * count
    skipped, cancelled = {"skip": (2, 0), "queue": (0, 0), "collapse": (1, 0), "replace": (0, 1)}[overlap]
    tally = await harness.value("select count(*) from attempts where attempt = 0 and ends_as = 'skipped'")
    assert tally == skipped * count
    assert (
        await harness.value("select count(*) from attempts where attempt = 0 and ends_as = 'cancelled'")
        == cancelled * count
    )


# Catch-ups and backfills


async def catching_up(harness: EngineHarness, overlap: Overlap) -> tuple[UUID, ClaimSpec, ClaimedRun]:
    """A job of every ten seconds whose catch-up of 10 is under way, at 15."""
    job = await harness.job("job", every("10s"), overlap=overlap)
    await harness.set_clock(harness.after(15))
    await harness.sql("update cohorts set next_at = $1", harness.after(20))
    await harness.sql(
        "insert into runs select job_id, $2, 0, $3, 0, tenant_id, task_id, revision, shard, pool_id, priority - 10,"
        " 'catchup', null, 'queued', null, null from jobs where job_id = $1",
        job,
        harness.after(10),
        harness.after(15),
    )
    await harness.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id,"
        " priority, cause) select job_id, $2, 0, $3, tenant_id, task_id, revision, shard, pool_id, priority - 10,"
        " 'catchup' from jobs where job_id = $1",
        job,
        harness.after(10),
        harness.after(15),
    )
    seat = await harness.join_worker()
    return job, seat, await harness.claim_one(seat)


@pytest.mark.parametrize("overlap", WAITING)
async def test_a_live_occurrence_waits_for_a_catch_up_and_is_not_skipped_for_it(
    harness: EngineHarness, overlap: Overlap
) -> None:
    job, seat, caught = await catching_up(harness, overlap)
    await strike(harness, 20)
    assert await harness.state(harness.key(job, 20)) is State.BLOCKED
    assert await queue.cancel_requests(harness.store, seat.worker_id) == []
    await harness.set_clock(harness.after(25))
    await harness.end(seat, caught)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_nor_when_a_live_predecessor_was_there_at_its_creation_and_not_at_its_time(
    harness: EngineHarness,
) -> None:
    job, seat, caught = await catching_up(harness, Overlap.SKIP)
    await harness.trigger(job)
    manual = await harness.claim_one(seat)
    await strike(harness, 19.2, lead=1)
    await harness.end(seat, manual)
    await strike(harness, 20)
    assert await harness.state(harness.key(job, 20)) is State.BLOCKED
    await harness.set_clock(harness.after(25))
    await harness.end(seat, caught)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_nor_when_the_catch_up_ends_before_anybody_decided(harness: EngineHarness) -> None:
    job, seat, caught = await catching_up(harness, Overlap.SKIP)
    await harness.trigger(job)
    manual = await harness.claim_one(seat)
    await strike(harness, 19.2, lead=1)
    await harness.end(seat, manual)
    await harness.set_clock(harness.after(20.1))
    await harness.end(seat, caught)
    await queue.decide_overlaps(harness.store, 1000)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_the_next_live_occurrence_is_skipped_for_the_live_one_that_waits(harness: EngineHarness) -> None:
    job, _, _ = await catching_up(harness, Overlap.SKIP)
    await strike(harness, 20, 30)
    assert await ended(harness, harness.key(job, 30)) == ("skipped", "overlap", harness.key(job, 20))


async def test_replace_does_not_cancel_a_catch_up(harness: EngineHarness) -> None:
    job, seat, caught = await catching_up(harness, Overlap.REPLACE)
    await strike(harness, 20, 30)
    assert await queue.cancel_requests(harness.store, seat.worker_id) == []
    assert await ended(harness, harness.key(job, 20)) == ("cancelled", "replaced", harness.key(job, 30))
    await harness.end(seat, caught)
    assert (await harness.claim_one(seat)).key == harness.key(job, 30)


# Ends by other ways


async def test_a_waiting_run_goes_when_the_one_before_it_dies_on_a_lost_worker(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE, delivery=Delivery.AT_MOST_ONCE)
    await strike(harness, 20)
    await harness.silence_worker(seat)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await harness.state(first.key) is State.DEAD
    other = await harness.join_worker()
    assert (await harness.claim_one(other)).key == harness.key(job, 20)


async def test_a_waiting_run_waits_on_when_the_one_before_it_is_retried(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE, retry=Retry(delays=["5s"], jitter=0))
    await strike(harness, 20)
    await harness.fail(seat, first)
    assert await harness.claim(seat) == []
    await harness.pass_time(5)
    again = await harness.claim_one(seat)
    assert again.key == first.key
    assert await harness.state(harness.key(job, 20)) is State.BLOCKED


async def test_replace_ends_an_attempt_of_a_lost_worker_and_goes_on(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 20)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, SILENCE)
    assert await harness.state(first.key) is State.CANCELLED
    assert (await harness.claim_one(await harness.join_worker())).key == harness.key(job, 20)


async def test_a_waiting_run_goes_when_what_was_asked_to_stop_is_given_back(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.REPLACE)
    await strike(harness, 20)
    assert await queue.give_back(harness.store, seat.worker_id, [(first.key, 1)]) == 1
    assert await harness.state(first.key) is State.CANCELLED
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_a_run_that_is_given_back_stays_before_those_that_wait(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20)
    await queue.give_back(harness.store, seat.worker_id, [(first.key, 1)])
    assert [c.key for c in await harness.claim(seat)] == [harness.key(job, 10)]


async def test_a_waiting_run_that_is_cancelled_holds_up_no_one(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    assert await harness.cancel(harness.key(job, 20)) is State.CANCELLED
    await harness.end(seat, first)
    assert (await harness.claim_one(seat)).key == harness.key(job, 30)


async def test_a_paused_job_keeps_its_order(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await harness.pause(job)
    await harness.end(seat, first)
    assert await harness.claim(seat) == []
    await harness.resume(job)
    second = await harness.claim_one(seat)
    assert second.key == harness.key(job, 20)
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == harness.key(job, 30)


async def test_a_job_that_was_deleted_leaves_nothing_waiting(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await harness.retire(job)
    assert await harness.queued(job) == [10]
    await harness.end(seat, first)
    assert await harness.queued(job) == []


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_a_changed_policy_leaves_no_run_waiting_forever(harness: EngineHarness, overlap: Overlap) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await strike(harness, 39.5, lead=1)
    await harness.change(job, harness.definition("job", every("1h"), overlap=overlap))
    await harness.end(seat, first)
    for _ in range(4):
        await free_all(harness)
        await queue.decide_overlaps(harness.store, 1000)
        claimed = await harness.claim(seat)
        assert len(claimed) <= 1 or overlap is Overlap.ALLOW
        await harness.end(seat, claimed)
    assert await harness.queued(job) == []


async def test_a_job_that_allows_from_now_on_lets_all_that_wait_go(harness: EngineHarness) -> None:
    job, seat, _ = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await harness.change(job, harness.definition("job", every("1h"), overlap=Overlap.ALLOW))
    assert [c.key for c in await harness.claim(seat)] == [harness.key(job, 20), harness.key(job, 30)]


async def test_a_limited_run_that_waits_comes_back_limited(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE, max_concurrency=1)
    await strike(harness, 20)
    assert await harness.value("select blocked from queue where scheduled_for = $1", harness.after(20)) == 32 | 2
    await harness.end(seat, first)
    assert await harness.value("select blocked from queue where job_id = $1", job) == 32
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


# One-shots


async def test_a_one_shot_waits_for_a_manual_run_rather_than_to_be_lost(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(10)), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    await harness.trigger(job)
    manual = await harness.claim_one(seat)
    await harness.set_clock(harness.after(10))
    await harness.ring()
    assert await harness.claim(seat) == []
    await harness.end(seat, manual)
    assert (await harness.claim_one(seat)).key == harness.key(job, 10)


# The sweep


async def test_the_sweep_frees_a_run_that_waits_for_nothing(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await harness.sql("delete from queue where scheduled_for = $1", first.key.scheduled_for)  # two that saw each other
    await free_all(harness)
    assert (await harness.claim_one(seat)).key == harness.key(job, 20)


async def test_the_sweep_leaves_those_that_wait_for_something(harness: EngineHarness) -> None:
    _, seat, _ = await begin(harness, Overlap.QUEUE)
    await strike(harness, 20, 30)
    await free_all(harness)
    assert await harness.claim(seat) == []


async def test_the_sweep_comes_to_all_that_wait_for_one_instant_however_few_it_takes_at_a_time(
    harness: EngineHarness,
) -> None:
    await harness.register(*(harness.definition(f"job {n}", every("10s"), overlap=Overlap.QUEUE) for n in range(7)))
    seat = await harness.join_worker()
    await strike(harness, 10)
    claimed = await harness.claim(seat)
    await strike(harness, 20)
    rows = await harness.sql("select job_id from queue where scheduled_for = $1 order by ctid", harness.after(20))
    orphan = rows[-1]["job_id"]  # the others wait for good reason
    await harness.sql("delete from queue where job_id = $1 and worker_id is not null", orphan)
    await free_all(harness, most=2)
    assert [c.key.job_id for c in await harness.claim(seat)] == [orphan]
    assert len(claimed) == 7


async def test_an_overlap_with_a_missed_occurrence_is_the_missed_ones_fate(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP, misfire=Misfire.FIRE_ONCE)
    await harness.set_clock(harness.after(605))
    await harness.tick_all()
    assert await harness.fired(job) == [10, 600]
    assert await ended(harness, harness.key(job, 600)) == ("skipped", "overlap", first.key)
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["to_at"], gap["count"]) == (20, 600, 58)
    assert seat.worker_id


async def test_resume_lets_the_latest_wait_for_what_still_runs(harness: EngineHarness) -> None:
    job, seat, first = await begin(harness, Overlap.SKIP)
    await harness.pause(job)
    await harness.set_clock(harness.after(45))
    await harness.resume(job, Missed.LATEST)
    [row] = await harness.sql("select cause, from_at from backfills where job_id = $1", job)
    assert (row["cause"], harness.seconds(row["from_at"])) == ("catchup", 40)
    await harness.end(seat, first)
