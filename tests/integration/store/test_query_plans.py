"""Plans: the hot statements find their rows by an index, whatever the planner believes of the tables.

Each statement is executed in a transaction that is rolled back; the server's own counters then say how many rows of
which table were read from end to end, and how many entries of which index.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from bellringer.schedule.instants import EPOCH
from bellringer.store.connection_pool import SETTINGS
from bellringer.store.queries import load
from bellringer.testing.postgres import TestServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOT = (
    *("jobs", "members", "cohorts", "queue", "timers", "dead_letters", "discarded_dead_letters", "send_keys", "gaps"),
    *("backfills", "events"),
)
MANY, SOME = 200_000, 40_000
FEW = 1_000  # rows of a small table
LINE = 2_000  # runs of one job that wait
CROWD = 400  # tenants that have work in one pool
NOW = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(days=1, hours=12)
TOMORROW = NOW + timedelta(days=1)
LATE = NOW - timedelta(hours=1)
DAY = f"{NOW:%Y%m%d}"
HOLDER = uuid4()
REPEATED = 6  # after five executions a plan may become one for all arguments

NAMES = """
insert into tasks (name) values ('greet'), ('other');
insert into tenants (name) select 't' || n from generate_series(1, 9) n;
insert into schedules (kind, expression, timezone, anchor, seconds, dst, calendar)
  select 'every', n || 's', '', '', false, '', '' from generate_series(1, 110) n;
insert into workers (name, host, pid, version, pools, task_ids, state, started_at, seen_at)
  select 'w', 'h', 1, '', '{"short": 1}', array[1], case when n > 18 then 'lost' else 'live' end, now(), now()
  from generate_series(1, 20) n;
insert into workers (name, host, pid, version, pools, task_ids, started_at, seen_at)
  values ('busy', 'h', 1, '', '{"long": 1}', array[1], now(), now());
insert into pools (name) values ('narrow'), ('crowd'), ('capped');
insert into pools (name, concurrency, rate) values ('bounded', 100000, 1000);
insert into limits (tenant_id, key, most)
  select 1, 'key ' || n, case when n < 10 then 1 else 50 end from generate_series(1, 300) n;
"""
JOBS = f"""
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at, delay, routed)
  select md5('job' || n)::uuid, 1 + n % 10, n % 64, 'job ' || n, 1, '{{}}', array[1 + n / 64 % 100], 1, 5, 'fire_once',
         'allow', '{NOW}', '{NOW}', case when n % 1000 = 0 then interval '1 hour' end, n = 77
  from generate_series(1, {MANY}) n where"""
FILL = f"""
set local statement_timeout = 0;
set local synchronous_commit = off;
set local synchronize_seqscans = off;  -- the first jobs are those that have runs
{JOBS} n <> 77;
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                     active_since)
  select shard, schedule_ids[1], job_id, tenant_id, 1, 1, 1, 5, ascii(right(job_id::text, 1)) % 3, 0, '{NOW}' from jobs;
insert into cohorts (shard, schedule_id, next_at) select shard, schedule_id, '{TOMORROW}' from members group by 1, 2;
update cohorts set next_at = '{LATE}' where schedule_id = 100;
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt,
                   worker_id, claimed_at, cause)
  select job_id, '{NOW}', 0, '{NOW}', tenant_id, 1, shard, 1, 5, (n % 100 = 0)::int,
         case when n % 100 = 0 then 1 + n / 100 % 20 end, case when n % 100 = 0 then timestamptz '{NOW}' end, 'schedule'
  from (select *, row_number() over () as n from jobs) j;
insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause)
  select job_id, due_at, 0, due_at, shard, 1, 5, tenant_id, 1, 'schedule'
  from (select *, timestamptz '{NOW}' + (row_number() over () - 20.5) * interval '1 second' as due_at
        from jobs limit {SOME}) j;
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state)
  select job_id, '{NOW}', 0, '{NOW}', 1, tenant_id, 1, shard, 1, 5, 'schedule', 'queued' from jobs limit {SOME};
insert into attempts (job_id, scheduled_for, slot, finished_at, tenant_id, attempt, outcome, ends_as)
  select job_id, scheduled_for, slot, '{NOW}', tenant_id, 9, 'ok', 'succeeded' from runs;
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)
  select job_id, scheduled_for, slot, tenant_id, 1, 3, '{NOW}', 'dead', 'mark' from runs;
