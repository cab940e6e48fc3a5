"""The faults of the drill: how each is injected and healed, and which alerts it fires."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import asyncpg

from bellringer import App, every
from bench.alerts import app as drill_app
from bench.alerts.fleet import AlertFleet

NAP_SECONDS: Final = 45.0
CLAIMED_RUNS: Final = 1_150
BLOCK_SECONDS: Final = 25.0
CLOCK_SHIFT: Final = timedelta(seconds=5)
SERVER: Final = "server-1"
NO_DATABASE: Final = "postgresql://127.0.0.1:1/none"
LEASE_LOST_SECONDS: Final = 8.0  # longer than a lease, so that other nodes take over

Step = Callable[["DrillContext"], Awaitable[None]]


@dataclass
class DrillContext:
    """The parts that faults use."""

    fleet: AlertFleet
    database: asyncpg.Pool[asyncpg.Record]
    kept: dict[str, Any] = field(default_factory=dict)  # values of `inject` for `heal`
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def repeat(self, name: str, step: Callable[[], Awaitable[None]], pause: float) -> None:
        """Repeats a step in the background until `stop_repeating`."""

        async def forever() -> None:
            while True:
                await step()
                await asyncio.sleep(pause)

        self.tasks[name] = asyncio.create_task(forever())

    async def stop_repeating(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True, kw_only=True)
class AlertFault:
    """A fault. `alerts` fire while it lasts, `afterwards` fire once it is healed, for example when late runs start."""

    name: str
    alerts: tuple[str, ...]
    inject: Step
    heal: Step
    afterwards: tuple[str, ...] = ()
    begins_after_injection: bool = False  # the injection prepares the fault, and ends with it


# Data


async def break_seal(drill: DrillContext) -> None:
    row = await drill.database.fetchrow("select seal_id, hash from audit_seals order by seal_id desc limit 1")
    assert row is not None
    drill.kept["seal"] = row
    await drill.database.execute("alter table audit_seals disable trigger user")  # as a superuser can
    await drill.database.execute("update audit_seals set hash = sha256(hash) where seal_id = $1", row["seal_id"])


async def repair_seal(drill: DrillContext) -> None:
    seal = drill.kept["seal"]
    await drill.database.execute("update audit_seals set hash = $2 where seal_id = $1", seal["seal_id"], seal["hash"])
    # Seals that were made meanwhile continue the wrong hash.
    await drill.database.execute("delete from audit_seals where seal_id > $1", seal["seal_id"])


async def drop_partition(drill: DrillContext) -> None:
    day = await drill.database.fetchval("select (now() at time zone 'UTC')::date + 1")
    drill.kept["day"] = day
    await drill.database.execute(f"drop table logs_{day:%Y%m%d}")


async def create_partition(drill: DrillContext) -> None:
    await drill.database.execute("select bellringer.ensure_days(array[$1::date])", drill.kept["day"])


async def orphan_job(drill: DrillContext) -> None:
    for version, names in (("1", ("kept", "removed")), ("2", ("kept",))):
        await _declare(drill, version, names)


async def adopt_job(drill: DrillContext) -> None:
    await _declare(drill, "3", ("kept", "removed"))


async def _declare(drill: DrillContext, version: str, names: tuple[str, ...]) -> None:
    owner = App(drill.fleet.dsn, name="owner", version=version)

    @owner.task(name="steady")
    async def steady() -> None:
        """Only its name is used."""

    for name in names:
        owner.schedule(every("1h"), name=name)(steady)
    await owner.adeclare()
    await owner.aclose()


async def send_unknown_task(drill: DrillContext) -> None:
    other = App(drill.fleet.dsn)

    @other.task(name="misspelled", pool="short")
    async def misspelled() -> None:
        """No worker knows this task."""

    drill.kept["unknown"] = await misspelled.asend()
    drill.kept["other"] = other


async def cancel_unknown_task(drill: DrillContext) -> None:
    await drill.kept["unknown"].acancel()
    await drill.kept["other"].aclose()


async def plant_stranded(drill: DrillContext) -> None:
    """Writes the event that settling writes for a run that was cancelled although nobody asked for it."""
    await drill.database.execute(
        "insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)"
        " select now(), tenant_id, 'stranded', job_id, scheduled_for, slot, 1,"
        ' \'{"reason": "cancelled_unasked"}\' from runs order by scheduled_for desc limit 1'
    )


async def remove_stranded(drill: DrillContext) -> None:
    await drill.database.execute("delete from events where kind = 'stranded'")


async def fill_disk(drill: DrillContext) -> None:
    drill.fleet.disk.free_share = 0.1


async def free_disk(drill: DrillContext) -> None:
    drill.fleet.disk.free_share = 0.5


# Load


async def fail_runs(drill: DrillContext) -> None:
    async def send() -> None:
        await drill_app.app.asend_many([drill_app.fail.message() for _ in range(10)])

    await drill.repeat("fail", send, 0.5)


async def stop_failing(drill: DrillContext) -> None:
    await drill.stop_repeating("fail")


async def block_loop(_drill: DrillContext) -> None:
    await drill_app.block.asend(BLOCK_SECONDS)


async def do_nothing(_drill: DrillContext) -> None:
    """The fault ends by itself."""


async def claim_many(_drill: DrillContext) -> None:
    await drill_app.app.asend_many([drill_app.nap.message(NAP_SECONDS) for _ in range(CLAIMED_RUNS)])


# Database


def connections_at(share: float) -> Step:
    """Returns a step that opens connections until this share of the server's connections is in use."""

    async def open_connections(drill: DrillContext) -> None:
        most = await drill.database.fetchval("select current_setting('max_connections')::int - 3")
        used = await drill.database.fetchval(
            "select count(*) from pg_stat_activity where backend_type = 'client backend'"
        )
        wanted = round(share * most) + 1 - used
        opened = drill.kept.setdefault("connections", [])
        opened += [await asyncpg.connect(drill.fleet.dsn) for _ in range(max(wanted, 0))]

    return open_connections


