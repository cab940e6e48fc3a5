"""Metrics of troubles move when the trouble happens: lost leases, failed steps, stranded runs, a broken seal, disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tests.integration.engine.test_audit_seal import changes, seal_all
from tests.support.engine_harness import EngineHarness

from bellringer.api.app import create_app
from bellringer.api.endpoints.metrics import Gauges
from bellringer.backends.object_store import ObstoreObjects
from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.engine.prune import Retention, prune
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send
from bellringer.schedule import every
from bellringer.scheduler.maintenance import Maintenance
from bellringer.scheduler.monitoring import SealCheckStep
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.workers import WorkerRegistration

CLOCK = SystemClock()
DAY = timedelta(days=1)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def until(holds: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - metrics set no event
            await asyncio.sleep(0.05)


@asynccontextmanager
async def scheduler(store: Store) -> AsyncIterator[None]:
    """A scheduler in this process that holds all shards."""
    stop = asyncio.Event()
    node = Scheduler(store, PostgresLeases(store), CLOCK, SchedulerSettings(silence=timedelta(seconds=15)))
    running = asyncio.create_task(node.run(stop))
    try:
        await until(lambda: value("bellringer_shards_held") == 64, "it holds the shards")
        yield
    finally:
        stop.set()
        await running


async def test_a_lost_lease_and_a_failed_renewal_are_counted(store: Store, catalog: Catalog) -> None:
    await create(store, catalog, [Definition(name="j", task="demo", schedules=(every("1h"),))], tenant_id=1, who="me")
    polls = value("bellringer_poll_seconds_count")
    async with scheduler(store):
        await until(lambda: value("bellringer_poll_seconds_count") > polls, "it polls")
        assert REGISTRY.get_sample_value("bellringer_clock_skew_seconds") is not None
        assert abs(value("bellringer_clock_skew_seconds")) < 5  # both are on this machine
        lost = value("bellringer_leases_lost_total")
        await store.pool.execute("update leases set token = token + 1 where shard < 3")
        await until(lambda: value("bellringer_leases_lost_total") >= lost + 3, "three leases are lost")
        await until(lambda: value("bellringer_shards_held") == 64, "it holds the shards again")
        failures = value("bellringer_lease_renewal_failures_total")
        errors = value("bellringer_step_errors_total", step="keep")
        await store.pool.execute("alter table leases rename to missing")
        try:
            await until(lambda: value("bellringer_lease_renewal_failures_total") > failures, "the renewal fails")
            await until(lambda: value("bellringer_step_errors_total", step="keep") > errors, "the step fails")
        finally:
            await store.pool.execute("alter table missing rename to leases")


async def test_a_stranded_run_is_shown_by_reason_until_it_ends(store: Store, catalog: Catalog) -> None:
    task_ids = [(await catalog.task_ids(["demo"]))["demo"]]
    who = WorkerRegistration(name="w", host="h", pid=1, version="", pools={"short": 1}, task_ids=task_ids)
    worker_id = await workers.join(store, who)
    await send(store, catalog, SendSpec(task="demo"), tenant_id=1)
    await store.pool.execute(
        "update queue set worker_id = $1, attempt = 1, claimed_at = now() - interval '10 min'", worker_id
    )
    await store.pool.execute(
        "update workers set seen_at = clock_timestamp() + interval '1 h', confirmed_at = now() - interval '1 h'"
    )
    async with scheduler(store):
        await until(lambda: value("bellringer_stranded_runs", reason="unconfirmed") == 1, "the run is found")
        await store.pool.execute("delete from queue")
        await until(lambda: value("bellringer_stranded_runs", reason="unconfirmed") == 0, "the run is gone")


async def test_a_broken_seal_is_shown_until_it_holds_again(store: Store, catalog: Catalog) -> None:
    await changes(store, catalog, 5)
    await seal_all(store)
    check = SealCheckStep(store)
    await check.check()
    assert REGISTRY.get_sample_value("bellringer_audit_seal_broken") == 0
    await store.pool.execute("alter table audit_seals disable trigger user")
    before = await store.pool.fetchrow("select seal_id, hash from audit_seals order by seal_id limit 1")
    assert before is not None
    await store.pool.execute("update audit_seals set hash = sha256(hash) where seal_id = $1", before["seal_id"])
    await SealCheckStep(store).check()
    assert value("bellringer_audit_seal_broken") == 1
    await store.pool.execute("update audit_seals set hash = $2 where seal_id = $1", *before)
    await SealCheckStep(store).check()
    assert value("bellringer_audit_seal_broken") == 0


async def test_sizes_dead_letters_and_overdue_work_are_read_from_the_database(
    store: Store, catalog: Catalog, tenants: Store
) -> None:
    task_id = (await catalog.task_ids(["demo"]))["demo"]
    await store.pool.execute(
        "insert into dead_letters"
        " (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)"
        " select gen_random_uuid(), now(), 0, 1, $1, 1, now(), 'no', 'f' from generate_series(1, 7)",
        task_id,
    )
    jobs = [Definition(name=f"j{n}", task="demo", schedules=(every("1m"),)) for n in range(120)]
    await create(store, catalog, jobs, tenant_id=1, who="me")
    await store.pool.execute("update cohorts set next_at = now() - interval '1 minute'")
    gauges: Gauges = create_app(store, catalog, tenants, version="1", clock=CLOCK).gauges
    await gauges.render()
    assert value("bellringer_dead_letters_stored") == 7
    assert value("bellringer_dead_letters", task="demo") == 7
    assert value("bellringer_overdue") == 120  # jobs, although they are 64 cohorts at most
    size = await store.pool.fetchval("select pg_database_size(current_database())")
    assert value("bellringer_database_bytes", part="database") == pytest.approx(size, rel=0.2)
    assert value("bellringer_database_bytes", part="wal") > 1 << 20
    assert 0 < value("bellringer_database_disk_free_bytes") < value("bellringer_database_disk_bytes")


async def test_the_age_of_what_cannot_be_archived_grows(harness: EngineHarness, tmp_path: Path) -> None:
    seat = await harness.join_worker("demo")
    await harness.send(task="demo")
    await harness.end(seat, await harness.claim(seat))
    later, keep = harness.noon + 8 * DAY, Retention(runs=5 * DAY, dead_letters=5 * DAY)
    await harness.set_clock(later)
    assert await prune(harness.store, later, keep, archives=True) > 0
    folder = tmp_path / "archive"
    folder.mkdir()
    target = ObstoreObjects(f"file://{folder}")
    folder.rmdir()
    folder.write_text("a file is in the way")
    failures = value("bellringer_archive_failures_total")
    silence = timedelta(seconds=15)
    step = Maintenance(harness.store, harness.catalog, CLOCK, CLOCK.now, keep, silence, target)
    await step.archive()
    assert value("bellringer_archive_failures_total") == failures + 1
    assert value("bellringer_archive_backlog") >= 1
    age = value("bellringer_archive_age_seconds")
    await asyncio.sleep(1.1)
    await step.archive()
    assert value("bellringer_archive_age_seconds") >= age + 1
    folder.unlink()
    folder.mkdir()
    await step.archive()
    assert (value("bellringer_archive_backlog"), value("bellringer_archive_age_seconds")) == (0, 0)