insert into discarded_dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason,
                                    fingerprint, discarded_at)
  select job_id, scheduled_for, slot, tenant_id, 1, 3, '{NOW}', 'dead', 'mark', '{NOW}' from runs;
insert into send_keys (tenant_id, task_id, key, job_id, scheduled_for, slot, expires_at)
  select tenant_id, 1, job_id, job_id, scheduled_for, 0, scheduled_for from runs;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at, done_at, after_completion)
  select md5('done' || n)::uuid, 1 + n % 10, n % 64, 'done ' || n, 1, '{{}}', array[1 + n % 100], 1, 5, 'skip', 'allow',
         '{NOW}', '{NOW}', timestamptz '{NOW}' - n * interval '1 s', (array['keep', 'delete'])[1 + n % 2]
  from generate_series(1, {SOME}) n;
insert into job_revisions (job_id, revision, effective_at, what, who, definition, dropped_schedules)
  select job_id, 0, '{NOW}', 'created', 'me', definition_of(j), array[1] from jobs j where done_at is not null;
update schedules set check_at = '{LATE}' where schedule_id % 2 = 0;
"""
# Work that is held, in a pool of its own: jobs that do not overlap, with a run under way; behind it one that waits, one
# whose time has not come, or, of the first twenty, one to decide on; runs that a freeze holds; keys with a long line,
# nine of them at their limit; a line of a job that is at its own limit, within a key that is not; backfills; and crowds
# of tenants, which may have as much under way as they like, or one run, which they have.
RUN = "job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, blocked"
HELD = f"""
create temporary table overs on commit drop as
  select md5('over' || n)::uuid as job_id, n, 1 + n % 10 as tenant_id, n % 64 as shard, 1 + n % 4 as overlap,
         n <= 20 as undecided, n % 2 = 0 as due
  from generate_series(1, {SOME}) n;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at)
  select job_id, tenant_id, shard, 'over ' || n, 1, '{{}}', array[101], 2, 5, 'skip',
         (array['skip', 'queue', 'collapse', 'replace'])[overlap], '{NOW}', '{NOW}' from overs;
update jobs set pause_after_failures = 1000, spec = '{{"keep_result": true}}' where name like 'over %';
insert into job_outcomes (job_id, tenant_id, failures) select job_id, tenant_id, 1 from overs;
insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                     active_since)
  select shard, 101, job_id, tenant_id, 1, 1, 2, 5, 1, overlap, '{NOW}' from overs;
insert into cohorts (shard, schedule_id, next_at) select shard, 101, '{TOMORROW}' from overs group by 1;
insert into queue ({RUN}, attempt, worker_id, claimed_at)
  select job_id, '{NOW}', 0, '{NOW}', tenant_id, 1, shard, 2, 5, 'schedule', 0, 1, 21, '{NOW}' from overs;
insert into queue ({RUN})
  select job_id, timestamptz '{NOW}' + interval '1 s', 0,
         case when undecided or due then timestamptz '{NOW}' else '{TOMORROW}' end,
         tenant_id, 1, shard, 2, 5, 'schedule', case when undecided or not due then 18 else 2 end from overs;
insert into queue ({RUN})
  select md5('frozen' || n)::uuid, '{NOW}', 0, '{NOW}', 1 + n % 2, 1, n % 64, 2, 5, 'schedule', 8
  from generate_series(1, {SOME}) n;
insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at)
  select n, 'freeze', '{NOW}', timestamptz '{TOMORROW}' + interval '1 s', 'defer', 'me', '{NOW}'
  from generate_series(1, 2) n;
insert into queue ({RUN}, key_id, worker_id, attempt)
  select md5('limited' || n)::uuid, '{NOW}', 0, '{NOW}', 1, 1, n % 64, 2, 5, 'schedule', 32,
         1 + n % 9, case when n <= 9 then 21 end, (n <= 9)::int from generate_series(1, {SOME}) n;
insert into queue ({RUN}, key_id)
  select md5('open' || n)::uuid, '{NOW}', 0, '{NOW}', 1, 1, n % 64, 2, 5, 'schedule', 32, 10 + n % 290
  from generate_series(1, 5000) n;
