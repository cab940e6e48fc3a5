"""Settlements that race, repeat or carry extreme values."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide
from bellringer.schedule import every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


FINAL = {State.SUCCEEDED, State.DEAD, State.CANCELLED}


async def test_a_run_with_very_many_attempts_does_not_block_the_claims_of_others(harness: EngineHarness) -> None:
    """A handler that snoozes every ten seconds gets there within four days."""
    tired = await harness.send()
    await harness.sql("update queue set attempt = 32767, attempt_floor = 32767")
    fresh = await harness.send()
    taken = {claimed.key for claimed in await harness.claim(await harness.join_worker())}
    assert taken == {tired.key, fresh.key}


@pytest.mark.parametrize("wait", ["10s", "10m"])
async def test_a_retry_of_a_job_that_was_deleted_while_it_ran_comes_to_an_end(
    harness: EngineHarness, wait: str
) -> None:
    job = await harness.job("job", every("1s"), retry=Retry(delays=[wait], jitter=0))
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.retire(job)
    await harness.fail(seat, claimed)
    await harness.set_clock(harness.after(1000))
    await harness.ring()
    await harness.end(seat, await harness.claim(seat))
    assert await harness.state(claimed.key) in FINAL


async def test_overlapping_reports_of_a_worker_and_its_reaper_do_not_deadlock(harness: EngineHarness) -> None:
    for _ in range(2):
        await harness.send()
    seat = await harness.join_worker()
    first, second = sorted(await harness.claim(seat), key=lambda c: c.key)
    bad = Ending(outcome=Outcome.FAILED, error={"lineage": []})
    reported = [decide(first, bad), decide(second, Ending(outcome=Outcome.OK))]
    lost = [decide(claimed, Ending(outcome=Outcome.LOST)) for claimed in (first, second)]
    async with harness.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from queue where job_id = $1 for update", first.key.job_id)
        reaping = asyncio.create_task(queue.settle(harness.store, seat.worker_id, lost))
        await blocked_by(harness, other)
        reporting = asyncio.create_task(queue.settle(harness.store, seat.worker_id, reported))
        await blocked_by(harness, other, waiters=2)
        await transaction.commit()
    assert (await reaping).written + (await reporting).written == 2


async def test_a_run_that_was_asked_to_stop_and_given_back_is_not_run_again(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert await harness.cancel(sent.key) is State.RUNNING
    await queue.give_back(harness.store, seat.worker_id, [(claimed.key, claimed.attempt)])
    assert await harness.claim(seat) == []


async def test_a_snooze_between_them_does_not_hide_a_lost_attempt(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(9))
    for outcome in ("lost", "snooze", "lost", "lost"):
        seat = await harness.join_worker()
        claimed = await harness.claim_one(seat)
        if outcome == "snooze":
            await harness.end(seat, claimed, snooze=timedelta(0))
        else:
            await reap(harness.store, harness.catalog, timedelta(0))
    assert await harness.value("select count(*) from dead_letters") == 1


async def test_a_snooze_of_a_million_years_does_not_spoil_the_batch_that_it_is_settled_in(
    harness: EngineHarness,
) -> None:
    for _ in range(2):
        await harness.send()
    seat = await harness.join_worker()
    tired, plain = await harness.claim(seat)
    endings = [Ending(outcome=Outcome.OK, snooze=timedelta(days=999_999_999)), Ending(outcome=Outcome.OK)]
    batch = [decide(claimed, ending) for claimed, ending in zip((tired, plain), endings, strict=True)]
    assert (await queue.settle(harness.store, seat.worker_id, batch)).written == 2


@pytest.mark.parametrize("failures", [38, 1000])
def test_a_wait_after_many_failures_is_the_cap_and_no_error(failures: int) -> None:
    retry = Retry(1000, base="11m", cap="1h")
    assert timedelta(0) <= retry.wait(failures) <= timedelta(hours=1)


async def blocked_by(
    harness: EngineHarness, holder: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], waiters: int = 1
) -> None:
    """Wait until so many wait, in a row or at once, for a lock that this connection holds."""
    pid = await holder.fetchval("select pg_backend_pid()")
    waiting = """
        with recursive w (pid) as (values ($1::int) union
          select a.pid from pg_stat_activity a join w on w.pid = any (pg_blocking_pids(a.pid)))
        select count(*) - 1 from w"""
    for _ in range(500):
        if await harness.value(waiting, pid) >= waiters:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody came to wait")
