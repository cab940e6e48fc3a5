"""A herd under fire: one node is killed in the middle, one is stopped past its lease and continued."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from bellringer.bench.herd import register
from bellringer.store.connection_pool import Store

from .conftest import Processes, is_stopped, until

JOBS = int(os.environ.get("BELLRINGER_HERD", "10000"))


async def _held_by(store: Store, name: str) -> int:
    return int(
        await store.pool.fetchval(
            "select count(*) from leases l join nodes n on n.node_id = l.holder where n.name = $1", name
        )
    )


@pytest.mark.cluster
async def test_every_job_fires_once_though_a_node_is_killed_and_another_writes_with_a_stale_token(
    store: Store, processes: Processes
) -> None:
    instant = (await store.now()).replace(microsecond=0) + timedelta(seconds=JOBS / 20_000 + 12)
    stopped = processes.start("scheduler", "stopped", fault="tick.checked:stop:2", most=JOBS // 20)
    killed = processes.start("scheduler", "killed", fault="tick.checked:kill:3", most=JOBS // 20)
    processes.start("scheduler", "steady", most=JOBS // 20)
    await register(store, JOBS, 500, instant)

    async def shared() -> bool:
        return min([await _held_by(store, name) for name in ("stopped", "killed", "steady")]) >= 21

    await until(shared, 15, "the nodes share the shards")

    async def both_hit() -> bool:
        return killed.poll() == -signal.SIGKILL and is_stopped(stopped)

    await until(both_hit, 60, "one node is killed and one is stopped in the middle of the herd")
    early = await store.pool.fetchval("select count(*) from runs")
    assert 0 < early < JOBS, "the faults struck in the middle"

    async def all_fired() -> bool:
        return bool(await store.pool.fetchval("select count(*) from runs") >= JOBS)

    await until(all_fired, 60, "the steady node takes over and fires the rest")
    stopped.send_signal(signal.SIGCONT)

    async def refused() -> bool:
        return bool(await store.pool.fetchval("select refused > 0 from nodes where name = 'stopped'"))

    await until(refused, 20, "the stale node's write is tried and refused")
    row = await store.pool.fetchrow(
        "select (select count(*) from runs), (select count(distinct job_id) from runs), (select count(*) from queue)"
    )
    assert row is not None
    assert tuple(row) == (JOBS, JOBS, JOBS)
    assert await store.pool.fetchval("select count(*) from runs where scheduled_for <> $1", instant) == 0
    assert await store.pool.fetchval("select count(*) from gaps") == 0


@pytest.mark.cluster
async def test_nodes_that_join_and_leave_under_load_miss_nothing_and_double_nothing(
    store: Store, processes: Processes
) -> None:
    first = processes.start("scheduler", "first")
    await register(store, 300, 1, await store.now() + timedelta(days=1))
    await store.pool.execute("update schedules set kind = 'every', expression = '1s', anchor = ''")
    await store.pool.execute("update cohorts set next_at = date_trunc('second', now()) + interval '3 s'")
    began = await store.pool.fetchval("select min(next_at) from cohorts")

    async def fired_until(seconds: float) -> bool:
        count = await store.pool.fetchval(
            "select count(*) from runs where scheduled_for = $1", began + timedelta(seconds=seconds)
        )
        return bool(count == 300)

    async def all_held_by_others(name: str) -> bool:
        return (
            await _held_by(store, name) == 0
            and await store.pool.fetchval("select count(*) from leases where holder is null") == 0
        )

    await until(lambda: fired_until(1), 15, "the first node fires")
    second = processes.start("scheduler", "second")
    await until(lambda: fired_until(5), 15, "two nodes fire")
    first.send_signal(signal.SIGTERM)
    handed_over = await until(lambda: all_held_by_others("first"), 5, "the first hands over")
    assert handed_over <= 1.0, "a voluntary hand-over takes less than a second"
    processes.start("scheduler", "third")
    await until(lambda: fired_until(9), 15, "the second and third fire")
    second.kill()
    expired = await until(lambda: all_held_by_others("second"), 15, "the third takes over what the second held")
    assert expired <= 10, "after kill -9 the leases are taken within ten seconds"
    await until(lambda: fired_until(18), 30, "the third fires alone, and has caught up")

    counts = await store.pool.fetch(
        "select scheduled_for, count(*) as runs, count(distinct job_id) as jobs from runs where scheduled_for <= $1"
        " group by 1 order by 1", began + timedelta(seconds=18))  # fmt: skip
    assert [row["scheduled_for"] for row in counts] == [began + timedelta(seconds=n) for n in range(19)]
    assert {(row["runs"], row["jobs"]) for row in counts} == {(300, 300)}
    assert await store.pool.fetchval("select count(*) from gaps") == 0
