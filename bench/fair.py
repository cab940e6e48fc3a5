"""Measures fairness: ten runs next to another tenant's backlog, and the cost of a claim among many tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import msgspec

from bellringer.bench import database
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.claim import MAX_TENANTS_PER_CLAIM
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load
from bellringer.store.workers import WorkerRegistration
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings
from bench.machine_pauses import measure_pauses_during

_SQL = load("fair", "bench")
_CLAIM = load("queue").claim
TEN: Final = 10
TRIES: Final = 100  # of each kind, alternating
ARRIVALS: Final = 15
CLAIMS: Final = 40
BATCH: Final = 200  # runs per measured claim
TIMEOUT_SECONDS: Final = 60.0
CHUNK: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One claim of a full batch: its median and minimum time, and the index entries that it reads."""

    rows: int
    tenants: int
    ms: float
    least_ms: float
    index_reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fair:
    """The waits of ten runs over all tries, from the start of the worker until their handlers began: p99 and p50,
    without and with the other tenant's backlog.

    `machine` holds the wake-up delays of an idle process meanwhile. `arriving` is the longest wait (median of several
    tries) of runs that arrive while the other tenant's runs hold every slot; handlers are not interrupted.
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
        (alone, herded), machine = await measure_pauses_during(_by_turns(quiet, noisy, ids, slots, task_ms))
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
    catalog = Catalog(store)
    rows = await store.pool.fetch(_SQL.tenants, ["small", "noisy"])
    made = {row["name"]: row["tenant_id"] for row in rows}
    return _Ids(
        small=made["small"],
        noisy=made["noisy"],
        task=(await catalog.task_ids(["bench.nap"]))["bench.nap"],
        pool=(await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL],
    )


def _p(waits: list[float], share: float) -> float:
    return sorted(waits)[int(len(waits) * share)]


class _Begun:
    """Start times of the small tenant's handlers, recorded by the handlers themselves: reading them from the queue
    would scan the whole backlog during the claim that is timed."""

    def __init__(self) -> None:
        self.moments: list[float] = []  # handlers append from another event loop

    def add(self, moment: float) -> None:
        self.moments.append(moment)

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.moments) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def _worker(store: Store, ids: _Ids, slots: int, task_ms: float) -> AsyncIterator[_Begun]:
    clock, begun = SystemClock(), _Begun()

    async def nap(ctx: Context) -> None:
        if ctx.tenant_id == ids.small:
            begun.add(clock.monotonic())
        await asyncio.sleep(task_ms / 1000)

    registry = Registry()
    registry.add(make_task(nap, name="bench.nap"))
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
    """Start the worker when the runs are ready, alternating between both databases, so that other load affects both
    equally. The first try of each only warms up."""
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
    """Add the runs while the worker is busy."""
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
    """Wait until a tenant's runs are settled."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await store.pool.fetchval("select exists (select 1 from queue where tenant_id = $1)", tenant):
            await asyncio.sleep(0.01)


async def _fill(store: Store, statement: str, tenants: list[int], runs: int, ids: _Ids) -> None:
    """Insert runs for each tenant, in chunks."""
    chunk = max(1, CHUNK // len(tenants))
    for start in range(0, runs, chunk):
        await store.pool.execute(statement, tenants, min(chunk, runs - start), ids.task, ids.pool)


async def _cost(store: Store, ids: _Ids, rows: int, tenants: int) -> Cost:
    """Time claims from different starting tenants, each in a transaction that is rolled back."""
    await store.pool.execute(_SQL.clear)
    made = [row["tenant_id"] for row in await store.pool.fetch(_SQL.crowd, tenants)]
    await _fill(store, _SQL.queued, made, rows // tenants, ids)
    await store.pool.execute("vacuum analyze queue")
    clock, taken = SystemClock(), []
    who = WorkerRegistration(
        name="bench", host="bench", pid=0, version="", pools={DEFAULT_POOL: 1}, task_ids=[ids.task]
    )
    worker_id = await workers.join(store, who)
    async with store.pool.acquire() as connection:
        before = await connection.fetchval(_SQL.reads)
        for n in range(CLAIMS):
            after = made[n * 37 % tenants]
            transaction = connection.transaction()
            await transaction.start()
            started = clock.monotonic()
            arguments = (worker_id, ids.pool, [ids.task], BATCH, after, 0, BATCH, MAX_TENANTS_PER_CLAIM)
            claimed = await connection.fetch(_CLAIM, *arguments)
            taken.append(clock.monotonic() - started)
            await transaction.rollback()
            if len(claimed) != BATCH + 1:  # the last row is not a run
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
