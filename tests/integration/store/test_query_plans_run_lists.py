"""Lists at scale: whatever the filter, one look reads a bounded number of rows, also among others' and in a herd.

`BELLRINGER_RUNS=1000000` makes it a million runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from bellringer.core.runs import RunKey
from bellringer.store import dead_letters, run_lists
from bellringer.store.connection_pool import SETTINGS, Store
from bellringer.store.dead_letters import DeadLetterFilter, DeadLetterPosition
from bellringer.store.run_lists import RunFilter, RunPosition
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = int(os.environ.get("BELLRINGER_RUNS", "120000"))
NOON = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC) + timedelta(hours=12)
HERD = MANY // 10  # runs that share an instant
FILL = f"""
set local synchronous_commit = off;
set local statement_timeout = 0;
insert into tenants (name) values ('busy'), ('quiet');
insert into tasks (name) values ('greet'), ('rare');
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state)
  select md5('job' || n % {HERD})::uuid, timestamptz '{NOON}' + n / {HERD} * interval '1 minute', 0, '{NOON}', 1,
         case when n % 10 = 0 then 2 else 1 end, case when n = 7 then 2 else 1 end, n % {HERD} % 64,
         case when n = 7 then 2 else 1 end, 5,
         (case when n = 7 then 'manual' else 'schedule' end)::cause, 'queued'
  from generate_series(1, {MANY}) n;
insert into attempts (job_id, scheduled_for, slot, started_at, finished_at, tenant_id, worker_id, attempt, outcome,
                      ends_as)
  select job_id, scheduled_for, 0, scheduled_for, scheduled_for, tenant_id, 1, 1, 'ok',
         (case when task_id = 2 then 'dead' when left(job_id::text, 1) = '7' then 'skipped'
               else 'succeeded' end)::run_state
  from runs where scheduled_for < timestamptz '{NOON}' + interval '9 minutes';
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause,
                   worker_id)
  select job_id, scheduled_for, 0, scheduled_for, tenant_id, 1, 0, 1, 5, 'schedule',
         case when row_number() over (order by job_id) % 100 = 0 then 1 end
  from runs where scheduled_for >= timestamptz '{NOON}' + interval '9 minutes';
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause)
  select md5('more' || n)::uuid, '{NOON}', 0, '{NOON}', 3, 1, 0, 1, 5, 'schedule' from generate_series(1, 30000) n;
insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, attempt)
  select md5('send' || n)::uuid, timestamptz '{NOON}' + n * interval '1 second', 0, '{NOON}', 0, 1, 5, 1 + n % 2, 1,
         'send', 0
  from generate_series(1, {HERD}) n;
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)
  select md5('dead' || n)::uuid, '{NOON}', 0, 1 + n % 2, 1, 3, timestamptz '{NOON}' + n * interval '1 ms', 'dead',
         'mark ' || n % 30
  from generate_series(1, {MANY}) n;