insert into queue ({RUN}, key_id, cap, worker_id, attempt)
  select md5('capped')::uuid, timestamptz '{NOW}' + n * interval '1 ms', 0, '{NOW}', 1, 1, 0, 3, 9, 'schedule', 32,
         300, 1, case when n = 1 then 21 end, (n = 1)::int from generate_series(1, {LINE}) n;
insert into queue ({RUN}, key_id)
  select md5('behind it' || n)::uuid, '{NOW}', 0, '{NOW}', 1, 1, 0, 3, 5, 'schedule', 32, 300
  from generate_series(1, 10) n;
insert into queue ({RUN})
  select md5('back' || n)::uuid, '{NOW}', 1, '{NOW}', 1 + n % 10, 1, n % 64, 2, -5, 'backfill', 0
  from generate_series(1, {SOME}) n;
insert into queue ({RUN}, expires_at)  -- a few have expired
  select md5('expiring' || n)::uuid, '{NOW}', 0, '{NOW}', 1, 1, n % 64, 6, 5, 'send', 1,
         timestamptz '{NOW}' - (20 - n) * interval '1 s'
  from generate_series(1, {SOME}) n;
insert into tenants (name, quotas)
  select 'crowd ' || n, case when n > {CROWD} then '{{"in_flight": 1}}' else '{{}}' end::jsonb
  from generate_series(1, 2 * {CROWD}) n;
insert into queue ({RUN})
  select md5('crowd' || n || t.name)::uuid, '{NOW}', 0, '{NOW}', t.tenant_id, 1, 0,
         case when t.quotas ? 'in_flight' then 5 else 4 end, n, 'schedule', 0
  from tenants t cross join generate_series(1, 20) n where t.name like 'crowd %';
insert into queue ({RUN}, worker_id, attempt)
  select md5('taken' || t.name)::uuid, '{NOW}', 0, '{NOW}', t.tenant_id, 1, 0, 5, 5, 'schedule', 0,
         1 + t.tenant_id % 20, 1
  from tenants t where t.quotas ? 'in_flight';
"""


@dataclass
class Reading:
    """What some statements read: tables from end to end, and entries by index."""

    scanned: set[str] = field(default_factory=set)
    entries: dict[str, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        return max(self.entries.values(), default=0)


class Client:
    """One connection, which keeps its plans."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self.connection = connection

    async def reading(self, query: str, arguments: Sequence[Any], repeated: int) -> Reading:
        """What a statement reads at its last execution; nothing of it stays."""
        found = Reading()
        for last in (*[False] * repeated, True):
            before = await self._counters() if last else {}
            transaction = self.connection.transaction()
            await transaction.start()
            try:
                await self.connection.fetch(query, *arguments)
            finally:
                await transaction.rollback()
        after = await self._counters()
        for (kind, name), value in after.items():
            read = value - before.get((kind, name), 0)
            if kind == "table" and read > FEW:
                found.scanned.add(name)
            elif kind == "index" and read:
                found.entries[name] = read
        return found

    async def _counters(self) -> dict[tuple[str, str], int]:
        await self.connection.execute("select pg_stat_force_next_flush()")
        rows = await self.connection.fetch(
            "select 'table', relname, seq_tup_read from pg_stat_user_tables union all"
            " select 'index', indexrelname, idx_scan + idx_tup_read from pg_stat_user_indexes"
        )
        return {(kind, name): value for kind, name, value in rows}


@dataclass
class Database:
    """The database of these tests."""

    dsn: str
    seasoned: Client  # it has met every statement often while all was empty
    filled: bool = False

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Client]:
        """A connection that has no plans yet."""
        connection = await connect(self.dsn)
        yield Client(connection)
        await connection.close()

    async def fill(self) -> None:
        """Let the tables grow; the statistics stay those of empty ones."""
        if not self.filled:
            async with self.seasoned.connection.transaction():
                await self.seasoned.connection.execute(FILL)
                await self.seasoned.connection.execute(HELD)
            self.filled = True


