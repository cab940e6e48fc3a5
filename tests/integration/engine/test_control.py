"""Control: runs that people ask for, stop and revive; each step may be repeated."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.clock import SystemClock
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.prune import Retention
from bellringer.engine.send import SendSpec, send
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.schedule import at, every
from bellringer.scheduler.maintenance import Maintenance
from bellringer.store import jobs, runs
from bellringer.store.connection_pool import connect
from bellringer.store.tenant_scope import ScopedStore
from bellringer.store.wakeups import COHORTS_CHANNEL, WORK_CHANNEL

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def dead(harness: EngineHarness, attempts: int = 1) -> RunKey:
    """A run that has used its attempts."""
    sent = await harness.send(retry=Retry(attempts, base="1s", cap="1s"))
    seat = await harness.join_worker()
    for _ in range(attempts):
        await harness.fail(seat, await harness.claim_one(seat))
        await harness.pass_time(1)
    assert await harness.state(sent.key) is State.DEAD
    return sent.key


# Send


async def test_a_send_is_queued_at_once(harness: EngineHarness) -> None:
    sent = await harness.send(args=[1], kwargs={"to": "you"})
    assert sent.created
    run = await harness.run(sent.key)
    assert (run.state, run.cause, run.job, run.task) == (State.QUEUED, "send", None, "greet")
    claimed = await harness.claim_one(await harness.join_worker())
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"to": "you"})


async def test_a_send_for_later_waits_in_timers(harness: EngineHarness) -> None:
    sent = await harness.send(at=harness.after(3600))
    assert await harness.value("select count(*) from queue") == 0
    run = await harness.run(sent.key)
    assert (run.state, run.available_at) == (State.QUEUED, harness.after(3600))
    await harness.set_clock(harness.after(3600))
    await harness.ring()
    assert (await harness.claim_one(await harness.join_worker())).key == sent.key


async def test_a_send_for_the_next_seconds_goes_straight_to_the_queue(harness: EngineHarness) -> None:
    sent = await harness.send(at=harness.after(2))
    assert await harness.value("select count(*) from timers") == 0
    assert (await harness.run(sent.key)).available_at == harness.after(2)


async def test_a_send_for_the_past_or_the_far_future_is_refused(harness: EngineHarness) -> None:
    with pytest.raises(InvalidInput):
        await harness.send(at=harness.after(-61))
    with pytest.raises(InvalidInput):
        await harness.send(at=harness.after(11 * 366 * 86_400))


async def test_a_second_send_with_a_key_answers_the_first_run(harness: EngineHarness) -> None:
    first = await harness.send(key="order 1")
    second = await harness.send(key="order 1", at=harness.after(60))
    assert (second.key, second.created) == (first.key, False)
    assert (await harness.send(key="order 2")).created
    assert await harness.value("select count(*) from runs") == 2


async def test_of_many_sends_with_one_key_at_once_one_makes_a_run(harness: EngineHarness) -> None:
    sent = await asyncio.gather(*(harness.send(key="order 1") for _ in range(8)))
    assert sum(s.created for s in sent) == 1
    assert len({s.key for s in sent}) == 1
    assert await harness.value("select count(*) from queue") == 1


async def test_a_key_is_free_again_after_a_day(harness: EngineHarness) -> None:
    first = await harness.send(key="order 1")
    await harness.pass_time(86_399)
    assert (await harness.send(key="order 1")).key == first.key
    await harness.pass_time(1)
    assert (await harness.send(key="order 1")).key != first.key


async def test_a_key_belongs_to_its_tenant(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    await harness.send(key="order 1")
    assert (await harness.send(key="order 1", tenant=other)).created


# Trigger


async def test_triggers_at_the_same_instant_take_one_slot_after_another(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    keys = await asyncio.gather(*(harness.trigger(job) for _ in range(4)))
    assert sorted(keys) == [harness.key(job, 1, slot) for slot in (1, 2, 3, 4)]
    assert await harness.fired(job) == [1]
    assert {(await harness.run(key)).cause for key in keys} == {"manual"}


async def test_a_trigger_may_bring_its_own_arguments(harness: EngineHarness) -> None:
    job = await harness.job("job", args=[1], kwargs={"a": 1, "b": 2})
    await harness.trigger(job, kwargs={"b": 3})
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"a": 1, "b": 3})
    await harness.trigger(job)
    claimed = await harness.claim_one(seat)
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"a": 1, "b": 2})


async def test_only_a_job_that_exists_can_be_triggered(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    job = await harness.job("job")
    with pytest.raises(NotFound):
        await harness.for_tenant(other).trigger(job)
    with pytest.raises(NotFound):
        await harness.trigger(UUID(int=1))
    with pytest.raises(NotFound):
        await harness.trigger(UUID(int=1), args=[1])


# Cancel


async def test_what_waits_is_cancelled_at_once_and_again(harness: EngineHarness) -> None:
    sent = await harness.send()
    assert await harness.cancel(sent.key) is State.CANCELLED
    assert await harness.cancel(sent.key) is State.CANCELLED
    run = await harness.run(sent.key)
    assert (run.state, run.error) == (State.CANCELLED, {"reason": "not wanted"})
    assert await harness.claim(await harness.join_worker()) == []


async def test_what_runs_is_asked_to_stop(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    await harness.claim(seat)
    assert await harness.cancel(sent.key) is State.RUNNING
    assert await harness.cancel(sent.key) is State.RUNNING
    assert (await harness.run(sent.key)).cancel_requested


async def test_what_waits_for_its_time_is_cancelled_with_a_record(harness: EngineHarness) -> None:
    sent = await harness.send(at=harness.after(3600))
    assert await harness.cancel(sent.key) is State.CANCELLED
    assert await harness.cancel(sent.key) is State.CANCELLED
    await harness.set_clock(harness.after(3600))
    assert (await harness.ring()).fired == 0
    assert await harness.state(sent.key) is State.CANCELLED


async def test_a_retry_near_or_far_is_cancelled(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    for wait in ("10s", "10m"):
        sent = await harness.send(retry=Retry(delays=[wait], jitter=0))
        await harness.fail(seat, await harness.claim_one(seat))
        assert await harness.cancel(sent.key) is State.CANCELLED
        assert await harness.state(sent.key) is State.CANCELLED


async def test_a_cancelled_one_shot_is_not_armed_again(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(60)))
    await harness.cancel(harness.key(job, 60))
    await harness.change(job, harness.definition("job", at(harness.after(60)), priority=9))
    assert await harness.timers(job) == []


async def test_what_has_ended_otherwise_cannot_be_cancelled(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    with pytest.raises(Conflict, match="succeeded"):
        await harness.cancel(sent.key)


async def test_what_does_not_exist_or_is_another_tenants_cannot_be_cancelled(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    sent = await harness.send()
    later = await harness.send(at=harness.after(60))
    for key in (sent.key, later.key):
        with pytest.raises(NotFound):
            await harness.for_tenant(other).cancel(key)
    with pytest.raises(NotFound):
        await harness.cancel(RunKey(UUID(int=1), harness.noon))
    assert await harness.state(sent.key) is State.QUEUED


# Retry, redrive, discard


async def test_a_retry_that_waits_is_tried_now(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    for wait in ("10s", "10m"):
        sent = await harness.send(retry=Retry(delays=[wait], jitter=0))
        await harness.fail(seat, await harness.claim_one(seat))
        await harness.retry(sent.key)
        await harness.ring()
        claimed = await harness.claim_one(seat)
        assert (claimed.key, claimed.attempt) == (sent.key, 2)
        await harness.end(seat, claimed)


async def test_a_dead_run_is_redriven_with_its_key_and_a_full_budget(harness: EngineHarness) -> None:
    key = await dead(harness, attempts=2)
    await harness.retry(key)
    assert await harness.state(key) is State.RETRYING
    assert await harness.value("select count(*) from dead_letters") == 0
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert (claimed.key, claimed.attempt, claimed.spent) == (key, 3, 1)
    await harness.fail(seat, claimed)
    assert await harness.state(key) is State.RETRYING
    await harness.pass_time(1)
    await harness.fail(seat, await harness.claim_one(seat))
    assert await harness.state(key) is State.DEAD
    assert [a.attempt for a in await runs.attempts(harness.store, key, harness.tenant)] == [1, 2, 3, 4]
    assert await harness.value("select attempt from dead_letters") == 4


async def test_many_dead_runs_are_redriven_once(harness: EngineHarness) -> None:
    keys = [await dead(harness) for _ in range(3)]
    counts = await asyncio.gather(*(harness.redrive(*keys) for _ in range(3)))
    assert sum(counts) == 3
    assert await harness.value("select count(*) from queue") == 3


async def test_only_the_tenants_own_dead_letters_are_redriven_or_discarded(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    key = await dead(harness)
    assert await harness.for_tenant(other).redrive(key) == 0
    assert await commands.discard(harness.store, [key], tenant_id=other) == 0
    assert await harness.value("select count(*) from dead_letters") == 1


async def test_a_discarded_dead_letter_stays_dead(harness: EngineHarness) -> None:
    key = await dead(harness)
    assert await commands.discard(harness.store, [key], tenant_id=1) == 1
    assert await commands.discard(harness.store, [key], tenant_id=1) == 0
    assert await harness.state(key) is State.DEAD
    with pytest.raises(Conflict):
        await harness.retry(key)


async def test_what_is_neither_dead_nor_waiting_cannot_be_retried(harness: EngineHarness) -> None:
    sent = await harness.send()
    with pytest.raises(Conflict, match="queued"):
        await harness.retry(sent.key)
    with pytest.raises(NotFound):
        await harness.retry(RunKey(UUID(int=1), harness.noon))


async def test_a_dead_run_of_a_deleted_job_can_be_redriven(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"), retry=Retry(1), args=["kept"])
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.retire(job)
    assert await harness.redrive(harness.key(job, 1)) == 1
    claimed = await harness.claim_one(seat)
    assert claimed.spec.args == ["kept"]
    await harness.end(seat, claimed)
    assert await harness.state(claimed.key) is State.SUCCEEDED


async def test_pages_of_dead_letters_leave_nothing_out(harness: EngineHarness) -> None:
    for _ in range(5):
        await harness.send(retry=Retry(1))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim(seat))  # all of them die at the same instant
    first = await runs.dead(harness.store, 1, None, None, 3)
    second = await runs.dead(harness.store, 1, (first[-1].died_at, first[-1].key), None, 3)
    assert len({letter.key for letter in (*first, *second)}) == 5


async def test_a_pause_that_changes_nothing_leaves_no_revision(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1m"))
    first = await commands.pause(harness.store, job, tenant_id=1, who="ada", reason="repair")
    assert await commands.pause(harness.store, job, tenant_id=1, who="bob", reason="repair") == first
    assert (await harness.read(job)).paused_by == "ada"
    assert await commands.pause(harness.store, job, tenant_id=1, who="bob", reason="still") == first + 1
    assert await harness.value("select count(*) from audit where target = $1::text", str(job)) == 3


async def test_who_sends_is_in_the_audit_once(harness: EngineHarness) -> None:
    acting = ScopedStore(harness.store, None, '{"who": "user:ada"}')
    for key in ("k", "k"):
        await send(acting, harness.catalog, SendSpec(task="greet", key=key), tenant_id=1)
    await harness.send()  # by a program
    told = await harness.sql("select who, action from audit where kind = 'run'")
    assert [tuple(row) for row in told] == [("user:ada", "run.sent")]


async def test_the_end_of_a_pause_wakes_workers_and_schedulers(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1h"))
    await harness.trigger(job)
    await jobs.pause(harness.store, job, harness.tenant, "me", None, harness.after(5))
    await harness.set_clock(harness.after(6))
    heard: set[str] = set()
    listener = await connect(harness.store.dsn)
    try:
        for channel in (WORK_CHANNEL, COHORTS_CHANNEL):
            await listener.add_listener(channel, lambda *notice: heard.add(str(notice[2])))
        clock = SystemClock()
        await Maintenance(harness.store, harness.catalog, clock, clock.now, Retention(), timedelta(seconds=10)).resume()
        await listener.execute("select 1")  # notifications arrive before the response
    finally:
        await listener.close()
    assert (await harness.read(job)).paused_at is None
    assert heard == {WORK_CHANNEL, COHORTS_CHANNEL}
