"""Herds of one-shots while schedulers are killed, and stopped past their lease and continued."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from bellringer import at
from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.runs import RunKey
from bellringer.engine.register import create
from bellringer.sdk.task_handle import definition_of
from bellringer.store.connection_pool import Store, connect
from bellringer.store.interned_names import Catalog
from bellringer.verify import checker
from bellringer.verify.findings import Finding, VerifyScope

from .conftest import Processes, held_by, is_stopped, until
from .recording_app import FOLDER_VARIABLE, app, read_executions, record

APP = Path(__file__).with_name("recording_app.py")
SENDS, NAMED_JOBS = 10_000, 500
TIMERS_PER_PASS = 500
SHARDS = 64
AHEAD = timedelta(seconds=7)  # between the sends and their time; the sends take less than a second

# A pass of fire_timers that waits for a shard's lock, and will for a second at least: its lock timeout is 2 s.
WAITING_PASS = """
    select exists (
      select 1 from pg_locks where locktype = 'advisory' and classid = $1 and not granted
      and database = (select oid from pg_database where datname = current_database())
      and waitstart > clock_timestamp() - interval '1 s')"""


@pytest.fixture
async def sender(dsn: str) -> AsyncIterator[None]:
    """Connects the SDK of this process to the database."""
    before = await app.connection.move(dsn)
    yield
    await app.connection.move(before)


@pytest.fixture
def start_worker(processes: Processes, tmp_path: Path) -> Callable[[str], object]:
    return lambda name: processes.worker(name, APP, **{FOLDER_VARIABLE: str(tmp_path)})


async def send_one_shots(numbers: range, instant: datetime) -> dict[int, str]:
    """Sends in bulk; returns the id of each run."""
    runs = await record.asend_many([record.options(at=instant).message(number) for number in numbers])
    return {number: run.id for number, run in zip(numbers, runs, strict=True)}


async def create_one_shot_jobs(store: Store, catalog: Catalog, numbers: range, instant: datetime) -> dict[int, str]:
    """Creates jobs that are due once; returns the id of each run."""
    definitions = [
        definition_of(record.task, name=f"job-{number}", schedules=(at(instant),), args=(number,), kwargs={})
        for number in numbers
    ]
    created = await create(store, catalog, definitions, tenant_id=1, who="test")
    return {number: RunKey(job.job_id, instant).id for number, job in zip(numbers, created, strict=True)}


def counts(store: Store, statement: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return bool(await store.pool.fetchval(f"select count(*) from {statement}") == count)

    return reached


async def each_ran_once(store: Store, folder: Path, expected: dict[int, str], instant: datetime) -> None:
    """Assert that each one-shot has one run and one attempt, and was executed once, at its time or later."""
    await until(counts(store, "attempts where ends_as = 'succeeded'", len(expected)), 60, "all runs end")
    executions = read_executions(folder)
    assert sorted((number, run_id) for number, run_id, _ in executions) == sorted(expected.items())
    assert min(execution.started_ns for execution in executions) >= instant.timestamp() * 1_000_000_000
    runs = await store.pool.fetch("select job_id, scheduled_for, slot from runs")
    assert sorted(RunKey(*row).id for row in runs) == sorted(expected.values())
    rows = await store.pool.fetchrow(
        "select (select count(*) from attempts), (select count(*) from timers), (select count(*) from queue),"
        " (select count(*) from dead_letters), (select count(*) from gaps)"
    )
    assert rows is not None
    assert tuple(rows) == (len(expected), 0, 0, 0, 0)


async def verify_all(dsn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Finding], int]:
    """Returns the findings, and how many occurrences of jobs were checked."""
    monkeypatch.setattr(checker, "MIN_AGE", timedelta(0))  # all runs have ended, so none is too young
    now = datetime.now(UTC)
    scope = VerifyScope(start=now - timedelta(hours=1), end=now, unstarted_after=timedelta(0))
    findings: list[Finding] = []
    connection = await connect(dsn)
    try:
        summary = await checker.verify(connection, scope, findings.append)
    finally:
        await connection.close()
    return findings, summary.finished


@pytest.mark.cluster
@pytest.mark.usefixtures("sender")
async def test_every_one_shot_runs_once_though_a_node_is_killed_and_another_writes_with_a_stale_token(
    store: Store, catalog: Catalog, dsn: str, processes: Processes, start_worker: Callable[[str], object],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stopped = processes.start("scheduler", "stopped", fault="fire_timers.checked:stop:2", most=TIMERS_PER_PASS)
    killed = processes.start("scheduler", "killed", fault="fire_timers.checked:kill:3", most=TIMERS_PER_PASS)
    processes.start("scheduler", "steady", most=TIMERS_PER_PASS)
    start_worker("first")
    start_worker("second")

    async def shared() -> bool:
        return min([len(await held_by(store, name)) for name in ("stopped", "killed", "steady")]) >= SHARDS // 3

    await until(shared, 30, "the nodes share the shards")
    await until(counts(store, "workers where state = 'live'", 2), 30, "the workers join")
    instant = (await store.now()).replace(microsecond=0) + AHEAD
    expected = await create_one_shot_jobs(store, catalog, range(NAMED_JOBS), instant)
    expected |= await send_one_shots(range(NAMED_JOBS, NAMED_JOBS + SENDS), instant)

    async def both_hit() -> bool:
        return killed.poll() == -signal.SIGKILL and is_stopped(stopped)

    await until(both_hit, 30, "one node is killed and one is stopped, each before a pass with due timers")
    await until(counts(store, "timers", 0), 60, "the steady node takes over and fires the rest")
    assert await held_by(store, "stopped", "killed") == set()
    stopped.send_signal(signal.SIGCONT)
    await until(counts(store, "nodes where name = 'stopped' and refused > 0", 1), 20, "the stale write is refused")

    await each_ran_once(store, tmp_path, expected, instant)
    assert await verify_all(dsn, monkeypatch) == ([], NAMED_JOBS)


@pytest.mark.cluster
@pytest.mark.usefixtures("sender")
async def test_a_kill_of_the_only_scheduler_between_passes_or_within_one_loses_and_doubles_no_one_shot(
    store: Store, dsn: str, processes: Processes, start_worker: Callable[[str], object], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    between = processes.start("scheduler", "between", fault="fire_timers.checked:kill:3", most=TIMERS_PER_PASS)
    start_worker("worker")

    async def holds_all() -> bool:
        return len(await held_by(store, "between")) == SHARDS

    await until(holds_all, 30, "the node holds all shards")
    await until(counts(store, "workers where state = 'live'", 1), 30, "the worker joins")
    instant = (await store.now()).replace(microsecond=0) + AHEAD
    expected = await send_one_shots(range(6 * TIMERS_PER_PASS), instant)

    async def killed() -> bool:
        return between.poll() == -signal.SIGKILL

    await until(killed, 30, "the node is killed after two passes")
    left = await store.pool.fetchval("select count(*) from timers")
    assert 4 * TIMERS_PER_PASS <= left < len(expected)

    blocker: asyncpg.Connection[asyncpg.Record] = await connect(dsn)
    try:
        first_shard = await blocker.fetchval("select min(shard) from bellringer.timers")
        await blocker.execute("select pg_advisory_lock($1, $2)", AdvisoryLock.SHARD, first_shard)
        within = processes.start("scheduler", "within", most=TIMERS_PER_PASS)

        async def waits() -> bool:
            return bool(await blocker.fetchval(WAITING_PASS, AdvisoryLock.SHARD))

        await until(waits, 30, "the server executes a pass of the next node")
        within.kill()
        within.wait()
    finally:
        await blocker.close()
    await until(counts(store, "timers", left - TIMERS_PER_PASS), 10, "the pass is committed without its caller")

    processes.start("scheduler", "heir", most=TIMERS_PER_PASS)
    await until(counts(store, "timers", 0), 30, "a third node fires the rest")
    await each_ran_once(store, tmp_path, expected, instant)
    assert await verify_all(dsn, monkeypatch) == ([], 0)
