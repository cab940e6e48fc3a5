"""Checks of sizing, autovacuum capacity, poolers, TLS and replication: readers of facts, and their judges."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bellringer.doctor.facts import Connections
from bellringer.doctor.results import CheckResult, ok, problem, warn
from bellringer.store.connection_pool import REQUIRED_SETTINGS, SETTINGS
from bellringer.store.dsn import describe_endpoints, endpoints, is_pooled

Results = Iterator[CheckResult]

MAX_BUFFERS_SHARE: Final = 0.4  # of the memory
MAX_WORK_MEM_SHARE: Final = 0.5  # of the memory, if every connection uses work_mem once
MANY_CONNECTIONS: Final = 500
MIN_AUTOVACUUM_WORKERS: Final = 3
MAX_NAPTIME_SECONDS: Final = 60
MIN_COST_LIMIT: Final = 200
MAX_LAG_BYTES: Final = 256 << 20
MAX_LAG_SECONDS: Final = 60.0
LOCAL_HOSTS: Final = frozenset({"", "localhost", "127.0.0.1", "::1"})
_NUMBERS: Final = """
select name, case unit when '8kB' then setting::int8 * 8192 when 'kB' then setting::int8 * 1024
                       when 'MB' then setting::int8 << 20 else setting::int8 end as value
from pg_settings where name = any ($1)
"""
_NAMES: Final = (
    *("shared_buffers", "work_mem", "max_connections", "autovacuum_max_workers", "autovacuum_naptime"),
    *("autovacuum_vacuum_cost_limit", "vacuum_cost_limit", "max_slot_wal_keep_size"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFacts:
    """Settings in bytes or counts; `memory` is None if the server runs on another machine."""

    numbers: Mapping[str, int]
    memory: int | None


async def read_sizes(c: Connections) -> SizeFacts:
    rows = await c.plain.fetch(_NUMBERS, list(_NAMES))
    is_here = all(host in LOCAL_HOSTS or host.startswith("/") for host, _ in endpoints(c.dsn))
    return SizeFacts(numbers={row["name"]: row["value"] for row in rows}, memory=_read_memory() if is_here else None)


def _read_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def judge_memory(facts: SizeFacts) -> Results:
    buffers, work_mem = facts.numbers["shared_buffers"], facts.numbers["work_mem"]
    connections, memory = facts.numbers["max_connections"], facts.memory
    if memory is None:
        yield ok("the memory of the server is not visible from this machine")
    elif buffers > MAX_BUFFERS_SHARE * memory:
        yield warn(
            f"shared_buffers takes {buffers * 100 // memory} % of {memory >> 20:,} MB of memory",
            "The file system's cache and the sessions need the rest; a quarter is usual.",
            f"alter system set shared_buffers = '{memory // 4 >> 20}MB'; -- then restart the server",
        )
    elif work_mem * connections > MAX_WORK_MEM_SHARE * memory:
        yield warn(
            f"work_mem × max_connections is {work_mem * connections >> 20:,} MB of {memory >> 20:,} MB of memory",
            "Sessions that sort at the same time may take more memory than there is. Bellringer's own use 4 MB each.",
            "alter system set work_mem = '4MB';",
            "select pg_reload_conf();",
        )
    else:
        yield ok(f"shared_buffers takes {buffers * 100 // memory} % of {memory >> 20:,} MB of memory")
    if connections > MANY_CONNECTIONS:
        yield warn(
            f"max_connections is {connections}",
            "Each connection is a process, and snapshots become slower with their number.",
            "put PgBouncer in transaction mode in between; see docs/database.md",
        )


def judge_autovacuum_capacity(facts: SizeFacts) -> Results:
    numbers, bad = facts.numbers, False
    limit = numbers["autovacuum_vacuum_cost_limit"]
    limit = numbers["vacuum_cost_limit"] if limit < 0 else limit
    advice = (
        ("autovacuum_max_workers", numbers["autovacuum_max_workers"], MIN_AUTOVACUUM_WORKERS, False),
        ("autovacuum_vacuum_cost_limit", limit, MIN_COST_LIMIT, False),
        ("autovacuum_naptime", numbers["autovacuum_naptime"], MAX_NAPTIME_SECONDS, True),
    )
    for name, found, bound, is_maximum in advice:
        if (found > bound) if is_maximum else (found < bound):
            bad = True
            restart = " -- then restart the server" if name == "autovacuum_max_workers" else ""
            yield warn(
                f"{name} is {found}",
                "Autovacuum reaches the queue and the timers too rarely or too slowly under load.",
                f"alter system set {name} = {15 if is_maximum else bound};{restart}",
                *(() if restart else ("select pg_reload_conf();",)),
            )
    if not bad:
        yield ok(f"autovacuum has {numbers['autovacuum_max_workers']} workers, every {numbers['autovacuum_naptime']} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """What lies between this process and the server."""

    where: str
    is_declared: bool  # whether the DSN says that there is a pooler
    is_pooler: bool  # whether the backend id differs from the one that the client was given
    wrong: Mapping[str, str]  # settings that sessions lack, as they are
    role: str
    is_local: bool
    is_encrypted: bool | None  # of the server's side of the connection


async def read_path(c: Connections) -> PathFacts:
    rows = await c.ours.fetch(
        "select name, current_setting(name) as value from unnest($1::text[]) name", list(REQUIRED_SETTINGS)
    )
    pid = await c.ours.fetchval("select pg_backend_pid()")
    return PathFacts(
        where=describe_endpoints(c.dsn),
        is_declared=is_pooled(c.dsn),
        is_pooler=pid != c.ours.get_server_pid(),
        wrong={row["name"]: row["value"] for row in rows if row["value"] != SETTINGS[row["name"]]},
        role=await c.ours.fetchval("select session_user::text"),
        is_local=all(host in LOCAL_HOSTS or host.startswith("/") for host, _ in endpoints(c.dsn)),
        is_encrypted=await c.ours.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()"),
    )


def judge_pooler(facts: PathFacts) -> Results:
    if facts.is_pooler and not facts.is_declared:
        yield problem(
            f"there is a pooler at {facts.where}, but the DSN does not say so",
            "Prepared statements and settings get lost if it pools by transaction.",
            "add pgbouncer=true to BELLRINGER_DSN, and set BELLRINGER_DIRECT_DSN",
        )
    elif facts.is_declared and not facts.is_pooler:
        yield warn(
            "the DSN says pgbouncer=true, but no pooler is in between",
            "Statements are planned each time, and notifications are not used.",
            "remove pgbouncer=true from BELLRINGER_DSN",
        )
    elif facts.is_declared and facts.wrong:
        found = ", ".join(f"{name} = {value}" for name, value in facts.wrong.items())
        yield problem(
            f"sessions behind the pooler have {found}",
            "Processes do not start: statements and functions rely on these settings.",
            f"bellringer roles settings {facts.role}",
        )
    else:
        yield ok("a pooler in transaction mode" if facts.is_declared else "no pooler")


def judge_tls(facts: PathFacts) -> Results:
    if facts.is_pooler:
        yield ok("TLS to the pooler is not visible to the server")
    elif facts.is_encrypted or facts.is_local:
        yield ok("the connection uses TLS" if facts.is_encrypted else "the server is on this machine")
    else:
        yield warn(
            f"the connection to {facts.where} is not encrypted",
            "Passwords, payloads and results can be read on the way.",
            "add sslmode=verify-full and sslrootcert to BELLRINGER_DSN; see docs/database.md",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyFacts:
    name: str
    state: str
    is_synchronous: bool
    lag_bytes: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    standbys: Sequence[StandbyFacts]
    slots: int
    kept_bytes: int  # max_slot_wal_keep_size; negative: no limit
    lost_slots: Sequence[str]


_STANDBYS: Final = """
select coalesce(nullif(application_name, ''), client_addr::text, pid::text) as name, coalesce(state, '?') as state,
       sync_state in ('sync', 'quorum') as is_synchronous, extract(epoch from replay_lag)::float8 as lag_seconds,
       case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::int8 end as lag_bytes
