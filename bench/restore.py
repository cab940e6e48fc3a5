"""A restore drill: a loaded cluster loses its database, which is restored from a base backup and archived WAL to a
recovery point. Everything that was accepted before that point must exist and execute.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.clock import SystemClock
from bellringer.core.runs import RunKey
from bellringer.engine.audit_seal import verify_chain
from bellringer.store import explain
from bellringer.store.connection_pool import Store, connect
from bellringer.testing.postgres import at_database
from bellringer.verify import Finding, VerifyScope, verify
from bench.peers.servers import find_programs
from bench.rolling.fleet import RollingFleet, environment_of_this_release
from bench.rolling.judge import read_executions, read_sent

RESTORE_POINT: Final = "drill"
DATABASE: Final = "drill"
MISFIRES: Final = ("fire_once", "skip", "fire_all")
MISFIRE_GRACE: Final = "2s"  # shorter than the outage, so that misfire policies apply
WAIT_SECONDS: Final = 90.0
VERIFY_MIN_AGE: Final = timedelta(seconds=3)
STATES: Final = """
select run.job_id, run.scheduled_for, run.slot, ended.ends_as::text as state
from runs run
left join attempts ended on ended.job_id = run.job_id and ended.scheduled_for = run.scheduled_for
  and ended.slot = run.slot and ended.ends_as is not null
"""
UNFINISHED: Final = """
select exists (select 1 from queue where available_at <= clock_timestamp() - interval '2 s')
    or exists (select 1 from cohorts where next_at < clock_timestamp() - interval '2 s')
    or exists (select 1 from backfills where state = 'running')
    or exists (
      select 1 from audit
      where tx > coalesce((select max(last_tx::text::bigint) from audit_seals), 0)::text::xid8)
