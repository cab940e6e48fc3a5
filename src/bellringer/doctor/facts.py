"""Reads the facts that the checks judge. Each reader runs a few cheap queries and changes nothing.

All queries work for a role without privileges. PostgreSQL then hides the state and the start of other roles' sessions;
the facts say how many sessions are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

import asyncpg

from bellringer.clock import Clock
from bellringer.engine.reap import WORKER_SILENCE
from bellringer.errors import BellringerError
from bellringer.process_assembly import MAX_POOL_CONNECTIONS, MAX_SCHEDULER_CONNECTIONS, MIN_SCHEDULER_CONNECTIONS
from bellringer.startup import compute_pool_size
from bellringer.store.connection_pool import SETTINGS
from bellringer.store.dead_connections import CONNECT_SECONDS
from bellringer.store.dsn import driver_dsn
from bellringer.store.migrate import RowSecurity, require_current, row_security

WATCHED_TABLES: Final = ("queue", "timers", "jobs", "flow_nodes")
HOT_TABLES: Final = ("queue", "timers", "jobs", "members", "cohorts", "leases", "workers", "flow_nodes")
PARTITIONED_TABLES: Final = ("runs", "attempts", "logs")
NODE_SILENCE: Final = timedelta(seconds=30)
DAYS_AHEAD: Final = 2
CLOCK_READINGS: Final = 5
LOCK_WAIT_SECONDS: Final = 1.0


class Connections:
    """Two sessions: `ours` has the settings of Bellringer, `plain` those of the server, the database and the role."""

    def __init__(self, dsn: str, ours: asyncpg.Connection[Any], plain: asyncpg.Connection[Any], clock: Clock) -> None:
        self.dsn = dsn
        self.ours = ours
        self.plain = plain
        self.clock = clock


async def open_plain(dsn: str) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(
        driver_dsn(dsn),
        timeout=CONNECT_SECONDS,
        server_settings={"application_name": "bellringer doctor"},
        statement_cache_size=0,  # the address may be that of a pooler
    )


# Server settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """A setting as a session without settings of its own sees it."""

    name: str
    value: str  # in the unit of pg_settings
    shown: str  # as `show` prints it
    unit: str | None
    source: str  # default, configuration file, database, user …
    context: str  # postmaster: a change needs a restart

    @property
    def bytes(self) -> int:
        units = {None: 1, "B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "16MB": 16 << 20}
        return int(self.value) * units[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    version: int  # major version
    version_shown: str
    database: str
    role: str
    settings: Mapping[str, ServerSetting]
    ours: Mapping[str, str]  # settings of our own sessions, as the server has them


_NAMES: Final = (
    "autovacuum",
    "autovacuum_freeze_max_age",
    "fsync",
    "full_page_writes",
    "jit",
    "max_wal_size",
    "shared_buffers",
    "synchronous_commit",
    "synchronous_standby_names",
    "track_counts",
)
_SETTINGS: Final = """
select name, setting as value, current_setting(name) as shown, unit, source, context
from pg_settings where name = any ($1)
"""
# These must reach the server: the SQL functions rely on the isolation level and on custom plans.
CHECKED_SESSION_SETTINGS: Final = ("default_transaction_isolation", "jit", "plan_cache_mode", "row_security")


async def read_server(c: Connections) -> ServerFacts:
    rows = await c.plain.fetch(_SETTINGS, list(_NAMES))
    ours = await c.ours.fetch(
        "select name, current_setting(name) as value from unnest($1::text[]) name", list(CHECKED_SESSION_SETTINGS)
    )
    database, role, version = await c.plain.fetchrow(  # type: ignore[misc]
        "select current_database(), current_user::text, current_setting('server_version')"
    )
    return ServerFacts(
        version=c.plain.get_server_version().major,
        version_shown=f"PostgreSQL {version.split()[0]}",
        database=database,
        role=role,
        settings={row["name"]: ServerSetting(**dict(row)) for row in rows},
        ours={row["name"]: row["value"] for row in ours},
    )


def expected_session_settings() -> Mapping[str, str]:
    return {name: SETTINGS[name] for name in CHECKED_SESSION_SETTINGS}


# Checkpoints, and the memory of the hot tables


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    timed: int
    requested: int  # because max_wal_size was reached, or on demand
    hours: float  # since the counters were reset


async def read_checkpoints(c: Connections) -> CheckpointFacts:
    # PostgreSQL 17 moved the counters.
    view, timed, requested = "pg_stat_bgwriter", "checkpoints_timed", "checkpoints_req"
    if c.plain.get_server_version().major >= 17:
        view, timed, requested = "pg_stat_checkpointer", "num_timed", "num_requested"
    row = await c.plain.fetchrow(
        f"select {timed} as timed, {requested} as requested,"  # noqa: S608 - names from above
        f" extract(epoch from now() - coalesce(stats_reset, pg_postmaster_start_time()))::float8 / 3600 as hours"
        f" from {view}"
    )
    assert row is not None
    return CheckpointFacts(**dict(row))


async def read_hot_bytes(c: Connections) -> int:
    """Returns the size of the tables that every tick and claim uses, with their indexes."""
    size: int = await c.plain.fetchval(
        "select coalesce(sum(pg_total_relation_size(to_regclass('bellringer.' || name))), 0)::int8"
        " from unnest($1::text[]) name",
        list(HOT_TABLES),
    )
    return size


# Tables and vacuum


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    name: str
    live: int
    dead: int
    bytes: int
    options: Mapping[str, str]
    vacuumed_seconds_ago: float | None  # None: never


_TABLES: Final = """
select stat.relname::text as name, stat.n_live_tup as live, stat.n_dead_tup as dead,
       pg_relation_size(stat.relid) as bytes, coalesce(class.reloptions, '{}') as options,
       extract(epoch from now() - greatest(stat.last_vacuum, stat.last_autovacuum))::float8 as vacuumed_seconds_ago
