"""Plans behind the wall: a tenant's statements read what they read without it, by the same indexes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import md5
from uuid import UUID

import asyncpg
import pytest

from bellringer.core.runs import RunKey
from bellringer.store import audit, backfills, calendars, events, explain, jobs, revisions, run_logs, runs
from bellringer.store.connection_pool import SETTINGS, Store
from bellringer.store.run_logs import LineFilter
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

MANY = 30_000
TENANT = 2
NOW = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(hours=12)

FILL = f"""
set local statement_timeout = 0;
set local synchronous_commit = off;
insert into tasks (name) values ('greet');
insert into tenants (name) select 't' || n from generate_series(1, 9) n;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, pool_id, priority, misfire, overlap,
                  created_at, updated_at, schedules)
  select md5('job' || n)::uuid, 1 + n % 3, n % 64, 'job ' || n, 1, '{{}}', 1, 5, 'fire_once', 'allow', '{NOW}', '{NOW}',
         case when n % 1000 = 2 then '[{{"cron": "0 9 * * *", "calendar": "office"}}]'::jsonb else '[]' end
  from generate_series(1, {MANY}) n;
insert into job_revisions (job_id, revision, effective_at, what, who, definition)
  select job_id, r, '{NOW}', 'changed', 'me', jsonb_build_object('tenant_id', tenant_id)
  from jobs, generate_series(-1, 0) r;
insert into gaps (job_id, from_at, to_at, reason, recorded_at)
  select job_id, '{NOW}', timestamptz '{NOW}' + interval '1 s', 'paused', '{NOW}' from jobs;
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state)
  select job_id, timestamptz '{NOW}' + s * interval '1 s', 0, '{NOW}', 1, tenant_id, 1, shard, 1, 5, 'schedule',
         'queued'
  from jobs, generate_series(0, 1) s;
insert into attempts (job_id, scheduled_for, slot, finished_at, tenant_id, attempt, outcome, ends_as)
  select job_id, scheduled_for, slot, '{NOW}', tenant_id, 1, 'ok', 'succeeded' from runs;
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause)
  select job_id, scheduled_for, slot, '{NOW}', tenant_id, 1, shard, 1, 5, 'schedule' from runs
  where scheduled_for > '{NOW}';
insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause)
  select job_id, timestamptz '{NOW}' + interval '9 s', 0, '{NOW}', shard, 1, 5, tenant_id, 1, 'schedule' from jobs;
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)
  select job_id, scheduled_for, slot, tenant_id, 1, 3, scheduled_for, 'dead', 'mark' from runs;
insert into events (at, tenant_id, kind, job_id, scheduled_for, slot)
  select '{NOW}', tenant_id, 'late', job_id, scheduled_for, slot from runs;
insert into logs (job_id, scheduled_for, slot, attempt, at, level, message)
  select job_id, scheduled_for, slot, 1, '{NOW}', 'info', 'x' from runs;
insert into logs (job_id, scheduled_for, slot, attempt, at, level, message)
  select md5('job1')::uuid, '{NOW}', 0, 1, '{NOW}', 'info', 'x' from generate_series(1, 500);
insert into backfills (tenant_id, job_id, shard, cause, from_at, to_at, parallelism, who, created_at)
  select tenant_id, job_id, shard, 'backfill', '{NOW}', timestamptz '{NOW}' + interval '1 s', 1, 'me', '{NOW}'
  from jobs;
insert into days_off (digest, dates, weekend) select md5('d' || n), '{{}}', '{{}}' from generate_series(1, 2000) n;
insert into calendars (tenant_id, name, version, digest, changed_at, changed_by)
  select 1 + n % 3, 'c' || n, 1, md5('d' || n), '{NOW}', 'me' from generate_series(1, 2000) n;