async def close_connections(drill: DrillContext) -> None:
    for connection in drill.kept.pop("connections", []):
        await connection.close()


async def lock_queue(drill: DrillContext) -> None:
    locking = await asyncpg.connect(drill.fleet.dsn)
    drill.kept["locking"] = locking

    async def hold() -> None:
        async with locking.transaction():
            await locking.execute("lock table bellringer.queue in access exclusive mode")
            await asyncio.sleep(0.5)

    await drill.repeat("lock", hold, 0.3)


async def unlock_queue(drill: DrillContext) -> None:
    await drill.stop_repeating("lock")
    await drill.kept["locking"].close()


async def shift_clock(drill: DrillContext) -> None:
    drill.kept["now"] = await drill.database.fetchval("select pg_get_functiondef('bellringer.now()'::regprocedure)")
    seconds = CLOCK_SHIFT.total_seconds()
    await drill.database.execute(
        "create or replace function bellringer.now() returns timestamptz language sql volatile parallel safe"
        f" as $$ select clock_timestamp() + interval '{seconds} s' $$"
    )


async def restore_clock(drill: DrillContext) -> None:
    await drill.database.execute(drill.kept["now"])


# Processes


async def stop_server(drill: DrillContext) -> None:
    drill.fleet.stop_process(SERVER)


async def start_server(drill: DrillContext) -> None:
    drill.fleet.start_process(SERVER)


async def cut_server_off(drill: DrillContext) -> None:
    """Restarts the server with the address of a database that does not respond: it serves metrics while it waits."""
    drill.fleet.stop_process(SERVER)
    drill.fleet.start_process(SERVER, dsn=NO_DATABASE)


async def connect_server(drill: DrillContext) -> None:
    drill.fleet.stop_process(SERVER)
    drill.fleet.start_process(SERVER)


async def stop_workers(drill: DrillContext) -> None:
    drill.fleet.signal("worker", signal.SIGSTOP)


async def continue_workers(drill: DrillContext) -> None:
    drill.fleet.signal("worker", signal.SIGCONT)


async def stop_schedulers(drill: DrillContext) -> None:
    drill.fleet.signal("scheduler", signal.SIGSTOP)


async def continue_schedulers(drill: DrillContext) -> None:
    drill.fleet.signal("scheduler", signal.SIGCONT)


