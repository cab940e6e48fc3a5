"""The states in which the commands of the runbook are executed. Each function prepares one on a fresh installation."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from tests.contracts.runbook.incident import WAIT_SECONDS, ApiServer, Bank, Incident, report
from tests.support.silent_proxy import SilentProxy
from tools.servers.alertmanager import Alertmanager
from tools.servers.prometheus import Prometheus

from bellringer import App, every
from bellringer.backends.embedded_postgres.programs import find_binaries
from bellringer.core.policies import Misfire, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey
from bellringer.engine.audit_seal import seal_entries
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.job_and_run_commands import pause
from bellringer.engine.reap import reap
from bellringer.errors import BellringerError, ConfigError
from bellringer.schedule import parse_schedule
from bellringer.store import workers
from bellringer.store.connection_pool import DATABASE_ERRORS
from bellringer.store.interned_names import TaskDescription
from bellringer.store.workers import WorkerRegistration
from bellringer.testing.postgres import at_database

Prepare = Callable[[Incident], Awaitable[None]]
NEWEST_RUN = "select job_id, scheduled_for, slot from runs order by fired_at desc limit 1"
# Stands for a restart by whatever runs the processes, so the state of a section says what it does.
RESTART_SERVER = "systemctl restart bellringer-server"
RESTART_WORKERS = "systemctl restart 'bellringer-worker@*'"
RESTART_POSTGRES = "systemctl restart postgresql"
ALERTMANAGER = Path(__file__).parents[3] / "deploy" / "prometheus" / "alertmanager.yaml"
DOWNLOADS = Path(__file__).parents[3] / ".services"
INSERT_NODE = """
insert into nodes (node_id, name, host, pid, version, started_at, seen_at, skew)
values (gen_random_uuid(), $1, 'host-1', 1, '0.2.0', clock_timestamp() - interval '2 days',
        clock_timestamp() - $2::interval, $3)
