"""Ticks at edges of time and while jobs change: every occurrence has one run or one gap."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from bellringer.clock import SystemClock
from bellringer.core.leases import Holding
from bellringer.core.policies import Missed
from bellringer.core.runs import State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import prune
from bellringer.engine import tick as ticking
from bellringer.engine.tick import TickLimits
from bellringer.schedule import at, every
from bellringer.scheduler.due_cohorts import DueHeap
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import cohorts, partitions
from bellringer.store.cohorts import Cohort, CohortMove, TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.leases import PostgresLeases
from bellringer.store.tenant_scope import ScopedStore

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


DAY = 86_400


async def test_two_schedules_of_one_job_that_fire_together_fire_it_once_and_hold_up_no_one(
    harness: EngineHarness,
) -> None:
    both = await harness.job("both", every("2s"), every("3s"))
    other = await harness.job("other", every("2s"))
    for _ in range(6):
        await harness.pass_time(1)
        await harness.tick_all()
    assert await harness.fired(both) == [2, 3, 4, 6]
    assert await harness.fired(other) == [2, 4, 6]


async def test_timers_that_fell_due_on_a_day_that_no_one_made_still_fire(harness: EngineHarness) -> None:
    await prune.create_partitions(harness.store, harness.noon)
    sent = await harness.send(at=harness.after(4 * DAY))
    await harness.set_clock(harness.after(10 * DAY))  # ten days without a scheduler
    await prune.create_partitions(harness.store, await harness.now())
    assert (await harness.ring()).fired == 1
    assert await harness.state(sent.key) is State.QUEUED


async def test_a_schedule_that_this_node_cannot_read_holds_up_no_other(harness: EngineHarness) -> None:
    strange = await harness.job("strange", every("1m"))
    plain = await harness.job("plain", every("2s"))
    await harness.sql(
        "update schedules s set kind = 'rrule' from jobs j where s.schedule_id = any (j.schedule_ids) "
        "and j.job_id = $1",
        strange,
    )
    harness.catalog = type(harness.catalog)(harness.store)  # another node, which has read nothing yet
    await harness.set_clock(harness.after(60))
    for _ in range(40):
        await harness.tick()
    assert len(await harness.fired(plain)) == 30


async def test_a_cohort_of_a_shard_that_is_not_held_does_not_jump(harness: EngineHarness) -> None:
    await harness.job("job", every("1s"))
    await harness.set_clock(harness.after(1000))
    [hand] = await harness.due_cohorts()
    holding = await harness.hold()
    without = Holding(holding.holder, {s: t for s, t in holding.tokens.items() if s != hand.shard})
    await cohorts.fast_forward(harness.store, without, [CohortMove(hand, harness.after(990), 989)])
    assert await harness.due_cohorts() == [hand]


async def test_an_occurrence_at_the_very_instant_of_an_edit_is_not_forgotten(harness: EngineHarness) -> None:
    """The hand is behind: the old membership covers what was before, the new one what comes after."""
    job = await harness.job("job", every("5s"))
    await harness.set_clock(harness.after(10))
    await harness.change(job, harness.definition("job", every("5s"), args=["new"]))
    await harness.tick_all()
    covered = any(gap["from_at"] <= 10 < gap["to_at"] for gap in await harness.gaps(job))
    assert 10 in await harness.fired(job) or covered


async def test_an_occurrence_at_the_very_instant_of_a_pause_or_a_resume_has_one_account(harness: EngineHarness) -> None:
    job = await harness.job("job", every("5s"))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    await harness.pause(job)  # 5 and 10 have run
    await harness.set_clock(harness.after(20))
    await harness.resume(job)  # 15 and 20 have not, and will not
    await harness.tick_all()
    [gap] = await harness.gaps(job)
    covered = [at for at in (5, 10, 15, 20) if gap["from_at"] <= at < gap["to_at"]]
    assert (await harness.fired(job), covered) == ([5, 10], [15, 20])


async def test_a_gap_counts_only_what_a_job_that_ended_meanwhile_has_missed(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1m"), ends_at=harness.after(180))
    await harness.set_clock(harness.after(3600))
    await harness.tick_all()
    [gap] = await harness.gaps(job)
    assert gap["count"] in (3, None)


async def test_a_jump_is_bounded_as_a_tick_is(harness: EngineHarness) -> None:
    """300,000 members take four seconds in one call, which holds the locks of all its shards and leases."""
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("1s")) for n in range(60)))
    await harness.set_clock(harness.after(3600))
    await harness.tick(most=20)
    assert await harness.value("select count(*) from gaps") <= 20


async def test_renewing_leases_does_not_deadlock_with_a_tick(harness: EngineHarness) -> None:
    """With fresh statistics the renewal takes the rows as they lie in the table, the fence in order."""
    holding = await harness.hold()
    await harness.sql(  # rows move to the end of the table when they are renewed
        "do 'begin for s in reverse 30..0 loop "
        "update leases set expires_at = expires_at where shard = s; end loop; end'"
    )
    await harness.sql("analyze leases")
    shards, tokens = holding.tokens_for(range(31))
    async with harness.store.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select from leases where shard = 0 for update")
        fencing = asyncio.create_task(
            harness.value("select bellringer.fence($1, $2, $3)", holding.holder, shards, tokens)
        )
        await blocked_by(harness, other)
        keeper = PostgresLeases(harness.store)
        renewing = asyncio.create_task(keeper.renew(holding.holder, dict(zip(shards, tokens, strict=True))))
        await blocked_by(harness, other, waiters=2)
        await transaction.commit()
    assert await fencing == []
    assert await renewing == frozenset(shards)


def test_a_heap_that_forgets_a_shard_keeps_the_newest_reading_of_the_others() -> None:
    wheel = DueHeap()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    wheel.put([Cohort(moment + timedelta(seconds=9), 1, 1), Cohort(moment, 2, 1)])
    wheel.put([Cohort(moment + timedelta(seconds=5), 1, 1)])
    wheel.keep([1])
    assert wheel.take(moment + timedelta(seconds=6), 10) == [Cohort(moment + timedelta(seconds=5), 1, 1)]


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


async def test_one_job_with_two_schedules_does_not_slow_the_tick_of_all_others(harness: EngineHarness) -> None:
    """Every pass fires one schedule of an instant with care, after it tried in vain to fire them all."""
    await harness.share_shard()
    for n in range(1, 41):
        await harness.job(f"job {n}", every(f"{n}s"))
    await harness.job("both", every("1s"), every("40s"))
    await harness.sql("update cohorts set next_at = $1", harness.after(10))
    await harness.set_clock(harness.after(10))
    passes = 0
    while await harness.value("select count(*) from cohorts where next_at = $1", harness.after(10)):
        await harness.tick()
        passes += 1
    assert passes <= 5
    assert await harness.value("select count(*) from runs") == 41


@pytest.mark.parametrize("how", ["pause", "change"])
async def test_a_job_that_leaves_in_the_middle_of_a_jump_has_one_account_of_each_occurrence(
    harness: EngineHarness, how: str
) -> None:
    await harness.share_shard()
    ids = sorted([await harness.job(f"job {n}", every("10s")) for n in range(4)])
    await harness.set_clock(harness.after(105))
    await harness.tick(most=2)  # the first two have their gap from 10 to 100, the others not yet
    for job in ids:
        if how == "pause":
            await harness.pause(job)
        else:
            await harness.change(job, harness.definition(f"new {job}", every("10s")))
    await harness.tick_all(most=2)
    for job in ids:
        spans = [(gap["from_at"], gap["to_at"]) for gap in await harness.gaps(job)]
        covered = [at for at in range(10, 101, 10) for start, end in spans if start <= at < end]
        assert sorted([*covered, *await harness.fired(job)]) == list(range(10, 101, 10))


def test_a_heap_accepts_a_cohort_that_comes_back_with_a_goal() -> None:
    wheel = DueHeap()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    later = moment + timedelta(seconds=9)
    wheel.put([Cohort(moment, 1, 1)])
    wheel.put([Cohort(later, 1, 1)])
    wheel.put([Cohort(moment, 1, 1, later)])
    assert wheel.take(moment, 10) == [Cohort(moment, 1, 1, later)]


async def test_a_pass_over_many_cohorts_costs_little_beside_its_call(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 hands are what one call takes; what Python does for them blocks the whole node."""
    [taken] = await harness.register(harness.definition("job", every("1s")))
    number = (await harness.read(taken.job_id)).schedule_ids[0]
    hands = [Cohort(harness.noon + timedelta(microseconds=n), n % 64, number) for n in range(8000)]

    async def done(*_: Any, **__: Any) -> TickOutcome:
        return TickOutcome(fired=8000, moved=8000)

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(cohorts, "tick", done)
    monkeypatch.setattr(partitions, "ensure_days", nothing)
    holding = Holding(uuid4(), dict.fromkeys(range(64), 1))
    started = time.perf_counter()
    await ticking.tick(harness.store, harness.catalog, holding, hands, harness.noon, TickLimits())
    assert time.perf_counter() - started < 1.0


