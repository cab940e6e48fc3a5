"""Measures how fast one scheduler fires many jobs that are due at one instant."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL, shard_of
from bellringer.core.leases import Holding
from bellringer.engine.tick import TickLimits, tick
from bellringer.schedule import every
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import cohorts
from bellringer.store.cohorts import Cohort
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.queries import load

_SQL = load("load", "bellringer.bench")
BATCH = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Herd:
    """The figures of one measurement."""

    jobs: int
    schedules: int
    cohorts: int
    fires: int
    seconds: float
    fires_per_second: float
    plain_inserts_per_second: float
    share_of_plain_insert: float


class _Measured(Scheduler):
    """A scheduler that records when its first tick began and its last tick ended."""

    began = 0.0
    ended = 0.0

    async def _tick(self, holding: Holding, hands: Sequence[Cohort]) -> None:
        self.began = self.began or self._clock.monotonic()
        await super()._tick(holding, hands)
        self.ended = self._clock.monotonic()


async def herd(dsn: str, jobs: int, schedules: int) -> Herd:
    """Register the jobs, let them become due together, and time the ticks from the first to the last."""
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
    """Insert the rows that registration would create, in few statements."""
    catalog = Catalog(store)
    task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    shards = await catalog.shard_count()
    known = [every(timedelta(days=1, seconds=n), anchor=instant) for n in range(schedules)]
    numbers = sorted((await catalog.schedule_ids(known)).values())
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
    """Returns the seconds of a plain INSERT … SELECT of the same rows into copies of both tables with all indexes."""
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
    """The duration of a tick with a few due jobs among many that are not due."""

    registered: int
    due: int
    median_ms: float


async def tick_beside(dsn: str, registered: int, due: int, rounds: int = 30) -> Tick:
    """Returns the median duration of ticks that read and fire the due jobs."""
    store = await Store.open(dsn)
    clock = SystemClock()
    catalog = Catalog(store)
    try:
        now = await store.now()
        await register(store, registered, 1, now + timedelta(days=1))
        await store.pool.execute("vacuum analyze members, cohorts, jobs")
        keeper, me = PostgresLeases(store, timedelta(hours=1)), uuid7()
        holding = Holding(me, await keeper.acquire(me, 64))
        few = await catalog.schedule_ids([every("1s")])
        number = max(few.values())
        await store.pool.execute(_SQL.due_members, number, due)
        taken: list[float] = []
        for n in range(rounds + 3):
            at = now.replace(microsecond=0) + timedelta(milliseconds=n)
            await store.pool.execute("delete from cohorts where schedule_id = $1", number)
            await store.pool.execute(_SQL.due_cohorts, number, at)
            started = clock.monotonic()
            hands = await cohorts.upcoming(store, sorted(holding.tokens), at, 10_000)
            ticked = await tick(store, catalog, holding, hands, at, TickLimits(lead=timedelta(0)))
            taken.append(clock.monotonic() - started)
            if ticked.fired.fired != due:
                raise AssertionError(f"{due} due, {ticked.fired.fired} fired")
    finally:
        await store.close()
    median = sorted(taken[3:])[rounds // 2]
    return Tick(registered=registered, due=due, median_ms=round(median * 1000, 3))
