"""Fairness: ten runs beside another tenant's herd, and what a claim costs among many tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import msgspec

from bellringer.bench import database
from bellringer.bench.gaps import beside
from bellringer.clock import SystemClock
from bellringer.jobs import DEFAULT_POOL
from bellringer.lifecycle.claim import MOST_TENANTS
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queries import load
from bellringer.tasks import Registry, task_from
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings

_SQL = load("fair", "bellringer.bench")
_CLAIM = load("queue").claim
TEN: Final = 10
TRIES: Final = 100  # by turns, without the herd and beside it
ARRIVALS: Final = 15
CLAIMS: Final = 40
BATCH: Final = 200  # runs in a claim whose cost is measured
PATIENCE: Final = 60.0
CHUNK: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One claim of a full batch: its median and its shortest time, and what it reads of indexes."""

    rows: int
    tenants: int
    ms: float
    least_ms: float
    index_reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fair:
    """The waits of ten runs, of all tries together, from when the worker was there until their handlers began: p99 and
    p50, without the herd and beside it.

    `machine` is what a process that only reads the clock has seen meanwhile. `arriving`: the longest wait, as the
    median of several tries, of runs that came while every slot was held by the herd, whose handlers are not cut short.
    """

    herd: int
    slots: int
    task_ms: float
    tries: int
    alone_ms: float
    beside_ms: float
    ratio: float
    alone_p50_ms: float
    beside_p50_ms: float
    ratio_p50: float
    machine: dict[str, float]
    arriving_ms: float
    claims: list[dict[str, Any]]