"""
LEDGER: Final = "select reason, sum(count)::bigint as count from gaps group by reason"


@dataclass(frozen=True, kw_only=True)
class RestoreFigures:
    """The result of a drill. `missing`, `unexecuted` and `unexplained` must be empty."""

    accepted_before_point: int
    accepted_after_point: int  # lost, as the recovery point says
    missing: list[str]  # accepted before the recovery point, and not in the restored database
    unexecuted: list[str]  # … or there, and not executed
    executed_again: int  # runs that both databases executed
    unexplained: list[str]  # … without the reason `restored` in `bellringer why`
    gaps: dict[str, int]  # occurrences without a run in the restored database, by reason
    runs_by_cause: dict[str, int]  # runs that the restored database created
    expected: int  # occurrences that `verify` checked
    repeatable: int
    findings: list[str]
    audit_seals: int
    audit_broken: int | None
    restore: dict[str, Any]  # what `bellringer restore finish` printed
    backup_seconds: float
    recovery_seconds: float  # from the start of the restored server until it accepted writes
    outage_seconds: float  # from the end of the first server until the last due run had ended

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.unexecuted or self.unexplained or self.findings or self.audit_broken)


@dataclass
class _Drill:
    """The folders, servers and times of one drill."""

    folder: Path
    seconds: float
    programs: Path
    environ: Mapping[str, str]
    clock: SystemClock

    @property
    def wal(self) -> Path:
        return self.folder / "wal"

    @contextmanager
    def server(self, name: str, settings: Mapping[str, str]) -> Iterator[str]:
        with EmbeddedPostgres(
            self.folder / name,
            binaries=self.programs,
            defaults={},
            settings={
                "listen_addresses": "",
                "unix_socket_permissions": "0777",
                "max_connections": "200",
                "wal_level": "replica",
                **settings,
            },
        ) as running:
            yield running.dsn

    def call(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self.programs / program), *arguments], check=True, capture_output=True)  # noqa: S603

    def command(self, dsn: str, *arguments: str) -> str:
        """The output of a `bellringer` command."""
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "bellringer", *arguments],
            env={**self.environ, "BELLRINGER_DSN": dsn},
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode != 0:
            raise AssertionError(f"bellringer {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout


def run_drill(seconds: float = 10.0, *, jobs: int = 30, sends: int = 50) -> RestoreFigures:
    """Runs the drill with so many seconds of load in each of its three phases. Call it in the main thread."""
    with tempfile.TemporaryDirectory(prefix="bellringer-restore-") as folder:
        drill = _Drill(Path(folder), seconds, find_programs(), environment_of_this_release(), SystemClock())
        drill.folder.chmod(0o755)
        drill.wal.mkdir()
        drill.wal.chmod(0o777)  # the server may run as another user
        return asyncio.run(_run(drill, jobs, sends))


async def _run(drill: _Drill, jobs: int, sends: int) -> RestoreFigures:
    archive = f"test ! -f {drill.wal}/%f && cp %p {drill.wal}/%f.part && mv {drill.wal}/%f.part {drill.wal}/%f"
    with drill.server("first", {"archive_mode": "on", "archive_command": archive}) as admin:
        lost = await _load(drill, admin, jobs, sends)
    down_at = drill.clock.monotonic()
    _prepare_recovery(drill)
    began = drill.clock.monotonic()
    with drill.server("second", {}) as admin:
        dsn = at_database(admin, DATABASE)
        await _until(dsn, "select not pg_is_in_recovery()")
        recovery = drill.clock.monotonic() - began
        drill.command(dsn, "migrate")
        restore = json.loads(drill.command(dsn, "restore", "finish", "--note", "drill", "-o", "json"))
        await _resume(drill, dsn)
        outage = drill.clock.monotonic() - down_at
        figures = await _judge(drill, dsn, lost)
    return RestoreFigures(
        **figures,
        restore=restore,
        backup_seconds=round(lost.backup_seconds, 2),
        recovery_seconds=round(recovery, 2),
        outage_seconds=round(outage, 2),
    )


@dataclass(frozen=True, kw_only=True)
class _Lost:
    """The first database until its end."""

    began: datetime
    point: datetime
    accepted: dict[str, str]  # run ids by tag, before the recovery point
    backup_seconds: float


async def _load(drill: _Drill, admin: str, jobs: int, sends: int) -> _Lost:
    """Runs a loaded cluster on the first server, takes a base backup and a restore point, and kills the cluster."""
    dsn = at_database(admin, DATABASE)
    await _execute(admin, f"create database {DATABASE}")
    drill.command(dsn, "migrate")
    folder = drill.folder / "lost"
    folder.mkdir()
    fleet = RollingFleet(dsn, folder)
    try:
        for kind in ("server", "scheduler", "worker"):
            await fleet.start(kind, kind, drill.environ)
        await _create_jobs(fleet, jobs)
        await fleet.start("sender", "sender", drill.environ, str(sends))
        probing = asyncio.create_task(fleet.probe())
        began = drill.clock.now()
        await asyncio.sleep(drill.seconds)
        started = drill.clock.monotonic()
        backup = drill.folder / "backup"
        await asyncio.to_thread(
            drill.call, "pg_basebackup", "--dbname", admin, "--pgdata", str(backup), "--checkpoint=fast"
        )
        took = drill.clock.monotonic() - started
        await asyncio.sleep(drill.seconds)
        accepted = read_sent(fleet.record)
        await _execute(admin, f"select pg_create_restore_point('{RESTORE_POINT}')")
        point = drill.clock.now()
        await asyncio.sleep(drill.seconds)
        await _archive_wal(drill, admin)
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    finally:
        await fleet.close()
    return _Lost(began=began, point=point, accepted=accepted, backup_seconds=took)


async def _create_jobs(fleet: RollingFleet, number: int) -> None:
    """Creates jobs that are due every second, a third of them for each misfire policy."""
    items = [
        {
            "name": f"job-{n}",
            "task": "record",
            "schedule": {"every": "1s"},
            "overlap": "allow",
            "misfire": MISFIRES[n % len(MISFIRES)],
            "args": [f"job-{n}"],
        }
        for n in range(number)
    ]
    async with httpx2.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{fleet.members['server'].port}/api/v1/jobs/bulk"
        (await client.post(url, json={"items": items})).raise_for_status()


async def _archive_wal(drill: _Drill, admin: str) -> None:
    """Ends the current WAL segment, and waits until it is archived."""
    connection = await asyncpg.connect(admin)
    try:
        segment = await connection.fetchval("select pg_walfile_name(pg_switch_wal())")
    finally:
        await connection.close()
    ends = drill.clock.monotonic() + WAIT_SECONDS
    while not (drill.wal / segment).exists():
        if drill.clock.monotonic() > ends:
            raise AssertionError(f"{segment} was not archived")
        await asyncio.sleep(0.05)


def _prepare_recovery(drill: _Drill) -> None:
    """Makes the data folder of the second server from the base backup, to recover up to the restore point."""
    data = drill.folder / "second" / "postgres"
    data.parent.mkdir()
    shutil.copytree(drill.folder / "backup", data, symlinks=True)
    data.chmod(0o700)
    (data / "recovery.signal").touch()
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {drill.wal}/%f %p'\n")
        settings.write(f"recovery_target_name = '{RESTORE_POINT}'\nrecovery_target_action = 'promote'\n")


async def _resume(drill: _Drill, dsn: str) -> None:
    """Starts a cluster on the restored database, and runs it until all that was due has ended and is sealed."""
    folder = drill.folder / "restored"
    folder.mkdir()
    fleet = RollingFleet(dsn, folder)
    environ = {**drill.environ, "BELLRINGER_MISFIRE_GRACE": MISFIRE_GRACE}
    try:
        for kind in ("server", "scheduler", "worker"):
            await fleet.start(kind, kind, environ)
        probing = asyncio.create_task(fleet.probe())
        await _until(dsn, f"select not ({UNFINISHED.strip().removeprefix('select ')})")
        await asyncio.sleep(VERIFY_MIN_AGE.total_seconds() + 1)
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        if fleet.errors:
            raise AssertionError(f"requests failed after the restore: {fleet.errors[:3]}")
        await fleet.stop("scheduler")
        await _until(dsn, "select not exists (select 1 from queue where available_at <= clock_timestamp())")
    finally:
        await fleet.close()


async def _judge(drill: _Drill, dsn: str, lost: _Lost) -> dict[str, Any]:
    store = await Store.open(dsn, size=2, name="bellringer bench")
    try:
        rows = await store.pool.fetch(STATES)
        states = {RunKey(row["job_id"], row["scheduled_for"], row["slot"]): row["state"] for row in rows}
        state_of = {key.id: state for key, state in states.items()}
        before, after = (
            {execution.run_id for execution in read_executions(drill.folder / name / "record")}
            for name in ("lost", "restored")
        )
        again = [key for key in states if key.id in before & after]
        unexplained = [key.id for key in again if await explain.find_restore(store, key) is None]
        chain = await verify_chain(store)
        causes = await store.pool.fetch(
            "select cause::text, count(*) from runs where fired_at > $1 group by cause", lost.point
        )
        gaps = await store.pool.fetch(LEDGER)
    finally:
        await store.close()
    accepted = len(read_sent(drill.folder / "lost" / "record"))
    return {
        "accepted_before_point": len(lost.accepted),
        "accepted_after_point": accepted - len(lost.accepted),
        "missing": [f"{tag} {run}" for tag, run in lost.accepted.items() if run not in state_of],
        "unexecuted": [f"{tag} {run}" for tag, run in lost.accepted.items() if state_of.get(run) != "succeeded"],
        "executed_again": len(again),
        "unexplained": unexplained,
        "gaps": {row["reason"]: row["count"] for row in gaps},
        "runs_by_cause": dict(Counter({row["cause"]: row["count"] for row in causes})),
        "audit_seals": chain.seals,
        "audit_broken": chain.broken,
        **await _verify(dsn, lost),
    }


async def _verify(dsn: str, lost: _Lost) -> dict[str, Any]:
    """Verifies all occurrences since the first load, those of the outage among them."""
    findings: list[Finding] = []
    connection = await connect(dsn, name="bellringer verify")
    try:
        scope = VerifyScope(start=lost.began, end=lost.began + timedelta(days=1))
        summary = await verify(connection, scope, findings.append, min_age=VERIFY_MIN_AGE)
    finally:
        await connection.close()
    return {
        "expected": summary.expected,
        "repeatable": summary.repeatable,
        "findings": [f"{each.kind} {each.job} {each.scheduled_for} {each.detail}" for each in findings],
    }


async def _until(dsn: str, question: str) -> None:
    ends = SystemClock().monotonic() + WAIT_SECONDS
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "bellringer"})
    try:
        while not await connection.fetchval(question):
            if SystemClock().monotonic() > ends:
                raise AssertionError(f"this did not become true within {WAIT_SECONDS:.0f} s: {question}")
            await asyncio.sleep(0.2)
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