from pg_stat_user_tables stat join pg_class class on class.oid = stat.relid
where stat.schemaname = 'bellringer' and stat.relname = any ($1)
order by array_position($1, stat.relname::text)
"""


async def read_tables(c: Connections) -> list[TableFacts]:
    rows = await c.plain.fetch(_TABLES, list(WATCHED_TABLES))
    return [
        TableFacts(**{**dict(row), "options": dict(option.split("=", 1) for option in row["options"])}) for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeFacts:
    database: str
    age: int  # transactions
    multixact_age: int
    freeze_max_age: int


async def read_freeze(c: Connections) -> FreezeFacts:
    row = await c.plain.fetchrow(
        "select datname::text as database, age(datfrozenxid) as age, mxid_age(datminmxid) as multixact_age,"
        " current_setting('autovacuum_freeze_max_age')::int as freeze_max_age"
        " from pg_database where datname = current_database()"
    )
    assert row is not None
    return FreezeFacts(**dict(row))


# Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """A session in a transaction, or one of another role whose state is hidden."""

    pid: int
    role: str
    application: str
    state: str  # empty if it is hidden
    transaction_seconds: float | None
    xmin_age: int | None  # transactions that vacuum cannot clean up after, because of this session
    query: str = ""  # the present statement, or the last one; empty if it is hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFacts:
    role: str
    sessions: Sequence[SessionFacts]
    hidden: int  # sessions of other roles whose state cannot be seen


# Vacuum ignores transactions of other databases. The type of a hidden session is null; only those of the server's own
# processes have no role.
_SESSIONS: Final = """
select pid, coalesce(usename, '?')::text as role, coalesce(application_name, '') as application,
       coalesce(state, '') as state, age(backend_xmin) as xmin_age,
       case when query = '<insufficient privilege>' then '' else coalesce(left(query, 200), '') end as query,
       extract(epoch from clock_timestamp() - xact_start)::float8 as transaction_seconds
from pg_stat_activity
where datname = current_database() and pid <> all ($1)
  and (backend_type = 'client backend' or (backend_type is null and usename is not null))
  and (xact_start is not null or backend_xmin is not null)
order by xact_start nulls last
"""
_HIDDEN: Final = """
select count(*) from pg_stat_activity
where datname = current_database() and usename is not null and query = '<insufficient privilege>'
"""


async def read_transactions(c: Connections) -> TransactionFacts:
    own = [await connection.fetchval("select pg_backend_pid()") for connection in (c.ours, c.plain)]
    rows = await c.plain.fetch(_SESSIONS, own)
    return TransactionFacts(
        role=await c.plain.fetchval("select current_user::text"),
        sessions=[SessionFacts(**dict(row)) for row in rows],
        hidden=await c.plain.fetchval(_HIDDEN),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that others wait for; `waits`: it waits for a lock itself, so it is not the cause."""

    pid: int
    application: str
    state: str
    transaction_seconds: float | None
    query: str
    waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWait:
    """A session that waits for a lock, and the sessions that hold it or come before it."""

    pid: int
    seconds: float
    lock: str
    blockers: Sequence[int]
    query: str = ""
    holders: Sequence[LockHolder] = ()