"""


async def name_newest_run(incident: Incident) -> None:
    """`run_…` in the runbook is the newest run."""
    row = await incident.store.pool.fetchrow(NEWEST_RUN)
    assert row is not None
    incident.names["run_…"] = RunKey(*row).id


async def describe_tasks(incident: Incident, *names: str) -> None:
    await incident.catalog.task_ids(names)
    await incident.catalog.describe_tasks(
        [TaskDescription(name=name, schema='{"type": "object"}', doc="", defaults="{}") for name in names]
    )


async def healthy(incident: Incident) -> None:
    """A scheduler and a worker; a job that runs at night; two runs that have succeeded."""
    await incident.create_job("nightly-report", parse_schedule({"cron": "30 2 * * *"}))
    await incident.start_scheduler()
    for _ in range(2):
        await incident.send("shop.report")
    await incident.start_worker()
    await incident.wait_for("select count(*) = 2 from attempts where ends_as = 'succeeded'")
    await name_newest_run(incident)
    incident.names["workers stop 7"] = f"workers stop {await incident.value('select max(worker_id) from workers')}"

    async def nothing() -> None: ...

    for command in (RESTART_SERVER, RESTART_WORKERS):
        incident.actions[command] = nothing


async def no_scheduler(incident: Incident) -> None:
    """The only scheduler is gone, and a schedule is overdue."""
    await incident.create_job("sync", every("10s"), overlap=Overlap.ALLOW)
    await incident.sql("update cohorts set next_at = clock_timestamp() - interval '40 s'")
    await incident.sql("update members set active_since = clock_timestamp() - interval '1 h'")
    await incident.sql(INSERT_NODE, "node-1", timedelta(seconds=45), 0.0)
    await incident.start_worker()

    async def restart() -> None:
        await incident.start_scheduler("node-2")
        await incident.wait_for("select count(*) = 0 from cohorts where next_at < clock_timestamp() - interval '5 s'")

    incident.actions[RESTART_SERVER] = restart


async def failing(incident: Incident) -> None:
    """All runs of shop.charge fail: three are dead, two wait for their next attempt, and others succeed."""
    Bank.is_up = False
    await incident.create_job("charge-orders", every("1h"), task="shop.charge", retry=Retry(5))
    await incident.start_scheduler()
    for _ in range(3):
        await incident.send("shop.charge", retry=Retry(1))
    for _ in range(2):
        await incident.send("shop.charge", retry=Retry(8, base="10m"))
    await incident.send("shop.report")
    await incident.start_worker()
    await incident.wait_for("select count(*) = 3 from dead_letters")
    await incident.wait_for("select count(*) = 6 from attempts")
    row = await incident.store.pool.fetchrow(
        "select job_id, scheduled_for, slot, fingerprint from dead_letters limit 1"
    )
    assert row is not None
    incident.names["run_…"] = RunKey(*row[:3]).id
    incident.names["4f2a…"] = row["fingerprint"]

    async def repair() -> None:
        Bank.is_up = True

    incident.actions[RESTART_WORKERS] = repair


async def no_workers(incident: Incident) -> None:
    """Three runs have waited for 20 s, and there is no worker."""
    await describe_tasks(incident, "shop.report")
    await incident.start_scheduler()
    for _ in range(3):
        await incident.send("shop.report")
    await incident.sql("update queue set available_at = available_at - interval '20 s'")
    await name_newest_run(incident)

    async def start() -> None:
        await incident.start_worker()
        await incident.wait_for("select count(*) = 3 from attempts where ends_as = 'succeeded'")

    incident.actions[RESTART_WORKERS] = start


async def hanging(incident: Incident) -> None:
    """Three runs of shop.export do not end."""
    await incident.start_scheduler()
    for _ in range(3):
        await incident.send("shop.export", pool="long", retry=Retry(1))
    await incident.start_worker()
    await incident.wait_for("select count(*) = 3 from queue where worker_id is not null")
    await name_newest_run(incident)


async def _claim_by_absent_worker(incident: Incident, name: str) -> int:
    """A run of shop.report is held by a worker of which only the row exists."""
    await describe_tasks(incident, "shop.report")
    await incident.send("shop.report")
    ids = await incident.catalog.task_ids(["shop.report"])
    who = WorkerRegistration(
        name=name, host="host-9", pid=9, version="0.2.0", pools={"short": 20}, task_ids=[ids["shop.report"]]
    )
    worker_id = await workers.join(incident.store, who)
    pool_id = (await incident.catalog.pool_ids(["short"]))["short"]
    seat = ClaimSpec(worker_id=worker_id, pool_id=pool_id, task_ids=[ids["shop.report"]])
    claimed, _ = await claim(incident.store, seat, 1, TenantCursor())
    assert len(claimed) == 1
    await name_newest_run(incident)
    incident.names["workers stop 7"] = f"workers stop {worker_id}"
    return worker_id


async def stranded(incident: Incident) -> None:
    """A worker sends heartbeats, but does not confirm that it executes a run that it has claimed."""
    await incident.start_scheduler()
    worker_id = await _claim_by_absent_worker(incident, "worker-9")
    await incident.sql("update workers set seen_at = clock_timestamp(), confirmed_at = now() - interval '1 hour'")
    await incident.sql("update queue set claimed_at = now() - interval '10 min'")

    async def restart() -> None:
        await incident.sql("update workers set seen_at = '-infinity' where worker_id = $1", worker_id)
        await reap(incident.store, incident.catalog)
        await incident.start_worker()
        await incident.wait_for("select count(*) = 0 from queue")

    incident.actions[RESTART_WORKERS] = restart


async def ran_twice(incident: Incident) -> None:
    """The first worker of a run was lost, and another one has executed the run again."""
    await incident.start_scheduler()
    worker_id = await _claim_by_absent_worker(incident, "worker-9")
    await incident.sql("update queue set started_at = claimed_at where worker_id = $1", worker_id)
    await incident.sql("update workers set seen_at = '-infinity' where worker_id = $1", worker_id)
    await reap(incident.store, incident.catalog)
    await incident.start_worker()
    await incident.wait_for("select exists (select from attempts where ends_as = 'succeeded')")


async def missed(incident: Incident) -> None:
    """No scheduler ran for an hour; the job skips what it has missed."""
    await incident.create_job("sync", every("5m"), misfire=Misfire.SKIP, overlap=Overlap.ALLOW)
    first = await incident.value("update cohorts set next_at = next_at - interval '1 hour' returning next_at")
    await incident.sql("update members set active_since = active_since - interval '2 hours'")
    await incident.sql("update jobs set created_at = created_at - interval '2 hours'")
    await incident.start_scheduler()
    await incident.start_worker()
    await incident.wait_for("select exists (select from gaps)")
    incident.names["2026-11-18T09:00Z"] = f"{first:%Y-%m-%dT%H:%MZ}"
    incident.names["2026-11-18T09:55Z"] = f"{first + timedelta(minutes=55):%Y-%m-%dT%H:%MZ}"


async def bloated(incident: Incident) -> None:
    """Vacuum has not removed 70,000 dead rows of timers."""
    await incident.sql("alter table timers set (autovacuum_enabled = false)")
    await incident.sql(
        "insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause)"
        " select gen_random_uuid(), now(), 0, now() + interval '1 day', 0, 1, 0, 1, 1,"
        " (enum_range(null::cause))[1] from generate_series(1, 70000)"
    )
    await incident.sql("delete from timers")
    await incident.wait_for(
        "select n_dead_tup > 60000 from pg_stat_user_tables where schemaname = 'bellringer' and relname = 'timers'"
    )
    await healthy(incident)


async def skewed_clock(incident: Incident) -> None:
    """The clock of node-2 is 90 s ahead."""
    await healthy(incident)
    await incident.sql(INSERT_NODE, "node-2", timedelta(0), 90.0)


async def changed_audit(incident: Incident) -> None:
    """Somebody has changed an entry of the audit log with SQL."""
    await healthy(incident)
    while await seal_entries(incident.store):
        pass
    await incident.sql("alter table audit disable trigger all")
    await incident.sql("update audit set who = 'nobody' where audit_id = (select min(audit_id) from audit)")


async def missing_partition(incident: Incident) -> None:
    """There is no scheduler, and the partition of the day after tomorrow does not exist."""
    day = await incident.value("select (current_date + 2)::text")
    await incident.sql(f"drop table logs_{day.replace('-', '')}")
    incident.names["2026-11-20"] = day


async def orphaned(incident: Incident) -> None:
    """Version 2 of the app billing does not declare its job sync any more."""
    for version, names in (("1", ("report", "sync")), ("2", ("report",))):
        app = App(incident.store.dsn, name="billing", version=version)
        for name in names:
            app.schedule(every("1h"))(app.task(name=name)(lambda: None))
        async with app:
            await app.adeclare()


async def unknown_task(incident: Incident) -> None:
    """A run waits for a task whose name is misspelled."""
    await incident.start_scheduler()
    await incident.send("shop.reprot")
    await incident.start_worker(tasks={"shop.report": report})
    await incident.wait_for("select exists (select from queue where blocked <> 0)")
    await name_newest_run(incident)


async def paused(incident: Incident) -> None:
    """A job is paused."""
    await healthy(incident)
    await incident.create_job("sync", every("5m"))
    job_id = await incident.value("select job_id from jobs where name = 'sync'")
    await pause(incident.store, job_id, tenant_id=1, who="ops", reason="the feed is broken", until=None)


async def stale_writer(incident: Incident) -> None:
    """Another node has taken over the shards of node-1, which writes once more, as after a suspension."""
    await incident.create_job("sync", every("1s"), overlap=Overlap.ALLOW)
    await incident.start_scheduler()
    async with asyncio.timeout(WAIT_SECONDS):
        while not await incident.value("select exists (select from nodes where refused > 0)"):
            await incident.sql("update leases set token = token + 1")
            await asyncio.sleep(1.2)
    await incident.wait_for("select count(*) = 0 from leases where holder is null or expires_at < clock_timestamp()")
    await incident.start_worker()


async def late_starts(incident: Incident) -> None:
    """Three runs have started 20 s late, because there was no worker; a job runs every hour."""
    await incident.create_job("nightly-report", parse_schedule({"cron": "30 2 * * *"}))
    await no_workers(incident)
    await incident.actions[RESTART_WORKERS]()
    await incident.wait_for("select coalesce(sum(late), 0) = 3 from usage")


async def many_connections(incident: Incident) -> None:
    """A program for reports holds connections that it does not use: more than 70 % are in use."""
    await healthy(incident)
    used = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
    wanted = int(await incident.value("select current_setting('max_connections')::int - 3")) * 0.75
    while await incident.value(used) < wanted:
        settings = {"application_name": "reporting"}
        held = await asyncpg.connect(incident.dsn, server_settings=settings)
        incident.stack.callback(held.terminate)


async def filling_disk(incident: Incident) -> None:
    """The standby of a replication slot is gone, so the server keeps the WAL; partitions of months exist."""
    await old_partitions(incident)
    await incident.sql("select pg_create_physical_replication_slot('standby_1', true)")
    await incident.sql("select pg_switch_wal()")


async def old_partitions(incident: Incident) -> None:
    """The partitions of the last 40 days exist."""
    await healthy(incident)
    await incident.sql("select ensure_days(array(select current_date - n from generate_series(1, 40) n))")


async def blocked_loop(incident: Incident) -> None:
    """A coroutine calls blocking code."""
    await incident.start_scheduler()
    await incident.send("shop.sync", retry=Retry(1))
    await incident.start_worker(tasks={"shop.sync": blocks})
    await incident.wait_for("select exists (select from events where kind = 'blocked_loop')")
    incident.names["workers stop 7"] = f"workers stop {await incident.value('select max(worker_id) from workers')}"

    async def restart() -> None:
        await incident.wait_for("select exists (select from attempts)")
        await incident.start_worker("worker-2")

    incident.actions[RESTART_WORKERS] = restart


async def blocks() -> None:
    time.sleep(4)  # noqa: ASYNC251 - the mistake that the alert reports


async def failed_over(incident: Incident) -> None:
    """The primary was killed, and its standby promoted."""
    await healthy(incident)
    assert incident.pair is not None
    before = await incident.value("select max(seen_at) from nodes")
    await incident.pair.fail_over()
    async with asyncio.timeout(2 * WAIT_SECONDS):
        while True:  # connections to the old primary are found dead, and the scheduler goes on at the new one
            with suppress(BellringerError, *DATABASE_ERRORS):
                if await incident.value("select max(seen_at) > $1 from nodes", before):
                    break
            await asyncio.sleep(0.2)
    await incident.wait_for("select count(*) = 0 from leases where holder is null or expires_at < clock_timestamp()")


async def restored(incident: Incident) -> None:
    """A new database holds what a dump had, and no process has connected to it."""
    await healthy(incident)
    while await seal_entries(incident.store):
        pass
    name = f"restored_{uuid4().hex[:12]}"
    await incident.sql(f"create database {name}")
    incident.dsn = at_database(incident.store.dsn, name)

    async def drop() -> None:
        await incident.sql(f"drop database {name} with (force)")

    incident.stack.push_async_callback(drop)
    dump = incident.folder / "dump"
    for command in (
        ("pg_dump", "--format=custom", f"--file={dump}", incident.store.dsn),
        ("pg_restore", "--no-owner", "--no-privileges", f"--dbname={incident.dsn}", str(dump)),
    ):
        program = [str(find_binaries() / command[0]), *command[1:]]
        await asyncio.to_thread(subprocess.run, program, check=True, capture_output=True, timeout=60)


async def _with_scheduler_process(incident: Incident, **settings: str) -> None:
    """A scheduler process whose other servers do not respond."""
    process = subprocess.Popen(  # noqa: ASYNC220 - it runs beside the test
        [sys.executable, "-m", "bellringer", "scheduler"],
        cwd=incident.folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")},
            "BELLRINGER_DSN": incident.store.dsn,
            "BELLRINGER_NAME": "node-1",
            **settings,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    incident.stack.callback(end)
    await incident.wait_for("select exists (select from nodes)")


async def etcd_down(incident: Incident) -> None:
    await _with_scheduler_process(incident, BELLRINGER_COORDINATION="etcd://127.0.0.1:1")
    await incident.wait_for("select exists (select from nodes where waits_for <> '')")


async def broker_down(incident: Incident) -> None:
    await _with_scheduler_process(incident, BELLRINGER_DISPATCH="kafka://127.0.0.1:1")
    await incident.wait_for("select count(*) = 0 from leases where holder is null or expires_at < clock_timestamp()")
    await incident.send("shop.report")
    await name_newest_run(incident)


async def blocked_by_transaction(incident: Incident) -> None:
    """Somebody's session holds a lock on the queue."""
    await healthy(incident)
    holder = await asyncpg.connect(incident.store.dsn, server_settings={"application_name": "psql"})
    incident.stack.push_async_callback(holder.close)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("lock table bellringer.calendars in access exclusive mode")
    incident.names["pg_terminate_backend(4711)"] = f"pg_terminate_backend({holder.get_server_pid()})"


