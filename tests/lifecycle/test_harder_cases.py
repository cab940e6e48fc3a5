"""Harder cases: what the mending of the hard ones might have broken, and what only a busy node meets."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from bellringer.clock import SystemClock
from bellringer.leases import Holding
from bellringer.lifecycle import tick as ticking
from bellringer.lifecycle.tick import Pace
from bellringer.policies import Retry
from bellringer.runs import State
from bellringer.schedule import at, every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.scheduler.wheel import Wheel
from bellringer.store import cohorts, history
from bellringer.store.cohorts import Fired, Hand
from bellringer.store.leases import PostgresLeases

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def test_one_job_with_two_schedules_does_not_slow_the_strike_of_all_others(bench: Bench) -> None:
    """Every pass fires one schedule of an instant with care, after it tried in vain to fire them all."""
    await bench.share_shard()
    for n in range(1, 41):
        await bench.job(f"job {n}", every(f"{n}s"))
    await bench.job("both", every("1s"), every("40s"))
    await bench.sql("update cohorts set next_at = $1", bench.after(10))
    await bench.set_clock(bench.after(10))
    passes = 0
    while await bench.value("select count(*) from cohorts where next_at = $1", bench.after(10)):
        await bench.tick()
        passes += 1
    assert passes <= 5
    assert await bench.value("select count(*) from runs") == 41


@pytest.mark.parametrize("how", ["pause", "change"])
async def test_a_job_that_leaves_in_the_middle_of_a_jump_has_one_account_of_each_occurrence(
    bench: Bench, how: str
) -> None:
    await bench.share_shard()
    ids = sorted([await bench.job(f"job {n}", every("10s")) for n in range(4)])
    await bench.set_clock(bench.after(105))
    await bench.tick(most=2)  # the first two have their gap from 10 to 100, the others not yet
    for job in ids:
        if how == "pause":
            await bench.pause(job)
        else:
            await bench.change(job, bench.definition(f"new {job}", every("10s")))
    await bench.tick_all(most=2)
    for job in ids:
        spans = [(gap["from_at"], gap["to_at"]) for gap in await bench.gaps(job)]
        covered = [at for at in range(10, 101, 10) for start, end in spans if start <= at < end]
        assert sorted([*covered, *await bench.fired(job)]) == list(range(10, 101, 10))


def test_a_wheel_bears_a_hand_that_comes_back_with_a_goal() -> None:
    wheel = Wheel()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    later = moment + timedelta(seconds=9)
    wheel.put([Hand(moment, 1, 1)])
    wheel.put([Hand(later, 1, 1)])
    wheel.put([Hand(moment, 1, 1, later)])
    assert wheel.take(moment, 10) == [Hand(moment, 1, 1, later)]


async def test_a_pass_over_many_hands_costs_little_beside_its_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 hands are what one call takes; what Python does for them blocks the whole node."""
    [taken] = await bench.register(bench.definition("job", every("1s")))
    number = (await bench.read(taken.job_id)).schedule_ids[0]
    hands = [Hand(bench.noon + timedelta(microseconds=n), n % 64, number) for n in range(8000)]

    async def done(*_: Any, **__: Any) -> Fired:
        return Fired(fired=8000, moved=8000)

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(cohorts, "tick", done)
    monkeypatch.setattr(history, "ensure_days", nothing)
    holding = Holding(uuid4(), dict.fromkeys(range(64), 1))
    started = time.perf_counter()
    await ticking.tick(bench.store, bench.names, holding, hands, bench.noon, Pace())
    assert time.perf_counter() - started < 1.0


async def test_a_hand_that_this_node_cannot_read_does_not_keep_it_from_resting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await bench.job("strange", every("1s"))
    await bench.sql(
        "update schedules s set kind = 'rrule' from jobs j"
        " where s.schedule_id = any (j.schedule_ids) and j.job_id = $1",
        job,
    )
    await bench.set_clock(bench.after(10))
    polls = 0
    original = cohorts.coming

    async def counted(*arguments: Any) -> list[Hand]:
        nonlocal polls
        polls += 1
        return await original(*arguments)

    monkeypatch.setattr(cohorts, "coming", counted)
    stop = asyncio.Event()
    node = Scheduler(bench.store, PostgresLeases(bench.store), SystemClock(), SchedulerSettings())
    running = asyncio.create_task(node.run(stop))
    await asyncio.sleep(1.5)
    stop.set()
    await running
    assert polls <= 10


async def test_a_dead_run_whose_job_was_changed_is_revived_with_task_and_arguments_together(bench: Bench) -> None:
    job = await bench.job("job", every("1s"), task="greet", args=["hello"], retry=Retry(1))
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    seat = await bench.seat("greet", "delete_account")
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.change(job, bench.definition("job", task="delete_account", args=["everything"]))
    await bench.redrive(bench.key(job, 1))
    claimed = await bench.claim_one(seat)
    tasks = await bench.names.task_ids(["greet", "delete_account"])
    assert (claimed.task_id, claimed.spec.args) in [
        (tasks["greet"], ["hello"]),
        (tasks["delete_account"], ["everything"]),
    ]


async def test_a_cancel_that_meets_a_timer_as_it_rings_cancels_the_run(bench: Bench) -> None:
    sent = await bench.send(at=bench.after(60))
    await bench.set_clock(bench.after(60))
    holding = await bench.hold()
    shards, tokens = holding.within(range(64))
    async with bench.store.pool.acquire() as other, other.transaction():
        await other.fetch("select * from bellringer.ring($1, $2, $3, interval '0', 10)", holding.holder, shards, tokens)
        cancelling = asyncio.create_task(bench.cancel(sent.key))
        await asyncio.sleep(0.1)
        assert not cancelling.done()
    assert await cancelling is State.CANCELLED


@pytest.mark.parametrize("name", ["ΑΣ", "İstanbul", "ǅ"])
async def test_declaring_a_name_whose_small_letters_are_disputed_again_changes_nothing(bench: Bench, name: str) -> None:
    wanted = bench.definition(name, every("1h"))
    await bench.declare(wanted)
    assert await bench.declare(wanted) == []


@pytest.mark.parametrize("how", ["pause", "change", "retire"])
async def test_a_one_shot_that_nobody_rang_in_time_has_an_account_when_its_job_leaves(bench: Bench, how: str) -> None:
    job = await bench.job("job", at(bench.after(5)))
    await bench.set_clock(bench.after(70))
    if how == "pause":
        await bench.pause(job)
        await bench.resume(job)
    elif how == "change":
        await bench.change(job, bench.definition("job", at(bench.after(5)), priority=9))
    else:
        await bench.retire(job)
    covered = any(gap["from_at"] <= 5 < gap["to_at"] for gap in await bench.gaps(job))
    assert (5 in await bench.fired(job)) != covered
    assert await bench.timers(job) == []


async def test_a_one_shot_that_passed_during_a_short_pause_is_accounted_for_once(bench: Bench) -> None:
    job = await bench.job("job", at(bench.after(5)))
    await bench.pause(job)
    await bench.set_clock(bench.after(30))
    await bench.resume(job)
    await bench.ring()
    covered = any(gap["from_at"] <= 5 < gap["to_at"] for gap in await bench.gaps(job))
    assert (await bench.fired(job), covered) == ([], True)
