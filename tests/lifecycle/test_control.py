"""Control: runs that people ask for, stop and revive; each step may be repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.lifecycle import control
from bellringer.lifecycle.send import Order, send
from bellringer.policies import Retry
from bellringer.runs import RunKey, State
from bellringer.schedule import at, every
from bellringer.store import runs
from bellringer.store.scope import ScopedStore

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def dead(bench: Bench, attempts: int = 1) -> RunKey:
    """A run that has used its attempts."""
    sent = await bench.send(retry=Retry(attempts, base="1s", cap="1s"))
    seat = await bench.seat()
    for _ in range(attempts):
        await bench.fail(seat, await bench.claim_one(seat))
        await bench.pass_time(1)
    assert await bench.state(sent.key) is State.DEAD
    return sent.key


# Send


async def test_a_send_is_queued_at_once(bench: Bench) -> None:
    sent = await bench.send(args=[1], kwargs={"to": "you"})
    assert sent.created
    run = await bench.run(sent.key)
    assert (run.state, run.cause, run.job, run.task) == (State.QUEUED, "send", None, "greet")
    claimed = await bench.claim_one(await bench.seat())
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"to": "you"})


async def test_a_send_for_later_waits_in_timers(bench: Bench) -> None:
    sent = await bench.send(at=bench.after(3600))
    assert await bench.value("select count(*) from queue") == 0
    run = await bench.run(sent.key)
    assert (run.state, run.available_at) == (State.QUEUED, bench.after(3600))
    await bench.set_clock(bench.after(3600))
    await bench.ring()
    assert (await bench.claim_one(await bench.seat())).key == sent.key


async def test_a_send_for_the_next_seconds_goes_straight_to_the_queue(bench: Bench) -> None:
    sent = await bench.send(at=bench.after(2))
    assert await bench.value("select count(*) from timers") == 0
    assert (await bench.run(sent.key)).available_at == bench.after(2)


async def test_a_send_for_the_past_or_the_far_future_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        await bench.send(at=bench.after(-61))
    with pytest.raises(InvalidInput):
        await bench.send(at=bench.after(11 * 366 * 86_400))


async def test_a_second_send_with_a_key_answers_the_first_run(bench: Bench) -> None:
    first = await bench.send(key="order 1")
    second = await bench.send(key="order 1", at=bench.after(60))
    assert (second.key, second.created) == (first.key, False)
    assert (await bench.send(key="order 2")).created
    assert await bench.value("select count(*) from runs") == 2


async def test_of_many_sends_with_one_key_at_once_one_makes_a_run(bench: Bench) -> None:
    sent = await asyncio.gather(*(bench.send(key="order 1") for _ in range(8)))
    assert sum(s.created for s in sent) == 1
    assert len({s.key for s in sent}) == 1
    assert await bench.value("select count(*) from queue") == 1


async def test_a_key_is_free_again_after_a_day(bench: Bench) -> None:
    first = await bench.send(key="order 1")
    await bench.pass_time(86_399)
    assert (await bench.send(key="order 1")).key == first.key
    await bench.pass_time(1)
    assert (await bench.send(key="order 1")).key != first.key


async def test_a_key_belongs_to_its_tenant(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    await bench.send(key="order 1")
    assert (await bench.send(key="order 1", tenant=other)).created


# Trigger


async def test_triggers_at_the_same_instant_take_one_slot_after_another(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    keys = await asyncio.gather(*(bench.trigger(job) for _ in range(4)))
    assert sorted(keys) == [bench.key(job, 1, slot) for slot in (1, 2, 3, 4)]
    assert await bench.fired(job) == [1]
    assert {(await bench.run(key)).cause for key in keys} == {"manual"}


async def test_a_trigger_may_bring_its_own_arguments(bench: Bench) -> None:
    job = await bench.job("job", args=[1], kwargs={"a": 1, "b": 2})
    await bench.trigger(job, kwargs={"b": 3})
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"a": 1, "b": 3})
    await bench.trigger(job)
    claimed = await bench.claim_one(seat)
    assert (claimed.spec.args, claimed.spec.kwargs) == ([1], {"a": 1, "b": 2})


async def test_only_a_job_that_exists_can_be_triggered(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    job = await bench.job("job")
    with pytest.raises(NotFound):
        await bench.of(other).trigger(job)
    with pytest.raises(NotFound):
        await bench.trigger(UUID(int=1))
    with pytest.raises(NotFound):
        await bench.trigger(UUID(int=1), args=[1])


# Cancel


async def test_what_waits_is_cancelled_at_once_and_again(bench: Bench) -> None:
    sent = await bench.send()
    assert await bench.cancel(sent.key) is State.CANCELLED
    assert await bench.cancel(sent.key) is State.CANCELLED
    run = await bench.run(sent.key)
    assert (run.state, run.error) == (State.CANCELLED, {"reason": "not wanted"})
    assert await bench.claim(await bench.seat()) == []


async def test_what_runs_is_asked_to_stop(bench: Bench) -> None:
    sent = await bench.send()
    seat = await bench.seat()
    await bench.claim(seat)
    assert await bench.cancel(sent.key) is State.RUNNING
    assert await bench.cancel(sent.key) is State.RUNNING
    assert (await bench.run(sent.key)).cancel_requested


async def test_what_waits_for_its_time_is_cancelled_with_a_record(bench: Bench) -> None:
    sent = await bench.send(at=bench.after(3600))
    assert await bench.cancel(sent.key) is State.CANCELLED
    assert await bench.cancel(sent.key) is State.CANCELLED
    await bench.set_clock(bench.after(3600))
    assert (await bench.ring()).fired == 0
    assert await bench.state(sent.key) is State.CANCELLED


async def test_a_retry_near_or_far_is_cancelled(bench: Bench) -> None:
    seat = await bench.seat()
    for wait in ("10s", "10m"):
        sent = await bench.send(retry=Retry(delays=[wait]))
        await bench.fail(seat, await bench.claim_one(seat))
        assert await bench.cancel(sent.key) is State.CANCELLED
        assert await bench.state(sent.key) is State.CANCELLED


async def test_a_cancelled_one_shot_is_not_armed_again(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(60)))
    await bench.cancel(bench.key(job, 60))
    await bench.change(job, bench.definition("job", at(bench.after(60)), priority=9))
    assert await bench.timers(job) == []


async def test_what_has_ended_otherwise_cannot_be_cancelled(bench: Bench) -> None:
    sent = await bench.send()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    with pytest.raises(Conflict, match="succeeded"):
        await bench.cancel(sent.key)


async def test_what_does_not_exist_or_is_another_tenants_cannot_be_cancelled(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    sent = await bench.send()
    later = await bench.send(at=bench.after(60))
    for key in (sent.key, later.key):
        with pytest.raises(NotFound):
            await bench.of(other).cancel(key)
    with pytest.raises(NotFound):
        await bench.cancel(RunKey(UUID(int=1), bench.noon))
    assert await bench.state(sent.key) is State.QUEUED


# Retry, redrive, discard


async def test_a_retry_that_waits_is_tried_now(bench: Bench) -> None:
    seat = await bench.seat()
    for wait in ("10s", "10m"):
        sent = await bench.send(retry=Retry(delays=[wait]))
        await bench.fail(seat, await bench.claim_one(seat))
        await bench.retry(sent.key)
        await bench.ring()
        claimed = await bench.claim_one(seat)
        assert (claimed.key, claimed.attempt) == (sent.key, 2)
        await bench.end(seat, claimed)


async def test_a_dead_run_is_revived_with_its_key_and_a_full_budget(bench: Bench) -> None:
    key = await dead(bench, attempts=2)
    await bench.retry(key)
    assert await bench.state(key) is State.RETRYING
    assert await bench.value("select count(*) from dead_letters") == 0
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    assert (claimed.key, claimed.attempt, claimed.spent) == (key, 3, 1)
    await bench.fail(seat, claimed)
    assert await bench.state(key) is State.RETRYING
    await bench.pass_time(1)
    await bench.fail(seat, await bench.claim_one(seat))
    assert await bench.state(key) is State.DEAD
    assert [a.attempt for a in await runs.attempts(bench.store, key)] == [1, 2, 3, 4]
    assert await bench.value("select attempt from dead_letters") == 4


async def test_many_dead_runs_are_revived_once(bench: Bench) -> None:
    keys = [await dead(bench) for _ in range(3)]
    counts = await asyncio.gather(*(bench.redrive(*keys) for _ in range(3)))
    assert sum(counts) == 3
    assert await bench.value("select count(*) from queue") == 3


async def test_only_the_own_tenants_letters_are_revived_or_discarded(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    key = await dead(bench)
    assert await bench.of(other).redrive(key) == 0
    assert await control.discard(bench.store, [key], tenant_id=other) == 0
    assert await bench.value("select count(*) from dead_letters") == 1


async def test_a_discarded_letter_stays_dead(bench: Bench) -> None:
    key = await dead(bench)
    assert await control.discard(bench.store, [key], tenant_id=1) == 1
    assert await control.discard(bench.store, [key], tenant_id=1) == 0
    assert await bench.state(key) is State.DEAD
    with pytest.raises(Conflict):
        await bench.retry(key)


async def test_what_is_neither_dead_nor_waiting_cannot_be_retried(bench: Bench) -> None:
    sent = await bench.send()
    with pytest.raises(Conflict, match="queued"):
        await bench.retry(sent.key)
    with pytest.raises(NotFound):
        await bench.retry(RunKey(UUID(int=1), bench.noon))


async def test_a_dead_run_of_a_deleted_job_can_be_revived(bench: Bench) -> None:
    job = await bench.job("job", every("1s"), retry=Retry(1), args=["kept"])
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.retire(job)
    assert await bench.redrive(bench.key(job, 1)) == 1
    claimed = await bench.claim_one(seat)
    assert claimed.spec.args == ["kept"]
    await bench.end(seat, claimed)
    assert await bench.state(claimed.key) is State.SUCCEEDED


async def test_pages_of_dead_letters_leave_nothing_out(bench: Bench) -> None:
    for _ in range(5):
        await bench.send(retry=Retry(1))
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim(seat))  # all of them die at the same instant
    first = await runs.dead(bench.store, 1, None, None, 3)
    second = await runs.dead(bench.store, 1, (first[-1].died_at, first[-1].key), None, 3)
    assert len({letter.key for letter in (*first, *second)}) == 5


async def test_a_pause_that_changes_nothing_leaves_no_revision(bench: Bench) -> None:
    job = await bench.job("job", every("1m"))
    first = await control.pause(bench.store, job, tenant_id=1, who="ada", reason="repair")
    assert await control.pause(bench.store, job, tenant_id=1, who="bob", reason="repair") == first
    assert (await bench.read(job)).paused_by == "ada"
    assert await control.pause(bench.store, job, tenant_id=1, who="bob", reason="still") == first + 1
    assert await bench.value("select count(*) from audit where target = $1::text", str(job)) == 3


async def test_who_sends_is_in_the_audit_once(bench: Bench) -> None:
    acting = ScopedStore(bench.store, None, '{"who": "user:ada"}')
    for key in ("k", "k"):
        await send(acting, bench.names, Order(task="greet", key=key), tenant_id=1)
    await bench.send()  # by a program
    told = await bench.sql("select who, action from audit where kind = 'run'")
    assert [tuple(row) for row in told] == [("user:ada", "run.sent")]
