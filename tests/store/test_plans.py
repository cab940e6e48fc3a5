"""Plans: the hot statements find their rows by an index, whatever the planner believes of the tables.

Each statement is executed, by custom and by generic plans, in a transaction that is rolled back; the server's own
counters then say which tables were read from end to end, which indexes were used, and how many entries were read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from bellringer.store.queries import load

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = "bellringer_template"
SMALL = {"leases", "pools", "tasks", "cluster", "schedules", "tenants", "workers", "nodes"}
HOT = ("jobs", "members", "cohorts", "queue", "timers", "dead_letters", "send_keys", "gaps")
MANY = 200_000
NOW = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(days=1, hours=12)
DAY = f"{NOW:%Y%m%d}"
HOLDER = uuid4()

_FILL = """
set local search_path to bellringer;
insert into tasks (name) values ('greet'), ('other');
insert into tenants (name) select 't' || n from generate_series(1, 9) n;
insert into schedules (kind, expression, timezone, anchor, seconds, dst)
  select 'every', n || 's', '', '', false, '' from generate_series(1, 100) n;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at, delay)
  select md5('job' || n)::uuid, 1 + n % 10, n % 64, 'job ' || n, 1, '{{}}', array[1 + n / 64 % 100], 1, 5, 'fire_once',
         'allow', '{now}', '{now}', case when n % 1000 = 0 then interval '1 hour' end
  from generate_series(1, {many}) n;
insert into members select shard, schedule_ids[1], job_id, tenant_id, 1, 1, 1, 5, 0, 0, '{now}', null from jobs;
insert into cohorts select shard, schedule_id, timestamptz '{now}' + interval '1 day', null from members group by 1, 2;
insert into timers
  select job_id, timestamptz '{now}' + n * interval '1 second', 0, timestamptz '{now}' + n * interval '1 second',
         shard, 1, 5, 0, 0, tenant_id, 1, 1, 'schedule', false, null
  from (select *, row_number() over () - 20 as n from jobs) j;
insert into runs
  select job_id, '{now}', 0, '{now}', 1, tenant_id, 1, 1, shard, 1, 5, 'schedule', 'queued', null, null from jobs;
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt,
                   worker_id, claimed_at, cause)
  select job_id, scheduled_for, 0, scheduled_for, tenant_id, 1, shard, 1, 5, (n % 100 = 0)::int,
         case when n % 100 = 0 then 1 + n / 100 % 20 end, case when n % 100 = 0 then scheduled_for end, 'schedule'
  from (select *, row_number() over () as n from runs) r;
insert into attempts
  select job_id, scheduled_for, slot, '{now}', '{now}', tenant_id, 1, 1, 9, 'ok', 'succeeded', null, null from runs;
insert into dead_letters
  select job_id, scheduled_for, slot, tenant_id, 1, 3, '{now}', 'dead', null, 'mark' from runs;
insert into workers (name, host, pid, version, pools, task_ids, state, started_at, seen_at)
  select 'w', 'h', 1, '', '{{"short": 1}}', array[1], case when n > 18 then 'lost' else 'live' end, now(), now()
  from generate_series(1, 20) n;
"""


@dataclass
class Reading:
    """What some statements read: tables from end to end, and entries by index."""

    scanned: set[str] = field(default_factory=set)
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        return max(self.entries.values(), default=0)


class Database:
    """One connection to the database of these tests."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self.connection = connection
        self.state = "empty"

    async def fill(self) -> None:
        async with self.connection.transaction():
            await self.connection.execute(_FILL.format(now=NOW.isoformat(), many=MANY))
        self.state = "large with the statistics of an empty one"

    async def analyse(self) -> None:
        await self.connection.execute("analyze")
        self.state = "large"

    async def reading(self, query: str, *arguments: Any, times: int = 2) -> Reading:
        """What a statement reads, at most, in each of its kinds of plan; nothing of it stays."""
        found = Reading()
        for mode in ("force_custom_plan", "force_generic_plan"):
            await self.connection.execute(f"set plan_cache_mode = {mode}")
            before = await self._counters()
            for _ in range(times):
                transaction = self.connection.transaction()
                await transaction.start()
                await self.connection.fetch(query, *arguments)
                await transaction.rollback()
            after = await self._counters()
            for (kind, name), value in after.items():
                read = (value - before.get((kind, name), 0)) / times
                if read and kind == "scan" and name.split("_2")[0] not in SMALL:
                    found.scanned.add(name)
                elif read and kind == "index":
                    found.entries[name] = max(found.entries.get(name, 0), round(read))
        return found

    async def _counters(self) -> dict[tuple[str, str], int]:
        await self.connection.execute("select pg_stat_force_next_flush()")
        rows = await self.connection.fetch(
            "select 'scan', relname, seq_scan from pg_stat_user_tables union all"
            " select 'index', indexrelname, idx_scan + idx_tup_read from pg_stat_user_indexes"
        )
        return {(kind, name): value for kind, name, value in rows}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def database(server: str) -> AsyncIterator[Database]:
    name = f"plans_{uuid4().hex[:8]}"
    owner = await asyncpg.connect(server)
    await owner.execute(f"create database {name} template {TEMPLATE}")
    connection = await asyncpg.connect(
        server.replace("/bellringer?", f"/{name}?"),
        server_settings={"search_path": "bellringer", "timezone": "UTC", "stats_fetch_consistency": "none"},
    )
    await connection.execute(
        f"create or replace function bellringer.now() returns timestamptz language sql stable as 'select timestamptz ''{NOW}'''"
    )
    await connection.execute("select ensure_days(array[$1::date])".replace("$1", f"'{NOW:%Y-%m-%d}'"))
    for table in (*HOT, f"runs_{DAY}", f"attempts_{DAY}"):
        await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
    await connection.execute("update leases set holder = $1, token = 1", HOLDER)
    await connection.execute("analyze")
    yield Database(connection)
    await connection.close()
    await owner.execute(f"drop database {name} with (force)")
    await owner.close()