async def no_server(incident: Incident) -> None:
    """The only API server has ended; a scheduler and a worker continue."""
    await healthy(incident)
    await incident.server.stop()
    incident.actions[RESTART_SERVER] = incident.server.start


async def database_down(incident: Incident) -> None:
    """PostgreSQL accepts no connections, and those of the API server have ended."""
    await healthy(incident)
    proxy = await incident.stack.enter_async_context(SilentProxy(incident.dsn))
    await incident.server.stop()
    incident.server = ApiServer(proxy.address)
    incident.stack.push_async_callback(incident.server.stop)
    await incident.server.start()
    proxy.refuses_new = True
    proxy.cut()
    incident.dsn = proxy.address

    async def restart() -> None:
        proxy.refuses_new = False

    incident.actions[RESTART_POSTGRES] = restart


async def watched(incident: Incident) -> None:
    """Prometheus and Alertmanager run with the rules and the configuration of deploy/."""
    alertmanager = Alertmanager(
        incident.folder / "alertmanager",
        ALERTMANAGER.read_text(),
        tied=False,  # a tied one must be started from the main thread
        downloads=DOWNLOADS / "alertmanager",
    )
    rules = ALERTMANAGER.with_name("alerts.yaml")
    try:
        await asyncio.to_thread(alertmanager.start)
        incident.stack.callback(alertmanager.kill)
        prometheus = Prometheus(
            incident.folder / "prometheus",
            rules=[rules],
            alertmanagers=[alertmanager.address],
            tied=False,
            downloads=DOWNLOADS / "prometheus",
        )
        await asyncio.to_thread(prometheus.start)
        incident.stack.callback(prometheus.kill)
    except ConfigError as error:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"THERE IS NO REAL PROMETHEUS FOR THIS TEST: {error}")
    incident.names["localhost:9090"] = f"127.0.0.1:{prometheus.port}"
    incident.names["localhost:9093"] = alertmanager.address
    async with asyncio.timeout(60):
        while True:  # Prometheus sends when it has evaluated the rules
            alerts = await asyncio.to_thread(alertmanager.alerts)
            if any(alert["labels"]["alertname"] == "BellringerWatchdog" for alert in alerts):
                break
            await asyncio.sleep(0.2)


