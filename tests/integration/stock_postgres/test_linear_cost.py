"""The steps that every run passes through cost the same per row for many rows as for few, on a server as it is
installed. Measured as CPU time of the server process, which other processes of the machine hardly change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import asyncpg
import pytest

from bellringer.store.connection_pool import connect
from bellringer.store.queries import load
from bellringer.testing.postgres import TestServer

FEW, MANY = 1_000, 8_000
MAX_GROWTH: Final = 1.5  # of the cost per row, from few rows to many
MAX_IDLE_MS: Final = 5.0
TRIES: Final = 3
HOLDER: Final = uuid4()
DUE: Final = datetime.now(UTC).replace(microsecond=0)
SHARDS: Final = list(range(64))
NOT_CAREFUL: Final = False
NO_WORKFLOW_NOT_REAPING: Final = (False, False, None)
NAMES: Final = """
insert into tasks (name) values ('greet');
insert into workers (name, host, pid, version, pools, task_ids, state, started_at, seen_at)
  values ('w', 'h', 1, '', '{"short": 1}', array[1], 'live', now(), now());
insert into schedules (kind, expression, timezone, anchor, seconds, dst, calendar)
  values ('every', '60s', '', '', false, '', '');
"""
TIMERS: Final = """
insert into timers (job_id, scheduled_for, slot, due_at, shard, pool_id, priority, tenant_id, task_id, cause, spec)
select gen_random_uuid(), $2, 0, $2, n % 64, 1, 5, 1, 1, 'send', '{}' from generate_series(1, $1::integer) n
"""
MEMBERS: Final = """
with new_members as (
  insert into members (shard, schedule_id, job_id, tenant_id, task_id, revision, pool_id, priority, misfire, overlap,
                       active_since)
  select n % 64, 1, gen_random_uuid(), 1, 1, 1, 1, 5, 0, 0, $2::timestamptz - interval '1 day'
  from generate_series(1, $1::integer) n returning shard)
insert into cohorts (shard, schedule_id, next_at) select shard, 1, $2 from new_members group by shard
"""
READY: Final = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), $2, 0, $2, 1, 1, n % 64, 1, 5, 'send', '{}' from generate_series(1, $1::integer) n
"""
of_cohorts, of_queue = load("cohorts"), load("queue")


@dataclass
class Server:
    """A connection to the stock server, whose CPU time can be read."""

    connection: asyncpg.Connection
    process: Path

    def cpu_ms(self) -> float:
        """Returns the CPU time that the server process of the connection has used."""
        return int((self.process / "schedstat").read_text().split()[0]) / 1e6

    async def execute(self, query: str, *arguments: Any) -> None:
        await self.connection.execute(query, *arguments)


@pytest.fixture
async def server(stock_server: TestServer) -> AsyncIterator[Server]:
    async with stock_server.database() as dsn:
        connection = await connect(dsn, name="test")
        await connection.execute("set search_path to bellringer")
        await connection.execute(NAMES)
        await connection.execute("update leases set holder = $1, token = 1, expires_at = 'infinity'", HOLDER)
        yield Server(connection, Path("/proc") / str(connection.get_server_pid()))
        await connection.close()


Step = Callable[[Server, int], Awaitable[Callable[[], Awaitable[int]]]]


async def fire_timers(server: Server, rows: int) -> Callable[[], Awaitable[int]]:
    await server.execute(TIMERS, rows, DUE)

    async def call() -> int:
        row = await server.connection.fetchrow(
            of_cohorts.fire_timers, HOLDER, SHARDS, [1] * 64, timedelta(seconds=1), MANY, NOT_CAREFUL
        )
        assert row is not None
        return int(row["fired"])

    return call


async def tick(server: Server, rows: int) -> Callable[[], Awaitable[int]]:
    await server.execute(MEMBERS, rows, DUE)
    due, following = [DUE] * 64, [DUE + timedelta(minutes=1)] * 64
    arguments = [HOLDER, SHARDS, [1] * 64, SHARDS, [1] * 64, due, due, following, timedelta(seconds=1)]

    async def call() -> int:
        row = await server.connection.fetchrow(
            of_cohorts.tick, *arguments, timedelta(minutes=1), MANY, None, NOT_CAREFUL
        )
        assert row is not None
        return int(row["fired"])

    return call


async def claim(server: Server, rows: int) -> Callable[[], Awaitable[int]]:
    await server.execute(READY, rows, DUE)

    async def call() -> int:
        found = await server.connection.fetch(of_queue.claim, 1, 1, [1], MANY, -1, 0, MANY, 200)
        return sum(row["job_id"] is not None for row in found)

    return call


async def settle(server: Server, rows: int) -> Callable[[], Awaitable[int]]:
    taken = await (await claim(server, rows))()
    assert taken == rows
    keys: Sequence[UUID] = [row[0] for row in await server.connection.fetch("select job_id from queue order by 1")]
    ending = (1, "ok", "succeeded", 0.0, True, 0.1, 0.0, None, None, None, None)

    async def call() -> int:
        row = await server.connection.fetchrow(
            of_queue.settle, 1, [(key, DUE, 0, *ending) for key in keys], *NO_WORKFLOW_NOT_REAPING
        )
        assert row is not None
        return int(row["written"])

    return call


STEPS: Final[list[Step]] = [fire_timers, tick, claim, settle]


async def measure(server: Server, step: Step, rows: int, *, calls: int = 1) -> float:
    """Returns the CPU milliseconds of one call, the least of several tries; each try is rolled back."""
    tries = []
    for _ in range(TRIES):
        transaction = server.connection.transaction()
        await transaction.start()
        try:
            call = await step(server, rows)
            started = server.cpu_ms()
            for _ in range(calls):
                assert await call() == rows
            tries.append((server.cpu_ms() - started) / calls)
        finally:
            await transaction.rollback()
    return min(tries)


@pytest.mark.parametrize("step", STEPS)
async def test_the_cost_per_row_does_not_grow_with_the_rows(server: Server, step: Step) -> None:
    await measure(server, step, 10)  # fills the caches of the session
    few = await measure(server, step, FEW) / FEW
    many = await measure(server, step, MANY) / MANY
    assert many <= few * MAX_GROWTH, f"{few * 1000:.1f} µs per row with {FEW} rows, {many * 1000:.1f} with {MANY}"


@pytest.mark.parametrize("step", STEPS)
async def test_a_call_with_nothing_to_do_costs_little(server: Server, step: Step) -> None:
    assert await measure(server, step, 0, calls=20) < MAX_IDLE_MS
