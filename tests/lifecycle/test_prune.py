"""Prune: history lives by the day, and goes by the day, but not while anything refers to it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from bellringer.lifecycle import prune
from bellringer.lifecycle.prune import Retention
from bellringer.policies import Retry
from bellringer.runs import State
from bellringer.schedule import every
from bellringer.store import history
from bellringer.store.pool import Store

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

DAY = timedelta(days=1)
KEEP = Retention(runs=10 * DAY, dead_letters=20 * DAY, gaps=30 * DAY)


async def age(bench: Bench, days: int) -> int:
    """So many days pass; then the old is dropped."""
    await bench.set_clock(bench.noon + days * DAY)
    return await prune.prune(bench.store, await bench.now(), KEEP)


async def partitions(bench: Bench, parent: str) -> set[str]:
    rows = await bench.sql(
        "select inhrelid::regclass::text from pg_inherits where inhparent = $1::text::regclass", parent
    )
    return {row[0] for row in rows}


async def test_days_are_made_ahead_for_all_of_history(bench: Bench) -> None:
    await prune.make_days(bench.store, bench.noon + 5 * DAY)
    for parent in ("runs", "attempts", "logs"):
        wanted = {f"{parent}_{bench.noon + n * DAY:%Y%m%d}" for n in (5, 6, 7)}
        assert wanted <= await partitions(bench, parent)


async def test_making_a_day_again_changes_nothing(bench: Bench) -> None:
    await prune.make_days(bench.store, bench.noon)
    before = await partitions(bench, "runs")
    bench.store.days.clear()
    await prune.make_days(bench.store, bench.noon)
    assert await partitions(bench, "runs") == before


async def test_many_nodes_may_make_the_same_day_at_once(bench: Bench) -> None:
    nodes = [await Store.open(bench.store.dsn, size=1) for _ in range(5)]
    day = (bench.noon + 40 * DAY).date()
    await asyncio.gather(*(history.ensure_days(node, [day]) for node in nodes))
    for node in nodes:
        await node.close()
    assert day in await history.days(bench.store)


async def test_what_is_older_than_the_installation_goes_to_the_past(bench: Bench) -> None:
    await bench.set_clock(bench.noon - 100 * DAY)
    job = await bench.job("job", every("1s"))
    await bench.pass_time(1)
    await bench.tick_all()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    assert await bench.value("select tableoid::regclass::text from runs where job_id = $1", job) == "runs_past"
    assert await bench.value("select tableoid::regclass::text from attempts") == "attempts_past"


async def test_a_day_is_dropped_once_its_retention_is_over(bench: Bench) -> None:
    sent = await bench.send()
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    day = bench.noon.date()
    await age(bench, 10)
    assert day in await history.days(bench.store)
    assert await age(bench, 11) >= 1
    assert day not in await history.days(bench.store)
    assert await bench.value("select count(*) from runs where job_id = $1", sent.key.job_id) == 0
    assert await partitions(bench, "logs") == {name.replace("runs", "logs") for name in await partitions(bench, "runs")}


async def test_a_day_stays_while_a_run_of_it_waits_or_runs(bench: Bench) -> None:
    await bench.send()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    await age(bench, 15)
    assert bench.noon.date() in await history.days(bench.store)
    await bench.end(seat, claimed)
    await age(bench, 15)
    assert bench.noon.date() not in await history.days(bench.store)


async def test_a_day_stays_while_a_far_retry_of_it_waits(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(delays=["20d"]))
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await age(bench, 15)
    await bench.set_clock(bench.noon + 20 * DAY)
    await bench.ring()
    await bench.end(seat, await bench.claim_one(seat))
    assert await bench.state(sent.key) is State.SUCCEEDED


async def test_a_day_stays_while_a_dead_letter_of_it_is_kept(bench: Bench) -> None:
    sent = await bench.send(retry=Retry(1))
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await age(bench, 20)
    assert await bench.redrive(sent.key) == 1
    await bench.fail(seat, await bench.claim_one(seat))
    await age(bench, 41)
    assert await bench.value("select count(*) from dead_letters") == 0
    assert bench.noon.date() not in await history.days(bench.store)


async def test_gaps_and_keys_are_forgotten_in_their_time(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.send(key="order 1")
    await bench.set_clock(bench.after(1000))
    await bench.tick()
    await age(bench, 29)
    assert len(await bench.gaps(job)) == 1
    assert await bench.value("select count(*) from send_keys") == 0
    await age(bench, 31)
    assert await bench.gaps(job) == []


async def test_a_day_that_is_in_use_just_now_is_left_for_the_next_pass(bench: Bench) -> None:
    await bench.set_clock(bench.noon + 20 * DAY)
    async with bench.store.pool.acquire() as reader, reader.transaction():
        await reader.fetch("select * from runs")
        assert await prune.prune(bench.store, await bench.now(), KEEP) == 0
    assert await prune.prune(bench.store, await bench.now(), KEEP) > 0


async def test_tidying_forgets_only_hands_without_members(bench: Bench) -> None:
    await bench.job("kept", every("1s"))
    await bench.retire(await bench.job("gone", every("2s")))
    await prune.tidy(bench.store, range(64))
    assert await bench.value("select count(*) from cohorts") == 1
