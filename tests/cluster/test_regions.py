"""Two regions of schedulers: each fires its own shards; where one dies the other takes over, and hands back."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from bellringer.core.jobs import Definition, shard_of
from bellringer.core.shard_balance import divide_shards
from bellringer.engine.register import create
from bellringer.store import leases
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import Processes, every_second, fired_once_each, held_by, until

JOBS = 100
SHARDS = 64


@pytest.mark.cluster
@pytest.mark.timeout(300)
async def test_a_region_that_dies_is_taken_over_and_gets_its_shards_back(
    store: Store, catalog: Catalog, processes: Processes
) -> None:
    home = {region: set(shards) for region, shards in divide_shards(["eu", "us"], SHARDS).items()}
    await leases.set_regions(store, {shard: region for region in home for shard in home[region]})
    eu = {name: processes.scheduler(name, region="eu") for name in ("eu1", "eu2")}
    us = [processes.scheduler("us1", region="us")]

    async def each_at_home() -> bool:
        halves = [await held_by(store, name) for name in ("eu1", "eu2")]
        return (
            await held_by(store, "us1") == home["us"]
            and halves[0] | halves[1] == home["eu"]
            and len(halves[0]) == len(halves[1]) == 16
        )

    await until(each_at_home, 60, "each region holds its shards, its nodes share them evenly")
    began = await every_second(store, JOBS)
    at_home = Definition(name="at home", task="demo", region="us")
    [job] = await create(store, catalog, [at_home], tenant_id=1, who="test")
    assert shard_of(job.job_id, SHARDS) in home["us"]

    async def fired(seconds: float) -> bool:
        at = began + timedelta(seconds=seconds)
        return bool(await store.pool.fetchval("select count(*) from runs where scheduled_for = $1", at) == JOBS)

    await until(lambda: fired(2), 30, "both regions fire")
    for process in eu.values():
        process.kill()

    async def all_in_us() -> bool:
        return len(await held_by(store, "us1")) == SHARDS

    took = await until(all_in_us, 30, "the other region takes over what has expired")
    elapsed = (await store.now() - began).total_seconds()
    await until(lambda: fired(int(elapsed) + 3), 60, "it fires for both")

    processes.scheduler("eu3", region="eu")

    async def handed_back() -> bool:
        return await held_by(store, "eu3") == home["eu"] and await held_by(store, "us1") == home["us"]

    back = await until(handed_back, 60, "the first region has its shards again")
    last = int((await store.now() - began).total_seconds()) + 3
    await until(lambda: fired(last), 60, "both fire again, and have caught up")
    await fired_once_each(store, JOBS, began, began + timedelta(seconds=last))
    us[0].send_signal(signal.SIGTERM)
    assert us[0].wait(20) == 0
    print(f"taken over after {took:.1f} s, handed back after {back:.1f} s")
