"""What the runs of a job leave behind: failures in a row, which pause the job, and the last result."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, settle
from bellringer.schedule import delay, every
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

    from bellringer.store.queue import ClaimedRun

ERROR = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}
FAILED = Ending(outcome=Outcome.FAILED, error=ERROR)


async def fragile(harness: EngineHarness, after: int, name: str = "job", **more: Any) -> UUID:
    return await harness.job(name, every("1h"), retry=Retry(1), pause_after_failures=after, **more)


async def claim_runs(harness: EngineHarness, job_id: UUID, seat: ClaimSpec, count: int) -> list[ClaimedRun]:
    for _ in range(count):
        await harness.trigger(job_id)
    return await harness.claim(seat)


async def failures(harness: EngineHarness, job_id: UUID) -> int:
    query = "select coalesce(sum(failures), 0)::int from job_outcomes where job_id = $1"
    count: int = await harness.value(query, job_id)
    return count


async def events(harness: EngineHarness) -> list[dict[str, Any]]:
    return [dict(row) for row in await harness.sql("select * from events where kind = 'paused'")]


async def test_a_job_is_paused_after_so_many_dead_runs_in_a_row(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 3), await harness.join_worker()
    for _ in range(2):
        await harness.fail(seat, await claim_runs(harness, job_id, seat, 1))
    assert (await harness.read(job_id)).paused_at is None
    [last] = await claim_runs(harness, job_id, seat, 1)
    waiting = await harness.trigger(job_id)
    await harness.fail(seat, last)
    job = await harness.read(job_id)
    assert (job.paused_at, job.paused_by, job.paused_reason) == (harness.noon, "system", "the last 3 runs died")
    assert await harness.state(waiting) is State.BLOCKED
    [event] = await events(harness)
    assert (event["job_id"], event["scheduled_for"], event["slot"]) == (job_id, last.key.scheduled_for, last.key.slot)
    assert '"failures": 3' in event["data"]


async def test_a_success_begins_the_count_again(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 2), await harness.join_worker()
    for fails in (True, False, True):
        claimed = await claim_runs(harness, job_id, seat, 1)
        await (harness.fail(seat, claimed) if fails else harness.end(seat, claimed))
    assert await failures(harness, job_id) == 1
    assert (await harness.read(job_id)).paused_at is None


async def test_the_order_of_endings_in_one_batch_counts(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 3), await harness.join_worker()
    first, second, third = await claim_runs(harness, job_id, seat, 3)
    batch = [decide(first, FAILED, 1.0), decide(second, Ending(outcome=Outcome.OK), 2.0), decide(third, FAILED, 3.0)]
    await settle(harness.store, seat.worker_id, batch, moment=4.0)
    assert await failures(harness, job_id) == 1


async def test_resuming_the_job_begins_the_count_again(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 1), await harness.join_worker()
    await harness.fail(seat, await claim_runs(harness, job_id, seat, 1))
    assert (await harness.read(job_id)).paused_reason == "the last run died"
    await harness.resume(job_id)
    assert await failures(harness, job_id) == 0
    await harness.fail(seat, await claim_runs(harness, job_id, seat, 1))
    assert (await harness.read(job_id)).paused_at is not None
    assert len(await events(harness)) == 2


async def test_a_redrive_that_succeeds_begins_the_count_again(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 3), await harness.join_worker()
    runs = await claim_runs(harness, job_id, seat, 2)
    await harness.fail(seat, runs)
    assert await failures(harness, job_id) == 2
    await harness.redrive(runs[0].key)
    await harness.end(seat, await harness.claim(seat))
    assert await failures(harness, job_id) == 0


async def test_retries_and_cancelled_runs_do_not_count(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"), retry=Retry(2), pause_after_failures=1)
    seat = await harness.join_worker()
    [claimed] = await claim_runs(harness, job_id, seat, 1)
    await harness.fail(seat, claimed)
    [discarded] = await claim_runs(harness, job_id, seat, 1)
    await harness.end(seat, discarded, discard="not needed")
    assert await failures(harness, job_id) == 0
    assert (await harness.read(job_id)).paused_at is None


async def test_a_repeated_settle_counts_once(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 2), await harness.join_worker()
    [claimed] = await claim_runs(harness, job_id, seat, 1)
    for _ in range(3):  # the response was lost
        await settle(harness.store, seat.worker_id, [decide(claimed, FAILED)])
    assert await failures(harness, job_id) == 1
    assert (await harness.read(job_id)).paused_at is None


@pytest.mark.parametrize("limit", [8, 9])
async def test_two_settles_at_once_count_exactly(harness: EngineHarness, limit: int) -> None:
    job_id = await fragile(harness, limit)
    seats = [await harness.join_worker() for _ in range(4)]
    for _ in range(8):
        await harness.trigger(job_id)
    held = [(seat, await harness.claim(seat, 2)) for seat in seats]
    assert all(len(runs) == 2 for _, runs in held)
    await asyncio.gather(*(harness.fail(seat, run) for seat, runs in held for run in runs))
    assert await failures(harness, job_id) == 8
    assert ((await harness.read(job_id)).paused_at is not None) == (limit == 8)
    assert len(await events(harness)) == (limit == 8)


async def test_settles_with_retries_of_the_same_jobs_do_not_deadlock(harness: EngineHarness) -> None:
    """Both batches retry a run of one job and end a run of the other, in opposite order."""
    ids = [await fragile(harness, 1000, f"job {n}", max_concurrency=None) for n in range(2)]
    more = [await harness.job(f"more {n}", every("1h"), retry=Retry(9)) for n in range(2)]
    for _ in range(10):
        seats = [await harness.join_worker() for _ in range(2)]
        batches = []
        for seat in seats:
            for job_id in (*ids, *more):
                await harness.trigger(job_id)
            claimed = await harness.claim(seat)
            batches.append(settle(harness.store, seat.worker_id, [decide(run, FAILED) for run in claimed]))
        settlements = await asyncio.gather(*batches)
        assert [s.refused for s in settlements] == [[], []]
    assert [await failures(harness, job_id) for job_id in ids] == [20, 20]


async def test_a_pause_by_an_operator_at_the_same_time_is_kept(harness: EngineHarness) -> None:
    job_id, seat = await fragile(harness, 1), await harness.join_worker()
    [claimed] = await claim_runs(harness, job_id, seat, 1)
    await asyncio.gather(harness.fail(seat, claimed), harness.pause(job_id))
    assert (await harness.read(job_id)).paused_at is not None
    assert await harness.state(claimed.key) is State.DEAD


async def test_lost_runs_count_when_they_are_reaped(harness: EngineHarness) -> None:
    job_id = await fragile(harness, 1, delivery=Delivery.AT_MOST_ONCE)
    seat = await harness.join_worker()
    await claim_runs(harness, job_id, seat, 1)
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, timedelta(minutes=30))
    assert (await harness.read(job_id)).paused_by == "system"


async def test_a_retry_that_expires_counts_as_a_failure(harness: EngineHarness) -> None:
    job_id = await harness.job(
        "job",
        every("1h"),
        retry=Retry(delays=["5s"], jitter=0),
        pause_after_failures=1,
        expires_in=timedelta(seconds=9),
    )
    seat = await harness.join_worker()
    await harness.fail(seat, await claim_runs(harness, job_id, seat, 1))
    await harness.pass_time(9)
    assert tuple(await queue.expire_runs(harness.store, 10)) == (0, 1)
    assert (await harness.read(job_id)).paused_by == "system"


async def test_a_paused_fixed_delay_has_no_timer(harness: EngineHarness) -> None:
    job_id = await harness.job("job", delay("1m"), retry=Retry(1), pause_after_failures=1)
    await harness.pass_time(60)
    await harness.ring()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    assert (await harness.read(job_id)).paused_at is not None
    assert await harness.timers(job_id) == []
    await harness.resume(job_id)
    assert len(await harness.timers(job_id)) == 1


async def test_jobs_without_these_options_leave_nothing(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"), retry=Retry(1))
    await fragile(harness, 1, "other")
    seat = await harness.join_worker()
    await harness.fail(seat, await claim_runs(harness, job_id, seat, 3))
    assert await harness.value("select count(*) from job_outcomes") == 0


# Last results


async def last_result(harness: EngineHarness, claimed: ClaimedRun) -> Any:
    return (await queue.load_last_results(harness.store, [claimed]))[0].last_result


async def test_a_run_reads_the_result_of_the_latest_run_before_it(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1m"), keep_result=True, retry=Retry(1))
    seat = await harness.join_worker()
    seen = []
    for minute in (1, 2, 3, 4):
        await harness.set_clock(harness.after(60 * minute))
        await harness.tick()
        claimed = await harness.claim_one(seat)
        seen.append(await last_result(harness, claimed))
        if minute == 2:
            await harness.fail(seat, claimed)
        else:
            await harness.end(seat, claimed, result={"minute": minute})
    assert seen == [None, {"minute": 1}, {"minute": 1}, {"minute": 3}]
    assert await harness.value("select count(*) from job_outcomes where job_id = $1", job_id) == 1


async def test_an_older_run_that_ends_later_does_not_replace_the_result(harness: EngineHarness) -> None:
    await harness.job("job", every("1m"), keep_result=True)
    seat = await harness.join_worker()
    held = []
    for minute in (1, 2, 3):
        await harness.set_clock(harness.after(60 * minute))
        await harness.tick()
        held.append(await harness.claim_one(seat))
    for place in (1, 0):
        await harness.end(seat, held[place], result=place)
    assert await last_result(harness, held[2]) == 1
    assert await last_result(harness, held[1]) == 0  # scheduled before it, although the other one is newer
    assert await last_result(harness, held[0]) is None


async def test_the_last_result_survives_the_history(harness: EngineHarness) -> None:
    await harness.job("job", every("1m"), keep_result=True)
    seat = await harness.join_worker()
    await harness.set_clock(harness.after(60))
    await harness.tick()
    await harness.end(seat, await harness.claim_one(seat), result=[1])
    await harness.sql("delete from attempts")
    await harness.sql("delete from runs")
    await harness.set_clock(harness.after(120))
    await harness.tick()
    assert await last_result(harness, await harness.claim_one(seat)) == [1]