async def test_a_cohort_that_this_node_cannot_read_does_not_keep_it_from_resting(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await harness.job("strange", every("1s"))
    await harness.sql(
        "update schedules s set kind = 'rrule' from jobs j"
        " where s.schedule_id = any (j.schedule_ids) and j.job_id = $1",
        job,
    )
    await harness.set_clock(harness.after(10))
    polls = 0
    original = cohorts.upcoming

    async def counted(*arguments: Any) -> list[Cohort]:
        nonlocal polls
        polls += 1
        return await original(*arguments)

    monkeypatch.setattr(cohorts, "upcoming", counted)
    stop = asyncio.Event()
    node = Scheduler(harness.store, PostgresLeases(harness.store), SystemClock(), SchedulerSettings())
    running = asyncio.create_task(node.run(stop))
    await asyncio.sleep(1.5)
    stop.set()
    await running
    assert polls <= 10


@pytest.mark.parametrize("how", ["pause", "change", "retire"])
async def test_a_one_shot_that_no_one_fired_in_time_has_an_account_when_its_job_leaves(
    harness: EngineHarness, how: str
) -> None:
    job = await harness.job("job", at(harness.after(5)))
    await harness.set_clock(harness.after(70))
    if how == "pause":
        await harness.pause(job)
        await harness.resume(job)
    elif how == "change":
        await harness.change(job, harness.definition("job", at(harness.after(5)), priority=9))
    else:
        await harness.retire(job)
    covered = any(gap["from_at"] <= 5 < gap["to_at"] for gap in await harness.gaps(job))
    assert (5 in await harness.fired(job)) != covered
    assert await harness.timers(job) == []


async def test_a_one_shot_that_passed_during_a_short_pause_is_accounted_for_once(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(5)))
    await harness.pause(job)
    await harness.set_clock(harness.after(30))
    await harness.resume(job)
    await harness.ring()
    covered = any(gap["from_at"] <= 5 < gap["to_at"] for gap in await harness.gaps(job))
    assert (await harness.fired(job), covered) == ([], True)