async def connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(dsn, server_settings={**SETTINGS, "stats_fetch_consistency": "none"})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def database(bellringer_server: TestServer) -> AsyncIterator[Database]:
    dsn = await bellringer_server.create()
    connection = await connect(dsn)
    await connection.execute(
        "create or replace function bellringer.now() returns timestamptz language sql stable as "
        f"$$ select timestamptz '{NOW}' $$"
    )
    await connection.execute(f"select ensure_days(array['{NOW:%Y-%m-%d}', '{TOMORROW:%Y-%m-%d}']::date[])")
    for table in (*HOT, f"runs_{DAY}", f"attempts_{DAY}"):
        await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
    await connection.execute(NAMES)
    await connection.execute("update leases set holder = $1, token = 1", HOLDER)
    await connection.execute("analyze")
    await connection.execute(f"{JOBS} n = 77")  # the one that is changed
    yield Database(dsn, Client(connection))
    await connection.close()
    await bellringer_server.drop(dsn)


def job(number: int) -> UUID:
    """The id of a job of the filled database."""
    return UUID(md5(f"job{number}".encode()).hexdigest())


ENDED = sorted(job(n) for n in range(100, 2100, 100))
TWENTY = len(ENDED)


def over(number: int) -> UUID:
    """The id of a job that does not overlap."""
    return UUID(md5(f"over{number}".encode()).hexdigest())


OVER = sorted(over(n) for n in range(1, 21))  # what waits behind these is to be decided on


def settled(ends: str | None, jobs: Sequence[UUID] = ENDED, worker: int = 2, progress: str | None = None) -> list[Any]:
    waits = [0.0] * 10 + [99.0] * 10
    reason, fingerprint = ("why", "mark") if ends == "dead" else (None, None)
    rest = (True, 0.1, 0.0, None, None, reason, fingerprint)
    endings = [(job_id, NOW, 0, 1, "ok", ends, wait, *rest) for job_id, wait in zip(jobs, waits, strict=True)]
    return [worker, endings, False, False, progress and [progress] * TWENTY]


def claimed(pool: int, most: int, *, after: int = -1, behind: int | None = None, tenants: int = 200) -> list[Any]:
    return [1, pool, [1, 2], most, after, 0, most if behind is None else behind, tenants]


def registered(number: int, expected: int) -> list[Any]:
    document = {
        "jobs": [[str(job(number)), number % 64, f"new {number}", {}]],
        "tenant_id": 1 + number % 10, "task_id": 1, "schedules": [], "schedule_ids": [1], "pool_id": 1, "priority": 5,
        "misfire": "fire_once", "overlap": "skip", "enabled": True, "owner": "me", "tags": [], "expected": expected,
        "catchup": {}, "jitter_by": 0, "routed": False, "after_completion": "keep",
    }  # fmt: skip
    soon = [NOW + timedelta(seconds=s) for s in range(1, 13)]
    actors = json.dumps({str(job(number)): {"who": "me", "origin": None, "request_id": "r"}})
    return [json.dumps([document]), [number % 64], NOW, "me", [1], [soon[0]], [1] * 12, soon, None, actors]


def struck(shards: int, schedules: int, most: int, *, careful: bool = False, first: int = 1) -> list[Any]:
    count = shards * schedules
    held = list(range(shards))
    return [
        HOLDER, held, [1] * shards, held * schedules, sorted([*range(first, first + schedules)] * shards),
        [TOMORROW] * count, [TOMORROW] * count, [TOMORROW + timedelta(days=1)] * count, timedelta(days=2),
        timedelta(minutes=1), most, None, careful,
    ]  # fmt: skip


