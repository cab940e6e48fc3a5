"""What the console reads, at scale: a bounded number of rows, also when the tables have grown since they were analysed.

`BELLRINGER_RUNS=1000000` makes it a million runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from tests.integration.store.test_query_plans_run_lists import read_by

from bellringer.core.runs import RunKey
from bellringer.store import apps, change_counters, dead_letters, forecast, freezes, job_history, jobs, overview
from bellringer.store.connection_pool import Store
from bellringer.store.dead_letters import DeadLetterPosition, DiscardFilter
from bellringer.store.job_history import MAX_INSTANT, MIN_INSTANT
from bellringer.store.jobs import JobFilter
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = int(os.environ.get("BELLRINGER_RUNS", "120000"))
TODAY = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC)
SECONDS = 60_000  # runs of one job that runs every second
FILL = f"""
set local synchronous_commit = off;
set local statement_timeout = 0;
insert into tenants (name) values ('busy'), ('quiet');
insert into apps (tenant_id, name, version, number, orphans, created_at, created_by, declared_at)
  select n, 'shop', '1', 1, 'keep', now(), 'x', now() from generate_series(1, 2) n;
insert into tasks (name) values ('greet');
insert into pools (name) values ('other');
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, pool_id, priority, misfire, overlap, created_at,
                  updated_at, paused_at, enabled, done_at, app_id, orphaned_at)
  select md5('job' || n)::uuid, 1 + n % 2, 0, 'job ' || n, 1, '{{}}', 1, 5, 'skip', 'skip', now(), now(),
         case when n % 3 = 0 then now() end, n % 500 > 1, case when n % 500 between 10 and 13 then now() end,
         1 + n % 2, case when n % 500 between 20 and 25 then now() end
  from generate_series(1, {MANY}) n;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, pool_id, priority, misfire, overlap, created_at,
                  updated_at)
  values (md5('every second')::uuid, 1, 0, 'every second', 1, '{{}}', 1, 5, 'skip', 'skip', now(), now());
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state)
  select md5('job' || n % 1000)::uuid, timestamptz '{TODAY}' + n * interval '300 ms', 0, now(), 1, 1 + n % 2, 1, n % 64,
         1, 5, 'schedule', 'queued'
  from generate_series(1, {MANY}) n;
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state)
  select md5('every second')::uuid, timestamptz '{TODAY}' + n * interval '1 s', 0, now(), 1, 1, 1, 0, 1, 5, 'schedule',
         'queued'
  from generate_series(1, {SECONDS}) n;
insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, attempt, outcome,
                      ends_as)
  select job_id, scheduled_for, 0, scheduled_for, scheduled_for, tenant_id, 1, 1, 'ok',
         (case when extract(second from scheduled_for)::int % 2 = 0 then 'dead' else 'succeeded' end)::run_state
  from runs;
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause,
                   worker_id, claimed_at)
  select md5('queue' || n)::uuid, '{TODAY}', 0, '{TODAY}', 1 + n % 2, 1, 0, 1, n % 10, 'schedule',
         case when n % 5 = 0 then 1 + n % 3 end, case when n % 5 = 0 then now() end
  from generate_series(1, {MANY}) n;
insert into workers (name, host, pid, version, pools, task_ids, started_at, seen_at)
  select 'w' || n, 'h', 1, '1', '{{"short": 10}}', '{{1}}', now(), now() from generate_series(1, 3) n;
insert into gaps (job_id, from_at, to_at, count, reason, recorded_at)
  select md5('every second')::uuid, timestamptz '{TODAY}' + n * interval '1 s',
         timestamptz '{TODAY}' + (n + 1) * interval '1 s', 1, 'misfire', now()
  from generate_series(1, {SECONDS}) n;
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)
  select md5('dead' || n)::uuid, '{TODAY}', 0, 1 + n % 2, 1, 3, timestamptz '{TODAY}' + n * interval '1 ms', 'dead', 'x'
  from generate_series(1, {MANY}) n;
insert into discarded_dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason,
                                    fingerprint, discarded_at, operation_id)
  select job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint, died_at,
         1 + extract(milliseconds from died_at)::bigint / 2 % 100
  from dead_letters;
insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)
  select md5('job' || n)::uuid, 1 + n % 2,
         case when n % 500 < 2 then 'dead'
              else (array['late', 'missed', 'skipping', 'unknown_task'])[1 + n / 2 % 4] end,
         '{TODAY}', timestamptz '{TODAY}' + n * interval '1 ms', '{TODAY}'
  from generate_series(1, {MANY}) n;
insert into events (at, tenant_id, kind, job_id, scheduled_for)
  select '{TODAY}', 1 + n % 2, 'late', md5('job' || n)::uuid, '{TODAY}' from generate_series(1, {MANY}) n;
insert into audit (at, tenant_id, who, action, kind, target)
  select '{TODAY}', 1 + n % 2, 'w', 'job.changed', 'job', 'x' from generate_series(1, {MANY}) n;
insert into usage (minute, pool_id, tenant_id, started)
  select timestamptz '{TODAY}' + n % 1440 * interval '1 minute', 1, n / 1440, 1 from generate_series(0, 40000) n
  on conflict (minute, pool_id, tenant_id) do update set started = excluded.started;
"""
EVERY_SECOND = "every second"
MOST = 25_000  # entries of an index
Read = Callable[[Store, int], Awaitable[Any]]


async def _job(store: Store) -> UUID:
    found: UUID = await store.pool.fetchval("select md5($1)::uuid", EVERY_SECOND)
    return found


async def _jobs(store: Store) -> list[UUID]:
    rows = await store.pool.fetch("select md5('job' || n)::uuid as id from generate_series(1, 99) n")
    return [await _job(store), *(row["id"] for row in rows)]


async def _strips(store: Store, tenant_id: int) -> None:
    ids = list(await job_history.existing_jobs(store, tenant_id, await _jobs(store)))
    assert len(ids) == {1: 50, 2: 50, 3: 0}[tenant_id]
    found = await job_history.last_runs(store, tenant_id, ids, 60)
    assert len(found) == 60 * len(ids)
    await job_history.last_successes(store, tenant_id, ids)


async def _ledger(store: Store, tenant_id: int) -> None:
    if tenant_id != 1:  # whose job it is is known before
        return
    job_id, middle = await _job(store), TODAY + timedelta(seconds=SECONDS // 2)
    for at in (MAX_INSTANT, middle):
        found = await job_history.last_runs(store, tenant_id, [job_id], 201, before=(at, 0))
        assert len(found) == 201
        gaps = await job_history.list_gaps(store, job_id, MIN_INSTANT, (at, MAX_INSTANT, 0), 201)
        assert len(gaps) <= 201
        await job_history.list_skips(store, tenant_id, job_id, MIN_INSTANT, at, 201)


async def _days(store: Store, tenant_id: int) -> None:
    if tenant_id != 1:
        return
    job_id = await _job(store)
    days = [(TODAY - timedelta(days=n)).date() for n in range(366)]
    found = await job_history.runs_by_day(store, tenant_id, job_id, days)
    assert len(found) == 366
    assert found[TODAY.date()][0] == 1_001
    await job_history.gaps_by_day(store, job_id, TODAY - timedelta(days=366), TODAY + timedelta(days=1))


async def _stats(store: Store, tenant_id: int) -> None:
    if tenant_id != 1:
        return
    found = await job_history.last_attempts(store, tenant_id, await _job(store), 1_000)
    assert len(found) == 1_000


async def _stats_series(store: Store, tenant_id: int) -> None:
    if tenant_id != 1:
        return
    step = timedelta(minutes=30)
    starts = [TODAY + n * step for n in range(24)]  # the attempts of a job that runs every second
    found = await job_history.attempt_statistics(store, tenant_id, await _job(store), starts, step)
    assert [one.attempts for one in found] == [job_history.MAX_ATTEMPTS_PER_SPAN + 1] * len(starts)


async def _tries(store: Store, tenant_id: int) -> None:
    found = await overview.load_attempts(store, tenant_id, TODAY, TODAY + timedelta(days=1), 2_000)
    assert len({one.key for one in found}) == (2_000 if tenant_id < 3 else 0)


async def _sums(store: Store, tenant_id: int) -> None:
    await overview.load_counts(store, tenant_id)
    await overview.list_troubles(store, tenant_id, 8)
    await overview.newest_jobs(store, tenant_id, 20)
    assert len(await overview.list_orphans(store, tenant_id, 8)) == (8 if tenant_id < 3 else 0)


async def _agenda(store: Store, tenant_id: int) -> None:
    ids, is_all = await jobs.list_ids(store, tenant_id, JobFilter(state="enabled"), 1_000)
    assert (len(ids), is_all) == ((1_000, False) if tenant_id < 3 else (0, True))
    assert len(await forecast.load_agenda_jobs(store, tenant_id, ids)) == len(ids)
    spans = [forecast.Span(job_id, TODAY - timedelta(days=1), TODAY + timedelta(days=1)) for job_id in ids]
    outcomes = await forecast.load_span_outcomes(store, tenant_id, spans)
    assert len(outcomes) == len(ids)
    assert await freezes.list_between(store, tenant_id, TODAY, TODAY + timedelta(days=42)) == []


async def _apps(store: Store, tenant_id: int) -> None:
    found = await apps.page(store, tenant_id, None, 50)
    assert [app.jobs > apps.MAX_JOBS_COUNTED and app.orphans > 500 for app in found] == [True] * (tenant_id < 3)
    await apps.versions(store, tenant_id, "shop")
    await apps.firing_orphans(store, tenant_id, "shop", 20)


async def _waiting(store: Store, tenant_id: int) -> None:
    found = {pool.pool: pool for pool in await overview.pool_backlogs(store, tenant_id)}
    assert found["short"].slots == 30
    assert found["short"].ready == (overview.MAX_COUNTED + 1 if tenant_id < 3 else 0)


async def _series(store: Store, tenant_id: int) -> None:
    await overview.starts_by_step(store, tenant_id, TODAY, 900)
    await overview.deaths_by_step(store, tenant_id, TODAY, 900)


async def _discarded(store: Store, tenant_id: int) -> None:
    since = TODAY - timedelta(hours=1)
    found = await dead_letters.list_discarded(store, tenant_id, DiscardFilter(), since, None, 51)
    assert len(found) == (51 if tenant_id < 3 else 0)
    for row in found[-1:]:
        after = DeadLetterPosition(row.letter.key, row.discarded_at)
        assert len(await dead_letters.list_discarded(store, tenant_id, DiscardFilter(), since, after, 51)) == 51
    of_operation = await dead_letters.discarded_keys(store, tenant_id, DiscardFilter(operation=7), since, 501)
    assert len(of_operation) == (501 if tenant_id < 3 else 0)


async def _marks(store: Store, tenant_id: int) -> None:
    assert set(await change_counters.load_counters(store, [tenant_id])) == {tenant_id}


def _page(wanted: JobFilter, *, by_name: bool) -> Read:
    async def read(store: Store, tenant_id: int) -> None:
        found, _ = await jobs.page(store, tenant_id, wanted, by_name=by_name, most=51)
        assert len(found) == (51 if tenant_id < 3 else 0)
        after = (found[-1].job_id, found[-1].name) if found else None
        further, _ = await jobs.page(store, tenant_id, wanted, by_name=by_name, after=after, most=51)
        assert len(further) == len(found)

    return read


def _count(wanted: JobFilter) -> Read:
    async def read(store: Store, tenant_id: int) -> None:
        found, _ = await jobs.count(store, tenant_id, wanted, 10_000)
        assert (found > 0) == (tenant_id < 3)

    return read


LISTED = {state: JobFilter(state=state) for state in (None, "enabled", "paused", "disabled", "done", "late", "failing")}
LISTED |= {f"orphaned, state {state}": JobFilter(state=state, orphaned=True) for state in (None, "enabled", "late")}
READS: dict[str, Read] = {
    **{f"jobs {state}, by id": _page(wanted, by_name=False) for state, wanted in LISTED.items()},
    **{f"jobs {state}, by name": _page(wanted, by_name=True) for state, wanted in LISTED.items()},
    "agenda": _agenda,
    "apps": _apps,
    "strips": _strips,
    "ledger": _ledger,
    "days": _days,
    "stats": _stats,
    "series of stats": _stats_series,
    "tries": _tries,
    "sums": _sums,
    "waiting": _waiting,
    "series": _series,
    "discarded": _discarded,
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def store(bellringer_server: TestServer) -> AsyncIterator[Store]:
    """Tables that have grown since they were analysed."""
    dsn = await bellringer_server.create()
    opened = await Store.open(dsn, size=1, settings={"stats_fetch_consistency": "none"})
    grown = ("jobs", "queue", "gaps", "dead_letters", "discarded_dead_letters", "troubles", "events", "audit", "usage")
    async with opened.pool.acquire() as connection:
        for table in (*grown, f"runs_{TODAY:%Y%m%d}", f"attempts_{TODAY:%Y%m%d}"):
            await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
        await connection.execute("analyze")
        async with connection.transaction():
            await connection.execute(FILL, timeout=600)
    yield opened
    await opened.close()
    await bellringer_server.drop(dsn)


async def complaints(of: Callable[[int], Store], reads: dict[str, Read]) -> list[str]:
    found = []
    for name, read in reads.items():
        for tenant_id in (1, 2, 3):
            store = of(tenant_id)
            seen = await read_by(store, lambda: read(store, tenant_id))  # noqa: B023 - called at once
            seen.pop(("table", "leases"), None)  # as many rows as shards, however much is stored
            bad = {at: rows for at, rows in seen.items() if rows > (1_000 if at[0] == "table" else MOST)}
            found += [f"{name} of tenant {tenant_id}: {bad}"] if bad else []
    return found


async def test_nothing_reads_too_much_when_tables_have_grown(store: Store) -> None:
    assert "\n".join(await complaints(lambda _: store, {**READS, "marks": _marks})) == ""


async def test_nothing_reads_too_much_behind_the_wall(store: Store) -> None:
    tenants = await open_tenants(store.dsn, size=1)
    await tenants.pool.execute("set stats_fetch_consistency = none")
    try:
        assert "\n".join(await complaints(lambda tenant_id: ScopedStore(tenants, tenant_id, None), READS)) == ""
    finally:
        await tenants.close()


async def test_nothing_reads_too_much_when_tables_are_analysed(store: Store) -> None:
    await store.pool.execute("analyze")
    assert "\n".join(await complaints(lambda _: store, {**READS, "marks": _marks})) == ""


@pytest.mark.parametrize("state", ["disabled", "done", "failing"])
async def test_a_list_of_a_rare_state_reads_no_other_jobs(store: Store, state: str) -> None:
    wanted = LISTED[state]
    await store.pool.execute("analyze")  # else the 64 leases, one page, are walked for each job of a list
    for read in (_page(wanted, by_name=False), _page(wanted, by_name=True), _count(wanted)):
        seen = await read_by(store, lambda: read(store, 1))  # noqa: B023 - called at once
        assert seen
        assert max(seen.values()) < MANY // 60, seen


async def test_marks_read_little_however_many_there_are(store: Store) -> None:
    seen = await read_by(store, lambda: _marks(store, 1))
    assert seen
    assert max(seen.values()) < 5_000


async def test_the_days_of_a_job_are_reported_to_its_tenant_alone(store: Store) -> None:
    """The functions pass the wall, and do not ask each run whose it is."""
    job_id, today = await _job(store), [TODAY.date()]
    hour = timedelta(hours=1)
    assert len(await job_history.attempt_statistics(store, 1, job_id, [TODAY], hour)) == 1
    assert await job_history.attempt_statistics(store, 2, job_id, [TODAY], hour) == []
    assert (await job_history.runs_by_day(store, 1, job_id, today))[today[0]][0] == job_history.MAX_RUNS_PER_DAY + 1
    assert await job_history.runs_by_day(store, 2, job_id, today) == {}
    tenants = await open_tenants(store.dsn, size=1)
    try:
        behind = ScopedStore(tenants, 2, None)
        assert await job_history.runs_by_day(behind, 2, job_id, today) == {}
        assert await job_history.attempt_statistics(behind, 2, job_id, [TODAY], hour) == []
        with pytest.raises(asyncpg.PostgresError, match="another tenant"):
            await job_history.runs_by_day(behind, 1, job_id, today)
        with pytest.raises(asyncpg.PostgresError, match="another tenant"):
            await job_history.attempt_statistics(behind, 1, job_id, [TODAY], hour)
    finally:
        await tenants.close()


async def test_keys_are_read_back(store: Store) -> None:
    [last] = await job_history.last_runs(store, 1, [await _job(store)], 1)
    assert last.key == RunKey(await _job(store), TODAY + timedelta(seconds=SECONDS))