"""
LAST = RunKey(UUID(int=1 << 127), NOON + timedelta(minutes=5))
AT = RunFilter(from_at=NOON, to_at=NOON + timedelta(seconds=30))
FILTERS: dict[str, RunFilter] = {
    "all": RunFilter(),
    **{state: RunFilter(states=(state,)) for state in run_lists.STATES},
    "unfinished": RunFilter(states=("blocked", "queued", "retrying", "running")),
    "unwell": RunFilter(states=("cancelled", "dead", "skipped")),
    "all states": RunFilter(states=run_lists.STATES),
    "a rare task": RunFilter(task="rare"),
    "a rare pool": RunFilter(pool="long"),
    "a rare cause": RunFilter(cause="manual"),
    "no such tag": RunFilter(tag="none"),
    "no such words": RunFilter(q="none"),
    "no such worker": RunFilter(worker=77),
    "a worker's": RunFilter(worker=1, states=("running",)),
    "one instant": AT,
    "one instant, of a rare task": RunFilter(from_at=AT.from_at, to_at=AT.to_at, task="rare"),
}
MOST = 20_000  # entries of an index


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def store(bellringer_server: TestServer) -> AsyncIterator[Store]:
    """Tables that have grown since they were analysed."""
    dsn = await bellringer_server.create()
    opened = await Store.open(dsn, size=1, settings={"stats_fetch_consistency": "none"})
    assert "force_custom_plan" in SETTINGS.values()
    async with opened.pool.acquire() as connection:
        for table in ("queue", "timers", "dead_letters", f"runs_{NOON:%Y%m%d}", f"attempts_{NOON:%Y%m%d}"):
            await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
        await connection.execute("analyze")
        async with connection.transaction():
            await connection.execute(FILL, timeout=600)
    yield opened
    await opened.close()
    await bellringer_server.drop(dsn)


async def counters(store: Store) -> dict[tuple[str, str], int]:
    await store.pool.execute("select pg_stat_force_next_flush()")
    rows = await store.pool.fetch(
        "select 'table', relname, seq_tup_read from pg_stat_user_tables union all"
        " select 'index', indexrelname, idx_scan + idx_tup_read from pg_stat_user_indexes"
    )
    return {(kind, name): value for kind, name, value in rows}


async def read_by(store: Store, act: Any) -> dict[tuple[str, str], int]:
    """What an act reads: rows of tables from end to end, entries of indexes."""
    before = await counters(store)
    await act()
    after = await counters(store)
    return {name: value - before.get(name, 0) for name, value in after.items() if value > before.get(name, 0)}


def too_much(read: dict[tuple[str, str], int], most: int = MOST) -> dict[tuple[str, str], int]:
    return {name: value for name, value in read.items() if value > (1_000 if name[0] == "table" else most)}


async def complaints(of: Callable[[int], Store]) -> list[str]:
    """What is wrong with lists of the tenants, each read by its store."""
    found = []
    for name, wanted in FILTERS.items():
        for tenant_id in (1, 2, 3):
            store = of(tenant_id)
            for after in (None, RunPosition(LAST, 40, LAST.scheduled_for)):

                async def act(store: Store = store, wanted: RunFilter = wanted, after: Any = after) -> None:
                    page = await run_lists.find_runs(store, tenant_id, wanted, after, 50)  # noqa: B023 - called at once
                    await run_lists.load_runs(store, tenant_id, page.keys)  # noqa: B023

                if bad := too_much(await read_by(store, act)):
                    found.append(f"{name} of tenant {tenant_id}, {'further on' if after else 'first'}: {bad}")
    return found


async def test_no_list_reads_too_much_when_tables_have_grown(store: Store) -> None:
    assert await complaints(lambda _: store) == []


async def test_no_list_reads_too_much_behind_the_wall(store: Store) -> None:
    tenants = await open_tenants(store.dsn, size=1)
    await tenants.pool.execute("set stats_fetch_consistency = none")
    try:
        assert await complaints(lambda tenant_id: ScopedStore(tenants, tenant_id, None)) == []
    finally:
        await tenants.close()


async def test_no_list_reads_too_much_when_tables_are_analysed(store: Store) -> None:
    await store.pool.execute("analyze")
    assert await complaints(lambda _: store) == []


async def test_a_page_within_a_herd_reads_little(store: Store) -> None:
    async def act() -> None:
        page = await run_lists.find_runs(store, 1, RunFilter(), RunPosition(LAST, 40), 50)
        assert len(page.positions) == 50

    recent = {name: value for name, value in (await read_by(store, act)).items() if "runs" in name[1]}
    assert recent
    assert max(recent.values()) < HERD // 16


async def test_a_rare_run_is_found_page_by_page(store: Store) -> None:
    found, looks, after = [], 0, None
    while looks == 0 or after is not None:
        page = await run_lists.find_runs(store, 1, RunFilter(task="rare"), after, 50)
        found += page.keys
        after = page.stop
        looks += 1
        assert looks <= MANY // 10_000 + 2
    assert len(found) == 1


async def test_dead_letters_and_their_groups_read_little(store: Store) -> None:
    wanted = DeadLetterFilter(fingerprint="mark 7")
    places = (None, DeadLetterPosition(LAST, NOON + timedelta(seconds=MANY // 2000)))
    acts: list[Any] = [
        lambda: dead_letters.list_groups(store, 1, None, 51),
        lambda: dead_letters.list_groups(store, 3, None, 51),
    ]
    acts += [
        lambda f=f, at=at: dead_letters.find_dead_letters(store, 1, f, at, 50)
        for f in (DeadLetterFilter(), wanted)
        for at in places
    ]
    found = [too_much(await read_by(store, act), dead_letters.MAX_LETTERS_COUNTED + 5_000) for act in acts]
    assert found == [{}] * 6
    groups = await dead_letters.list_groups(store, 1, None, 51)
    assert {group.fingerprint for group in groups} == {f"mark {n}" for n in range(0, 30, 2)}
    page = await dead_letters.find_dead_letters(store, 1, DeadLetterFilter(fingerprint="mark 8"), None, 50)
    assert (len(page.positions), page.stop is not None) == (50, True)