# A wait for a row is a wait for the transaction that holds it; such a lock names no database.
_LOCK_WAITS: Final = """
select wait.pid, extract(epoch from clock_timestamp() - wait.waitstart)::float8 as seconds,
       pg_blocking_pids(wait.pid) as blockers,
       wait.locktype || coalesce((select format(' %I.%I', class.relnamespace::regnamespace, class.relname)
                                  from pg_class class where class.oid = wait.relation), '') as lock,
       coalesce(left(session.query, 200), '') as query
from pg_locks wait join pg_stat_activity session on session.pid = wait.pid
where not wait.granted and session.datname = current_database()
  and wait.waitstart < clock_timestamp() - make_interval(secs => $1)
order by wait.waitstart
"""


_LOCK_HOLDERS: Final = """
select pid, coalesce(nullif(application_name, ''), usename::text, '?') as application, coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as transaction_seconds,
       case when query = '<insufficient privilege>' then '' else coalesce(left(query, 200), '') end as query,
       exists (select from pg_locks wait where wait.pid = pg_stat_activity.pid and not wait.granted) as waits
from pg_stat_activity where pid = any ($1)
"""


async def read_lock_waits(c: Connections) -> list[LockWait]:
    waits = await c.plain.fetch(_LOCK_WAITS, LOCK_WAIT_SECONDS)
    pids = sorted({pid for wait in waits for pid in wait["blockers"]})
    holders = {row["pid"]: LockHolder(**dict(row)) for row in await c.plain.fetch(_LOCK_HOLDERS, pids)} if pids else {}
    return [
        LockWait(**dict(wait), holders=[holders[pid] for pid in dict.fromkeys(wait["blockers"]) if pid in holders])
        for wait in waits
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonHolder:
    """Something that keeps vacuum from removing rows that died in the last `age` transactions."""

    kind: str  # session, standby, slot or prepared
    name: str  # of a slot or a prepared transaction; the application of a session
    pid: int | None
    age: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonFacts:
    """What holds back vacuum, the oldest first, and the dead rows of the tables that are written most."""

    holders: Sequence[HorizonHolder]
    dead_rows: int


# Slots and prepared transactions hold back all databases that they concern; a standby sends its horizon as feedback.
_HORIZON: Final = """
select * from (
  select case backend_type when 'walsender' then 'standby' else 'session' end as kind,
         coalesce(nullif(application_name, ''), usename::text, '?') as name, pid, age(backend_xmin) as age
  from pg_stat_activity
  where backend_xmin is not null and pid <> all ($1) and backend_type in ('client backend', 'walsender')
    and (datname = current_database() or backend_type = 'walsender')
  union all
  select 'slot', slot_name::text, active_pid, greatest(age(xmin), age(catalog_xmin)) from pg_replication_slots
  where xmin is not null or catalog_xmin is not null
  union all
  select 'prepared', gid, null, age(transaction) from pg_prepared_xacts where database = current_database()) holder
order by age desc limit 5
"""
_DEAD_ROWS: Final = """
select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables
where schemaname = 'bellringer' and relname in ('queue', 'cohorts', 'timers', 'leases', 'flow_nodes', 'usage')
"""


async def read_horizon(c: Connections) -> HorizonFacts:
    own = [await connection.fetchval("select pg_backend_pid()") for connection in (c.ours, c.plain)]
    return HorizonFacts(
        holders=[HorizonHolder(**dict(row)) for row in await c.plain.fetch(_HORIZON, own)],
        dead_rows=await c.plain.fetchval(_DEAD_ROWS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    name: str
    database: str
    seconds: float
    xmin_age: int


async def read_prepared(c: Connections) -> list[PreparedTransaction]:
    rows = await c.plain.fetch(
        "select gid as name, database::text, age(transaction) as xmin_age,"
        " extract(epoch from clock_timestamp() - prepared)::float8 as seconds from pg_prepared_xacts order by prepared"
    )
    return [PreparedTransaction(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    name: str
    is_active: bool
    xmin_age: int | None
    retained_bytes: int | None


_SLOTS: Final = """
select slot_name::text as name, active as is_active, greatest(age(xmin), age(catalog_xmin)) as xmin_age,
       case when pg_is_in_recovery() then null
            else pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8 end as retained_bytes
from pg_replication_slots order by 1
"""


async def read_slots(c: Connections) -> list[ReplicationSlot]:
    return [ReplicationSlot(**dict(row)) for row in await c.plain.fetch(_SLOTS)]


# Connections


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFacts:
    maximum: int  # max_connections
    capacity: int  # for roles without reserved connections
    used: int
    ours: int  # used by processes of Bellringer
    schedulers: int
    workers: int

    @property
    def needed(self) -> int:
        """The connections of all live schedulers and workers when their pools are full. API servers need more."""
        at_most, at_least = MAX_SCHEDULER_CONNECTIONS, MIN_SCHEDULER_CONNECTIONS
        per_scheduler = compute_pool_size(self.capacity, most=at_most, least=at_least) + 1  # 1 for notifications
        per_worker = compute_pool_size(self.capacity, most=MAX_POOL_CONNECTIONS) + 1
        return self.schedulers * per_scheduler + self.workers * per_worker


_CONNECTIONS: Final = """
select current_setting('max_connections')::int as maximum,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0) as capacity,
       count(*) filter (where backend_type = 'client backend'
                          or (backend_type is null and usename is not null)) as used,
       count(*) filter (where application_name like 'bellringer%' and application_name <> 'bellringer doctor') as ours,
       (select count(*) from bellringer.nodes where seen_at > clock_timestamp() - $1::interval) as schedulers,
       (select count(*) from bellringer.workers
        where state in ('live', 'draining') and seen_at > clock_timestamp() - $2::interval) as workers
from pg_stat_activity
"""


async def read_connections(c: Connections) -> ConnectionFacts:
    row = await c.plain.fetchrow(_CONNECTIONS, NODE_SILENCE, WORKER_SILENCE)
    assert row is not None
    return ConnectionFacts(**dict(row))


# The installation


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    error: str | None  # why this program cannot use the database
    hint: str = ""


async def read_schema(c: Connections) -> SchemaFacts:
    try:
        await require_current(c.ours)
    except BellringerError as error:
        return SchemaFacts(error=error.message, hint=error.hint)
    return SchemaFacts(error=None)


async def read_row_security(c: Connections) -> RowSecurity | None:
    return await row_security(c.ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    schedulers: int
    workers: int
    jobs: bool  # whether any exist
    waiting: bool  # whether runs wait in the queue


_PROCESSES: Final = """
select (select count(*) from bellringer.nodes where seen_at > clock_timestamp() - $1::interval) as schedulers,
       (select count(*) from bellringer.workers where state = 'live'
          and seen_at > clock_timestamp() - $2::interval) as workers,
       exists (select from bellringer.jobs) as jobs,
       exists (select from bellringer.queue where worker_id is null) as waiting
"""


async def read_processes(c: Connections) -> ProcessFacts:
    row = await c.ours.fetchrow(_PROCESSES, NODE_SILENCE, WORKER_SILENCE)
    assert row is not None
    return ProcessFacts(**dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    today: date
    missing: Sequence[date]  # days from today on without a partition of every table


_MISSING_DAYS: Final = """
select bellringer.day_of(bellringer.now()) as today,
       array(select day::date from generate_series(0, $2) n,
                    lateral (select bellringer.day_of(bellringer.now()) + n as day) days
             where exists (select from unnest($1::text[]) parent
                           where to_regclass('bellringer.' || parent || '_' || to_char(day, 'YYYYMMDD')) is null)
             order by 1) as missing
"""


async def read_partitions(c: Connections) -> PartitionFacts:
    row = await c.ours.fetchrow(_MISSING_DAYS, list(PARTITIONED_TABLES), DAYS_AHEAD)
    assert row is not None
    return PartitionFacts(**dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFacts:
    """Runs past retention that are not in the archive yet; `problem` is that of the oldest batch that failed."""

    batches: int
    oldest_hours: float
    problem: str | None


_ARCHIVE: Final = """
select count(*) as batches,
       coalesce(extract(epoch from clock_timestamp() - min(opened_at)) / 3600, 0)::float8 as oldest_hours,
       (array_agg(problem order by batch_id) filter (where problem is not null))[1] as problem
from bellringer.archive_batches
where state <> 'dropped'
"""


async def read_archive(c: Connections) -> ArchiveFacts:
    row = await c.ours.fetchrow(_ARCHIVE)
    assert row is not None
    return ArchiveFacts(**dict(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    skew_seconds: float  # this host's clock minus the database's
    uncertainty_seconds: float  # half a round trip
    nodes: Mapping[str, float]  # the skew that each live scheduler reported


async def read_clocks(c: Connections) -> ClockFacts:
    """Measures the skew in several round trips and keeps the shortest, which is the most exact."""
    best: tuple[float, float] | None = None
    for _ in range(CLOCK_READINGS):
        began, before = c.clock.monotonic(), c.clock.now()
        theirs: datetime = await c.ours.fetchval("select clock_timestamp()")
        half = (c.clock.monotonic() - began) / 2
        skew = (before - theirs).total_seconds() + half
        if best is None or half < best[0]:
            best = half, skew
    assert best is not None
    rows = []
    if await c.ours.fetchval("select to_regclass('bellringer.nodes') is not null"):
        rows = await c.ours.fetch(
            "select name, skew from bellringer.nodes where seen_at > clock_timestamp() - $1::interval", NODE_SILENCE
        )
    return ClockFacts(
        skew_seconds=best[1], uncertainty_seconds=best[0], nodes={row["name"]: row["skew"] for row in rows}
    )
