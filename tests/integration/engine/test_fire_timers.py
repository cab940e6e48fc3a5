"""Firing timers: runs are created ahead of their time, once, and workers are notified of all their times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.clock import SystemClock
from bellringer.core.leases import Holding
from bellringer.engine import tick as ticking
from bellringer.engine.send import SendSpec, send
from bellringer.schedule import at
from bellringer.scheduler import service
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.cohorts import TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.wakeups import WORK_CHANNEL, parse_work_hint

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_one_pass_creates_all_runs_inside_the_lead_and_none_behind_it(harness: EngineHarness) -> None:
    sent = [await harness.send(at=harness.after(60 + n / 10)) for n in range(20)]
    await harness.set_clock(harness.after(60))
    fired = await harness.ring(lead=1)
    assert (fired.fired, fired.moved, fired.first_due_at) == (11, 11, harness.after(60))
    assert await harness.value("select count(*) from bellringer.runs") == 11
    assert await harness.value("select min(due_at) from bellringer.timers") == sent[11].key.scheduled_for


async def test_a_run_that_was_created_ahead_is_claimed_at_its_time(harness: EngineHarness) -> None:
    await harness.send(at=harness.after(60))
    worker = await harness.join_worker()
    await harness.set_clock(harness.after(59.5))
    assert (await harness.ring(lead=1)).fired == 1
    assert await harness.claim(worker) == []
    await harness.set_clock(harness.after(60))
    assert len(await harness.claim(worker)) == 1


async def test_workers_are_notified_of_every_time_in_one_notification(harness: EngineHarness) -> None:
    times = [harness.after(60), harness.after(60.25), harness.after(60.9)]
    for time in [*times, times[1]]:
        await harness.send(at=time)
    await harness.set_clock(times[0] - timedelta(milliseconds=100))
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with harness.store.pool.acquire() as listener:
        await listener.add_listener(WORK_CHANNEL, lambda *notification: heard.put_nowait(str(notification[-1])))
        await harness.ring(lead=1)
        async with asyncio.timeout(10):
            assert parse_work_hint(await heard.get()).instants == times
        await listener.reset()
    assert heard.empty()


async def test_each_pool_has_a_notification_of_its_own(harness: EngineHarness) -> None:
    pools = await harness.catalog.pool_ids(["short", "long"])
    times = {"short": harness.after(60), "long": harness.after(60.5)}
    for pool, time in times.items():
        await harness.send(at=time, pool=pool)
    await harness.set_clock(times["short"] - timedelta(milliseconds=100))
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with harness.store.pool.acquire() as listener:
        await listener.add_listener(WORK_CHANNEL, lambda *notification: heard.put_nowait(str(notification[-1])))
        await harness.ring(lead=1)
        async with asyncio.timeout(10):
            hints = [parse_work_hint(await heard.get()) for _ in pools]
        await listener.reset()
    assert {hint.pool_id: hint.instants for hint in hints} == {pools[pool]: [time] for pool, time in times.items()}


async def test_a_timer_whose_run_exists_is_dropped_and_the_others_fire(harness: EngineHarness) -> None:
    job = await harness.job("job", at(harness.after(60)))
    await harness.set_clock(harness.after(60))
    await harness.ring()
    await harness.sql(
        """insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause)
           select job_id, scheduled_for, slot, scheduled_for, shard, pool_id, priority, tenant_id, task_id, cause
           from runs where job_id = $1""",
        job,
    )
    other = await harness.send(at=harness.after(65))
    await harness.set_clock(harness.after(65))
    fired = await harness.ring()
    assert (fired.fired, fired.moved) == (1, 2)
    assert await harness.fired(job) == [60]
    assert await harness.fired(other.key.job_id) == [65]
    assert (await harness.ring()).moved == 0


async def test_a_pass_of_the_scheduler_names_only_shards_with_timers_that_are_due(
    store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard costs a look in the index, and a lock."""
    passed: list[Sequence[int]] = []

    async def recorded(
        store: Store, holding: Holding, shards: Sequence[int], limits: ticking.TickLimits
    ) -> TickOutcome:
        passed.append(list(shards))
        return await ticking.fire_timers(store, holding, shards, limits)

    monkeypatch.setattr(service, "fire_timers", recorded)
    scheduler, stop = Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings()), asyncio.Event()
    running = asyncio.create_task(scheduler.run(stop))
    try:
        later = await store.now() + timedelta(hours=1)
        keys = [(await send(store, catalog, SendSpec(task="greet", at=later), tenant_id=1)).key for _ in range(5)]
        shard = await store.pool.fetchval("select shard from timers where job_id = $1", keys[0].job_id)
        await store.pool.execute("update timers set due_at = now() + interval '1 s' where job_id = $1", keys[0].job_id)
        async with asyncio.timeout(20):
            while await store.pool.fetchval("select count(*) from runs") == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        stop.set()
        await asyncio.wait_for(running, 20)
    assert passed
    assert {shard for shards_of_pass in passed for shard in shards_of_pass} == {shard}
