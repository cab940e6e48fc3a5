"""The number of shards is chosen for a new installation, and everything fires with any number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bellringer.errors import ConfigError
from bellringer.schedule import every
from bellringer.store.migrate import set_shard_count

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def choose(harness: EngineHarness, shards: int) -> None:
    async with harness.store.pool.acquire() as connection:
        await set_shard_count(connection, shards)


@pytest.mark.parametrize("shards", [1, 8, 200])
async def test_recurring_jobs_and_one_shots_fire_with_any_number_of_shards(harness: EngineHarness, shards: int) -> None:
    await choose(harness, shards)
    for number in range(20):
        await harness.job(f"job-{number}", every("1m"))
        await harness.send(at=harness.after(30))
    assert len((await harness.hold()).tokens) == shards
    placed = await harness.value("select count(distinct shard) from jobs where shard < $1", shards)
    assert placed == 1 if shards == 1 else placed > 1
    await harness.set_clock(harness.after(90))
    assert await harness.tick_all() >= 20
    assert (await harness.ring()).fired == 20
    assert await harness.value("select count(distinct job_id) from runs") == 40


@pytest.mark.parametrize("shards", [0, 1025])
async def test_an_impossible_number_is_refused(harness: EngineHarness, shards: int) -> None:
    with pytest.raises(ConfigError, match="1 to 1024"):
        await choose(harness, shards)
    assert await harness.value("select count(*) from leases") == 64


async def test_the_number_cannot_change_once_there_are_jobs(harness: EngineHarness) -> None:
    await harness.job("job", every("1m"))
    with pytest.raises(ConfigError, match="has 64 shards and has had jobs"):
        await choose(harness, 8)
    await choose(harness, 64)  # nothing to change


async def test_the_number_cannot_change_while_a_worker_runs(harness: EngineHarness) -> None:
    await harness.join_worker()
    with pytest.raises(ConfigError, match="schedulers or workers are running"):
        await choose(harness, 8)
