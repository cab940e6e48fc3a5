"""Replays a scaled-down day: evenly spread runs, and a fifth of all runs at one instant in the middle.

It measures the CPU cost of each process, from which `capacity` computes what a day of another size needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from uuid_utils.compat import uuid7

from bellringer.bench import database
from bellringer.bench.capacity import TARGETS, Costs, need
from bellringer.bench.operation_costs import calls, firing, sending, working
from bellringer.bench.processes import WORK, cpu, running, server_cpu
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL, shard_of
from bellringer.schedule import every
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load

_LOAD = load("load", "bellringer.bench")
_SQL = load("simulated_day", "bellringer.bench")
T = TypeVar("T")

SPIKE: Final = 0.2
SECONDS: Final = 10  # schedules of the evenly spread runs, a tenth of a second apart
SETTLING: Final = timedelta(seconds=6)  # until the processes are up
PATIENCE: Final = 300.0
PARTS: Final = ("database", "node", "workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigures:
    """The figures of the day."""

    runs: int
    seconds: float
    workers: int
    dispatch: str
    spike: dict[str, Any]
    even_lateness_ms: dict[str, float]
    day_us: dict[str, float]  # CPU microseconds per run of this day
    costs: dict[str, float]  # CPU microseconds at full load; the needs are computed from these
    needs: list[dict[str, Any]]


async def day(dsn: str, runs: int, seconds: int, workers: int, slots: int, dispatch: str) -> DayFigures:
    store = await Store.open(dsn, size=3, name="bellringer bench")
    try:
        noon, end = await _register(store, runs, seconds)
        total = await store.pool.fetchval(_SQL.at_noon, noon)
        worker = ("worker", WORK, "--pools", f"{DEFAULT_POOL}={slots}")
        with running(dsn, ("scheduler",), *[worker] * workers, BELLRINGER_DISPATCH=dispatch) as pids:
            await asyncio.sleep((noon - timedelta(seconds=seconds // 2) - await store.now()).total_seconds() - 0.2)
            before, wal = await _used(store, pids), await store.pool.fetchval(_SQL.wal)  # they have started
            ended = await _over(store, end)
            used = [after - then for then, after in zip(before, await _used(store, pids), strict=True)]
        wal = await store.pool.fetchval(_SQL.wal) - wal
        kept = await store.pool.fetchval(_SQL.bytes)
        spike = await store.pool.fetchrow(_SQL.fired, noon)
        assert spike is not None
        lateness = await _lateness(store, noon, of=noon), await _lateness(store, noon, of=None)
    finally:
        await store.close()
    costs = await _costs(dsn, kept / ended, wal / ended)
    return DayFigures(
        runs=ended,
        seconds=seconds,
        workers=workers,
        dispatch=dispatch.partition(":")[0],
        spike={
            "runs": total,
            "fired_after_s": round(spike["fired"], 3),
            "done_after_s": round(spike["done"], 3),
            "lateness_ms": lateness[0],
        },
        even_lateness_ms=lateness[1],
        day_us={name: round(spent * 1e6 / ended, 1) for name, spent in zip(PARTS, used, strict=True)},
        costs={name: round(value, 1) for name, value in asdict(costs).items()},
        needs=[asdict(need(target, costs)) for target in TARGETS],
    )


async def _fresh(dsn: str, measure: Callable[[str], Awaitable[T]]) -> T:
    """Measure in a new database."""
    made = await database.create(dsn)
    try:
        return await measure(made)
    finally:
        await database.drop(dsn, made)


async def _register(store: Store, runs: int, seconds: int) -> tuple[datetime, datetime]:
    """Register jobs that fire every second, at tenths of a second, and jobs that fire once, in the middle."""
    catalog = Catalog(store)
    task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    shards = await catalog.shard_count()
    first = (await store.now()).replace(microsecond=0) + SETTLING
    noon, end = first + timedelta(seconds=seconds // 2), first + timedelta(seconds=seconds)
    tenths = [first + timedelta(seconds=n / SECONDS) for n in range(SECONDS)]
    known = await catalog.schedule_ids(every("1s", anchor=at) for at in tenths)
    even = sorted(known.values())
    at_noon = max((await catalog.schedule_ids([every("1d", anchor=noon)])).values())
    count = max(1, round(runs * (1 - SPIKE) / seconds))
    numbers = [even[n % SECONDS] for n in range(count)] + [at_noon] * round(runs * SPIKE)
    ids = [uuid7() for _ in numbers]
    where = [shard_of(i, shards) for i in ids]
    await store.pool.execute(_LOAD.jobs, ids, where, task_id, pool_id, numbers, 0, timeout=600)
    await store.pool.execute(_LOAD.members, timeout=600)
    await store.pool.execute(_SQL.cohorts, [*even, at_noon], [first] * SECONDS + [noon])
    await store.pool.execute("update members set active_until = $1 where schedule_id <> $2", end, at_noon)
    await store.pool.execute("vacuum analyze members, cohorts, jobs")
    await store.pool.execute("checkpoint")
    return noon, end


async def _over(store: Store, end: datetime) -> int:
    """Wait until the day is over and all runs have ended; returns the number of runs."""
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE + (end - await store.now()).total_seconds()
    while clock.monotonic() < until:
        await asyncio.sleep(0.25)
        seen = await store.pool.fetchrow(_SQL.progress)
        if seen is not None and seen["runs"] == seen["ended"] > 0 and await store.now() > end + timedelta(seconds=2):
            return int(seen["ended"])
    raise AssertionError("the day has not ended")


async def _lateness(store: Store, noon: datetime, *, of: datetime | None) -> dict[str, float]:
    row: Any = await store.pool.fetchrow(_SQL.lateness, of, noon)
    return {name: round(float(value) * 1000, 1) for name, value in zip(("p50", "p99", "max"), row["p"], strict=True)}


async def _used(store: Store, pids: Sequence[int]) -> tuple[float, float, float]:
    """Returns CPU seconds of the database, the node and the workers."""
    database = sum(spent for whom, spent in (await server_cpu(store)).items() if whom != "bellringer bench")
    return database, cpu(pids[0]), sum(cpu(pid) for pid in pids[1:])


async def _costs(dsn: str, kept: float, wal: float) -> Costs:
    """Measure each operation alone, in a new database."""
    fires, works, sends = [await _fresh(dsn, measure) for measure in (firing, working, sending)]
    asked = await _fresh(dsn, calls)
    return Costs(
        fire_db=fires.database,
        fire_node=fires.process,
        work_db=works.database,
        work_worker=works.process,
        send_db=sends.database,
        send_node=sends.process,
        create_db=asked["create"].database,
        create_api=asked["create"].process,
        read_db=asked["read"].database,
        read_api=asked["read"].process,
        kept_bytes=kept,
        wal_bytes=wal,
    )
