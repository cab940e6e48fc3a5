"""Settle and reap: how an attempt ended, what that means for its run, and whose word counts."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, error_fingerprint, settle
from bellringer.store import queue, runs
from bellringer.store.queue import ClaimedRun
from bellringer.store.workers import record_heartbeat, remove

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SILENCE = timedelta(minutes=30)


async def begin(harness: EngineHarness, **order: Any) -> tuple[ClaimSpec, ClaimedRun]:
    """A worker that holds one run."""
    await harness.send(**order)
    seat = await harness.join_worker()
    return seat, await harness.claim_one(seat)


async def letters(harness: EngineHarness) -> dict[RunKey, str]:
    rows = await harness.sql("select job_id, scheduled_for, slot, reason from dead_letters")
    return {RunKey(*row[:3]): row["reason"] for row in rows}


# Settle


async def test_a_success_ends_the_run_with_its_result(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.pass_time(2)
    assert await harness.end(seat, claimed, result={"rows": 3}, ran=1.5) == 1
    run = await harness.run(claimed.key)
    assert (run.state, run.result, run.error) == (State.SUCCEEDED, {"rows": 3}, None)
    [attempt] = await runs.attempts(harness.store, claimed.key, harness.tenant)
    assert (attempt.attempt, attempt.outcome, attempt.worker_id) == (1, "ok", seat.worker_id)
    assert (attempt.started_at, attempt.finished_at) == (harness.after(0.5), harness.after(2))
    assert await harness.value("select count(*) from queue") == 0


async def test_a_failure_waits_in_the_queue_for_a_near_retry(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness, retry=Retry(delays=["60s"], jitter=0))
    assert await harness.fail(seat, claimed, message="try again") == 1
    run = await harness.run(claimed.key)
    assert (run.state, run.available_at, run.error) == (State.RETRYING, harness.after(60), None)
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(60))
    assert (await harness.claim_one(seat)).attempt == 2
    [attempt] = await runs.attempts(harness.store, claimed.key, harness.tenant)
    assert (attempt.ends_as, attempt.error["message"]) == (None, "try again")
    assert "lineage" not in attempt.error


async def test_a_failure_waits_in_timers_for_a_far_retry(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness, retry=Retry(delays=["61s"], jitter=0))
    await harness.fail(seat, claimed)
    assert await harness.value("select count(*) from queue") == 0
    run = await harness.run(claimed.key)
    assert (run.state, run.available_at) == (State.RETRYING, harness.after(61))
    await harness.set_clock(harness.after(61))
    await harness.ring()
    again = await harness.claim_one(seat)
    assert (again.key, again.attempt, again.spec) == (claimed.key, 2, claimed.spec)


async def test_the_last_failure_is_a_dead_letter(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness, retry=Retry(1))
    await harness.fail(seat, claimed, message="no 17")
    run = await harness.run(claimed.key)
    assert run.state is State.DEAD
    assert run.error["reason"] == "no retries left"
    [letter] = await runs.dead(harness.store, 1, None, None, 10)
    assert (letter.key, letter.attempt, letter.died_at) == (claimed.key, 1, harness.noon)
    assert letter.fingerprint == error_fingerprint(
        Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 99"})
    )


async def test_an_error_that_is_never_retried_is_a_dead_letter_at_once(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness, retry=Retry(9, never_on=[LookupError]))
    await harness.fail(seat, claimed, lineage=["KeyError", "LookupError"])
    assert await letters(harness) == {claimed.key: "LookupError is never retried"}


@pytest.mark.parametrize("wait", [0, 30, 300])
async def test_a_snooze_uses_nothing_of_the_budget(harness: EngineHarness, wait: int) -> None:
    seat, claimed = await begin(harness, retry=Retry(2, delays=["1s"], jitter=0))
    for _ in range(3):
        assert await harness.end(seat, claimed, snooze=timedelta(seconds=wait)) == 1
        await harness.pass_time(wait)
        await harness.ring()
        claimed = await harness.claim_one(seat)
    assert (claimed.attempt, claimed.spent) == (4, 1)
    await harness.fail(seat, claimed)
    assert await harness.state(claimed.key) is State.RETRYING
    await harness.pass_time(1)
    await harness.fail(seat, await harness.claim_one(seat))
    assert await harness.state(claimed.key) is State.DEAD


async def test_a_discard_ends_the_run_as_cancelled_with_its_reason(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.end(seat, claimed, discard="the order is gone")
    run = await harness.run(claimed.key)
    assert (run.state, run.error) == (State.CANCELLED, {"reason": "the order is gone"})
    assert await letters(harness) == {}


@pytest.mark.parametrize("wait", ["1s", "5m"])
async def test_a_request_to_cancel_beats_a_retry(harness: EngineHarness, wait: str) -> None:
    seat, claimed = await begin(harness, retry=Retry(delays=[wait], jitter=0))
    assert await harness.cancel(claimed.key) is State.RUNNING
    assert await queue.cancel_requests(harness.store, seat.worker_id) == [(claimed.key, 1)]
    assert await harness.fail(seat, claimed) == 1
    assert await harness.state(claimed.key) is State.CANCELLED


async def test_a_success_beats_a_request_to_cancel(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.cancel(claimed.key)
    await harness.end(seat, claimed)
    assert await harness.state(claimed.key) is State.SUCCEEDED


async def test_a_report_counts_once(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    assert await harness.end(seat, claimed) == 1
    assert await harness.end(seat, claimed) == 0
    assert await harness.fail(seat, claimed) == 0
    assert await harness.state(claimed.key) is State.SUCCEEDED


async def test_the_report_of_another_worker_or_another_attempt_counts_for_nothing(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    other = await harness.join_worker()
    assert await harness.end(other, claimed) == 0
    await harness.fail(seat, claimed)
    await harness.pass_time(60)
    again = await harness.claim_one(seat)
    assert await harness.end(seat, claimed) == 0
    assert await harness.state(claimed.key) is State.RUNNING
    assert await harness.end(seat, again) == 1


async def test_a_batch_of_many_endings_is_settled_in_one_call(harness: EngineHarness) -> None:
    job = await harness.job("job", retry=Retry(delays=["1s", "10m"], jitter=0))
    await harness.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard,"
        " pool_id, priority, cause, initial_state) select job_id, bellringer.now(), n, bellringer.now(), 0,"
        " 1, task_id, 1,"
        " shard, pool_id, priority, 'manual', 'queued' from jobs, generate_series(1, 2000) n"
    )
    await harness.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard,"
        " pool_id, priority, cause) select job_id, scheduled_for, slot, fired_at, 1, task_id, 1, shard,"
        " pool_id, priority, cause from runs"
    )
    seat = await harness.join_worker()
    taken = await harness.claim(seat, 2000)
    endings = [
        Ending(outcome=Outcome.OK),
        Ending(outcome=Outcome.FAILED, error={"message": "no"}),
        Ending(outcome=Outcome.OK, snooze=timedelta(minutes=5)),
        Ending(outcome=Outcome.OK, discard="no"),
    ]
    batch = [decide(claimed, endings[n % 4]) for n, claimed in enumerate(taken)]
    random.Random(1).shuffle(batch)
    assert (await settle(harness.store, seat.worker_id, batch)).written == 2000
    assert (await settle(harness.store, seat.worker_id, batch)).written == 0
    counted = await harness.sql("select coalesce(ends_as::text, 'again'), count(*) from attempts group by 1")
    assert {row[0]: row[1] for row in counted} == {"succeeded": 500, "cancelled": 500, "again": 1000}
    assert await harness.value("select count(*) from queue") == 500
    assert len(await harness.timers(job)) == 500


async def test_an_empty_batch_settles_nothing(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    assert (await settle(harness.store, seat.worker_id, [])).written == 0


async def test_overlapping_batches_in_any_order_settle_each_run_once(harness: EngineHarness) -> None:
    await asyncio.gather(*(harness.send() for _ in range(120)))
    seat = await harness.join_worker()
    taken = await harness.claim(seat, 120)
    chance = random.Random(2)
    batches = [chance.sample(taken, 90) for _ in range(4)]
    settled = await asyncio.gather(*(harness.end(seat, batch) for batch in batches))
    assert sum(settled) == len({claimed.key for batch in batches for claimed in batch})
    assert await harness.value("select count(*) from attempts") == sum(settled)


async def test_a_retry_that_meets_a_pause_is_held(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await harness.trigger(job)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.fetchval("select bellringer.pause($1, 1, 'me', null, null)", job)
        settling = asyncio.create_task(harness.fail(seat, claimed))
        await asyncio.sleep(0.1)
        assert not settling.done()  # it waits for the pause, and then sees it
    assert await settling == 1
    assert await harness.state(claimed.key) is State.BLOCKED
    await harness.pass_time(60)
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert len(await harness.claim(seat)) == 1


async def test_a_pause_that_meets_a_retry_holds_it(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await harness.trigger(job)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    async with harness.store.pool.acquire() as other, other.transaction():
        pausing = await _settle_within(other, harness, seat, claimed, job)
    await pausing
    assert await harness.state(claimed.key) is State.BLOCKED


async def _settle_within(
    other: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
    harness: EngineHarness,
    seat: ClaimSpec,
    claimed: ClaimedRun,
    job: Any,
) -> asyncio.Task[int]:
    """A retry is being written, and not committed yet, when the job is paused."""
    key = claimed.key
    await other.execute(
        "select bellringer.settle($1, array[row($2, $3, $4, 1, 'failed', null, 9, true, 0, 0, null, null, null, null)"
        "::bellringer.attempt_ending])",
        seat.worker_id, key.job_id, key.scheduled_for, key.slot,
    )  # fmt: skip
    pausing = asyncio.create_task(harness.pause(job))
    await asyncio.sleep(0.1)
    assert not pausing.done()
    return pausing


async def test_the_latest_progress_of_a_held_attempt_is_kept(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 1, {"done": 3})])
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 2, {"done": 9})])
    assert (await harness.run(claimed.key)).progress == {"done": 3}


def test_errors_of_one_kind_have_one_fingerprint() -> None:
    def mark(message: str, kind: str = "E") -> str:
        return error_fingerprint(Ending(outcome=Outcome.FAILED, error={"type": kind, "message": message}))

    assert mark("order 17 at 0xdeadbeef") == mark("order 4711 at 0x1f")
    assert mark("order 17") != mark("order 17", "F")
    assert mark("a") != mark("b")


# Reap


async def test_what_a_silent_worker_held_is_tried_again_at_once(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.pass_time(5)
    assert await reap(harness.store, harness.catalog, SILENCE) == 0
    await harness.silence_worker(seat)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    other = await harness.join_worker()
    assert (await harness.claim_one(other)).attempt == 2
    [attempt] = await runs.attempts(harness.store, claimed.key, harness.tenant)
    assert (attempt.outcome, attempt.ends_as, attempt.error["type"]) == ("lost", None, "WorkerLost")


async def test_a_report_that_comes_after_the_reaper_changes_nothing(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, SILENCE)
    assert await harness.end(seat, claimed, result="late") == 0
    assert await harness.state(claimed.key) is State.RETRYING
    assert not await record_heartbeat(harness.store, seat.worker_id, 0, "live")


async def test_a_worker_that_left_with_claimed_runs_is_reaped(harness: EngineHarness) -> None:
    seat, _ = await begin(harness)
    await remove(harness.store, seat.worker_id)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1


async def test_what_cannot_be_settled_keeps_nothing_else_from_being_reaped(harness: EngineHarness) -> None:
    await harness.sql(
        "create function bellringer.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'refused' using errcode = '54000'; end $$"
    )
    (one, stuck), (other, claimed) = await begin(harness), await begin(harness)
    when = f"new.job_id = '{stuck.key.job_id}'"
    await harness.sql(
        f"create trigger r before insert on attempts for each row when ({when}) execute function refuse()"
    )
    await harness.silence_worker(one)
    await harness.silence_worker(other)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await harness.state(claimed.key) is State.RETRYING
    await harness.sql("drop trigger r on attempts")
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await harness.state(stuck.key) is State.RETRYING


async def lose(harness: EngineHarness) -> None:
    """A new worker claims what there is, and vanishes."""
    seat = await harness.join_worker()
    await harness.claim(seat)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, SILENCE)


async def test_a_run_whose_worker_was_lost_three_times_is_poison(harness: EngineHarness) -> None:
    sent = await harness.send(retry=Retry(10))
    for _ in range(2):
        await lose(harness)
    assert await letters(harness) == {}
    await lose(harness)
    assert await letters(harness) == {sent.key: "poison: the worker disappeared 3 times"}


async def test_a_redriven_poison_run_has_three_more_lives(harness: EngineHarness) -> None:
    sent = await harness.send(retry=Retry(10))
    for _ in range(3):
        await lose(harness)
    await harness.redrive(sent.key)
    for _ in range(2):
        await lose(harness)
    assert await letters(harness) == {}
    await lose(harness)
    assert await harness.state(sent.key) is State.DEAD


async def test_a_lost_run_that_is_delivered_at_most_once_is_dead(harness: EngineHarness) -> None:
    sent = await harness.send(delivery=Delivery.AT_MOST_ONCE)
    await lose(harness)
    assert await letters(harness) == {sent.key: "the worker was lost, and delivery is at_most_once"}


@pytest.mark.parametrize("attempts", [1, 3])
async def test_lost_attempts_use_up_no_retries(harness: EngineHarness, attempts: int) -> None:
    """The handler has not failed. The default is three attempts, as many as the limit for poison."""
    sent = await harness.send(retry=Retry(attempts))
    await lose(harness)
    await lose(harness)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert (claimed.attempt, claimed.spent) == (3, 1)
    for _ in range(attempts - 1):
        await harness.fail(seat, claimed)
        await harness.pass_time(60)
        claimed = await harness.claim_one(seat)
    assert await letters(harness) == {}
    await harness.fail(seat, claimed)
    assert await letters(harness) == {sent.key: "no retries left"}


async def test_each_loss_is_an_event(harness: EngineHarness) -> None:
    sent = await harness.send()
    await lose(harness)
    await lose(harness)
    rows = await harness.sql(
        "select attempt, data::text from events where kind = 'failed' and job_id = $1", sent.key.job_id
    )
    assert [(row["attempt"], json.loads(row["data"])["error"]) for row in rows] == [
        (1, "WorkerLost"),
        (2, "WorkerLost"),
    ]


async def test_a_lost_run_that_was_asked_to_stop_is_cancelled(harness: EngineHarness) -> None:
    seat, claimed = await begin(harness)
    await harness.cancel(claimed.key)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, SILENCE)
    assert await harness.state(claimed.key) is State.CANCELLED


# Sweep


async def test_runs_of_an_unknown_task_are_parked_until_a_worker_knows_it(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    strange = await harness.send(task="strange")
    plain = await harness.send(task="greet")
    await harness.pass_time(2)
    await harness.sweep()
    assert await harness.state(strange.key) is State.BLOCKED
    assert await harness.state(plain.key) is State.QUEUED
    seat = await harness.join_worker("strange")
    await harness.sweep()
    assert (await harness.claim_one(seat)).key == strange.key


async def test_a_worker_of_another_pool_does_not_bring_a_run_back(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    strange = await harness.send(task="strange")
    await harness.pass_time(2)
    await harness.sweep()
    await harness.join_worker("strange", pool="long")
    await harness.sweep()
    assert await harness.state(strange.key) is State.BLOCKED


async def test_a_run_that_is_set_aside_and_paused_needs_both_to_end(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    job = await harness.job("job", task="strange")
    await harness.trigger(job)
    await harness.pass_time(2)
    await harness.sweep()
    await harness.pause(job)
    seat = await harness.join_worker("strange")
    await harness.sweep()
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert len(await harness.claim(seat)) == 1
