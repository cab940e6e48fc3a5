"""Explain: the facts as the real database has them, and what they come to."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.engine import explain
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.explain import ExplainResult
from bellringer.errors import InvalidInput, NotFound
from bellringer.schedule import at, cron, delay, every
from bellringer.store import queue

if TYPE_CHECKING:
    from uuid import UUID

    from tests.support.engine_harness import EngineHarness


async def of_run(harness: EngineHarness, key: RunKey) -> ExplainResult:
    return await explain.load_run_explanation(harness.store, key, tenant_id=harness.tenant)


async def of_job(harness: EngineHarness, job_id: UUID, time: str | None = None) -> ExplainResult:
    return await explain.load_job_explanation(harness.store, job_id, time, tenant_id=harness.tenant)


async def at_second(harness: EngineHarness, job_id: UUID, seconds: float) -> ExplainResult:
    return await of_job(harness, job_id, harness.after(seconds).isoformat())


def codes(found: ExplainResult) -> list[str]:
    return [reason.code for reason in found.reasons]


# Runs


async def test_no_worker_serves_the_pool_of_a_run(harness: EngineHarness) -> None:
    sent = await harness.send()
    [alone] = (await of_run(harness, sent.key)).reasons
    assert (alone.code, alone.holds) == ("no_worker_for_pool", True)
    assert alone.text == "no live worker serves pool short (there are no live workers)"
    await harness.join_worker(pool="long")
    [other] = (await of_run(harness, sent.key)).reasons
    assert other.text == "no live worker serves pool short (1 live worker, of long)"
    assert other.fix == "bellringer worker APP --pool short=10"


async def test_a_silent_worker_is_not_counted_on(harness: EngineHarness) -> None:
    sent = await harness.send()
    await harness.silence_worker(await harness.join_worker())
    assert codes(await of_run(harness, sent.key)) == ["no_worker_for_pool"]


async def test_no_worker_knows_the_task_of_a_run(harness: EngineHarness) -> None:
    sent = await harness.send(task="greet")
    await harness.join_worker("greets", "other")
    [unknown] = (await of_run(harness, sent.key)).reasons
    assert unknown.code == "task_unknown"
    assert unknown.text.endswith("does not know the task greet; did you mean greets?")
    await harness.pass_time(5)
    assert await harness.sweep() == 1
    assert codes(await of_run(harness, sent.key)) == ["task_unknown"]
    await harness.join_worker("greet", pool="long")
    [elsewhere] = (await of_run(harness, sent.key)).reasons
    assert elsewhere.text.endswith("does not know the task greet; workers of long do")
    await harness.join_worker("greet")
    assert codes(await of_run(harness, sent.key)) == ["set_aside"]


async def test_a_run_waits_behind_others_for_a_free_slot(harness: EngineHarness) -> None:
    for _ in range(10):
        await harness.send()
    seat = await harness.join_worker()
    assert len(await harness.claim(seat)) == 10
    for _ in range(3):
        await harness.send(priority=9)
    later = await harness.send(priority=1, at=harness.after(1))
    await harness.send(priority=0)
    await harness.pass_time(1)
    [busy] = (await of_run(harness, later.key)).reasons
    assert (busy.code, busy.fix) == ("pool_busy", "bellringer worker APP --pool short=10")
    assert busy.text == "all 10 slots of the 1 live worker of pool short are busy, with 3 runs ahead in the queue"


async def test_a_ready_run_is_taken_in_a_moment(harness: EngineHarness) -> None:
    sent = await harness.send()
    await harness.join_worker()
    assert codes(await of_run(harness, sent.key)) == ["ready", "staffed"]


async def test_a_run_runs_with_its_progress_and_is_asked_to_stop(harness: EngineHarness) -> None:
    from bellringer.store import queue

    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 1, {"done": 3, "total": 9})])
    await harness.pass_time(90)
    [running] = (await of_run(harness, sent.key)).reasons
    assert running.text == "running on worker-1 for 1m30s, attempt 1, 3 of 9 done"
    await harness.cancel(sent.key)
    assert codes(await of_run(harness, sent.key)) == ["cancel_requested", "running"]
    await harness.silence_worker(seat)
    assert codes(await of_run(harness, sent.key))[0] == "worker_silent"


async def test_a_run_waits_for_its_next_attempt_and_then_gives_up(harness: EngineHarness) -> None:
    sent = await harness.send(retry=Retry(2, delays=["1h"], jitter=0))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    first, unheld, staffed = (await of_run(harness, sent.key)).reasons  # so far away that it waits in a timer
    assert (first.code, unheld.code, staffed.holds) == ("waits_for_retry", "shard_unheld", "ok")
    assert "in 1h (1 of 2 attempts used; ValueError: no)" in first.text
    await harness.hold()
    assert codes(await of_run(harness, sent.key)) == ["waits_for_retry", "shard_held", "staffed"]
    await harness.retry(sent.key)
    await harness.ring()
    await harness.fail(seat, await harness.claim_one(seat))
    [dead] = (await of_run(harness, sent.key)).reasons
    assert (dead.code, dead.fix) == ("ended", f"bellringer runs retry {sent.key.id}")
    assert dead.text == "the run is dead: it failed now, after 2 attempts: ValueError: no; no retries left"
    await commands.discard(harness.store, [sent.key], tenant_id=harness.tenant)
    assert (await of_run(harness, sent.key)).reasons[0].fix == ""


async def test_ends_are_reported_with_their_reason(harness: EngineHarness) -> None:
    good, bad = await harness.send(), await harness.send(at=harness.after(3600))
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    await harness.cancel(bad.key)
    await harness.pass_time(60)
    assert (await of_run(harness, good.key)).reasons[0].text == "the run succeeded 1m ago, on attempt 1"
    assert (await of_run(harness, bad.key)).reasons[0].text == "the run was cancelled 1m ago: not wanted"


async def test_a_run_of_another_tenant_is_not_found(harness: EngineHarness) -> None:
    sent = await harness.send()
    [other] = await harness.tenants(1)
    with pytest.raises(NotFound):
        await of_run(harness.for_tenant(other), sent.key)
    job_id = await harness.job("mine", every("10s"))
    with pytest.raises(NotFound):
        await of_job(harness.for_tenant(other), job_id)


async def test_a_run_that_a_predecessor_or_a_pause_holds(harness: EngineHarness) -> None:
    job_id = await harness.job("two words", every("10s"))
    await harness.set_clock(harness.after(20))
    await harness.join_worker()
    first, second = await harness.trigger(job_id), await harness.trigger(job_id)
    await harness.sql("update queue set blocked = 2 where slot = $1", second.slot)
    [blocked, *_] = (await of_run(harness, second)).reasons
    assert (blocked.code, blocked.fix) == ("blocked_by_predecessor", f"bellringer runs cancel {first.id}")
    await commands.pause(harness.store, job_id, tenant_id=harness.tenant, who="ada", reason="INC-42")
    await harness.pass_time(180)
    [paused, *_] = (await of_run(harness, first)).reasons
    assert paused.text == "the job was paused by ada 3m ago (INC-42), until resumed"
    assert paused.fix == "bellringer jobs resume 'two words'"


# Jobs


async def test_a_job_between_two_runs_is_fine(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"))
    await harness.join_worker()
    await harness.hold()
    found = await of_job(harness, job_id)
    assert codes(found) == ["not_due_yet", "not_paused", "shard_held", "staffed"]
    assert (found.next_at, found.at, found.run) == (harness.after(3600), None, None)


async def test_a_paused_job_without_scheduler_and_worker(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"))
    await harness.pause(job_id)
    found = await of_job(harness, job_id)
    assert codes(found) == ["job_paused", "shard_unheld", "no_worker_for_pool"]
    assert found.next_at == harness.after(3600)


async def test_a_job_is_explained_by_its_unfinished_run(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    await harness.tick()
    found = await of_job(harness, job_id)
    assert codes(found) == ["no_worker_for_pool", "not_paused"]
    assert found.run is not None
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    assert codes(await of_job(harness, job_id)) == ["not_due_yet", "last_run", "not_paused", "shard_held", "staffed"]


async def test_jobs_that_no_clock_will_run(harness: EngineHarness) -> None:
    by_hand = await harness.job("by hand")
    once = await harness.job("once", at(harness.after(5)))
    off = await harness.job("off", every("1h"), enabled=False)
    over = await harness.job("over", every("1h"), ends_at=harness.after(60))
    after_each = await harness.job("after each", delay("1h"))
    assert "no_schedule" in codes(await of_job(harness, by_hand))
    assert codes(await of_job(harness, off))[0] == "job_disabled"
    assert (await of_job(harness, after_each)).next_at == harness.after(3600)
    assert (await of_job(harness, once)).next_at == harness.after(5)
    await harness.set_clock(harness.after(90))
    await harness.ring()
    assert codes(await of_job(harness, over))[0] == "after_end"
    assert (await of_job(harness, once)).run is not None


# Instants


async def test_an_instant_with_a_run_is_explained_by_it(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h", offset="30s"))
    await harness.set_clock(harness.after(30))
    await harness.tick()
    found = await at_second(harness, job_id, 0)  # the minute is meant
    assert (found.at, codes(found)) == (harness.after(30), ["no_worker_for_pool", "nearest", "not_paused"])
    assert found.reasons[1].text == "12:00:00Z is not a time of the schedule; this is the next one"
    assert found.run is not None
    assert codes(await at_second(harness, job_id, 30)) == ["no_worker_for_pool", "not_paused"]


async def test_a_manual_run_is_found_by_its_minute(harness: EngineHarness) -> None:
    job_id = await harness.job("job")
    await harness.set_clock(harness.after(7))
    key = await harness.trigger(job_id)
    found = await at_second(harness, job_id, 0)
    assert found.run is not None
    assert found.run.key == key
    assert codes(await at_second(harness, job_id, 8)) == ["no_schedule"]


async def test_an_instant_that_a_pause_or_an_outage_took(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(15))
    await harness.tick_all()
    await commands.pause(harness.store, job_id, tenant_id=harness.tenant, who="ada", reason="INC-42")
    await harness.set_clock(harness.after(35))
    [paused, *_] = (await at_second(harness, job_id, 20)).reasons
    assert (paused.code, paused.fix) == ("job_paused", "bellringer jobs resume job")
    await harness.resume(job_id)
    [passed] = (await at_second(harness, job_id, 20)).reasons
    assert passed.code == "gap"
    assert "the job was paused by ada (INC-42)" in passed.text
    await harness.set_clock(harness.after(305))
    await harness.tick_all()
    [missed] = (await at_second(harness, job_id, 100)).reasons
    assert missed.code == "gap"
    assert "no scheduler ran in time" in missed.text
    assert "; 26 occurrences in all; the occurrence of " in missed.text


async def test_an_instant_that_no_one_came_to_yet(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(25))
    [unheld] = (await at_second(harness, job_id, 20)).reasons
    assert unheld.code == "shard_unheld"
    assert unheld.text.startswith("the occurrence was due 5s ago, but no scheduler holds shard")
    await harness.hold()
    assert codes(await at_second(harness, job_id, 20)) == ["scheduler_late"]


async def test_an_instant_without_account_is_owned_up_to(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(15))
    await harness.tick_all()
    await harness.sql("delete from queue")
    await harness.sql("delete from runs")
    assert codes(await at_second(harness, job_id, 10)) == ["unaccounted"]


async def test_instants_outside_of_the_job(harness: EngineHarness) -> None:
    starts, ends = harness.after(600), harness.after(7200)
    job_id = await harness.job("job", every("10m"), starts_at=starts, ends_at=ends)
    await harness.set_clock(harness.after(1))
    assert codes(await at_second(harness, job_id, -3600)) == ["before_job"]
    assert codes(await at_second(harness, job_id, 0)) == ["before_job"]
    assert codes(await at_second(harness, job_id, 7800)) == ["after_end"]
    assert codes(await at_second(harness, job_id, 600))[0] == "shard_unheld"
    [off] = (await at_second(harness, job_id, 660)).reasons
    assert off.text == (
        f"{harness.after(660):%Y-%m-%d %H:%M}Z is not a time of the schedule: "
        f"the previous one is {harness.after(600):%Y-%m-%d %H:%M}Z, "
        f"the next one is {harness.after(1200):%Y-%m-%d %H:%M}Z"
    )


async def test_an_instant_to_come_with_all_that_it_needs(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"))
    await harness.hold()
    await harness.join_worker()
    await harness.set_clock(harness.after(1))
    assert codes(await at_second(harness, job_id, 3600)) == ["in_future", "not_paused", "shard_held", "staffed"]


async def test_an_instant_is_judged_by_the_schedule_of_its_time(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(15))
    await harness.tick_all()
    await harness.change(job_id, harness.definition("job", cron("0 3 * * *")))
    await harness.set_clock(harness.after(300))
    assert (await at_second(harness, job_id, 10)).run is not None
    assert codes(await at_second(harness, job_id, 200)) == ["not_an_instant"]


async def test_history_past_retention_is_said_to_be_dropped(harness: EngineHarness) -> None:
    job_id = await harness.job("job", every("1h"))
    await harness.sql("update jobs set updated_at = updated_at - interval '60 days'")
    await harness.sql("update cluster set made_at = made_at - interval '60 days'")
    asked = harness.noon - timedelta(days=40)
    assert codes(await of_job(harness, job_id, asked.isoformat())) == ["forgotten"]


async def test_a_time_without_offset_is_of_the_jobs_zone(harness: EngineHarness) -> None:
    job_id = await harness.job("job", cron("30 2 * * *", tz="Asia/Tokyo"))
    day = harness.noon.date() + timedelta(days=2)
    found = await of_job(harness, job_id, f"{day}T02:30")
    assert found.at is not None
    assert found.at.isoformat() == f"{day - timedelta(days=1)}T17:30:00+00:00"
    with pytest.raises(InvalidInput):
        await of_job(harness, job_id, "soon")


async def test_an_expired_run_says_that_its_time_was_over(harness: EngineHarness) -> None:
    sent = await harness.send(expires_in=timedelta(seconds=5))
    waiting = (await of_run(harness, sent.key)).reasons
    assert [(reason.code, reason.holds) for reason in waiting] == [("no_worker_for_pool", True), ("expires", False)]
    await harness.pass_time(6)
    await queue.expire_runs(harness.store, 10)
    [reason] = (await of_run(harness, sent.key)).reasons
    assert (reason.code, reason.holds) == ("expired", True)
    assert "it had not started when its time was over (expires_in), and never ran" in reason.text
