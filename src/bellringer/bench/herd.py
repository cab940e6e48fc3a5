"""The herd: many jobs due at one instant, fired by one scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.jobs import DEFAULT_POOL, shard_of
from bellringer.leases import Holding
from bellringer.lifecycle.tick import Pace, tick
from bellringer.schedule import every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import cohorts
from bellringer.store.cohorts import Hand
from bellringer.store.leases import PostgresLeases
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("load", "bellringer.bench")
BATCH = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """What was seen."""

    jobs: int
    schedules: int
    cohorts: int
    fires: int
    seconds: float
    fires_per_second: float
    plain_inserts_per_second: float
    share_of_plain_insert: float


class _Measured(Scheduler):
    """A scheduler that notes when its first strike began and its last one ended."""

    began = 0.0
    ended = 0.0

    async def _strike(self, holding: Holding, hands: Sequence[Hand]) -> None:
        self.began = self.began or self._clock.monotonic()
        await super()._strike(holding, hands)
        self.ended = self._clock.monotonic()


async def herd(dsn: str, jobs: int, schedules: int) -> Herd:
    """Register the jobs, let them come due together, and time the fire from its first call to its last."""
    store = await Store.open(dsn)
    try:
        instant = (await store.now()).replace(microsecond=0) - timedelta(seconds=1)
        await register(store, jobs, schedules, instant)
        await store.pool.execute("vacuum analyze members")
        await store.pool.execute("checkpoint")
        scheduler = _Measured(store, PostgresLeases(store), SystemClock(), SchedulerSettings(name="bench"))
        stop = asyncio.Event()
        running = asyncio.create_task(scheduler.run(stop))
        while scheduler.fired < jobs and not running.done():
            await asyncio.sleep(0.05)
        stop.set()
        await running
        fires, distinct = await _proof(store)
        if not fires == distinct == jobs:
            raise AssertionError(f"{jobs} jobs, {fires} runs of {distinct} jobs")
        seconds = scheduler.ended - scheduler.began
        plain = await _plain_insert(store)
        hands = await store.pool.fetchval("select count(*) from cohorts")
    finally:
        await store.close()
    return Herd(
        jobs=jobs,
        schedules=schedules,
        cohorts=hands,
        fires=fires,
        seconds=round(seconds, 3),
        fires_per_second=round(fires / seconds, 1),
        plain_inserts_per_second=round(fires / plain, 1),
        share_of_plain_insert=round(plain / seconds, 3),
    )


async def register(store: Store, jobs: int, schedules: int, instant: datetime) -> None:
    """Fill the tables as registration would, without its round trips."""
    names = Names(store)
    task_id = (await names.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await names.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    shards = await names.shards()
    known = [every(timedelta(days=1, seconds=n), anchor=instant) for n in range(schedules)]
    numbers = sorted((await names.schedule_ids(known)).values())
    for start in range(0, jobs, BATCH):
        ids = [uuid7() for _ in range(min(BATCH, jobs - start))]
        columns = (
            [shard_of(i, shards) for i in ids],
            task_id,
            pool_id,
            [numbers[(start + n) % schedules] for n in range(len(ids))],
            start,
        )
        await store.pool.execute(_SQL.jobs, ids, *columns, timeout=600)
    await store.pool.execute(_SQL.members, timeout=600)
    await store.pool.execute(_SQL.cohorts, instant, timeout=600)


async def _proof(store: Store) -> tuple[int, int]:
    row = await store.pool.fetchrow("select count(*) as runs, count(distinct job_id) as jobs from runs where slot = 0")
    assert row is not None
    return row["runs"], row["jobs"]


async def _plain_insert(store: Store) -> float:
    """Seconds that a plain INSERT … SELECT of the same rows takes into copies of both tables with all indexes."""
    clock = SystemClock()
    connection: asyncpg.Connection[Any]
    async with store.pool.acquire() as connection:  # type: ignore[assignment]
        await connection.execute(_SQL.copies)
        await connection.execute("checkpoint")
        started = clock.monotonic()
        await connection.execute(_SQL.copy_runs)
        await connection.execute(_SQL.copy_queue)
        return clock.monotonic() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """How long a tick of a few due jobs takes beside many that are not due."""

    registered: int
    due: int
    median_ms: float


async def tick_beside(dsn: str, registered: int, due: int, rounds: int = 30) -> Tick:
    """The median of passes that each look for what is due and fire it."""
    store = await Store.open(dsn)
    clock = SystemClock()
    names = Names(store)
    try:
        now = await store.now()
        await register(store, registered, 1, now + timedelta(days=1))
        await store.pool.execute("vacuum analyze members, cohorts, jobs")
        keeper, me = PostgresLeases(store, timedelta(hours=1)), uuid7()
        holding = Holding(me, await keeper.acquire(me, 64))
        few = await names.schedule_ids([every("1s")])
        number = max(few.values())
        await store.pool.execute(_SQL.due_members, number, due)
        taken: list[float] = []
        for n in range(rounds + 3):
            at = now.replace(microsecond=0) + timedelta(milliseconds=n)
            await store.pool.execute("delete from cohorts where schedule_id = $1", number)
            await store.pool.execute(_SQL.due_cohorts, number, at)
            started = clock.monotonic()
            hands = await cohorts.coming(store, sorted(holding.tokens), at, 10_000)
            ticked = await tick(store, names, holding, hands, at, Pace())
            taken.append(clock.monotonic() - started)
            if ticked.fired.fired != due:
                raise AssertionError(f"{due} due, {ticked.fired.fired} fired")
    finally:
        await store.close()
    median = sorted(taken[3:])[rounds // 2]
    return Tick(registered=registered, due=due, median_ms=round(median * 1000, 3))