async def stop_during_tick(drill: DrillContext) -> None:
    """Stops a scheduler between the check of its lease and its write, and continues it after others took over."""
    name = "scheduler-1"
    drill.fleet.stop_process(name)
    drill.fleet.start_process(name, fault="tick.checked:stop:8")
    await drill.fleet.wait_until(lambda: drill.fleet.is_stopped(name), "the scheduler stops in a tick", 180.0)
    await asyncio.sleep(LEASE_LOST_SECONDS)
    drill.fleet.processes[name].send_signal(signal.SIGCONT)


# Faults of one group do not influence each other, so they are injected at the same time.
GROUPS: Final[tuple[tuple[AlertFault, ...], ...]] = (
    (
        AlertFault(
            name="hash of the last audit seal changed",
            alerts=("BellringerAuditSealBroken",),
            inject=break_seal,
            heal=repair_seal,
        ),
        AlertFault(
            name="partition of tomorrow dropped",
            alerts=("BellringerPartitionMissing",),
            inject=drop_partition,
            heal=create_partition,
        ),
        AlertFault(
            name="job removed from the code of its app",
            alerts=("BellringerOrphanedJobs",),
            inject=orphan_job,
            heal=adopt_job,
        ),
        AlertFault(
            name="run of a misspelled task sent",
            alerts=("BellringerUnknownTasks",),
            inject=send_unknown_task,
            heal=cancel_unknown_task,
        ),
        AlertFault(
            name="event of a stranded run written (simulated)",
            alerts=("BellringerStrandedRuns",),
            inject=plant_stranded,
            heal=remove_stranded,
        ),
        AlertFault(
            name="node_exporter reports 10 % free disk (simulated)",
            alerts=("BellringerDiskFilling",),
            inject=fill_disk,
            heal=free_disk,
        ),
        AlertFault(
            name="clock of the database 5 s ahead",
            alerts=("BellringerClockSkew",),
            inject=shift_clock,
            heal=restore_clock,
        ),
    ),
    (
        AlertFault(
            name="20 failing runs a second",
            alerts=("BellringerFailureRate", "BellringerDeadLettersGrowing"),
            inject=fail_runs,
            heal=stop_failing,
        ),
        AlertFault(
            name="handler blocks its event loop",
            alerts=("BellringerLoopStalled",),
            inject=block_loop,
            heal=do_nothing,
        ),
        AlertFault(
            name="75 % of the server's connections used",
            alerts=("BellringerConnectionsHigh",),
            inject=connections_at(0.75),
            heal=close_connections,
        ),
    ),
    (
        AlertFault(
            name="1,150 runs that take 45 s",
            alerts=("BellringerManyClaimed",),
            inject=claim_many,
            heal=do_nothing,
        ),
        AlertFault(
            name="scheduler stopped in a tick for longer than its lease",
            alerts=("BellringerStaleWrites",),
            inject=stop_during_tick,
            begins_after_injection=True,
            heal=do_nothing,
        ),
        AlertFault(
            name="90 % of the server's connections used",
            alerts=("BellringerConnectionsCritical",),
            inject=connections_at(0.90),
            heal=close_connections,
        ),
    ),
    (
        AlertFault(
            name="queue locked for half a second, again and again",
            alerts=("BellringerPollSlow",),
            inject=lock_queue,
            heal=unlock_queue,
        ),
    ),
    (
        AlertFault(
            name="only server killed",
            alerts=("BellringerNoServer",),
            inject=stop_server,
            heal=start_server,
        ),
    ),
    (
        AlertFault(
            name="only server restarted without a database",
            alerts=("BellringerDatabaseDown",),
            inject=cut_server_off,
            heal=connect_server,
        ),
    ),
    (
        AlertFault(
            name="all workers stopped (SIGSTOP)",
            alerts=("BellringerTargetDown", "BellringerDispatchSlow", "BellringerNoWorkers"),
            afterwards=("BellringerObjectiveBurnFast", "BellringerObjectiveBurnSlow"),
            inject=stop_workers,
            heal=continue_workers,
        ),
    ),
    (
        AlertFault(
            name="all schedulers stopped (SIGSTOP)",
            alerts=("BellringerNoTick", "BellringerOverdue"),
            afterwards=("BellringerMissed",),
            inject=stop_schedulers,
            heal=continue_schedulers,
        ),
    ),
)
