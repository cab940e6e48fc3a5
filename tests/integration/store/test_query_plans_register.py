"""Registration keeps its plans: one that was made while the tables were empty must still find its rows by keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from bellringer.core.jobs import Definition
from bellringer.core.runs import RunKey
from bellringer.engine.register import change, create
from bellringer.schedule import every
from bellringer.store import jobs, runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.keyed_read_connections import KeyedReads
from bellringer.store.queries import load
from bellringer.store.tenant_scope import open_tenants

MANY = 5_000
OFTEN = 400  # schedules among them
FEW = 60  # rows that look-ups by their keys may read
HISTORY = "runs_.*|attempts_.*|queue|timers|jobs|cohorts|tasks|pools|limits|graphs|leases|workers"
SMALL = "tasks, pools, limits, graphs, leases, workers, jobs, cohorts, timers, queue"
NAMED = """
with t as (insert into tasks (name) select 'task ' || n from generate_series(1, $1) n returning 1),
     p as (insert into pools (name) select 'pool-' || n from generate_series(1, $1) n returning 1)
insert into limits (tenant_id, key, most) select 1, 'key ' || n, 1 from generate_series(1, $1) n
"""
READ = """
select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables where relname ~ $1
"""


def definition(name: str, **more: Any) -> Definition:
    return Definition(name=name, task="demo", schedules=(every(timedelta(hours=1)), every(timedelta(hours=2))), **more)


async def make(store: Store, catalog: Catalog, *definitions: Definition) -> list[UUID]:
    return [made.job_id for made in await create(store, catalog, definitions, tenant_id=1, who="me")]


async def rows_read(store: Store, tables: str = "jobs|members|cohorts|queue|timers|skips|job_revisions") -> int:
    """How many rows of these tables were read so far, by the server's own count."""
    await store.pool.execute("select pg_stat_force_next_flush()")
    await store.pool.execute("select pg_stat_clear_snapshot()")
    found: int = await store.pool.fetchval(READ, f"^({tables})$")
    return found


async def test_a_plan_of_empty_tables_reads_few_rows_of_full_ones(dsn: str) -> None:
    store = await Store.open(dsn, size=1)  # one connection, which keeps the plans
    catalog = Catalog(store)
    try:
        for n in range(3):
            [job_id] = await make(store, catalog, definition(f"first {n}"))
            await change(store, catalog, job_id, 1, definition(f"first {n}", priority=9), tenant_id=1, who="me")
        await make(store, catalog, *(definition(f"job {n}") for n in range(MANY)))
        before = await rows_read(store)
        [job_id] = await make(store, catalog, definition("last"))
        await change(store, catalog, job_id, 1, definition("last", priority=9), tenant_id=1, who="me")
        assert 0 < await rows_read(store) - before < MANY / 10
    finally:
        await store.close()


async def test_a_look_up_keeps_its_plan_too(dsn: str) -> None:
    """Behind the wall, as the API asks: one connection makes its plans while there is nothing, and keeps them."""
    opened, owner = await open_tenants(dsn, size=1), await Store.open(dsn, size=1)
    lookups = KeyedReads(opened, size=1)
    store = lookups.of(1)
    try:
        now = await owner.now()
        key = RunKey(uuid4(), now, 0)
        await make(owner, Catalog(owner), definition("one"))
        await owner.pool.execute(f"analyze {SMALL}")  # what nobody has looked at is taken for larger than it is
        for _ in range(3):
            assert await runs.get_many(store, 1, now.date(), [key]) == {}
            assert await jobs.get_many(store, [key.job_id], 1) == []
            assert await jobs.find_idle(store, [key.job_id], 1, timedelta(seconds=1)) == []
        fill = load("load", "bellringer.bench")
        ids = [key.job_id, *(uuid4() for _ in range(MANY))]
        await owner.pool.execute(fill.ready, ids, now, (await Catalog(owner).task_ids(["demo"]))["demo"], 1)
        await owner.pool.execute(fill.ready_queue)
        await owner.pool.execute(fill.end_half)
        await owner.pool.execute(NAMED, MANY)
        hourly = every(timedelta(hours=1))
        times = [(hourly, every(timedelta(minutes=61 + n))) for n in range(OFTEN)]
        those = (replace(definition(f"job {n}"), schedules=times[n % OFTEN]) for n in range(MANY))
        [job_id, *_] = await make(owner, Catalog(owner), *those)
        before = await rows_read(owner, HISTORY)
        found = await runs.get_many(store, 1, now.date(), [key])
        assert [run.key for run, _ in found.values()] == [key]
        assert [job.name for job in await jobs.get_many(store, [job_id], 1)] == ["job 0"]
        await jobs.find_idle(store, [job_id], 1, timedelta(seconds=1))
        await store.pool.fetch("select pg_stat_force_next_flush()")
        assert 0 < await rows_read(owner, HISTORY) - before < FEW
    finally:
        await lookups.close()
        await owner.close()
        await opened.close()