async def test_a_one_shot_that_a_pause_covered_is_accounted_for(harness: EngineHarness) -> None:
    for missed in Missed:
        job = await harness.job(f"once {missed}", at(await harness.now() + timedelta(seconds=10)))
        await harness.pause(job)
        await harness.pass_time(60)
        await harness.resume(job, missed)
        assert len(await harness.gaps(job)) == 1, missed


ACTOR = json.dumps({"who": "user:ada", "origin": "10.0.0.1", "request_id": "r1"})


async def test_a_stopped_client_with_a_key_holds_up_no_tick(harness: EngineHarness, tenants: Store) -> None:
    # An Idempotency-Key makes a POST one transaction: a process that is stopped in it keeps the shard's lock.
    await harness.share_shard()
    await harness.job("herd", every("1s"))
    victim = await harness.job("victim")
    await harness.hold()
    await harness.pass_time(1)
    scoped, fired = ScopedStore(tenants, 1, ACTOR), 0
    with suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
        async with scoped.transaction():
            await commands.pause(scoped, victim, tenant_id=1, who="me")
            await asyncio.sleep(5)  # it is stopped here
            fired = (await harness.tick()).fired.fired
    assert fired == 1


async def test_skips_of_one_instant_do_not_square_the_tick(harness: EngineHarness) -> None:
    await harness.share_shard()
    made = await harness.register(*(harness.definition(f"j{n}", every("1h")) for n in range(6000)))
    await harness.hold()
    took = []
    for skips in (0, len(made)):
        at = await harness.value("select min(next_at) from cohorts")
        await harness.sql(
            "insert into skips (job_id, at, tenant_id, who, made_at) select u, $2, 1, 'me', bellringer.now() "
            "from unnest($1::uuid[]) u",
            [r.job_id for r in made[:skips]],
            at,
        )
        await harness.set_clock(at)
        start = time.monotonic()
        assert (await harness.tick()).fired.fired == len(made)
        took.append(time.monotonic() - start)
    assert await harness.value("select count(*) from runs where initial_state = 'skipped'") == len(made)
    assert took[1] < 10 * took[0] + 1  # it was 40 times