of_cohorts, of_jobs, of_queue, of_runs, of_workers = map(load, ("cohorts", "jobs", "queue", "runs", "workers"))
of_pools, of_partitions, of_overview = map(load, ("pools", "partitions", "overview"))
ALL = list(range(64))
# What is executed with what, the indexes that it must use on large tables, and how many entries of one it may read.
CASES: dict[str, tuple[str, list[Any], set[str], int]] = {
    "tick": (of_cohorts.tick, struck(2, 20, 8000), {"cohorts_pkey", "members_pkey"}, 6000),
    "tick with care": (
        of_cohorts.tick,
        struck(1, 20, 8000, careful=True),
        {"cohorts_pkey", "members_pkey"},
        6000,
    ),
    "tick in a chunk": (of_cohorts.tick, struck(1, 1, 10), {"cohorts_pkey", "members_pkey"}, 100),
    "fast forward": (
        of_cohorts.fast_forward,
        [HOLDER, [0, 1], [1, 1], [0, 1], [100, 100], [LATE] * 2, [NOW - timedelta(minutes=1)] * 2, [59] * 2, 8000],
        {"cohorts_pkey", "members_pkey"},
        500,
    ),
    "fire timers": (
        of_cohorts.fire_timers,
        [HOLDER, ALL, [1] * 64, timedelta(0), 100, False],
        {"timers_due", "jobs_pkey"},
        1000,
    ),
    "fire timers with care": (
        of_cohorts.fire_timers,
        [HOLDER, ALL, [1] * 64, timedelta(0), 100, True],
        {"timers_due", "jobs_pkey"},
        1000,
    ),
    "tick of jobs that do not overlap": (  # 2 shards of 625 members, each with runs of its own in the queue
        of_cohorts.tick,
        struck(2, 1, 8000, first=101),
        {"cohorts_pkey", "members_pkey", "queue_pkey"},
        8000,
    ),
    "tick of jobs that do not overlap, in a chunk": (
        of_cohorts.tick,
        struck(1, 1, 10, first=101),
        {"cohorts_pkey", "members_pkey", "queue_pkey"},
        150,
    ),
    "decide": (of_queue.decide_overlaps, [1000], {"queue_blocked", "queue_pkey"}, 1000),
    "unblock next": ("select unblock_next($1, $1)", [OVER], {"queue_pkey"}, 500),
    "free orphans": (of_queue.unblock_orphans, [EPOCH, UUID(int=0), 100], {"queue_waiting"}, 3000),
    "free orphans further on": (of_queue.unblock_orphans, [NOW, over(7), 100], {"queue_waiting"}, 3000),
    "thaw while all is frozen": (of_queue.release_frozen, [1000], {"queue_blocked"}, 3000),
    "held by": ("select initial_block_flags($1, 8, 1::smallint, null, $2, 1)", [over(7), NOW], {"queue_pkey"}, 50),
    "claim": (of_queue.claim, claimed(1, 100), {"queue_ready", "jobs_pkey"}, 1000),
    "claim in turn": (of_queue.claim, claimed(1, 100, after=5), {"queue_ready", "jobs_pkey"}, 1000),
    "claim a few of a crowd": (of_queue.claim, claimed(4, 10, after=99, tenants=30), {"queue_ready"}, 300),
    "claim of a crowd": (of_queue.claim, claimed(4, 100, after=99), {"queue_ready", "tenants_pkey"}, 2000),
    "claim of a capped crowd": (of_queue.claim, claimed(5, 100), {"queue_ready", "tenants_pkey", "queue_held"}, 10_000),
    "claim what is limited": (
        "select claim_limited(1, 2::smallint, array[1], 100, false)",
        [],
        {"queue_limited"},
        3000,
    ),
    "claim past a job at its own limit": (of_queue.claim, claimed(3, 10), {"queue_limited"}, 5000),
    "claim what is behind": (of_queue.claim, claimed(2, 100, behind=10), {"jobs_pkey"}, 3000),
    "claim what is behind, in turn": (of_queue.claim, claimed(2, 100, after=5, behind=10), {"jobs_pkey"}, 3000),
    "claim of a pool with bounds": (of_queue.claim, claimed(7, 100), {"queue_held"}, 300),
    "bounds of a pool": ("select * from pool_limits(7::smallint)", [], {"queue_held"}, 300),
    "signals": (of_pools.signals, [], {"queue_ready", "queue_held"}, 60_000),
    "jobs that take long": (of_pools.running_since, [1, NOW, 500], {"queue_held"}, 60_000),
    "jobs that have shown to be long": (of_pools.learned, [UUID(int=0), 500], set(), 500),
    "routed jobs": (of_pools.routed, [[job(n) for n in range(1, 500)], 1, 2], {"jobs_pkey"}, 1000),
    "route a job": (
        of_pools.change_pool,
        [job(77), 1, 2, True, "me", "x"],
        {"jobs_pkey", "members_pkey", "queue_pkey", "timers_pkey"},
        500,
    ),
    "settle what others wait for": (
        of_queue.settle,
        settled("succeeded", OVER, 21),
        {"queue_pkey", "jobs_pkey"},
        600,
    ),
    "cancel what others wait for": (of_runs.cancel, [over(7), NOW, 0, 8, "no"], {"queue_pkey"}, 100),
    "pause a job of a large cohort": (
        of_jobs.pause,
        [over(7), 8, "me", None, None],
        {"jobs_pkey", "members_pkey", "queue_pkey"},
        500,
    ),
    "settle": (of_queue.settle, settled("succeeded"), {"queue_pkey"}, 200),
    "settle for another attempt": (of_queue.settle, settled(None), {"queue_pkey", "jobs_pkey"}, 500),
    "settle with the last progress": (
        of_queue.settle,
        settled(None, progress='{"done": 1}'),
        {"queue_pkey", "jobs_pkey"},
        500,
    ),
    "settle dead runs of jobs that may be paused": (
        of_queue.settle,
        settled("dead", OVER, 21),
        {"queue_pkey", "jobs_pkey", "job_outcomes_pkey"},
        800,
    ),
    "begin attempts": (
        of_queue.begin,
        [2, ENDED, [NOW] * TWENTY, [0] * TWENTY, [1] * TWENTY],
        {"queue_pkey"},
        300,
    ),
    "first starts": (of_queue.first_starts, [ENDED, [NOW] * TWENTY, [0] * TWENTY], {f"attempts_{DAY}_pkey"}, 500),
    "last results": (of_queue.last_results, [OVER, [NOW] * TWENTY, [0] * TWENTY], {"job_outcomes_pkey"}, 500),
    "expire runs": (of_queue.expire, [1000], {"queue_expiring"}, 1000),
    "jobs that were paused by failures": (of_overview.failing_pauses, [1, 8], set(), 100),
    "give back": (
        of_queue.give_back,
        [2, ENDED, [NOW] * TWENTY, [0] * TWENTY, [1] * TWENTY],
        {"queue_pkey", "jobs_pkey"},
        500,
    ),
    "create": (of_jobs.register, registered(MANY + 1, 0), {"cohorts_pkey"}, 500),
    "change": (of_jobs.register, registered(77, 1), {"jobs_pkey", "members_pkey", "queue_pkey", "timers_pkey"}, 500),
    "pause": (of_jobs.pause, [job(77), 8, "me", None, None], {"jobs_pkey", "members_pkey", "queue_pkey"}, 500),
    "delete": (of_jobs.delete, [job(77), 8, "me"], {"jobs_pkey", "queue_pkey", "timers_pkey"}, 500),
    "send": (
        of_runs.send,
        [1, UUID(int=1), 0, 1, 1, 5, None, None, "{}", "key", "send", True, False],
        {"send_keys_pkey"},
        100,
    ),
    "send many": (
        of_runs.send_many,
        [
            *(1, [UUID(int=n) for n in range(TWENTY)], [0] * TWENTY, [1] * TWENTY, [1] * TWENTY, [5] * TWENTY, [], []),
            *(["{}"] * TWENTY, [f"key {n}" for n in range(TWENTY)], True, True),
        ],
        {"send_keys_pkey"},
        500,
    ),
    "trigger": (of_runs.trigger, [job(77), 8, None], {"jobs_pkey"}, 100),
    "cancel": (of_runs.cancel, [job(77), NOW, 0, 8, "no"], {"queue_pkey"}, 100),
    "redrive": (of_runs.redrive, [8, [job(77)], [NOW], [0]], {"dead_letters_pkey", f"runs_{DAY}_pkey"}, 100),
    "discard": (of_runs.discard, [8, [job(87)], [NOW], [0], None], {"dead_letters_pkey"}, 100),
    "restore discarded": (
        of_runs.restore_discarded,
        [8, [job(97)], [NOW], [0], NOW - timedelta(hours=1)],
        {"discarded_dead_letters_pkey", f"runs_{DAY}_pkey"},
        100,
    ),
    "retry_now": (of_runs.retry_now, [8, job(77), NOW, 0], {"queue_pkey"}, 100),
    "upcoming": (of_cohorts.upcoming, [ALL, NOW, 10_000], {"cohorts_due"}, 1000),
    "due soon": (
        of_cohorts.due_soon,
        [ALL, timedelta(0), timedelta(0), 10_000],
        {"cohorts_due", "timers_due"},
        1000,
    ),
    "steps with work": ("select steps_with_work($1)", [ALL], {"queue_blocked"}, 1000),
    "held": (of_queue.held, [7, 10], {"queue_held"}, 1000),
    "cancels": (of_queue.cancels, [7], {"queue_held"}, 1000),
    "report": (of_queue.report, [2, ENDED[:1], [NOW], [0], [1], ["{}"]], {"queue_pkey"}, 100),
    "unblock_known_tasks": ("select unblock_known_tasks(1000)", [], {"queue_blocked"}, 1000),
    "block_unknown_tasks": ("select block_unknown_tasks(1000)", [], {"queue_ready"}, 10_000),
    "report unknown tasks": ("select report_unknown_tasks($1, $1, 1000)", [NOW], {"queue_parked"}, 5000),
    "unknown tasks": ("select unknown_tasks_of(8, 8, 1000)", [], set(), 1000),
    "report skips": ("select report_skips($1, 10, 500)", [NOW], {"queue_held"}, 60_000),
    "rearm orphans": (of_queue.rearm_orphans, [], {"jobs_delay"}, 2000),
    "overdue": (of_cohorts.overdue, [timedelta(seconds=10), 300], {"cohorts_due", "timers_due", "members_pkey"}, 1000),
    "indebted": (of_workers.lost_with_runs, [], {"queue_held"}, 5000),
    "held before": (of_workers.held_before, [2, NOW], {"queue_held"}, 1000),
    "begin": (of_queue.begin, [2, ENDED, [NOW] * TWENTY, [0] * TWENTY, [1] * TWENTY], {"queue_pkey"}, 500),
    "lapsed": (of_jobs.expired_pauses, [100], {"jobs_paused_until"}, 100),
    "finish": (
        of_jobs.finish,
        [EPOCH, UUID(int=0), -1, 0, UUID(int=0), 1000],
        {"jobs_ending", "cohorts_due"},
        5000,
    ),
    "delete done jobs": (of_jobs.delete_done, [EPOCH, UUID(int=0), 20], {"jobs_done_to_delete", "jobs_pkey"}, 500),
    "forget jobs": (of_partitions.forget_jobs, [NOW - timedelta(hours=1), 20], {"jobs_done_at"}, 500),
    "forget schedules": (of_partitions.forget_schedules, [20], {"schedules_to_check", "members_pkey"}, 500),
    "declared by code": (of_jobs.of_code, [8, 1000, None], set(), 1000),
    "find": (of_jobs.find, [8, "JOB 77"], {"jobs_name"}, 100),
    "get a job": (of_jobs.get, [[job(77)], 8], set(), 1000),
    "get a run": (
        of_runs.get,
        [[job(77)], [NOW], [0], 8, NOW - timedelta(hours=1), NOW + timedelta(hours=1)],
        {f"runs_{DAY}_pkey", f"attempts_{DAY}_pkey"},
        100,
    ),
    "runs of a job": (of_runs.of_job, [job(77), 8, None, None, 10], {f"runs_{DAY}_pkey"}, 1000),
}


