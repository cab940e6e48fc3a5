"""Deadlines of runs: `expires_in` of jobs and sends, while a run waits, when it is claimed, and before a retry."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.policies import Misfire, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.backfill import run_backfills
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, load_retry_windows, settle
from bellringer.schedule import delay, every
from bellringer.store import backfills, queue, runs
from bellringer.store.backfills import NewBackfill
from bellringer.worker.results import expired_ending

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

TEN_SECONDS = timedelta(seconds=10)
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no", "lineage": ["ValueError"]})


async def expire(harness: EngineHarness) -> tuple[int, int]:
    expired = await queue.expire_runs(harness.store, 100)
    return expired.skipped, expired.dead


async def reasons(harness: EngineHarness, key: RunKey) -> list[Any]:
    return [attempt.error["reason"] for attempt in await runs.attempts(harness.store, key, harness.tenant)]


async def test_a_send_that_has_not_started_in_time_is_skipped(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=TEN_SECONDS)
    await harness.pass_time(9.999)
    assert await expire(harness) == (0, 0)
    await harness.pass_time(0.001)
    assert await expire(harness) == (1, 0)
    assert await harness.state(sent.key) is State.SKIPPED
    assert await reasons(harness, sent.key) == ["expired"]
    assert await harness.claim(await harness.join_worker()) == []
    assert await expire(harness) == (0, 0)


async def test_sends_without_a_deadline_have_none(harness: EngineHarness) -> None:
    await harness.send()
    await harness.pass_time(1_000_000)
    assert await expire(harness) == (0, 0)
    assert await harness.value("select count(*) from queue where expires_at is null") == 1


async def test_a_delayed_send_counts_from_its_time(harness: EngineHarness) -> None:
    await harness.send(expires_in=TEN_SECONDS, delay=timedelta(minutes=1))
    await harness.set_clock(harness.after(60))
    await harness.ring()
    assert await harness.value("select expires_at from queue") == harness.after(70)


async def test_every_way_to_create_a_run_of_a_job_sets_its_deadline(harness: EngineHarness) -> None:
    cohort = await harness.job("cohort", every("1m"), expires_in=TEN_SECONDS)
    again = await harness.job("delay", delay("1m"), expires_in=TEN_SECONDS)
    await harness.set_clock(harness.after(60))
    await harness.tick()
    await harness.ring()
    manual = await harness.trigger(cohort)
    rows = await harness.sql("select job_id, slot, expires_at - scheduled_for as wait from queue")
    assert {(row["job_id"], row["slot"]): row["wait"] for row in rows} == {
        (cohort, 0): TEN_SECONDS,
        (again, 0): TEN_SECONDS,
        (cohort, manual.slot): TEN_SECONDS,
    }


async def test_a_fixed_delay_goes_on_after_a_run_that_expired(harness: EngineHarness) -> None:
    job_id = await harness.job("delay", delay("1m"), expires_in=TEN_SECONDS)
    await harness.set_clock(harness.after(60))
    await harness.ring()
    await harness.pass_time(10)
    assert await expire(harness) == (1, 0)
    assert await harness.timers(job_id) == [130]


async def test_runs_that_are_paused_blocked_or_of_an_unknown_task_expire(harness: EngineHarness) -> None:
    paused = await harness.job("paused", every("1h"), expires_in=TEN_SECONDS)
    held = await harness.trigger(paused)
    await harness.pause(paused)
    unknown = await harness.send(task="nobody.knows", expires_in=TEN_SECONDS)
    await harness.join_worker()
    await harness.sweep()
    await harness.pass_time(10)
    assert await expire(harness) == (2, 0)
    assert await harness.state(held) is State.SKIPPED
    assert await harness.state(unknown.key) is State.SKIPPED


async def test_the_run_that_waited_for_an_expired_one_is_unblocked(harness: EngineHarness) -> None:
    job_id = await harness.job("queued", every("1m"), expires_in=timedelta(seconds=90), overlap=Overlap.QUEUE)
    await harness.set_clock(harness.after(120))
    await harness.tick_all()
    assert await harness.queued(job_id) == [60, 120]
    await harness.set_clock(harness.after(150))
    assert await expire(harness) == (1, 0)
    seat = await harness.join_worker()
    assert (await harness.claim_one(seat)).key == harness.key(job_id, 120)


async def test_a_replay_does_not_expire(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"), expires_in=TEN_SECONDS)
    first = await harness.trigger(job_id)
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    again = await commands.replay(harness.store, first, tenant_id=harness.tenant, reason="again")
    await harness.pass_time(1000)
    assert await expire(harness) == (0, 0)
    assert await harness.state(again) is State.QUEUED


async def test_a_catch_up_expires_and_a_backfill_does_not(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1m"), expires_in=TEN_SECONDS, misfire=Misfire.FIRE_ALL)
    await harness.set_clock(harness.after(600))
    await harness.tick_all()
    wanted = NewBackfill(
        job_id=job_id,
        revision=1,
        from_at=harness.after(60),
        to_at=harness.after(120),
        newest_first=False,
        reprocess="all",
        parallelism=10,
        rate=None,
        total=1,
    )
    assert await backfills.create(harness.store, wanted, harness.tenant, "me")
    await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now())
    rows = await harness.sql("select cause::text, count(*), count(expires_at) from queue group by 1 order by 1")
    assert {row[0]: row[1] > 0 and row[1] == row[2] for row in rows} == {
        "backfill": False,
        "catchup": True,
        "schedule": True,
    }


# The worker


async def test_a_claimed_run_carries_its_deadline_and_ends_as_skipped(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=TEN_SECONDS)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert claimed.expires_at == harness.after(10)
    ended = [decide(claimed, expired_ending(), now=harness.after(10))]
    assert (await settle(harness.store, seat.worker_id, ended)).written == 1
    again = await settle(harness.store, seat.worker_id, ended)  # the response was lost
    assert (again.written, again.refused) == (0, [])
    run = await harness.run(sent.key)
    assert (run.state, run.error["reason"]) == (State.SKIPPED, "expired")
    [attempt] = await runs.attempts(harness.store, sent.key, harness.tenant)
    assert attempt.started_at is None


async def test_a_run_is_either_claimed_or_expired(harness: EngineHarness) -> None:
    """Workers and schedulers race for the same rows; each row goes to one of them."""
    for _ in range(40):
        await harness.send(expires_in=TEN_SECONDS)
    seats = [await harness.join_worker() for _ in range(3)]
    await harness.pass_time(10)
    claims = asyncio.gather(*(harness.claim(seat, 5) for seat in seats for _ in range(2)))
    sweeps = asyncio.gather(*(queue.expire_runs(harness.store, 7) for _ in range(4)))
    claimed = [run.key for taken in await claims for run in taken]
    ended = sum(expired.skipped for expired in await sweeps)
    assert len(claimed) == len(set(claimed))
    assert len(claimed) + ended + await harness.value("select count(*) from queue where worker_id is null") == 40
    assert await harness.value("select count(*) from attempts") == ended


async def test_a_row_that_a_worker_holds_is_left_to_the_worker(harness: EngineHarness) -> None:
    await harness.send(expires_in=TEN_SECONDS)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.pass_time(60)
    assert await expire(harness) == (0, 0)
    assert await harness.end(seat, claimed) == 1
    assert await harness.state(claimed.key) is State.SUCCEEDED


# Retries


async def test_a_retry_after_the_deadline_is_a_dead_letter_at_once(harness: EngineHarness) -> None:
    await harness.send(expires_in=TEN_SECONDS, retry=Retry(delays=["10s"], jitter=0))
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.fail(seat, claimed)
    run = await harness.run(claimed.key)
    assert run.state is State.DEAD
    assert run.error["reason"] == "expired: the next attempt would begin after the deadline of the run"


@pytest.mark.parametrize("wait", ["5s", "2m"])
async def test_a_waiting_retry_that_expires_is_dead(harness: EngineHarness, wait: str) -> None:
    job_id = await harness.job(
        "job", every("1h"), expires_in=timedelta(minutes=3), retry=Retry(delays=[wait], jitter=0)
    )
    key = await harness.trigger(job_id)
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    assert await harness.state(key) is State.RETRYING
    await harness.set_clock(harness.after(179))
    await harness.ring()
    await harness.pause(job_id)
    await harness.pass_time(1)
    assert await expire(harness) == (0, 1)
    assert await harness.state(key) is State.DEAD
    [letter] = await runs.dead(harness.store, harness.tenant, None, None, 10)
    assert (letter.key, letter.reason) == (key, "expired: its deadline passed before the next attempt")
    assert letter.error["message"] == "no"


async def test_a_redriven_run_has_no_deadline(harness: EngineHarness) -> None:
    await harness.send(expires_in=TEN_SECONDS, retry=Retry(delays=["2s", "2m"], jitter=0))
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.fail(seat, claimed)
    await harness.pass_time(10)
    assert await expire(harness) == (0, 1)
    assert await harness.redrive(claimed.key) == 1
    await harness.pass_time(100)
    again = await harness.claim_one(seat)
    assert (again.expires_at, again.spent) == (None, 1)
    await harness.fail(seat, again)
    await harness.pass_time(2)
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.state(claimed.key) is State.SUCCEEDED


async def test_a_snoozed_run_that_expires_is_skipped(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=TEN_SECONDS)
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat), snooze=timedelta(seconds=20))
    await harness.pass_time(10)
    assert await expire(harness) == (1, 0)
    assert await harness.state(sent.key) is State.SKIPPED


async def test_a_lost_run_is_not_retried_after_its_deadline(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=TEN_SECONDS)
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await harness.pass_time(11)
    await harness.silence_worker(seat)
    assert await reap(harness.store, harness.catalog, timedelta(minutes=30)) == 1
    assert await harness.state(sent.key) is State.DEAD


# max_elapsed


async def test_no_retry_begins_after_max_elapsed(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(9, delays=["40s"], jitter=0, max_elapsed="100s"))
    seat = await harness.join_worker()
    await harness.pass_time(1000)  # the time in the queue does not count
    for _ in range(3):
        [claimed] = await load_retry_windows(harness.store, await harness.claim(seat))
        settled = [decide(claimed, FAILED, now=await harness.now())]
        await settle(harness.store, seat.worker_id, settled)
        await harness.pass_time(40)
    run = await harness.run(claimed.key)
    assert (run.state, claimed.attempt) == (State.DEAD, 3)
    assert run.error["reason"] == "the next attempt would begin more than 1m40s after the first"


async def test_max_elapsed_begins_again_with_a_redrive(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(2, delays=["40s"], jitter=0, max_elapsed="1m"))
    seat = await harness.join_worker()
    for _ in range(2):
        [claimed] = await load_retry_windows(harness.store, await harness.claim(seat))
        await settle(harness.store, seat.worker_id, [decide(claimed, FAILED, now=await harness.now())])
        await harness.pass_time(40)
    assert await harness.state(claimed.key) is State.DEAD
    await harness.pass_time(5000)
    await harness.redrive(claimed.key)
    [claimed] = await load_retry_windows(harness.store, await harness.claim(seat))
    await settle(harness.store, seat.worker_id, [decide(claimed, FAILED, now=await harness.now())])
    assert await harness.state(claimed.key) is State.RETRYING