async def fair(dsn: str, herd: int, slots: int, task_ms: float, rows: int) -> Fair:
    made = await database.create(dsn)
    quiet, noisy = await Store.open(made, size=6), await Store.open(dsn, size=6)
    try:
        ids = await _names(quiet)
        if ids != await _names(noisy):
            raise AssertionError("both databases are made alike")
        await _fill(noisy, _SQL.ready, [ids.noisy], herd, ids)
        await noisy.pool.execute("vacuum analyze queue")
        (alone, herded), machine = await beside(_by_turns(quiet, noisy, ids, slots, task_ms))
        arriving = await _arriving(noisy, ids, slots, task_ms)
        costs = [
            await _cost(noisy, ids, some, tenants)
            for some in (1_000, rows)
            for tenants in (1, 100, 10_000)
            if tenants <= some
        ]
    finally:
        await quiet.close()
        await noisy.close()
        await database.drop(dsn, made)
    return Fair(
        herd=herd,
        slots=slots,
        task_ms=task_ms,
        tries=TRIES,
        alone_ms=round(_p(alone, 0.99) * 1000, 2),
        beside_ms=round(_p(herded, 0.99) * 1000, 2),
        ratio=round(_p(herded, 0.99) / _p(alone, 0.99), 3),
        alone_p50_ms=round(_p(alone, 0.5) * 1000, 2),
        beside_p50_ms=round(_p(herded, 0.5) * 1000, 2),
        ratio_p50=round(_p(herded, 0.5) / _p(alone, 0.5), 3),
        machine=msgspec.to_builtins(machine),
        arriving_ms=arriving,
        claims=[asdict(cost) for cost in costs],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ids:
    small: int
    noisy: int
    task: int
    pool: int


async def _names(store: Store) -> _Ids:
    names = Names(store)
    rows = await store.pool.fetch(_SQL.tenants, ["small", "noisy"])
    made = {row["name"]: row["tenant_id"] for row in rows}
    return _Ids(
        small=made["small"],
        noisy=made["noisy"],
        task=(await names.task_ids(["bench.nap"]))["bench.nap"],
        pool=(await names.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL],
    )


def _p(waits: list[float], share: float) -> float:
    return sorted(waits)[int(len(waits) * share)]


class _Begun:
    """When the handlers of the small tenant's runs began, told by themselves: to look into the queue for it would have
    the database read the whole herd, beside the very claim that is timed."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self._changed = asyncio.Event()

    def add(self, moment: float) -> None:
        self.moments.append(moment)
        self._changed.set()

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.moments) < count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def _worker(store: Store, ids: _Ids, slots: int, task_ms: float) -> AsyncIterator[_Begun]:
    clock, begun = SystemClock(), _Begun()

    async def nap(ctx: Context) -> None:
        if ctx.tenant_id == ids.small:
            begun.add(clock.monotonic())
        await asyncio.sleep(task_ms / 1000)

    registry = Registry()
    registry.add(task_from(nap, name="bench.nap"))
    worker = Worker(store, registry, clock, WorkerSettings(pools={DEFAULT_POOL: slots}, name="bench"))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    try:
        yield begun
    finally:
        stop.set()
        await running


async def _by_turns(
    quiet: Store, noisy: Store, ids: _Ids, slots: int, task_ms: float
) -> tuple[list[float], list[float]]:
    """The runs are ready, and then the worker comes: without the herd and beside it by turns, so that whatever else the
    machine does meets both. The first of each only warms up."""
    clock = SystemClock()
    waits: tuple[list[float], list[float]] = ([], [])
    for _ in range(TRIES + 1):
        for store, found in zip((quiet, noisy), waits, strict=True):
            await store.pool.execute(_SQL.ready, [ids.small], TEN, ids.task, ids.pool)
            async with _worker(store, ids, slots, task_ms) as begun:
                came = clock.monotonic()
                await begun.reach(TEN)
                await _ended(store, ids.small)
            found.extend(moment - came for moment in begun.moments)
    return waits[0][TEN:], waits[1][TEN:]


async def _arriving(store: Store, ids: _Ids, slots: int, task_ms: float) -> float:
    """The worker is busy, and then the runs come."""
    clock, waits = SystemClock(), []
    async with _worker(store, ids, slots, task_ms) as begun:
        await asyncio.sleep(1)
        for n in range(ARRIVALS):
            came = clock.monotonic()
            await store.pool.execute(_SQL.ready, [ids.small], TEN, ids.task, ids.pool)
            await begun.reach(TEN * (n + 1))
            waits.append(max(begun.moments) - came)
            await _ended(store, ids.small)
    return round(median(waits) * 1000, 1)


async def _ended(store: Store, tenant: int) -> None:
    """Wait until a tenant's runs are settled; nothing is timed meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while await store.pool.fetchval("select exists (select 1 from queue where tenant_id = $1)", tenant):
            await asyncio.sleep(0.01)


async def _fill(store: Store, statement: str, tenants: list[int], runs: int, ids: _Ids) -> None:
    """So many runs of each tenant, a chunk at a time."""
    chunk = max(1, CHUNK // len(tenants))
    for start in range(0, runs, chunk):
        await store.pool.execute(statement, tenants, min(chunk, runs - start), ids.task, ids.pool)


async def _cost(store: Store, ids: _Ids, rows: int, tenants: int) -> Cost:
    """Claims that are undone, from many starts."""
    await store.pool.execute(_SQL.clear)
    made = [row["tenant_id"] for row in await store.pool.fetch(_SQL.crowd, tenants)]
    await _fill(store, _SQL.queued, made, rows // tenants, ids)
    await store.pool.execute("vacuum analyze queue")
    clock, taken = SystemClock(), []
    async with store.pool.acquire() as connection:
        before = await connection.fetchval(_SQL.reads)
        for n in range(CLAIMS):
            after = made[n * 37 % tenants]
            transaction = connection.transaction()
            await transaction.start()
            started = clock.monotonic()
            claimed = await connection.fetch(_CLAIM, 1, ids.pool, [ids.task], BATCH, after, 0, BATCH, MOST_TENANTS)
            taken.append(clock.monotonic() - started)
            await transaction.rollback()
            if len(claimed) != BATCH + 1:  # the last row is no run
                raise AssertionError(f"{BATCH} were ready, {len(claimed) - 1} claimed")
        await connection.execute("select pg_stat_force_next_flush()")
        after_all = await connection.fetchval(_SQL.reads)
    return Cost(
        rows=rows,
        tenants=tenants,
        ms=round(median(taken) * 1000, 3),
        least_ms=round(min(taken) * 1000, 3),
        index_reads=round((after_all - before) / CLAIMS),
    )