async def complaints(client: Client, *, large: bool, repeated: int = REPEATED) -> list[str]:
    """What is wrong with the plans of a connection."""
    found = []
    for name, (query, arguments, indexes, most) in CASES.items():
        read = await client.reading(query, arguments, repeated)
        if read.scanned:
            found.append(f"{name} reads all of {', '.join(sorted(read.scanned))}")
        if large and not indexes <= read.entries.keys():
            found.append(f"{name} does not use {sorted(indexes - read.entries.keys())}")
        if read.most > most:
            found.append(f"{name} reads too much: {read.entries}")
    return found


async def test_no_plan_reads_too_much_while_the_database_is_empty(database: Database) -> None:
    assert await complaints(database.seasoned, large=False) == []


async def test_no_plan_reads_too_much_when_tables_have_grown_since_they_were_analysed(database: Database) -> None:
    await database.fill()
    async with database.fresh() as client:
        found = await complaints(client, large=True)
    assert found == []


async def test_no_plan_reads_too_much_when_tables_have_grown_since_it_was_made(database: Database) -> None:
    """A process that polled an empty database keeps its plans until the statistics are made anew."""
    await database.fill()
    assert await complaints(database.seasoned, large=True, repeated=0) == []


async def test_no_plan_reads_too_much_when_tables_are_large_and_analysed(database: Database) -> None:
    await database.fill()
    async with database.fresh() as client:
        await client.connection.execute("analyze")
        found = await complaints(client, large=True)
    assert found == []
