"""The load of tenants and shards, and claims whose worker is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.engine import pause_task
from bellringer.schedule import every
from bellringer.store import forecast, load

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now(), $3, $2, 0, 1, 5, 'send', '{}'
from generate_series(1, $1)
"""


async def test_runs_are_counted_by_tenant(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    task_id = (await harness.catalog.task_ids(["greet"]))["greet"]
    [noisy] = await harness.tenants(1)
    await harness.sql(READY, 40, task_id, noisy)
    await harness.send(retry=Retry(5))
    await harness.send()
    [first, second] = [run for run in await harness.claim(seat, 100) if run.tenant_id == 1]
    await harness.fail(seat, first if first.spec.retry["attempts"] == 5 else second)
    await harness.sql(READY, 3, task_id, noisy)
    found = {row.tenant_id: row for row in await load.tenant_loads(harness.store)}
    assert (found[noisy].ready, found[noisy].running, found[noisy].oldest) == (3, 40, await harness.now())
    assert (found[1].ready, found[1].retrying, found[1].running) == (0, 1, 1)
    await pause_task.pause(harness.store, "greet", tenant_id=noisy, who="me")
    [one] = await load.tenant_loads(harness.store, noisy)
    assert (one.ready, one.held, one.running) == (0, 3, 40)


async def test_claims_of_silent_workers_are_counted(harness: EngineHarness) -> None:
    seat, other = await harness.join_worker(), await harness.join_worker()
    for _ in range(4):
        await harness.send()
    taken = await harness.claim(seat, 3)
    await harness.claim(other)
    assert await load.count_silent_claims(harness.store) == 0
    await harness.silence_worker(seat)
    assert await load.count_silent_claims(harness.store) == len(taken)


async def test_the_load_of_shards_shows_skew(harness: EngineHarness) -> None:
    await harness.share_shard(7)
    for n in range(5):
        await harness.job(f"job {n}", every("1m"))
    shards = list(range(await harness.catalog.shard_count()))
    for _ in shards:
        await forecast.recount_oldest_shard(harness.store, shards)
    await harness.pass_time(60)
    await harness.tick_all()
    found = await load.shard_loads(harness.store)
    assert len(found) == len(shards)
    assert found[7].fired == 5
    assert found[7].due_per_minute == pytest.approx(5)
    assert load.skew([row.fired for row in found.values()]) == len(shards)


def test_an_even_load_has_a_skew_of_one() -> None:
    assert load.skew([3, 3, 3]) == 1
    assert load.skew([0, 0]) == 0
    assert load.skew([6, 3, 0]) == 2