STATES: dict[str, Prepare] = {
    "BellringerNoTick": no_scheduler,
    "BellringerOverdue": no_scheduler,
    "BellringerPollSlow": bloated,
    "BellringerMissed": missed,
    "BellringerClockSkew": skewed_clock,
    "BellringerStaleWrites": stale_writer,
    "BellringerManyClaimed": hanging,
    "BellringerFailureRate": failing,
    "BellringerDispatchSlow": no_workers,
    "BellringerDeadLettersGrowing": failing,
    "BellringerStrandedRuns": stranded,
    "BellringerOrphanedJobs": orphaned,
    "BellringerNoWorkers": no_workers,
    "BellringerUnknownTasks": unknown_task,
    "BellringerObjectiveBurnFast": no_workers,
    "BellringerObjectiveBurnSlow": late_starts,
    "BellringerNoServer": no_server,
    "BellringerDatabaseDown": database_down,
    "BellringerConnectionsHigh": many_connections,
    "BellringerConnectionsCritical": blocked_by_transaction,
    "BellringerAuditSealBroken": changed_audit,
    "BellringerPartitionMissing": missing_partition,
    "BellringerDiskFilling": filling_disk,
    "BellringerLoopStalled": blocked_loop,
    "BellringerTargetDown": no_scheduler,
    "BellringerWatchdog": watched,
    "A job is not running": paused,
    "A job ran twice": ran_twice,
    "Retries are exploding": failing,
    "Lag: runs start late": no_workers,
    "Bloat": bloated,
    "The disk is full": old_partitions,
    "The clock is wrong": skewed_clock,
    "The broker is down": broker_down,
    "etcd is down": etcd_down,
    "The database fails over": failed_over,
    "The database was restored": restored,
}

# States that need a server of their own, with these settings.
SERVER_SETTINGS: dict[str, dict[str, str]] = {
    "BellringerConnectionsHigh": {"max_connections": "40"},
    "BellringerDiskFilling": {"wal_level": "replica"},
}
FAILOVER = "The database fails over"  # needs a primary with a standby