"""


def job(number: int) -> UUID:
    return UUID(md5(f"job{number}".encode()).hexdigest())


JOB = job(1)  # of TENANT
KEY = RunKey(JOB, NOW, 0)
LAST = 1 << 62
CASES: Mapping[str, Callable[[Store], Awaitable[object]]] = {
    "find a job": lambda s: jobs.find(s, TENANT, "JOB 1"),
    "find jobs": lambda s: jobs.find_many(s, TENANT, ["JOB 1", "job 4"]),
    "get a job": lambda s: jobs.get(s, JOB, TENANT),
    "list jobs": lambda s: jobs.list_by_id(s, TENANT, JOB, 50),
    "revisions": lambda s: revisions.newest(s, JOB, 50),
    "get a run": lambda s: runs.get(s, KEY, TENANT),
    "attempts": lambda s: runs.attempts(s, KEY, TENANT),
    "runs of a job": lambda s: runs.of_job(s, JOB, TENANT, None, 50),
    "logs": lambda s: run_logs.lines_after(s, KEY, LineFilter(), 0, 200),
    "logs of a source": lambda s: run_logs.lines_after(s, KEY, LineFilter(sources=["stdout", "logging"]), 0, 200),
    "last logs of a source": lambda s: run_logs.last_lines(s, KEY, LineFilter(sources=["stdout"], since=NOW), 200),
    "dead letters": lambda s: runs.dead(s, TENANT, None, None, 50),
    "dead letters, further on": lambda s: runs.dead(s, TENANT, (NOW, KEY), None, 50),
    "events": lambda s: events.newest(s, TENANT, LAST, 50),
    "events of a kind": lambda s: events.newest(s, TENANT, LAST, 50, kind=events.EventKind.LATE),
    "events of a job": lambda s: events.newest(s, TENANT, LAST, 50, job_id=JOB),
    "backfills": lambda s: backfills.list_page(s, TENANT, None, None, 50),
    "backfills of a job": lambda s: backfills.list_page(s, TENANT, JOB, None, 50),
    "a calendar": lambda s: s.pool.fetch(calendars._SQL.get, TENANT, "c1", 100),
    "days off": lambda s: s.pool.fetch(calendars._SQL.contents, [md5(b"d1").hexdigest(), md5(b"d4").hexdigest()]),
    "users of a calendar": lambda s: calendars.names_of_jobs_using(s, TENANT, "office", 10),
    "what a run waits for": lambda s: explain.load_wait_context(s, JOB, KEY, TENANT),
    "the past of a job": lambda s: explain.load_instant_facts(s, JOB, NOW, TENANT),
    "changes": lambda s: audit.newest_before(s, TENANT, LAST, audit.AuditFilter(), 50),
}


async def read(store: Store, act: Callable[[Store], Awaitable[object]]) -> int:
    """How many rows and index entries a call reads; the store has one connection, which counts them."""
    before = await total(store)
    await act(store)
    return await total(store) - before


async def total(store: Store) -> int:
    await store.pool.execute("select pg_stat_force_next_flush()")
    count: int = await store.pool.fetchval(
        "select (select sum(seq_tup_read) from pg_stat_user_tables)::bigint"
        " + (select sum(idx_tup_read) from pg_stat_user_indexes)::bigint"
    )
    return count


@pytest.mark.parametrize("analysed", [True, False])
async def test_behind_the_wall_a_statement_reads_what_it_reads_without(
    bellringer_server: TestServer, *, analysed: bool
) -> None:
    async with bellringer_server.database() as dsn:
        owner = await asyncpg.connect(dsn, server_settings=SETTINGS)
        for table in ("jobs", "queue", "timers", "dead_letters", "events", "gaps", "job_revisions", "backfills"):
            await owner.execute(f"alter table {table} set (autovacuum_enabled = off)")  # its reads would be counted too
        async with owner.transaction():
            await owner.execute(FILL)
        if analysed:
            await owner.execute("analyze")
        await owner.close()
        complaints = []
        plain, tenants = await Store.open(dsn, size=1), await open_tenants(dsn, size=1)
        behind = ScopedStore(tenants, TENANT, None)
        for store in (plain, behind):
            await store.pool.execute("set stats_fetch_consistency = none")
        try:
            for name, act in CASES.items():
                free, walled = await read(plain, act), await read(behind, act)
                # Rows that are known by what they belong to cost one look each.
                most = 3 * free + 2_000
                if walled > most and (walled := await read(behind, act)) > most:  # again: who else reads is counted too
                    complaints.append(f"{name} reads {walled:,} rows behind the wall, and {free:,} without")
        finally:
            await plain.close()
            await tenants.close()
    assert complaints == []
