"""Plans of workflows: what ends, begins, stops and mends nodes finds them by keys, however many flows there are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from hashlib import md5
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.integration.store.test_query_plans import DAY, NOW, Client, Database, connect

from bellringer.store.queries import load
from bellringer.testing.postgres import TestServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLOWS, NODES = 5_000, 20  # 10⁵ nodes
TABLES = (
    "jobs",
    "queue",
    "timers",
    "flows",
    "flow_nodes",
    "signals",
    "dead_letters",
    "events",
    f"runs_{DAY}",
    f"attempts_{DAY}",
)
# One graph: a first node, then nodes that wait for it, of which one is a map over its result, one wants another result,
# one waits for a signal and the last for all of them; and one that undoes the first.
NAMES = f"""
insert into tasks (name) values ('greet');
insert into workers (name, host, pid, version, pools, task_ids, started_at, seen_at)
  select 'w', 'h', 1, '', '{{"short": 1}}', array[1], now(), now() from generate_series(1, 3);
select intern_graph(1, 'digest', '{{}}', '{{}}', null, 10,
  (select jsonb_agg(jsonb_build_object(
     'node', n, 'name', 'n' || n, 'kind', case n when 18 then 'signal' else 'task' end, 'task_id', 1,
     'spec', '{{"node": "n"}}'::jsonb, 'takes', case n when 5 then '{{"x": {{"node": 1}}}}' else '{{}}' end::jsonb,
     'over', case n when 3 then '{{"node": 1}}'::jsonb end, 'most', 1000, 'max_concurrent', 5, 'rule', 'all_success',
     'parents', case n when 1 then 0 when 19 then 17 when 20 then 0 else 1 end,
     'undoes', case n when 20 then 1 end, 'waits', case n when 18 then '{{"signal": "s"}}'::jsonb end))
   from generate_series(1, {NODES}) n),
  (select jsonb_agg(jsonb_build_object('parent', p, 'child', c, 'equals', case c when 4 then '"other"' end))
   from (select 1 as p, n as c from generate_series(2, 18) n union all select n, 19 from generate_series(2, 18) n) e));
"""
# Of each flow the first node runs; of every tenth it has failed, and so have all that come after it and the run itself.
FILL = f"""
set local synchronous_commit = off;
insert into jobs (job_id, tenant_id, shard, name, task_id, spec, schedule_ids, pool_id, priority, misfire, overlap,
                  created_at, updated_at)
  select md5('job' || n)::uuid, 1, n % 64, 'job ' || n, 1, '{{"graph": 1}}', '{{}}', 1, 5, 'skip', 'allow', '{NOW}',
         '{NOW}' from generate_series(1, {2 * FLOWS}) n;
insert into flows (flow_id, job_id, scheduled_for, slot, tenant_id, shard, top_job, depth, graph_id, pool_id, priority,
                   args, zone, busy, unfinished, next_node, started_at, state, finished_at)
  select flow_of(job_id, '{NOW}', 0), job_id, '{NOW}', 0, 1, shard, job_id, 0, 1, 1, 5, '{{}}', 'UTC',
         least(n % 10, 1), {NODES - 1} * least(n % 10, 1), {NODES + 1}, '{NOW}',
         case when n % 10 = 0 then 'dead' else 'running' end::run_state,
         case when n % 10 = 0 then timestamptz '{NOW}' end
  from generate_series(1, {FLOWS}) n cross join lateral (select job_id, shard from jobs where name = 'job ' || n) j;
insert into flow_nodes (flow_id, node, of, state, reason, waits, changed_at)
  select f.flow_id, g.node, g.node,
         case when f.finished_at is null then case g.node when 1 then 'queued' else 'blocked' end
              else case g.node when 1 then 'dead' else 'skipped' end end::run_state,
         case when f.finished_at is not null and g.node > 1 then 'upstream' end,
         case when f.finished_at is null then g.parents else 0 end, '{NOW}'
  from flows f cross join graph_nodes g;
insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, shard, pool_id, priority, cause,
                  initial_state, spec)
  select r.job_id, '{NOW}', r.slot, '{NOW}', 0, 1, 1, shard, 1, 5, 'workflow', 'queued', '{{}}'
  from flows f cross join lateral (values (f.flow_id, 1), (f.job_id, 0)) r (job_id, slot);
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt,
                   worker_id, cause, spec)
  select flow_id, '{NOW}', 1, '{NOW}', 1, 1, shard, 1, 5, 1, 2, 'workflow', '{{}}' from flows where finished_at is null;
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, attempt,
                   worker_id, cause, blocked)
  select j.job_id, '{NOW}', 0, '{NOW}', 1, 1, j.shard, 1, 5, 1, case when f.flow_id is null then 2 end, 'schedule',
         case when f.flow_id is null then 0 else 128 end
  from jobs j left join flows f on f.flow_id = flow_of(j.job_id, '{NOW}', 0) where f.finished_at is null;
insert into attempts (job_id, scheduled_for, slot, finished_at, tenant_id, attempt, outcome, ends_as)
  select r.job_id, '{NOW}', r.slot, '{NOW}', 1, 1, 'failed', 'dead'
  from flows f cross join lateral (values (f.flow_id, 1), (f.job_id, 0)) r (job_id, slot)
  where f.finished_at is not null;
insert into dead_letters (job_id, scheduled_for, slot, tenant_id, task_id, attempt, died_at, reason, fingerprint)
  select job_id, '{NOW}', 0, 1, 1, 1, '{NOW}', 'dead', 'mark' from flows where finished_at is not null;
