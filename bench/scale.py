"""Measures how the cost of single operations depends on the number of jobs, timers and ended runs in the database.

Each operation is the product's own call, committed, on rows that no earlier call has touched: every tick has its own
10 jobs, every `fire_timers` its own 100 timers. The keys are random, so these rows share no pages.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import asyncpg
import click
from uuid_utils.compat import uuid7

from bellringer.bench import database
from bellringer.bench.processes import cpu, running
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.core.leases import Holding
from bellringer.core.messages import Message
from bellringer.core.runs import RunKey
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.forecast import forecast_fires
from bellringer.engine.send import BulkSend, SendSpec, send
from bellringer.engine.tick import TickLimits, tick
from bellringer.forecast import ForecastWindow
from bellringer.schedule import Schedule, cron, every, to_row
from bellringer.store import cohorts, forecast, partitions, run_lists, runs, workers
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads
from bellringer.store.leases import PostgresLeases
from bellringer.store.queries import load
from bellringer.store.run_lists import RunFilter
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.store.workers import WorkerRegistration

_SQL: Final = load("scale", "bench")
WARM_CALLS: Final = 5  # not counted: the first calls on a connection make plans
DUE_JOBS: Final = 10
DUE_TIMERS: Final = 100
BULK: Final = 1_000
CLAIMS: Final = (1, 100)
SHARDS: Final = 64
DAILY_SCHEDULES: Final = 1_200  # of the jobs that are not due, one in every minute from three to 23 hours ahead
LOAD_SECONDS: Final = 3_600  # timeout of statements that fill the database
TENANT: Final = 1
MAX_SCHEDULER_DELAY_SECONDS: Final = 60  # until it fires, if the machine is busy
SCHEDULER_JOBS: Final = 10_000  # that fire while the memory of the scheduler is measured
HISTORY_DAYS: Final = 30
HISTORY_JOBS: Final = 10_000
MIN_HISTORY: Final = 10_000  # one run of 200 has died, and the lists show 50
DROPPED_DAYS: Final = 5
PAGE: Final = 50

Call = Callable[[int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of one operation: milliseconds until the caller has the result, and CPU time of its server process.

    `blocks_read` is the mean number of 8 kB pages that were not in the server's shared buffers.
    """

    wall_ms: float
    cpu_ms: float
    blocks_read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigures:
    """The figures of a database with so many jobs and as many waiting timers."""

    size: int
    load_seconds: float
    gigabytes: float
    bytes_per_job: int  # with its part of members, cohorts and all indexes
    bytes_per_timer: int
    costs: dict[str, Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFigures:
    """A `bellringer scheduler` process that holds all shards; memory in MB."""

    size: int
    seconds: float
    fired: int
    rss_mb: float
    peak_rss_mb: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFigures:
    """The figures of a database with so many ended runs, each with one attempt, in daily partitions."""

    size: int
    days: int
    load_seconds: float
    gigabytes: float
    costs: dict[str, Cost]


@dataclass(slots=True)
class ScaleFigures:
    """The figures of one call, in the order of the sizes."""

    postgresql: str
    rounds: int
    sizes: list[SizeFigures] = field(default_factory=list)
    scheduler: SchedulerFigures | None = None
    history: list[HistoryFigures] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants:
    """When rows of a loaded database are due. Everything else is due later than these."""

    jobs: datetime  # in the minutes from here on, DUE_JOBS jobs each
    timers: datetime  # in the minutes from here on, DUE_TIMERS timers each
    others: datetime

    @classmethod
    def after(cls, now: datetime) -> Instants:
        start = now.replace(second=0, microsecond=0)
        return cls(
            jobs=start + timedelta(hours=1), timers=start + timedelta(hours=2), others=start + timedelta(hours=3)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A filled database; `daily` are the schedules of jobs that are not due."""

    instants: Instants
    daily: Sequence[int]
    seconds: float


class Backend:
    """A connection of which every operation uses the same server process, whose CPU time is read."""

    def __init__(self, store: Store, pid: int) -> None:
        self._store = store
        self._pid = pid

    @classmethod
    async def of(cls, store: Store) -> Backend:
        found = await store.pool.fetch("select pg_backend_pid()")
        return cls(store, found[0][0])

    async def cost(self, call: Call, rounds: int) -> Cost:
        """Returns the median of `rounds` calls, which get their numbers, after calls that are not counted."""
        wall: list[float] = []
        used: list[float] = []
        read = await self._blocks_read()
        for number in range(rounds + WARM_CALLS):
            before, start = self._cpu_ms(), time.perf_counter()
            await call(number)
            wall.append((time.perf_counter() - start) * 1e3)
            await asyncio.sleep(0.002)  # the kernel counts the CPU time of a process when the process waits
            used.append(self._cpu_ms() - before)
        read = (await self._blocks_read() - read) / len(wall)
        return Cost(round(median(wall[WARM_CALLS:]), 3), round(median(used[WARM_CALLS:]), 3), round(read, 1))

    async def _blocks_read(self) -> float:
        """Returns the count of the whole database, which has no other user."""
        await self._store.pool.fetch("select pg_stat_force_next_flush()")
        found = await self._store.pool.fetch(
            "select blks_read::float8 from pg_stat_database where datname = current_database()"
        )
        return float(found[0][0])

    def _cpu_ms(self) -> float:
        return int(Path(f"/proc/{self._pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def least_size(rounds: int) -> int:
    """Returns the number of jobs that are due in so many rounds of ticks."""
    return DUE_JOBS * (rounds + WARM_CALLS)


async def scale(server: str, sizes: Sequence[int], history: Sequence[int], rounds: int, seconds: float) -> ScaleFigures:
    """Measure each size in a database of its own, which is dropped; the scheduler runs on the largest."""
    connection = await connect(server)
    try:
        version = str(await connection.fetchval("show server_version")).split()[0]
    finally:
        await connection.close()
    figures = ScaleFigures(version, rounds)
    for size in sorted(sizes):
        async with _database(server) as dsn:
            figures.sizes.append(await _measure_size(dsn, size, rounds, figures, seconds, largest=size == max(sizes)))
    for size in sorted(history):
        async with _database(server) as dsn:
            figures.history.append(await _measure_history(dsn, size, rounds))
    return figures


@asynccontextmanager
async def _database(server: str) -> AsyncIterator[str]:
    made = await database.create(server)
    try:
        yield made
    finally:
        await database.drop(server, made)


async def _measure_size(
    dsn: str, size: int, rounds: int, figures: ScaleFigures, seconds: float, *, largest: bool
) -> SizeFigures:
    store = await Store.open(dsn, size=1, name="bellringer bench")
    calls = rounds + WARM_CALLS
    try:
        loaded = await load_jobs_and_timers(dsn, store, size, calls, sum(CLAIMS) * calls)
        click.echo(f"  {size:,} jobs and timers loaded in {loaded.seconds:.0f} s", err=True)
        total, of_jobs, of_timers = await store.pool.fetchrow(_SQL.bytes)  # type: ignore[misc]
        costs = await _costs(dsn, store, loaded, size, rounds)
        if largest and seconds:
            figures.scheduler = await _measure_scheduler(dsn, store, loaded, size, seconds)
    finally:
        await store.close()
    return SizeFigures(
        size=size,
        load_seconds=round(loaded.seconds, 1),
        gigabytes=round(total / 1e9, 2),
        bytes_per_job=round(of_jobs / size),
        bytes_per_timer=round(of_timers / (size + DUE_TIMERS * calls)),
        costs=costs,
    )


async def load_jobs_and_timers(dsn: str, store: Store, size: int, calls: int, ready: int) -> Loaded:
    """Fill a database with jobs, as many timers, rows that are due for so many calls, and ready runs."""
    start = time.perf_counter()
    catalog, now = Catalog(store), await store.now()
    instants = Instants.after(now)
    due = [every(timedelta(days=1), anchor=instants.jobs + timedelta(minutes=n)) for n in range(calls)]
    later = [instants.others + timedelta(minutes=n) for n in range(DAILY_SCHEDULES)]
    daily = [cron(f"{at.minute} {at.hour} * * *") for at in later]
    due_ids, daily_ids = await _schedule_ids(catalog, due), await _schedule_ids(catalog, daily)
    task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    await partitions.ensure_days(store, {(now + timedelta(days=n)).date() for n in (-1, 0, 1)})
    due_jobs, due_timers = DUE_JOBS * calls, DUE_TIMERS * calls
    stride = size // due_jobs

    async def load_jobs() -> None:
        async with _loading(dsn) as connection:
            async with _without_full_indexes(connection, "jobs"):
                arguments = (size, stride, due_ids, DUE_JOBS, daily_ids, task_id, pool_id)
                await connection.execute(_SQL.jobs, *arguments)
            async with _without_full_indexes(connection, "members"):
                await connection.execute(_SQL.members)
            at = [*(instants.jobs + timedelta(minutes=n) for n in range(calls)), *later]
            await connection.execute(_SQL.cohorts, [*due_ids, *daily_ids], at)
            await connection.execute("analyze jobs")
            await connection.execute(_SQL.ready_runs, size, ready, now)
            await connection.execute(_SQL.ready_queue)

    async def load_timers() -> None:
        stride = max(1, (size + due_timers) // due_timers)
        async with _loading(dsn) as connection, _without_full_indexes(connection, "timers"):
            arguments = (size, stride, DUE_TIMERS, instants.timers, instants.others, task_id, pool_id, due_timers)
            await connection.execute(_SQL.timers, *arguments)

    await asyncio.gather(load_jobs(), load_timers())
    async with _loading(dsn) as connection:
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    return Loaded(instants=instants, daily=daily_ids, seconds=time.perf_counter() - start)


async def _schedule_ids(catalog: Catalog, schedules: Sequence[Schedule]) -> list[int]:
    known = await catalog.schedule_ids(schedules)
    return [known[to_row(schedule)] for schedule in schedules]


@asynccontextmanager
async def _loading(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A connection for statements that take minutes."""
    connection = await asyncpg.connect(
        dsn,
        command_timeout=LOAD_SECONDS,
        server_settings={
            "search_path": "bellringer",
            "timezone": "UTC",
            "synchronous_commit": "off",
            "maintenance_work_mem": "1GB",
            "jit": "off",
        },
    )
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _without_full_indexes(connection: asyncpg.Connection[Any], table: str) -> AsyncIterator[None]:
    """Drop the indexes of a table that hold all rows, and build them at the end."""
    dropped = await connection.fetch(_SQL.full_indexes, table)
    for index in dropped:
        if index["constraint_name"] is not None:
            await connection.execute(f'alter table {table} drop constraint "{index["constraint_name"]}"')
        else:
            await connection.execute(f"drop index {index['name']}")
    yield
    for index in dropped:
        if index["constraint_name"] is not None:
            definition = f'"{index["constraint_name"]}" {index["constraint_definition"]}'
            await connection.execute(f"alter table {table} add constraint {definition}")
        else:
            await connection.execute(index["definition"])


async def _costs(dsn: str, store: Store, loaded: Loaded, size: int, rounds: int) -> dict[str, Cost]:
    catalog = Catalog(store)
    backend = await Backend.of(store)
    costs: dict[str, Cost] = {}
    async with _reader(dsn) as (reads, reader):
        for name, statement in (("queued run", _SQL.some_runs), ("waiting one-shot", _SQL.some_timers)):
            keys = _keys(await store.pool.fetch(statement, rounds + WARM_CALLS))
            costs[f"status read of a {name}"] = await reader.cost(_read_status(reads, keys), rounds)
    costs |= await _forecast_costs(store, catalog, backend, rounds)
    costs |= await _claim_costs(store, catalog, backend, rounds)
    costs |= await _fire_costs(store, catalog, backend, loaded, rounds)
    costs |= await _send_costs(store, catalog, backend, rounds)
    left = await store.pool.fetchval("select count(*) from jobs")
    if left != size:
        raise AssertionError(f"{size} jobs were loaded, {left} are there")
    return costs


@asynccontextmanager
async def _reader(dsn: str) -> AsyncIterator[tuple[Store, Backend]]:
    """Reads by key, as the API server makes them."""
    tenants = await open_tenants(dsn, size=1)
    reads = KeyedReads(tenants, 1)
    try:
        store = reads.of(TENANT)
        yield store, await Backend.of(store)
    finally:
        await reads.close()
        await tenants.close()


def _keys(rows: Sequence[asyncpg.Record]) -> list[RunKey]:
    return [RunKey(row["job_id"], row["scheduled_for"], row["slot"]) for row in rows]


def _read_status(store: Store, keys: Sequence[RunKey]) -> Call:
    async def read(number: int) -> None:
        if await runs.get(store, keys[number], TENANT) is None:
            raise AssertionError(f"the run {keys[number]} is not found")

    return read


async def _claim_costs(store: Store, catalog: Catalog, backend: Backend, rounds: int) -> dict[str, Cost]:
    task_ids = list((await catalog.task_ids(["bench.noop"])).values())
    pool_id = await catalog.pool_id(DEFAULT_POOL)
    who = WorkerRegistration(
        name="bench", host="bench", pid=os.getpid(), version="", pools={DEFAULT_POOL: BULK}, task_ids=task_ids
    )
    spec = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pool_id, task_ids=task_ids)

    def claim_runs(limit: int) -> Call:
        async def take(_number: int) -> None:
            taken, _ = await claim(store, spec, limit, TenantCursor())
            _expect(len(taken), limit, "runs claimed")

        return take

    return {f"claim of {limit}": await backend.cost(claim_runs(limit), rounds) for limit in CLAIMS}


async def _fire_costs(store: Store, catalog: Catalog, backend: Backend, loaded: Loaded, rounds: int) -> dict[str, Cost]:
    keeper, holder = PostgresLeases(store, timedelta(hours=1)), uuid7()
    holding = Holding(holder, await keeper.acquire(holder, SHARDS))
    shards, clock = sorted(holding.tokens), SystemClock()

    async def fire_jobs(number: int) -> None:
        now, at = clock.now(), loaded.instants.jobs + timedelta(minutes=number)
        soon = await cohorts.due_soon(store, shards, timedelta(0), at - now + timedelta(seconds=1), 10_000)
        ticked = await tick(store, catalog, holding, soon.cohorts, at, TickLimits(lead=at - now + timedelta(seconds=1)))
        _expect(ticked.fired.fired, DUE_JOBS, "runs of jobs")

    async def fire_timers(number: int) -> None:
        at = loaded.instants.timers + timedelta(minutes=number, seconds=1)
        fired = await cohorts.fire_timers(store, holding, shards, at - clock.now(), 4_000)
        _expect(fired.fired, DUE_TIMERS, "runs of timers")

    async def read_nothing(_number: int) -> None:
        soon = await cohorts.due_soon(store, shards, timedelta(0), timedelta(seconds=2), 10_000)
        _expect(len(soon.cohorts) + len(soon.timer_shards), 0, "due cohorts and shards")

    costs = {
        "poll with nothing due": await backend.cost(read_nothing, rounds),
        f"tick of {DUE_JOBS} due jobs": await backend.cost(fire_jobs, rounds),
        f"fire_timers of {DUE_TIMERS}": await backend.cost(fire_timers, rounds),
    }
    await keeper.release(holder, holding.tokens)
    return costs


async def _send_costs(store: Store, catalog: Catalog, backend: Backend, rounds: int) -> dict[str, Cost]:
    def message(number: int, delay: timedelta | None) -> Message:
        kwargs = {"customer": number, "what": "the reminder"}
        return SendSpec(task="bench.noop", kwargs=kwargs, delay=delay, timeout=timedelta(minutes=10)).message()

    later = timedelta(days=1)
    bulk = [message(number, later) for number in range(BULK)]

    def send_one(delay: timedelta | None) -> Call:
        async def write(number: int) -> None:
            await send(store, catalog, message(number, delay), tenant_id=TENANT, notify=True)

        return write

    async def send_bulk(_number: int) -> None:
        sent = await BulkSend(catalog, enumerate(bulk), tenant_id=TENANT).write(store, notify=True)
        _expect(len(sent), BULK, "sends")

    return {
        "send, due now": await backend.cost(send_one(None), rounds),
        "send, due in a day": await backend.cost(send_one(later), rounds),
        f"bulk of {BULK:,} sends, due in a day": await backend.cost(send_bulk, rounds),
    }


async def _forecast_costs(store: Store, catalog: Catalog, backend: Backend, rounds: int) -> dict[str, Cost]:
    """The scheduler counts each shard about once a minute; the forecast reads these counts."""

    async def recount(number: int) -> None:
        await forecast.recount_oldest_shard(store, [number % SHARDS], timedelta(0))

    counts = await backend.cost(recount, SHARDS - WARM_CALLS)
    start = await store.now()
    window = ForecastWindow.of(start, start + timedelta(days=1), timedelta(minutes=1))

    async def ask(_number: int) -> None:
        found = await forecast_fires(store, catalog, window, tenant_id=TENANT)
        _expect(found.left_out, 0, "jobs left out")

    return {"forecast of a day": await backend.cost(ask, max(1, rounds // 3)), "count of one shard's jobs": counts}


def _expect(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{found} {what}, expected {expected}")


async def _measure_scheduler(dsn: str, store: Store, loaded: Loaded, size: int, seconds: float) -> SchedulerFigures:
    """Run a scheduler on its own; in the middle of the time, jobs are due."""
    at = (await store.now()).replace(microsecond=0) + timedelta(seconds=seconds / 2)
    await store.pool.execute(_SQL.make_due, min(SCHEDULER_JOBS, size // 2), at, loaded.daily)
    with running(dsn, ("scheduler",)) as (pid,):
        await asyncio.sleep(seconds)
        for _ in range(MAX_SCHEDULER_DELAY_SECONDS):
            if fired := await store.pool.fetchval(_SQL.fired_at, at):
                break
            await asyncio.sleep(1)
        else:
            raise AssertionError("the scheduler fired nothing")
        memory, used = _memory(pid), cpu(pid)
    return SchedulerFigures(
        size=size,
        seconds=seconds,
        fired=fired,
        rss_mb=memory["VmRSS"],
        peak_rss_mb=memory["VmHWM"],
        cpu_seconds=round(used, 2),
    )


def _memory(pid: int) -> Mapping[str, float]:
    """Returns the memory of a process in MB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
    return {parts[0].rstrip(":"): round(int(parts[1]) / 1024, 1) for parts in lines if parts[-1] == "kB"}


async def _measure_history(dsn: str, size: int, rounds: int) -> HistoryFigures:
    store = await Store.open(dsn, size=1, name="bellringer bench")
    tenants = await open_tenants(dsn, size=1)
    try:
        loaded = await load_jobs_and_timers(dsn, store, HISTORY_JOBS, rounds + WARM_CALLS, ready=0)
        start = time.perf_counter()
        midnight = loaded.instants.jobs.replace(hour=0, minute=0) - timedelta(days=HISTORY_DAYS)
        days = [midnight + timedelta(days=n) for n in range(HISTORY_DAYS)]
        async with _loading(dsn) as connection:
            await connection.execute(_SQL.places)
            start_literal = f"timestamptz '{midnight:%Y-%m-%d} 00:00+00'"
            await connection.execute(_SQL.install_earlier.replace("{start}", start_literal))
            await connection.execute("select ensure_days($1::date[])", [day.date() for day in days])
            for day in days:
                await connection.execute(_SQL.history, day, size // HISTORY_DAYS)
            await connection.execute("vacuum analyze")
            await connection.execute("checkpoint")
            keys = _keys(
                await connection.fetch(_SQL.ended_runs, rounds + WARM_CALLS, midnight, timedelta(days=HISTORY_DAYS))
            )
        seconds = time.perf_counter() - start
        click.echo(f"  {size:,} ended runs loaded in {seconds:.0f} s", err=True)
        total = await store.pool.fetchval(_SQL.history_bytes)
        costs = {}
        async with _reader(dsn) as (reads, reader):
            costs["status read of an ended run"] = await reader.cost(_read_status(reads, keys), rounds)
        costs |= await _list_costs(ScopedStore(tenants, TENANT, None), rounds)
        backend = await Backend.of(store)

        async def drop(number: int) -> None:
            if not await partitions.drop_day(store, days[number].date()):
                raise AssertionError(f"the day {days[number]:%Y-%m-%d} is in use")

        before = len(await partitions.list_days(store))
        costs["drop of a day"] = await backend.cost(drop, DROPPED_DAYS)
        dropped = before - len(await partitions.list_days(store))
        _expect(dropped, DROPPED_DAYS + WARM_CALLS, "days dropped")
    finally:
        await tenants.close()
        await store.close()
    return HistoryFigures(
        size=size, days=HISTORY_DAYS, load_seconds=round(seconds, 1), gigabytes=round(total / 1e9, 3), costs=costs
    )


async def _list_costs(store: Store, rounds: int) -> dict[str, Cost]:
    backend = await Backend.of(store)

    def list_runs(wanted: RunFilter) -> Call:
        async def read(_number: int) -> None:
            found = await run_lists.find_runs(store, TENANT, wanted, None, PAGE)
            _expect(len(await run_lists.load_runs(store, TENANT, found.keys)), PAGE, "runs in the list")

        return read

    wanted = {"": RunFilter(), "succeeded ": RunFilter(states=("succeeded",)), "dead ": RunFilter(states=("dead",))}
    return {
        f"list of the {PAGE} newest {state}runs": await backend.cost(list_runs(runs_of), rounds)
        for state, runs_of in wanted.items()
    }


def print_scale(figures: ScaleFigures) -> None:
    """Print Markdown tables: wall / server CPU in ms (pages read), and the ratios to the smallest size."""
    for title, measured in (("jobs and timers", figures.sizes), ("ended runs", figures.history)):
        if not measured:
            continue
        first, others = measured[0], measured[1:]
        heads = [f"{one.size:,} {title}" for one in measured] + [
            f"CPU, {one.size:,} / {first.size:,}" for one in others
        ]
        click.echo(f"\n| operation | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
        for name, base in first.costs.items():
            costs = [one.costs[name] for one in measured]
            cells = [f"{cost.wall_ms:.2f} / {cost.cpu_ms:.2f} ({cost.blocks_read:.0f})" for cost in costs]
            ratios = [f"{cost.cpu_ms / base.cpu_ms:.2f}" for cost in costs[1:]]
            click.echo(f"| {name} | {' | '.join([*cells, *ratios])} |")
        for one in measured:
            click.echo(f"  {one.size:,} {title}: loaded in {one.load_seconds:,} s, {one.gigabytes} GB")
            if isinstance(one, SizeFigures):
                click.echo(f"    {one.bytes_per_job:,} bytes per job, {one.bytes_per_timer:,} bytes per timer")
    if figures.scheduler is not None:
        click.echo(f"\n  scheduler: {asdict(figures.scheduler)}")
