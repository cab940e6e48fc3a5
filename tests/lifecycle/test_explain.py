"""Explain: the facts as the real database has them, and what they come to."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.errors import InvalidInput, NotFound
from bellringer.lifecycle import control, explain
from bellringer.lifecycle.explain import Explained
from bellringer.policies import Retry
from bellringer.runs import RunKey
from bellringer.schedule import at, cron, delay, every

if TYPE_CHECKING:
    from uuid import UUID

    from tests.lifecycle.conftest import Bench


async def of_run(bench: Bench, key: RunKey) -> Explained:
    return await explain.run(bench.store, key, tenant_id=bench.tenant)


async def of_job(bench: Bench, job_id: UUID, time: str | None = None) -> Explained:
    return await explain.why(bench.store, job_id, time, tenant_id=bench.tenant)


async def at_second(bench: Bench, job_id: UUID, seconds: float) -> Explained:
    return await of_job(bench, job_id, bench.after(seconds).isoformat())


def codes(found: Explained) -> list[str]:
    return [reason.code for reason in found.reasons]


# Runs


async def test_nobody_serves_the_pool_of_a_run(bench: Bench) -> None:
    sent = await bench.send()
    [alone] = (await of_run(bench, sent.key)).reasons
    assert (alone.code, alone.holds) == ("no_worker_for_pool", True)
    assert alone.text == "no live worker serves pool short (there is none at all)"
    await bench.seat(pool="long")
    [other] = (await of_run(bench, sent.key)).reasons
    assert other.text == "no live worker serves pool short (1 live worker, of long)"
    assert other.fix == "bellringer worker APP --pool short=10"


async def test_a_silent_worker_is_not_counted_on(bench: Bench) -> None:
    sent = await bench.send()
    await bench.vanish(await bench.seat())
    assert codes(await of_run(bench, sent.key)) == ["no_worker_for_pool"]


async def test_nobody_knows_the_task_of_a_run(bench: Bench) -> None:
    sent = await bench.send(task="greet")
    await bench.seat("greets", "other")
    [unknown] = (await of_run(bench, sent.key)).reasons
    assert unknown.code == "task_unknown"
    assert unknown.text.endswith("does not know the task greet; did you mean greets?")
    await bench.pass_time(5)
    assert await bench.sweep() == 1
    assert codes(await of_run(bench, sent.key)) == ["task_unknown"]
    await bench.seat("greet", pool="long")
    [elsewhere] = (await of_run(bench, sent.key)).reasons
    assert elsewhere.text.endswith("does not know the task greet; workers of long do")
    await bench.seat("greet")
    assert codes(await of_run(bench, sent.key)) == ["set_aside"]


async def test_a_run_waits_behind_others_for_a_free_slot(bench: Bench) -> None:
    for _ in range(10):
        await bench.send()
    seat = await bench.seat()
    assert len(await bench.claim(seat)) == 10
    for _ in range(3):
        await bench.send(priority=9)
    later = await bench.send(priority=1, at=bench.after(1))
    await bench.send(priority=0)
    await bench.pass_time(1)
    [busy] = (await of_run(bench, later.key)).reasons
    assert (busy.code, busy.fix) == ("pool_busy", "bellringer worker APP --pool short=10")
    assert busy.text == "all 10 slots of the 1 live worker of pool short are busy, and 3 runs wait before it"


async def test_a_ready_run_is_taken_in_a_moment(bench: Bench) -> None:
    sent = await bench.send()
    await bench.seat()
    assert codes(await of_run(bench, sent.key)) == ["ready", "staffed"]


async def test_a_run_runs_with_its_progress_and_is_asked_to_stop(bench: Bench) -> None:
    from bellringer.store import queue

    sent = await bench.send()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    await queue.report(bench.store, seat.worker_id, [(claimed.key, 1, {"done": 3, "total": 9})])
    await bench.pass_time(90)
    [running] = (await of_run(bench, sent.key)).reasons
    assert running.text == "it has been running on w for 1m30s, attempt 1, 3 of 9 done"
    await bench.cancel(sent.key)
    assert codes(await of_run(bench, sent.key)) == ["cancel_requested", "running"]
    await bench.vanish(seat)
    assert codes(await of_run(bench, sent.key))[0] == "worker_silent"


async def test_a_run_waits_for_its_next_attempt_and_then_gives_up(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(2, delays=["1h"]))
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    first, unheld, staffed = (await of_run(bench, sent.key)).reasons  # so far away that it waits in a timer
    assert (first.code, unheld.code, staffed.holds) == ("waits_for_retry", "shard_unheld", "ok")
    assert "in 1h (1 of 2 attempts used; ValueError: no)" in first.text
    await bench.hold()
    assert codes(await of_run(bench, sent.key)) == ["waits_for_retry", "shard_held", "staffed"]
    await bench.retry(sent.key)
    await bench.ring()
    await bench.fail(seat, await bench.claim_one(seat))
    [dead] = (await of_run(bench, sent.key)).reasons
    assert (dead.code, dead.fix) == ("ended", f"bellringer runs retry {sent.key.id}")
    assert dead.text == "it gave up now, after 2 attempts: ValueError: no; all 2 attempts are used"
    await control.discard(bench.store, [sent.key], tenant_id=bench.tenant)
    assert (await of_run(bench, sent.key)).reasons[0].fix == ""


async def test_ends_are_told_with_their_reason(bench: Bench) -> None:
    good, bad = await bench.send(), await bench.send(at=bench.after(3600))
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    await bench.cancel(bad.key)
    await bench.pass_time(60)
    assert (await of_run(bench, good.key)).reasons[0].text == "it succeeded 1m ago, by attempt 1"
    assert (await of_run(bench, bad.key)).reasons[0].text == "it was cancelled 1m ago: not wanted"


async def test_a_run_of_another_tenant_is_not_found(bench: Bench) -> None:
    sent = await bench.send()
    [other] = await bench.tenants(1)
    with pytest.raises(NotFound):
        await of_run(bench.of(other), sent.key)
    job_id = await bench.job("mine", every("10s"))
    with pytest.raises(NotFound):
        await of_job(bench.of(other), job_id)


async def test_a_run_that_a_predecessor_or_a_pause_holds(bench: Bench) -> None:
    job_id = await bench.job("two words", every("10s"))
    await bench.set_clock(bench.after(20))
    await bench.seat()
    first, second = await bench.trigger(job_id), await bench.trigger(job_id)
    await bench.sql("update queue set blocked = 2 where slot = $1", second.slot)
    [blocked, *_] = (await of_run(bench, second)).reasons
    assert (blocked.code, blocked.fix) == ("blocked_by_predecessor", f"bellringer runs cancel {first.id}")
    await control.pause(bench.store, job_id, tenant_id=bench.tenant, who="ada", reason="INC-42")
    await bench.pass_time(180)
    [paused, *_] = (await of_run(bench, first)).reasons
    assert paused.text == "paused by ada 3m ago (INC-42), until resumed"
    assert paused.fix == "bellringer jobs resume 'two words'"


# Jobs


async def test_a_job_between_two_runs_is_fine(bench: Bench) -> None:
    job_id = await bench.job("job", every("1h"))
    await bench.seat()
    await bench.hold()
    found = await of_job(bench, job_id)
    assert codes(found) == ["not_due_yet", "not_paused", "shard_held", "staffed"]
    assert (found.next_at, found.at, found.run) == (bench.after(3600), None, None)


async def test_a_paused_job_without_scheduler_and_worker(bench: Bench) -> None:
    job_id = await bench.job("job", every("1h"))
    await bench.pause(job_id)
    found = await of_job(bench, job_id)
    assert codes(found) == ["job_paused", "shard_unheld", "no_worker_for_pool"]
    assert found.next_at == bench.after(3600)


async def test_a_job_is_explained_by_its_unfinished_run(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    await bench.tick()
    found = await of_job(bench, job_id)
    assert codes(found) == ["no_worker_for_pool", "not_paused"]
    assert found.run is not None
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    assert codes(await of_job(bench, job_id)) == ["not_due_yet", "last_run", "not_paused", "shard_held", "staffed"]


async def test_jobs_that_no_clock_will_run(bench: Bench) -> None:
    by_hand = await bench.job("by hand")
    once = await bench.job("once", at(bench.after(5)))
    off = await bench.job("off", every("1h"), enabled=False)
    over = await bench.job("over", every("1h"), ends_at=bench.after(60))
    after_each = await bench.job("after each", delay("1h"))
    assert "no_schedule" in codes(await of_job(bench, by_hand))
    assert codes(await of_job(bench, off))[0] == "job_disabled"
    assert (await of_job(bench, after_each)).next_at == bench.after(3600)
    assert (await of_job(bench, once)).next_at == bench.after(5)
    await bench.set_clock(bench.after(90))
    await bench.ring()
    assert codes(await of_job(bench, over))[0] == "after_end"
    assert (await of_job(bench, once)).run is not None


# Instants


async def test_an_instant_with_a_run_is_explained_by_it(bench: Bench) -> None:
    job_id = await bench.job("job", every("1h", offset="30s"))
    await bench.set_clock(bench.after(30))
    await bench.tick()
    found = await at_second(bench, job_id, 0)  # the minute is meant
    assert (found.at, codes(found)) == (bench.after(30), ["no_worker_for_pool", "nearest", "not_paused"])
    assert found.reasons[1].text == "12:00:00Z is no time of its schedule; this is the next one"
    assert found.run is not None
    assert codes(await at_second(bench, job_id, 30)) == ["no_worker_for_pool", "not_paused"]


async def test_a_run_by_hand_is_found_by_its_minute(bench: Bench) -> None:
    job_id = await bench.job("job")
    await bench.set_clock(bench.after(7))
    key = await bench.trigger(job_id)
    found = await at_second(bench, job_id, 0)
    assert found.run is not None
    assert found.run.key == key
    assert codes(await at_second(bench, job_id, 8)) == ["no_schedule"]


async def test_an_instant_that_a_pause_or_an_outage_took(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(15))
    await bench.tick_all()
    await control.pause(bench.store, job_id, tenant_id=bench.tenant, who="ada", reason="INC-42")
    await bench.set_clock(bench.after(35))
    [paused, *_] = (await at_second(bench, job_id, 20)).reasons
    assert (paused.code, paused.fix) == ("job_paused", "bellringer jobs resume job")
    await bench.resume(job_id)
    [passed] = (await at_second(bench, job_id, 20)).reasons
    assert passed.code == "gap"
    assert "the job was paused by ada (INC-42)" in passed.text
    await bench.set_clock(bench.after(305))
    await bench.tick_all()
    [missed] = (await at_second(bench, job_id, 100)).reasons
    assert missed.code == "gap"
    assert "no scheduler ticked in time" in missed.text
    assert "; 26 occurrences in all; the one of " in missed.text


async def test_an_instant_that_nobody_came_to_yet(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(25))
    [unheld] = (await at_second(bench, job_id, 20)).reasons
    assert unheld.code == "shard_unheld"
    assert unheld.text.startswith("it was due 5s ago, but no scheduler holds its shard")
    await bench.hold()
    assert codes(await at_second(bench, job_id, 20)) == ["scheduler_late"]


async def test_an_instant_without_account_is_owned_up_to(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(15))
    await bench.tick_all()
    await bench.sql("delete from queue")
    await bench.sql("delete from runs")
    assert codes(await at_second(bench, job_id, 10)) == ["unaccounted"]


async def test_instants_outside_of_the_job(bench: Bench) -> None:
    starts, ends = bench.after(600), bench.after(7200)
    job_id = await bench.job("job", every("10m"), starts_at=starts, ends_at=ends)
    await bench.set_clock(bench.after(1))
    assert codes(await at_second(bench, job_id, -3600)) == ["before_job"]
    assert codes(await at_second(bench, job_id, 0)) == ["before_job"]
    assert codes(await at_second(bench, job_id, 7800)) == ["after_end"]
    assert codes(await at_second(bench, job_id, 600))[0] == "shard_unheld"
    [off] = (await at_second(bench, job_id, 660)).reasons
    assert off.text == (
        f"{bench.after(660):%Y-%m-%d %H:%M}Z is no time of its schedule: "
        f"the one before is {bench.after(600):%Y-%m-%d %H:%M}Z, the next is {bench.after(1200):%Y-%m-%d %H:%M}Z"
    )


async def test_an_instant_to_come_with_all_that_it_needs(bench: Bench) -> None:
    job_id = await bench.job("job", every("1h"))
    await bench.hold()
    await bench.seat()
    await bench.set_clock(bench.after(1))
    assert codes(await at_second(bench, job_id, 3600)) == ["in_future", "not_paused", "shard_held", "staffed"]


async def test_an_instant_is_judged_by_the_schedule_of_its_time(bench: Bench) -> None:
    job_id = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(15))
    await bench.tick_all()
    await bench.change(job_id, bench.definition("job", cron("0 3 * * *")))
    await bench.set_clock(bench.after(300))
    assert (await at_second(bench, job_id, 10)).run is not None
    assert codes(await at_second(bench, job_id, 200)) == ["not_an_instant"]


async def test_history_past_retention_is_said_to_be_dropped(bench: Bench) -> None:
    job_id = await bench.job("job", every("1h"))
    await bench.sql("update jobs set updated_at = updated_at - interval '60 days'")
    await bench.sql("update cluster set made_at = made_at - interval '60 days'")
    asked = bench.noon - timedelta(days=40)
    assert codes(await of_job(bench, job_id, asked.isoformat())) == ["forgotten"]


async def test_a_time_without_offset_is_of_the_jobs_zone(bench: Bench) -> None:
    job_id = await bench.job("job", cron("30 2 * * *", tz="Asia/Tokyo"))
    day = bench.noon.date() + timedelta(days=2)
    found = await of_job(bench, job_id, f"{day}T02:30")
    assert found.at is not None
    assert found.at.isoformat() == f"{day - timedelta(days=1)}T17:30:00+00:00"
    with pytest.raises(InvalidInput):
        await of_job(bench, job_id, "soon")
