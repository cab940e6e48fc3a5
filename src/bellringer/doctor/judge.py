"""Judges facts. Each function is pure: facts in, results out; no database is needed to test it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from bellringer.doctor.facts import (
    LOCK_WAIT_SECONDS,
    ArchiveFacts,
    CheckpointFacts,
    ClockFacts,
    ConnectionFacts,
    FreezeFacts,
    HorizonFacts,
    HorizonHolder,
    LockHolder,
    LockWait,
    PartitionFacts,
    PreparedTransaction,
    ProcessFacts,
    ReplicationSlot,
    SchemaFacts,
    ServerFacts,
    TableFacts,
    TransactionFacts,
    expected_session_settings,
)
from bellringer.doctor.results import CheckResult, ok, problem, warn
from bellringer.store.migrate import OLDEST_SERVER, RowSecurity

Results = Iterator[CheckResult]

NEWEST_TESTED_SERVER: Final = 18
MIN_SHARED_BUFFERS_BYTES: Final = 256 << 20
MAX_HOT_SHARE: Final = 0.5  # of shared_buffers
MIN_WAL_BYTES: Final = 2 << 30
MIN_CHECKPOINTS: Final = 10  # fewer say nothing about the usual frequency
MAX_REQUESTED_SHARE: Final = 0.5
MAX_REQUESTED_PER_HOUR: Final = 4.0
MAX_DEAD_ROWS: Final = 60_000  # three times the threshold at which autovacuum starts on the queue
MANY_DEAD_ROWS: Final = 1_000_000
MAX_DEAD_SHARE: Final = 0.5  # of a table that is larger than MAX_DEAD_ROWS
BLOATED_BYTES: Final = 256 << 20
BLOATED_BYTES_PER_ROW: Final = 20_000
TUNED_TABLES: Final = ("queue", "flow_nodes")  # the schema sets when autovacuum starts on these
BUSY_SHARE: Final = 0.75
FULL_SHARE: Final = 0.9
IDLE_TRANSACTION_SECONDS: Final = 10.0
LONG_TRANSACTION_SECONDS: Final = 60.0
VERY_LONG_TRANSACTION_SECONDS: Final = 600.0
OLD_XMIN_TRANSACTIONS: Final = 1_000_000
STALE_XMIN_TRANSACTIONS: Final = 50_000  # a warning if dead rows pile up meanwhile
MAX_QUERY_LENGTH: Final = 120  # characters of a statement that are shown
LONG_LOCK_WAIT_SECONDS: Final = 10.0
OLD_PREPARED_SECONDS: Final = 60.0
MAX_RETAINED_BYTES: Final = 10 << 30
MAX_XID_AGE: Final = 1_200_000_000  # of 2,100,000,000
MAX_SKEW_SECONDS: Final = 1.0
MAX_ARCHIVE_HOURS: Final = 24.0
HUGE_SKEW_SECONDS: Final = 60.0

_VACUUM: Final = "Vacuum cannot remove dead rows of the queue meanwhile, so every claim becomes slower."


# Server


def judge_version(server: ServerFacts) -> Results:
    if server.version < OLDEST_SERVER:
        yield problem(
            server.version_shown,
            "Bellringer uses functions that this version does not have.",
            f"upgrade the server to PostgreSQL {OLDEST_SERVER} or newer",
        )
    elif server.version > NEWEST_TESTED_SERVER:
        yield warn(
            server.version_shown,
            f"Bellringer is tested with PostgreSQL {OLDEST_SERVER} to {NEWEST_TESTED_SERVER}.",
            "upgrade Bellringer when a release supports this version",
        )
    else:
        yield ok(server.version_shown)


def judge_session_settings(server: ServerFacts) -> Results:
    wanted = expected_session_settings()
    lost = [f"{name} is {server.ours[name]}" for name in wanted if server.ours[name] != wanted[name]]
    if lost:
        yield problem(
            ", ".join(lost),
            "Bellringer sets these at the start of each session, and its statements rely on them; a pooler drops them.",
            "connect to PostgreSQL directly, or let the pooler keep session settings",
        )
    else:
        yield ok("the settings of Bellringer's sessions reach the server")


def judge_jit(server: ServerFacts) -> Results:
    jit = server.settings["jit"]
    if jit.value == "on":
        yield warn(
            "jit is on for other sessions; Bellringer's own turn it off",
            "Compiling a statement takes longer than most statements here take.",
            *_fix(server, "jit", "off"),
        )
    else:
        yield ok("jit is off")


def judge_synchronous_commit(server: ServerFacts) -> Results:
    mode, standbys = server.settings["synchronous_commit"], server.settings["synchronous_standby_names"].value
    if mode.value == "off":
        yield problem(
            "synchronous_commit is off",
            "A crash of the server loses work that was acknowledged: sends, results and fired occurrences.",
            *_fix(server, "synchronous_commit", "on"),
        )
    elif mode.value in {"local", "remote_write"} and standbys:
        yield warn(
            f"synchronous_commit is {mode.value} with synchronous standbys",
            "A failover may lose work that was acknowledged.",
            *_fix(server, "synchronous_commit", "on"),
        )
    else:
        yield ok(f"synchronous_commit is {mode.value}")


def judge_crash_safety(server: ServerFacts) -> Results:
    risks = {
        "fsync": "A crash of the machine may corrupt the whole database.",
        "full_page_writes": "A crash of the machine may leave torn pages, unless the file system prevents them.",
    }
    off = [name for name in risks if server.settings[name].value == "off"]
    for name in off:
        yield problem(f"{name} is off", risks[name], *_fix(server, name, "on"))
    if not off:
        yield ok("fsync and full_page_writes are on")


def judge_shared_buffers(facts: tuple[ServerFacts, int]) -> Results:
    server, hot_bytes = facts
    buffers = server.settings["shared_buffers"]
    wanted = max(MIN_SHARED_BUFFERS_BYTES, int(hot_bytes / MAX_HOT_SHARE))
    if buffers.bytes < wanted:
        yield warn(
            f"shared_buffers is {buffers.shown}; jobs, queue and timers take {_size(hot_bytes)}",
            "Ticks and claims that find their pages in memory take a fraction of the time.",
            *_fix(server, "shared_buffers", f"'{_round_up_size(wanted)}'"),
        )
    else:
        yield ok(f"shared_buffers is {buffers.shown}; jobs, queue and timers take {_size(hot_bytes)}")


def judge_checkpoints(facts: tuple[ServerFacts, CheckpointFacts]) -> Results:
    server, seen = facts
    wal = server.settings["max_wal_size"]
    total, hours = seen.timed + seen.requested, max(seen.hours, 0.01)
    often = (
        total >= MIN_CHECKPOINTS
        and seen.requested / total > MAX_REQUESTED_SHARE
        and seen.requested / hours > MAX_REQUESTED_PER_HOUR
    )
    counts = f"{seen.requested} of {total} checkpoints were requested early"
    why = "Each checkpoint makes the next write of every page larger and slows all commits."
    if often:
        yield warn(
            f"max_wal_size is {wal.shown}; {counts}",
            why,
            *_fix(server, "max_wal_size", f"'{_round_up_size(max(2 * wal.bytes, MIN_WAL_BYTES))}'"),
        )
    elif wal.bytes < MIN_WAL_BYTES:
        yield warn(f"max_wal_size is {wal.shown}", why, *_fix(server, "max_wal_size", "'4GB'"))
    else:
        yield ok(f"max_wal_size is {wal.shown}; {counts}")


# Vacuum


def judge_autovacuum(facts: tuple[ServerFacts, Sequence[TableFacts]]) -> Results:
    server, tables = facts
    why = "Dead rows pile up in the queue, and every claim becomes slower."
    bad = False
    for name in ("autovacuum", "track_counts"):
        if server.settings[name].value == "off":
            bad = True
            yield problem(f"{name} is off", why, *_fix(server, name, "on"))
    for table in tables:
        full = f"bellringer.{table.name}"
        if table.options.get("autovacuum_enabled") in {"false", "off", "no", "0"}:
            bad = True
            yield problem(f"autovacuum is disabled for {full}", why, f"alter table {full} reset (autovacuum_enabled);")
        elif table.name in TUNED_TABLES and _number(table.options.get("autovacuum_vacuum_scale_factor")) != 0:
            bad = True
            yield warn(
                f"{full} has lost the autovacuum settings of the schema",
                "Autovacuum then waits until a share of a large table is dead.",
                f"alter table {full} set (autovacuum_vacuum_scale_factor = 0,",
                "  autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);",
            )
    if not bad:
        yield ok("autovacuum is on")


def judge_bloat(tables: Sequence[TableFacts]) -> Results:
    bad = False
    for table in tables:
        full = f"bellringer.{table.name}"
        since = "never" if table.vacuumed_seconds_ago is None else f"{_duration(table.vacuumed_seconds_ago)} ago"
        counts = f"{table.dead:,} dead and {table.live:,} live rows, vacuumed {since}"
        why = "Claims and ticks read dead rows too, so they become slower."
        if table.dead > MAX_DEAD_ROWS and table.dead > MAX_DEAD_SHARE * table.live:
            bad = True
            judged = problem if table.dead > MANY_DEAD_ROWS else warn
            yield judged(f"{full} has {counts}", why, f"vacuum (analyze) {full};")
        elif table.bytes > BLOATED_BYTES and table.bytes > BLOATED_BYTES_PER_ROW * max(table.live, 1):
            bad = True
            yield warn(
                f"{full} has {table.live:,} live rows in {_size(table.bytes)}",
                "Most of its pages are empty but still read; rewriting the table locks it for seconds.",
                f"vacuum full {full};",
            )
    if not bad:
        yield ok(", ".join(f"{table.name}: {table.dead:,} dead rows" for table in tables if table.name != "flow_nodes"))


def judge_transaction_id_age(freeze: FreezeFacts) -> Results:
    age = max(freeze.age, freeze.multixact_age)
    found = f"the oldest transaction id is {age:,} transactions old"
    fix = "vacuum (freeze);"
    if age > MAX_XID_AGE:
        yield problem(found, "At 2,100,000,000 the server accepts no more writes.", fix)
    elif age > 1.5 * freeze.freeze_max_age:
        yield warn(found, "Autovacuum should have frozen it; something holds it back.", fix)
    else:
        yield ok(found)


def judge_transactions(facts: TransactionFacts) -> Results:
    bad = False
    for session in facts.sessions:
        seconds = session.transaction_seconds
        idle = session.state.startswith("idle in transaction")
        who = f"pid {session.pid} ({session.application or session.role})"
        fix = f"select pg_terminate_backend({session.pid});"
        if seconds is None:
            if (session.xmin_age or 0) > OLD_XMIN_TRANSACTIONS:
                bad = True
                yield warn(f"{who} holds a snapshot that is {session.xmin_age:,} transactions old", _VACUUM, fix)
        elif seconds > (IDLE_TRANSACTION_SECONDS if idle else LONG_TRANSACTION_SECONDS):
            bad = True
            state = "idle in its transaction" if idle else "in one transaction"
            judged = problem if seconds > VERY_LONG_TRANSACTION_SECONDS else warn
            yield judged(f"{who} is {state} for {_duration(seconds)}{_statement(session.query)}", _VACUUM, fix)
    if facts.hidden:
        yield ok(
            f"the state of {_count(facts.hidden, 'session')} of other roles is hidden from {facts.role};"
            " an administrator can show it:",
            f"grant pg_read_all_stats to {_quoted(facts.role)};",
        )
    if not bad and not facts.hidden:
        yield ok(f"{_count(len(facts.sessions), 'open transaction')}, none long")


def judge_lock_waits(waits: Sequence[LockWait]) -> Results:
    for wait in waits:
        judged = problem if wait.seconds > LONG_LOCK_WAIT_SECONDS else warn
        blockers = ", ".join(_holder(holder) for holder in wait.holders) or ", ".join(map(str, wait.blockers)) or "?"
        # A session that waits itself is not the cause: ending it would not free the lock that it waits for.
        causes = [holder.pid for holder in wait.holders if not holder.waits] or [pid for pid in wait.blockers if pid]
        yield judged(
            f"pid {wait.pid} waits for a lock ({wait.lock}) for {_duration(wait.seconds)}{_statement(wait.query)};"
            f" held by pid {blockers}",
            "Ticks, claims and settles that need the lock wait too.",
            *(f"select pg_terminate_backend({pid});" for pid in causes),
        )
    if not waits:
        yield ok(f"no session waits for a lock for more than {LOCK_WAIT_SECONDS:g} s")


def _holder(holder: LockHolder) -> str:
    age = (
        ""
        if holder.transaction_seconds is None
        else f", in its transaction for {_duration(holder.transaction_seconds)}"
    )
    waits = ", which waits for a lock itself" if holder.waits else ""
    state = holder.state or "state hidden"
    return f"{holder.pid} ({holder.application}, {state}{age}{waits}){_statement(holder.query)}"


def _statement(query: str) -> str:
    """Returns the text of a statement on one line, shortened."""
    text = " ".join(query.split())
    if not text:
        return ""
    return f": {text if len(text) <= MAX_QUERY_LENGTH else text[: MAX_QUERY_LENGTH - 1] + '…'}"


def judge_horizon(facts: HorizonFacts) -> Results:
    bad = False
    for holder in facts.holders:
        if holder.age <= OLD_XMIN_TRANSACTIONS and not (holder.age > STALE_XMIN_TRANSACTIONS and _has_dead(facts)):
            continue
        bad = True
        judged = problem if holder.age > OLD_XMIN_TRANSACTIONS else warn
        yield judged(
            f"{_describe_horizon(holder)} holds back vacuum by {holder.age:,} transactions;"
            f" {facts.dead_rows:,} dead rows wait to be removed",
            _VACUUM,
            _horizon_fix(holder),
        )
    if not bad:
        age = max((holder.age for holder in facts.holders), default=0)
        yield ok(f"vacuum is held back by {age:,} transactions at most")


def _has_dead(facts: HorizonFacts) -> bool:
    return facts.dead_rows > MAX_DEAD_ROWS


def _describe_horizon(holder: HorizonHolder) -> str:
    match holder.kind:
        case "slot":
            return f"the replication slot {holder.name}"
        case "prepared":
            return f"the prepared transaction {holder.name}"
        case "standby":
            return f"the standby {holder.name} (hot_standby_feedback)"
        case _:
            return f"pid {holder.pid} ({holder.name})"


def _horizon_fix(holder: HorizonHolder) -> str:
    match holder.kind:
        case "slot":
            return f"select pg_drop_replication_slot('{holder.name}');"
        case "prepared":
            return f"rollback prepared '{holder.name.replace(chr(39), chr(39) * 2)}';"
        case "standby":
            return "end the long query on the standby, or set hot_standby_feedback = off there"
        case _:
            return f"select pg_terminate_backend({holder.pid});"


def judge_prepared(found: Sequence[PreparedTransaction]) -> Results:
    bad = [prepared for prepared in found if prepared.seconds > OLD_PREPARED_SECONDS]
    for prepared in bad:
        yield problem(
            f"the prepared transaction {prepared.name} in {prepared.database} is {_duration(prepared.seconds)} old",
            "It keeps its locks and holds back vacuum until someone ends it, even across restarts.",
            f"rollback prepared '{prepared.name.replace(chr(39), chr(39) * 2)}';",
        )
    if not bad:
        yield ok("no old prepared transactions")


def judge_slots(slots: Sequence[ReplicationSlot]) -> Results:
    bad = False
    for slot in slots:
        drop = f"select pg_drop_replication_slot('{slot.name}');"
        retained = slot.retained_bytes or 0
        state = "active" if slot.is_active else "inactive"
        found = f"the {state} replication slot {slot.name} retains {_size(retained)} of WAL"
        if (slot.xmin_age or 0) > OLD_XMIN_TRANSACTIONS:
            bad = True
            age = f"a snapshot that is {slot.xmin_age:,} transactions old"
            yield problem(f"the {state} replication slot {slot.name} holds {age}", _VACUUM, drop)
        elif retained > MAX_RETAINED_BYTES:
            bad = True
            yield problem(found, "The disk fills up, and then the server stops.", drop)
        elif not slot.is_active:
            bad = True
            yield warn(found, "Without a reader, the retained WAL grows until the disk is full.", drop)
    if not bad:
        yield ok(f"{_count(len(slots), 'replication slot')}, all in use" if slots else "no replication slots")


# Connections, clocks


def judge_connections(facts: ConnectionFacts) -> Results:
    others = max(0, facts.used - facts.ours)
    found = f"{facts.used} of {facts.capacity} connections are in use"
    who = f"{_count(facts.schedulers, 'scheduler')} and {_count(facts.workers, 'worker')}"
    full = "A process that finds no connection waits, and exits after 15 s."
    raise_limit = (f"alter system set max_connections = {2 * facts.maximum}; -- then restart the server",)
    if facts.used >= FULL_SHARE * facts.capacity:
        yield problem(found, full, *raise_limit)
    elif others + facts.needed > facts.capacity:
        yield warn(
            f"{found}; {who} may need {facts.needed}, others use {others}",
            full,
            *raise_limit,
        )
    elif facts.used >= BUSY_SHARE * facts.capacity:
        yield warn(found, full, *raise_limit)
    else:
        yield ok(f"{found}; {who} need at most {facts.needed}")


def judge_clocks(facts: ClockFacts) -> Results:
    skews = {"this machine": facts.skew_seconds, **{f"node {name}": skew for name, skew in facts.nodes.items()}}
    bad = False
    for where, skew in skews.items():
        if abs(skew) - facts.uncertainty_seconds > MAX_SKEW_SECONDS:
            bad = True
            ahead = "ahead of" if skew > 0 else "behind"
            judged = problem if abs(skew) > HUGE_SKEW_SECONDS else warn
            yield judged(
                f"the clock of {where} is {_duration(abs(skew))} {ahead} the database's",
                "Times that programs compute there are off by as much; the database's clock decides what is due.",
                "start NTP on both machines: timedatectl set-ntp true",
            )
    if not bad:
        yield ok(f"the clock of this machine differs from the database's by {abs(facts.skew_seconds) * 1000:.0f} ms")


# The installation


def judge_schema(facts: SchemaFacts) -> Results:
    if facts.error is None:
        yield ok("schema and functions are current")
    else:
        fix = "bellringer migrate" if "bellringer migrate" in facts.hint else facts.hint
        yield problem(facts.error, "Servers, schedulers and workers do not start.", *([fix] if fix else []))


def judge_row_security(facts: RowSecurity | None) -> Results:
    if facts is not None and facts.is_on:
        yield ok(f"row-level security is on (role {facts.role})")
    else:
        remedy = facts.remedy if facts is not None else ""
        steps = [f"{step.strip()};" for step in remedy.split(";") if step.strip()]
        yield warn(
            "row-level security is off",
            "Only the program's own queries separate tenants.",
            *steps,
            "bellringer migrate",
        )


def judge_processes(facts: ProcessFacts) -> Results:
    if not facts.schedulers:
        judged = problem if facts.jobs else warn
        yield judged(
            "no scheduler is live",
            "No schedule fires, and nothing recovers the runs of lost workers.",
            "bellringer scheduler",
        )
    if not facts.workers:
        judged = problem if facts.waiting else warn
        waiting = "; runs are waiting" if facts.waiting else ""
        yield judged(f"no worker is live{waiting}", "No run is executed.", "bellringer worker APP")
    if facts.schedulers and facts.workers:
        yield ok(f"{_count(facts.schedulers, 'scheduler')} and {_count(facts.workers, 'worker')} are live")


def judge_partitions(facts: PartitionFacts) -> Results:
    if not facts.missing:
        yield ok("the partitions of today and the next days exist")
        return
    days = ", ".join(day.isoformat() for day in facts.missing)
    listed = ", ".join(f"'{day.isoformat()}'" for day in facts.missing)
    judged = problem if facts.today in facts.missing else warn
    yield judged(
        f"no partitions exist for {days}",
        "A scheduler creates them ahead; without one, the first run of a day has to wait for it.",
        f"select bellringer.ensure_days(array[{listed}]::date[]);",
    )


def judge_archive(facts: ArchiveFacts) -> Results:
    if facts.problem is None and facts.oldest_hours < MAX_ARCHIVE_HOURS:
        yield ok("no run past retention waits long for the archive")
        return
    text = f"{facts.batches} batches of runs past retention wait for the archive, for {facts.oldest_hours:.0f} h"
    yield warn(
        text if facts.problem is None else f"{text}: {facts.problem}",
        "They are kept, and use disk space, until the archive has them. Without a scheduler whose setting `archive` is "
        "set, nobody writes them.",
        "bellringer settings",
    )


# Helpers


def _fix(server: ServerFacts, name: str, value: str) -> tuple[str, ...]:
    """Returns the statements that change a setting where its current value comes from."""
    setting = server.settings[name]
    assign = f"set {name} = {value};"
    database, role = _quoted(server.database), _quoted(server.role)
    by_source = {
        "client": f"remove {name} from BELLRINGER_DSN and PGOPTIONS",
        "database user": f"alter role {role} in database {database} {assign}",
        "user": f"alter role {role} {assign}",
    }
    if setting.source in by_source:
        return (by_source[setting.source],)
    if setting.context in {"user", "superuser"}:
        return (f"alter database {database} {assign}",)
    if setting.source == "command line":  # takes precedence over configuration files
        return (f"change {name} to {value} on the command line of the server, and restart it",)
    if setting.context == "postmaster":
        return (f"alter system {assign} -- then restart the server",)
    return (f"alter system {assign}", "select pg_reload_conf();")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def _round_up_size(count: int) -> str:
    """Returns a size for a setting, rounded up to 256 MB."""
    steps = -(-count // (256 << 20))
    return f"{steps // 4}GB" if steps % 4 == 0 else f"{steps * 256}MB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