from pg_stat_replication order by 1
"""


async def read_replication(c: Connections) -> ReplicationFacts:
    slots = await c.plain.fetch("select slot_name::text as name, wal_status from pg_replication_slots")
    return ReplicationFacts(
        standbys=[StandbyFacts(**dict(row)) for row in await c.plain.fetch(_STANDBYS)],
        slots=len(slots),
        kept_bytes=await c.plain.fetchval(
            "select setting::int8 << 20 from pg_settings where name = 'max_slot_wal_keep_size'"
        ),
        lost_slots=[row["name"] for row in slots if row["wal_status"] == "lost"],
    )


def judge_replication(facts: ReplicationFacts) -> Results:
    bad = False
    for standby in facts.standbys:
        if (standby.lag_bytes or 0) > MAX_LAG_BYTES or (standby.lag_seconds or 0) > MAX_LAG_SECONDS:
            bad = True
            why = "Commits wait for it." if standby.is_synchronous else "A failover to it would lose that work."
            yield warn(
                f"the standby {standby.name} ({standby.state}) is {(standby.lag_bytes or 0) >> 20:,} MB behind",
                f"{why} Lists that are read from it are old.",
                "look at the load and the log of the standby",
            )
    for name in facts.lost_slots:
        bad = True
        yield problem(
            f"the replication slot {name} has lost its WAL",
            "Its standby cannot continue, and has to be made again.",
            f"select pg_drop_replication_slot('{name}');",
        )
    if facts.slots and facts.kept_bytes < 0:
        bad = True
        yield warn(
            "max_slot_wal_keep_size has no limit",
            "A slot without a reader retains WAL until the disk is full.",
            "alter system set max_slot_wal_keep_size = '10GB';",
            "select pg_reload_conf();",
        )
    if not bad:
        yield ok(f"{len(facts.standbys)} standby servers, none far behind" if facts.standbys else "no standby servers")
