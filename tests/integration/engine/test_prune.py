"""Prune: history lives by the day, and goes by the day, but not while anything refers to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine import prune
from bellringer.engine.prune import Retention
from bellringer.schedule import every
from bellringer.store import partitions
from bellringer.store.connection_pool import Store

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

DAY = timedelta(days=1)
KEEP = Retention(runs=10 * DAY, dead_letters=20 * DAY, gaps=30 * DAY)


async def age(harness: EngineHarness, days: int) -> int:
    """So many days pass; then the old is dropped."""
    await harness.set_clock(harness.noon + days * DAY)
    return await prune.prune(harness.store, await harness.now(), KEEP)


async def partition_names(harness: EngineHarness, parent: str) -> set[str]:
    rows = await harness.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = $1::text::regclass", parent
    )
    return {row[0] for row in rows}


async def test_days_are_made_ahead_for_all_of_history(harness: EngineHarness) -> None:
    await prune.create_partitions(harness.store, harness.noon + 5 * DAY)
    for parent in ("runs", "attempts", "logs"):
        wanted = {f"{parent}_{harness.noon + n * DAY:%Y%m%d}" for n in (5, 6, 7)}
        assert wanted <= await partition_names(harness, parent)


async def test_making_a_day_again_changes_nothing(harness: EngineHarness) -> None:
    await prune.create_partitions(harness.store, harness.noon)
    before = await partition_names(harness, "runs")
    harness.store.days.clear()
    await prune.create_partitions(harness.store, harness.noon)
    assert await partition_names(harness, "runs") == before


async def test_many_nodes_may_make_the_same_day_at_once(harness: EngineHarness) -> None:
    nodes = [await Store.open(harness.store.dsn, size=1) for _ in range(5)]
    day = (harness.noon + 40 * DAY).date()
    await asyncio.gather(*(partitions.ensure_days(node, [day]) for node in nodes))
    for node in nodes:
        await node.close()
    assert day in await partitions.list_days(harness.store)


async def test_what_is_older_than_the_installation_goes_to_the_past(harness: EngineHarness) -> None:
    await harness.set_clock(harness.noon - 100 * DAY)
    job = await harness.job("job", every("1s"))
    await harness.pass_time(1)
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.value("select tableoid::regclass::text from runs where job_id = $1", job) == "runs_past"
    assert await harness.value("select tableoid::regclass::text from attempts") == "attempts_past"


async def test_a_day_is_dropped_once_its_retention_is_over(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    day = harness.noon.date()
    await age(harness, 10)
    assert day in await partitions.list_days(harness.store)
    assert await age(harness, 11) >= 1
    assert day not in await partitions.list_days(harness.store)
    assert await harness.value("select count(*) from runs where job_id = $1", sent.key.job_id) == 0
    assert await partition_names(harness, "logs") == {
        name.replace("runs", "logs") for name in await partition_names(harness, "runs")
    }


async def test_a_day_stays_while_a_run_of_it_waits_or_runs(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await age(harness, 15)
    assert harness.noon.date() in await partitions.list_days(harness.store)
    await harness.end(seat, claimed)
    await age(harness, 15)
    assert harness.noon.date() not in await partitions.list_days(harness.store)


async def test_a_day_stays_while_a_far_retry_of_it_waits(harness: EngineHarness) -> None:
    sent = await harness.send(retry=Retry(delays=["20d"], jitter=0))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await age(harness, 15)
    await harness.set_clock(harness.noon + 20 * DAY)
    await harness.ring()
    await harness.end(seat, await harness.claim_one(seat))
    assert await harness.state(sent.key) is State.SUCCEEDED


async def test_a_day_stays_while_a_dead_letter_of_it_is_kept(harness: EngineHarness) -> None:
    sent = await harness.send(retry=Retry(1))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await age(harness, 20)
    assert await harness.redrive(sent.key) == 1
    await harness.fail(seat, await harness.claim_one(seat))
    await age(harness, 41)
    assert await harness.value("select count(*) from dead_letters") == 0
    assert harness.noon.date() not in await partitions.list_days(harness.store)


async def test_gaps_and_keys_are_forgotten_in_their_time(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.send(key="order 1")
    await harness.set_clock(harness.after(1000))
    await harness.tick()
    await age(harness, 29)
    assert len(await harness.gaps(job)) == 1
    assert await harness.value("select count(*) from send_keys") == 0
    await age(harness, 31)
    assert await harness.gaps(job) == []


async def test_a_day_that_is_in_use_just_now_is_left_for_the_next_pass(harness: EngineHarness) -> None:
    await harness.set_clock(harness.noon + 20 * DAY)
    async with harness.store.pool.acquire() as reader, reader.transaction():
        await reader.fetch("select * from runs")
        assert await prune.prune(harness.store, await harness.now(), KEEP) == 0
    assert await prune.prune(harness.store, await harness.now(), KEEP) > 0


async def test_tidying_forgets_only_cohorts_without_members(harness: EngineHarness) -> None:
    await harness.job("kept", every("1s"))
    await harness.retire(await harness.job("gone", every("2s")))
    await prune.delete_empty_cohorts(harness.store, range(64))
    assert await harness.value("select count(*) from cohorts") == 1
