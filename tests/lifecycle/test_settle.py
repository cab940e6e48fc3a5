"""Settle and reap: how an attempt ended, what that means for its run, and whose word counts."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from bellringer.lifecycle.claim import Seat
from bellringer.lifecycle.reap import reap
from bellringer.lifecycle.settle import decide, fingerprint, settle
from bellringer.policies import Delivery, Retry
from bellringer.runs import Ending, Outcome, RunKey, State
from bellringer.store import queue, runs
from bellringer.store.queue import Claimed
from bellringer.store.workers import beat, leave

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

SILENCE = timedelta(minutes=30)


async def begin(bench: Bench, **order: Any) -> tuple[Seat, Claimed]:
    """A worker that holds one run."""
    await bench.send(**order)
    seat = await bench.seat()
    return seat, await bench.claim_one(seat)


async def letters(bench: Bench) -> dict[RunKey, str]:
    rows = await bench.sql("select job_id, scheduled_for, slot, reason from dead_letters")
    return {RunKey(*row[:3]): row["reason"] for row in rows}


# Settle


async def test_a_success_ends_the_run_with_its_result(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.pass_time(2)
    assert await bench.end(seat, claimed, result={"rows": 3}, ran=1.5) == 1
    run = await bench.run(claimed.key)
    assert (run.state, run.result, run.error) == (State.SUCCEEDED, {"rows": 3}, None)
    [attempt] = await runs.attempts(bench.store, claimed.key)
    assert (attempt.attempt, attempt.outcome, attempt.worker_id) == (1, "ok", seat.worker_id)
    assert (attempt.started_at, attempt.finished_at) == (bench.after(0.5), bench.after(2))
    assert await bench.value("select count(*) from queue") == 0


async def test_a_failure_waits_in_the_queue_for_a_near_retry(bench: Bench) -> None:
    seat, claimed = await begin(bench, retry=Retry(delays=["60s"]))
    assert await bench.fail(seat, claimed, message="try again") == 1
    run = await bench.run(claimed.key)
    assert (run.state, run.available_at, run.error) == (State.RETRYING, bench.after(60), None)
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(60))
    assert (await bench.claim_one(seat)).attempt == 2
    [attempt] = await runs.attempts(bench.store, claimed.key)
    assert (attempt.ends_as, attempt.error["message"]) == (None, "try again")
    assert "lineage" not in attempt.error


async def test_a_failure_waits_in_timers_for_a_far_retry(bench: Bench) -> None:
    seat, claimed = await begin(bench, retry=Retry(delays=["61s"]))
    await bench.fail(seat, claimed)
    assert await bench.value("select count(*) from queue") == 0
    run = await bench.run(claimed.key)
    assert (run.state, run.available_at) == (State.RETRYING, bench.after(61))
    await bench.set_clock(bench.after(61))
    await bench.ring()
    again = await bench.claim_one(seat)
    assert (again.key, again.attempt, again.spec) == (claimed.key, 2, claimed.spec)


async def test_the_last_failure_is_a_dead_letter(bench: Bench) -> None:
    seat, claimed = await begin(bench, retry=Retry(1))
    await bench.fail(seat, claimed, message="no 17")
    run = await bench.run(claimed.key)
    assert run.state is State.DEAD
    assert run.error["reason"] == "all 1 attempts are used"
    [letter] = await runs.dead(bench.store, 1, None, None, 10)
    assert (letter.key, letter.attempt, letter.died_at) == (claimed.key, 1, bench.noon)
    assert letter.fingerprint == fingerprint(
        Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no 99"})
    )


async def test_an_error_that_is_never_retried_is_a_dead_letter_at_once(bench: Bench) -> None:
    seat, claimed = await begin(bench, retry=Retry(9, never_on=[LookupError]))
    await bench.fail(seat, claimed, lineage=["KeyError", "LookupError"])
    assert await letters(bench) == {claimed.key: "LookupError is never retried"}


@pytest.mark.parametrize("wait", [0, 30, 300])
async def test_a_snooze_uses_nothing_of_the_budget(bench: Bench, wait: int) -> None:
    seat, claimed = await begin(bench, retry=Retry(2, delays=["1s"]))
    for _ in range(3):
        assert await bench.end(seat, claimed, snooze=timedelta(seconds=wait)) == 1
        await bench.pass_time(wait)
        await bench.ring()
        claimed = await bench.claim_one(seat)
    assert (claimed.attempt, claimed.spent) == (4, 1)
    await bench.fail(seat, claimed)
    assert await bench.state(claimed.key) is State.RETRYING
    await bench.pass_time(1)
    await bench.fail(seat, await bench.claim_one(seat))
    assert await bench.state(claimed.key) is State.DEAD


async def test_a_discard_ends_the_run_as_cancelled_with_its_reason(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.end(seat, claimed, discard="the order is gone")
    run = await bench.run(claimed.key)
    assert (run.state, run.error) == (State.CANCELLED, {"reason": "the order is gone"})
    assert await letters(bench) == {}


@pytest.mark.parametrize("wait", ["1s", "5m"])
async def test_a_request_to_cancel_beats_a_retry(bench: Bench, wait: str) -> None:
    seat, claimed = await begin(bench, retry=Retry(delays=[wait]))
    assert await bench.cancel(claimed.key) is State.RUNNING
    assert await queue.cancels(bench.store, seat.worker_id) == [(claimed.key, 1)]
    assert await bench.fail(seat, claimed) == 1
    assert await bench.state(claimed.key) is State.CANCELLED


async def test_a_success_beats_a_request_to_cancel(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.cancel(claimed.key)
    await bench.end(seat, claimed)
    assert await bench.state(claimed.key) is State.SUCCEEDED


async def test_a_report_counts_once(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    assert await bench.end(seat, claimed) == 1
    assert await bench.end(seat, claimed) == 0
    assert await bench.fail(seat, claimed) == 0
    assert await bench.state(claimed.key) is State.SUCCEEDED


async def test_the_report_of_another_worker_or_another_attempt_counts_for_nothing(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    other = await bench.seat()
    assert await bench.end(other, claimed) == 0
    await bench.fail(seat, claimed)
    await bench.pass_time(60)
    again = await bench.claim_one(seat)
    assert await bench.end(seat, claimed) == 0
    assert await bench.state(claimed.key) is State.RUNNING
    assert await bench.end(seat, again) == 1


async def test_a_batch_of_many_endings_is_settled_in_one_call(bench: Bench) -> None:
    job = await bench.job("job", retry=Retry(delays=["1s", "10m"]))
    await bench.sql(
        "insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard,"
        " pool_id, priority, cause, born_as) select job_id, bellringer.now(), n, bellringer.now(), 0, 1, task_id, 1,"
        " shard, pool_id, priority, 'manual', 'queued' from jobs, generate_series(1, 2000) n"
    )
    await bench.sql(
        "insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard,"
        " pool_id, priority, cause) select job_id, scheduled_for, slot, fired_at, 1, task_id, 1, shard,"
        " pool_id, priority, cause from runs"
    )
    seat = await bench.seat()
    taken = await bench.claim(seat, 2000)
    endings = [
        Ending(outcome=Outcome.OK),
        Ending(outcome=Outcome.FAILED, error={"message": "no"}),
        Ending(outcome=Outcome.OK, snooze=timedelta(minutes=5)),
        Ending(outcome=Outcome.OK, discard="no"),
    ]
    batch = [decide(claimed, endings[n % 4]) for n, claimed in enumerate(taken)]
    random.Random(1).shuffle(batch)
    assert await settle(bench.store, seat.worker_id, batch) == 2000
    assert await settle(bench.store, seat.worker_id, batch) == 0
    counted = await bench.sql("select coalesce(ends_as::text, 'again'), count(*) from attempts group by 1")
    assert {row[0]: row[1] for row in counted} == {"succeeded": 500, "cancelled": 500, "again": 1000}
    assert await bench.value("select count(*) from queue") == 500
    assert len(await bench.timers(job)) == 500


async def test_an_empty_batch_settles_nothing(bench: Bench) -> None:
    seat = await bench.seat()
    assert await settle(bench.store, seat.worker_id, []) == 0


async def test_overlapping_batches_in_any_order_settle_each_run_once(bench: Bench) -> None:
    await asyncio.gather(*(bench.send() for _ in range(120)))
    seat = await bench.seat()
    taken = await bench.claim(seat, 120)
    chance = random.Random(2)
    batches = [chance.sample(taken, 90) for _ in range(4)]
    settled = await asyncio.gather(*(bench.end(seat, batch) for batch in batches))
    assert sum(settled) == len({claimed.key for batch in batches for claimed in batch})
    assert await bench.value("select count(*) from attempts") == sum(settled)


async def test_a_retry_that_meets_a_pause_is_held(bench: Bench) -> None:
    job = await bench.job("job")
    await bench.trigger(job)
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    async with bench.store.pool.acquire() as other, other.transaction():
        await other.fetchval("select bellringer.pause($1, 1, 'me', null, null)", job)
        settling = asyncio.create_task(bench.fail(seat, claimed))
        await asyncio.sleep(0.1)
        assert not settling.done()  # it waits for the pause, and then sees it
    assert await settling == 1
    assert await bench.state(claimed.key) is State.BLOCKED
    await bench.pass_time(60)
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert len(await bench.claim(seat)) == 1


async def test_a_pause_that_meets_a_retry_holds_it(bench: Bench) -> None:
    job = await bench.job("job")
    await bench.trigger(job)
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    async with bench.store.pool.acquire() as other, other.transaction():
        pausing = await _settle_within(other, bench, seat, claimed, job)
    await pausing
    assert await bench.state(claimed.key) is State.BLOCKED


async def _settle_within(
    other: asyncpg.pool.PoolConnectionProxy[asyncpg.Record],
    bench: Bench,
    seat: Seat,
    claimed: Claimed,
    job: Any,
) -> asyncio.Task[int]:
    """A retry is being written, and not committed yet, when the job is paused."""
    key = claimed.key
    await other.execute(
        "select bellringer.settle($1, array[$2::uuid], array[$3::timestamptz], array[$4::bigint],"
        " array[1::smallint], array['failed'], array[null::text], array[9::float8], array[true],"
        " array[0::float8], array[0::float8], array[null::text], array[null::text], array[null::text],"
        " array[null::text])",
        seat.worker_id, key.job_id, key.scheduled_for, key.slot,
    )  # fmt: skip
    pausing = asyncio.create_task(bench.pause(job))
    await asyncio.sleep(0.1)
    assert not pausing.done()
    return pausing


async def test_the_latest_progress_of_a_held_attempt_is_kept(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await queue.report(bench.store, seat.worker_id, [(claimed.key, 1, {"done": 3})])
    await queue.report(bench.store, seat.worker_id, [(claimed.key, 2, {"done": 9})])
    assert (await bench.run(claimed.key)).progress == {"done": 3}


def test_errors_of_one_kind_have_one_fingerprint() -> None:
    def mark(message: str, kind: str = "E") -> str:
        return fingerprint(Ending(outcome=Outcome.FAILED, error={"type": kind, "message": message}))

    assert mark("order 17 at 0xdeadbeef") == mark("order 4711 at 0x1f")
    assert mark("order 17") != mark("order 17", "F")
    assert mark("a") != mark("b")


# Reap


async def test_what_a_silent_worker_held_is_tried_again_at_once(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.pass_time(5)
    assert await reap(bench.store, bench.names, SILENCE) == 0
    await bench.vanish(seat)
    assert await reap(bench.store, bench.names, SILENCE) == 1
    other = await bench.seat()
    assert (await bench.claim_one(other)).attempt == 2
    [attempt] = await runs.attempts(bench.store, claimed.key)
    assert (attempt.outcome, attempt.ends_as, attempt.error["type"]) == ("lost", None, "WorkerLost")


async def test_a_report_that_comes_after_the_reaper_changes_nothing(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.vanish(seat)
    await reap(bench.store, bench.names, SILENCE)
    assert await bench.end(seat, claimed, result="late") == 0
    assert await bench.state(claimed.key) is State.RETRYING
    assert not await beat(bench.store, seat.worker_id, 0, "live")


async def test_a_worker_that_left_with_work_in_hand_is_reaped(bench: Bench) -> None:
    seat, _ = await begin(bench)
    await leave(bench.store, seat.worker_id)
    assert await reap(bench.store, bench.names, SILENCE) == 1


async def test_what_cannot_be_settled_keeps_nothing_else_from_being_reaped(bench: Bench) -> None:
    await bench.sql(
        "create function bellringer.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'refused' using errcode = '54000'; end $$"
    )
    (one, stuck), (other, claimed) = await begin(bench), await begin(bench)
    when = f"new.job_id = '{stuck.key.job_id}'"
    await bench.sql(f"create trigger r before insert on attempts for each row when ({when}) execute function refuse()")
    await bench.vanish(one)
    await bench.vanish(other)
    assert await reap(bench.store, bench.names, SILENCE) == 1
    assert await bench.state(claimed.key) is State.RETRYING
    await bench.sql("drop trigger r on attempts")
    assert await reap(bench.store, bench.names, SILENCE) == 1
    assert await bench.state(stuck.key) is State.RETRYING


async def lose(bench: Bench) -> None:
    """A new worker claims what there is, and vanishes."""
    seat = await bench.seat()
    await bench.claim(seat)
    await bench.vanish(seat)
    await reap(bench.store, bench.names, SILENCE)


async def test_a_run_whose_worker_vanished_three_times_is_poison(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(10))
    for _ in range(2):
        await lose(bench)
    assert await letters(bench) == {}
    await lose(bench)
    assert await letters(bench) == {sent.key: "poison: its worker vanished 3 times"}


async def test_a_redriven_poison_run_has_three_more_lives(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(10))
    for _ in range(3):
        await lose(bench)
    await bench.redrive(sent.key)
    for _ in range(2):
        await lose(bench)
    assert await letters(bench) == {}
    await lose(bench)
    assert await bench.state(sent.key) is State.DEAD


async def test_a_lost_run_that_is_delivered_at_most_once_is_dead(bench: Bench) -> None:
    sent = await bench.send(delivery=Delivery.AT_MOST_ONCE)
    await lose(bench)
    assert await letters(bench) == {sent.key: "lost, and the job is delivered at most once"}


async def test_a_lost_run_without_attempts_left_is_dead(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(2))
    await lose(bench)
    await lose(bench)
    assert await letters(bench) == {sent.key: "all 2 attempts are used"}


async def test_a_lost_run_that_was_asked_to_stop_is_cancelled(bench: Bench) -> None:
    seat, claimed = await begin(bench)
    await bench.cancel(claimed.key)
    await bench.vanish(seat)
    await reap(bench.store, bench.names, SILENCE)
    assert await bench.state(claimed.key) is State.CANCELLED


# Sweep


async def test_runs_of_a_task_that_nobody_knows_are_set_aside_until_somebody_does(bench: Bench) -> None:
    await bench.seat("greet")
    strange = await bench.send(task="strange")
    plain = await bench.send(task="greet")
    await bench.pass_time(2)
    await bench.sweep()
    assert await bench.state(strange.key) is State.BLOCKED
    assert await bench.state(plain.key) is State.QUEUED
    seat = await bench.seat("strange")
    await bench.sweep()
    assert (await bench.claim_one(seat)).key == strange.key


async def test_a_worker_of_another_pool_does_not_bring_a_run_back(bench: Bench) -> None:
    await bench.seat("greet")
    strange = await bench.send(task="strange")
    await bench.pass_time(2)
    await bench.sweep()
    await bench.seat("strange", pool="long")
    await bench.sweep()
    assert await bench.state(strange.key) is State.BLOCKED


async def test_a_run_that_is_set_aside_and_paused_needs_both_to_end(bench: Bench) -> None:
    await bench.seat("greet")
    job = await bench.job("job", task="strange")
    await bench.trigger(job)
    await bench.pass_time(2)
    await bench.sweep()
    await bench.pause(job)
    seat = await bench.seat("strange")
    await bench.sweep()
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert len(await bench.claim(seat)) == 1