"""


def job(number: int) -> UUID:
    return UUID(md5(f"job{number}".encode()).hexdigest())


def flow(number: int) -> UUID:
    """As flow_of makes it."""
    return UUID(md5(f"{job(number)} {round(NOW.timestamp()) * 1_000_000} 0".encode()).hexdigest())


def settled(jobs: Sequence[UUID], slot: int, ends: str, result: Any = None) -> list[Any]:
    outcome = "failed" if ends == "dead" else "ok"
    rest = (0.0, True, 0.1, 0.0, None, json.dumps(result), None, None)
    return [2, [(job_id, NOW, slot, 1, outcome, ends, *rest) for job_id in jobs], True, False, None]


of_workflows, of_queue, of_jobs, of_runs = map(load, ("workflows", "queue", "jobs", "runs"))
TWENTY = sorted(flow(n) for n in range(1, 201, 10))
UNOPENED = sorted(job(n) for n in range(FLOWS + 1, FLOWS + 21))
BY_KEYS = {"queue_pkey", "flows_pkey", "flow_nodes_pkey"}
RUN = [1, job(1), NOW, 0]
# What is executed with what, the indexes that it must use on large tables, and how many entries of one it may read.
CASES: dict[str, tuple[str, list[Any], set[str], int]] = {
    "nodes end, and those after them begin": (
        of_queue.settle, settled(TWENTY, 1, "succeeded", list(range(50))), BY_KEYS | {"flow_nodes_ready"}, 20_000
    ),
    "a node ends": (of_queue.settle, settled(TWENTY[:1], 1, "succeeded", [1]), BY_KEYS, 1_000),
    "nodes fail, and so do their runs": (of_queue.settle, settled(TWENTY, 1, "dead"), BY_KEYS, 20_000),
    "runs are opened": (
        of_queue.settle, settled(UNOPENED, 0, "running"), {"queue_pkey", "flows_pkey"}, 10_000
    ),
    "begin": ("select begin_nodes($1, null, null)", [TWENTY], {"flows_pkey", "flow_nodes_ready"}, 1_000),
    "to stop": (of_workflows.to_stop, [100], set(), 100),
    "stop": (of_workflows.stop, [flow(1), "it was cancelled", "cancelled"], BY_KEYS, 2_000),
    "retry": (of_workflows.retry, [1, job(10), NOW, 0, None, None], BY_KEYS - {"queue_pkey"}, 2_000),
    "mark": (of_workflows.mark, [*RUN, "n7", None, "succeeded", None, "x"], BY_KEYS, 2_000),
    "signal": (of_workflows.signal, [*RUN, "s", "1"], BY_KEYS, 1_000),
    "redrive": (of_runs.redrive, [1, [job(10)], [NOW], [0]], {"flows_pkey", "dead_letters_pkey"}, 2_000),
    "pause": (of_jobs.pause, [job(1), 1, "me", None, None], {"flows_under_way", "queue_pkey"}, 1_000),
    "forget": (of_workflows.forget, [NOW, 100], set(), 1_000),
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def database(bellringer_server: TestServer) -> AsyncIterator[Database]:
    dsn = await bellringer_server.create()
    connection = await connect(dsn)
    await connection.execute(
        "create or replace function bellringer.now() returns timestamptz language sql stable as "
        f"$$ select timestamptz '{NOW}' $$"
    )
    await connection.execute(f"select ensure_days(array['{NOW:%Y-%m-%d}']::date[])")
    for table in TABLES:
        await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
    await connection.execute(NAMES)
    await connection.execute("analyze")
    yield Filled(dsn, Client(connection))
    await connection.close()
    await bellringer_server.drop(dsn)


class Filled(Database):
    async def fill(self) -> None:
        if not self.filled:
            async with self.seasoned.connection.transaction():
                await self.seasoned.connection.execute(FILL)
            self.filled = True


async def complaints(client: Client, *, large: bool, repeated: int = 6) -> list[str]:
    found = []
    for name, (query, arguments, indexes, most) in CASES.items():
        read = await client.reading(query, arguments, repeated)
        if read.scanned:
            found.append(f"{name} reads all of {', '.join(sorted(read.scanned))}")
        if large and not indexes <= read.entries.keys():
            found.append(f"{name} does not use {sorted(indexes - read.entries.keys())}: {read.entries}")
        if read.most > most:
            found.append(f"{name} reads too much: {read.entries}")
    return found


async def test_no_plan_reads_too_much_while_there_are_no_flows(database: Database) -> None:
    assert await complaints(database.seasoned, large=False) == []


async def test_each_statement_does_what_it_is_measured_by(database: Database) -> None:
    await database.fill()
    async with database.fresh() as client:
        assert await client.connection.fetchval("select count(*) from flow_nodes") == FLOWS * NODES
        for name, (query, arguments, _, _) in CASES.items():
            transaction = client.connection.transaction()
            await transaction.start()
            answer = await client.connection.fetchval(query, *arguments)
            assert answer == EXPECTED[name], name
            await transaction.rollback()


async def test_no_plan_reads_too_much_when_there_are_many_since_they_were_analysed(database: Database) -> None:
    await database.fill()
    async with database.fresh() as client:
        assert await complaints(client, large=True) == []


async def test_no_plan_reads_too_much_when_there_are_many_since_it_was_made(database: Database) -> None:
    await database.fill()
    assert await complaints(database.seasoned, large=True, repeated=0) == []


async def test_no_plan_reads_too_much_when_there_are_many_and_analysed(database: Database) -> None:
    await database.fill()
    async with database.fresh() as client:
        await client.connection.execute("analyze")
        assert await complaints(client, large=True) == []


EXPECTED: dict[str, Any] = {
    "nodes end, and those after them begin": 20, "a node ends": 1, "nodes fail, and so do their runs": 20,
    "runs are opened": 20, "begin": (None, None), "to stop": None, "stop": True, "retry": None, "mark": None,
    "signal": "kept", "redrive": 1, "pause": 2, "forget": 0,
}  # fmt: skip