def job(number: int) -> UUID:
    """The id of a job of the filled database."""
    from hashlib import md5

    return UUID(md5(f"job{number}".encode()).hexdigest())


JOBS = sorted(job(n) for n in range(100, 2100, 100))  # of those that are held by workers
HELD = [job(n) for n in range(1, 60)]
TICK = "select * from tick($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
SETTLE = "select settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
REGISTER = "select * from register($1::jsonb, $2, 'me', $3, $4, $5, $6)"


def settle_arguments(worker: int, ends: str | None) -> list[Any]:
    n = len(JOBS)
    return [
        worker, JOBS, [NOW] * n, [0] * n, [1] * n, ["ok"] * n, [ends] * n, [0.0] * (n // 2) + [99.0] * (n - n // 2),
        [True] * n, [0.1] * n, *([[None] * n] * 4),
    ]  # fmt: skip


def register_arguments(number: int, expected: int) -> list[Any]:
    document = {
        "job_id": str(job(number)), "tenant_id": 1 + number % 10, "shard": number % 64, "name": f"new {number}",
        "task_id": 1, "spec": {}, "schedules": [], "schedule_ids": [1], "pool_id": 1, "priority": 5,
        "misfire": "fire_once", "overlap": "allow", "enabled": True, "owner": "me", "tags": [], "expected": expected,
    }  # fmt: skip
    soon = [NOW + timedelta(seconds=s) for s in range(1, 13)]
    return [json.dumps([document]), NOW, [1], [soon[0]], [1] * 12, soon]


CASES: dict[str, tuple[str, list[Any], set[str], int]] = {
    # name: statement, arguments, indexes that a large table is read by, entries of one index at most
    "tick": (
        TICK,
        [HOLDER, [0, 1], [1, 1], [0] * 20 + [1] * 20, [*range(1, 21)] * 2, [NOW + timedelta(days=1)] * 40,
         [NOW + timedelta(days=2)] * 40, timedelta(days=2), 8000, False],
        {"cohorts_pkey", "members_pkey"},
        6000,
    ),
    "tick with care": (
        TICK,
        [HOLDER, [0], [1], [0] * 20, [*range(1, 21)], [NOW + timedelta(days=1)] * 20,
         [NOW + timedelta(days=2)] * 20, timedelta(days=2), 8000, True],
        {"cohorts_pkey", "members_pkey", f"runs_{DAY}_pkey"},
        6000,
    ),
    "tick in a chunk": (
        TICK,
        [HOLDER, [0], [1], [0], [1], [NOW + timedelta(days=1)], [NOW + timedelta(days=2)], timedelta(days=2), 10, False],
        {"cohorts_pkey", "members_pkey"},
        100,
    ),
    "jump": (
        "select * from jump($1, $2, $3, $4, $5, $6, $7, $8)",
        [HOLDER, [0], [1], [0] * 10, [*range(1, 11)], [NOW + timedelta(days=1)] * 10, [NOW] * 10, [1] * 10],
        {"cohorts_pkey"},
        5000,
    ),
    "ring": ("select * from ring($1, $2, $3, $4, $5)", [HOLDER, [*range(64)], [1] * 64, timedelta(0), 100],
             {"timers_due"}, 1000),
    "claim": ("select * from claim(1, 1::smallint, array[1, 2], 100, 100, -1)", [], {"queue_ready", "jobs_pkey"}, 1000),
    "claim in turn": ("select * from claim(1, 1::smallint, array[1, 2], 100, 10, $1)", [5],
                      {"queue_ready", "jobs_pkey"}, 2000),
    "settle": (SETTLE, settle_arguments(2, "succeeded"), {"queue_pkey"}, 200),
    "settle for another attempt": (SETTLE, settle_arguments(2, None), {"queue_pkey", "jobs_pkey"}, 500),
    "give back": ("select give_back($1, $2, $3, $4, $5)", [2, JOBS, [NOW] * 20, [0] * 20, [1] * 20],
                  {"queue_pkey", "jobs_pkey"}, 500),
    "create": (REGISTER, register_arguments(MANY + 1, 0), {"cohorts_pkey"}, 500),
    "change": (REGISTER, register_arguments(77, 1), {"jobs_pkey", "members_pkey", "queue_pkey", "timers_pkey"}, 500),
    "pause": ("select pause($1, $2, 'me', null, null)", [job(77), 8], {"jobs_pkey", "members_pkey", "queue_pkey"}, 500),
    "delete": ("select retire($1, $2, 'me')", [job(77), 8], {"jobs_pkey", "queue_pkey", "timers_pkey"}, 500),
    "send": ("select * from send(1, $1, 0::smallint, 1, 1::smallint, 5::smallint, null, '{}', 'key', 'send')",
             [UUID(int=1)], set(), 100),
    "trigger": ("select * from trigger_job($1, $2, null)", [job(77), 8], {"jobs_pkey"}, 100),
    "cancel": ("select cancel($1, $2, 0, $3, 'no')", [job(77), NOW, 8], {"queue_pkey"}, 100),
    "redrive": ("select redrive($1, $2, $3, $4)", [8, [job(77)], [NOW], [0]],
                {"dead_letters_pkey", f"runs_{DAY}_pkey"}, 100),
    "hasten": ("select hasten($1, $2, $3, 0)", [8, job(77), NOW], {"queue_pkey"}, 100),
    "coming": (load("cohorts").coming, [[*range(64)], NOW, 10_000], {"cohorts_due"}, 1000),
    "rung": (load("cohorts").rung, [[*range(64)], NOW], {"timers_due"}, 1000),
    "held": (load("queue").held, [7, 10], {"queue_held"}, 2000),
    "cancels": (load("queue").cancels, [7], {"queue_held"}, 2000),
    "report": (load("queue").report, [2, JOBS[:1], [NOW], [0], [1], ["{}"]], {"queue_pkey"}, 100),
    "unpark": (load("queue").unpark, [1000], {"queue_blocked"}, 1000),
    "park": (load("queue").park, [1000], {"queue_ready"}, 20_000),
    "indebted": (load("workers").indebted, [], {"queue_held"}, 5000),
    "lapsed": (load("jobs").lapsed, [100], {"jobs_paused_until"}, 100),
    "find": (load("jobs").find, [8, "JOB 77"], {"jobs_name"}, 100),
    "find many": (load("jobs").find_many, [8, ["job 77"]], {"jobs_name"}, 100),
    "get a job": (load("jobs").get, [job(77), 8], {"jobs_pkey"}, 1000),
    "get a run": (load("runs").get, [job(77), NOW, 0, 8], {f"runs_{DAY}_pkey"}, 100),
    "attempts": (load("runs").attempts, [job(77), NOW, 0], {f"attempts_{DAY}_pkey"}, 100),
    "runs of a job": (load("runs").of_job, [job(77), 8, None, None, 10], {f"runs_{DAY}_pkey"}, 1000),
}  # fmt: skip


async def complaints(database: Database) -> list[str]:
    found = []
    for name, (query, arguments, indexes, most) in CASES.items():
        read = await database.reading(query, *arguments)
        large = database.state != "empty"
        if large and read.scanned:
            found.append(f"{name} reads all of {', '.join(sorted(read.scanned))}")
        if large and not indexes <= read.entries.keys():
            found.append(f"{name} does not use {indexes - read.entries.keys()}, but {sorted(read.entries)}")
        if read.most > most:
            found.append(f"{name} reads too much: {read.entries}")
    return found


@contextmanager
def told(state: str) -> Iterator[None]:
    yield


async def test_no_plan_reads_too_much_while_the_database_is_empty(database: Database) -> None:
    assert await complaints(database) == []


async def test_no_plan_reads_too_much_when_tables_have_grown_since_they_were_analysed(
    database: Database,
) -> None:
    await database.fill()
    assert await complaints(database) == []


async def test_no_plan_reads_too_much_when_tables_are_large_and_analysed(database: Database) -> None:
    await database.analyse()
    assert await complaints(database) == []
