"""Claim: who gets which run, in what order, and never twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.lifecycle import claim
from bellringer.lifecycle.claim import Turn
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def test_what_many_claim_at_once_is_disjoint_and_complete(bench: Bench) -> None:
    await asyncio.gather(*(bench.send() for _ in range(200)))
    seats = [await bench.seat() for _ in range(8)]

    async def drain(seat: claim.Seat) -> list[object]:
        mine: list[object] = []
        while taken := await bench.claim(seat, 7):
            mine += [claimed.key for claimed in taken]
        return mine

    taken = [key for keys in await asyncio.gather(*map(drain, seats)) for key in keys]
    assert len(taken) == len(set(taken)) == 200


async def test_a_claim_takes_no_more_than_asked(bench: Bench) -> None:
    for _ in range(5):
        await bench.send()
    seat = await bench.seat()
    assert [len(await bench.claim(seat, 3)) for _ in range(3)] == [3, 2, 0]


async def test_nothing_is_claimed_before_it_is_available(bench: Bench) -> None:
    await bench.send(at=bench.after(1))
    seat = await bench.seat()
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(0.999999))
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(1))
    assert len(await bench.claim(seat)) == 1


async def test_what_is_held_for_any_reason_is_not_claimed(bench: Bench) -> None:
    for _ in range(8):
        await bench.send()
    await bench.sql(
        "update queue q set blocked = n.n from (select ctid, row_number() over () - 1 as n from queue) n"
        " where n.ctid = q.ctid"
    )
    assert len(await bench.claim(await bench.seat())) == 1


async def test_a_worker_claims_only_tasks_that_it_knows_of_pools_that_it_serves(bench: Bench) -> None:
    known = await bench.send(task="greet")
    await bench.send(task="unknown")
    await bench.send(task="greet", pool="long")
    taken = await bench.claim(await bench.seat("greet"))
    assert [claimed.key for claimed in taken] == [known.key]


async def test_a_claim_brings_what_the_attempt_needs(bench: Bench) -> None:
    job = await bench.job("nightly", args=[1], kwargs={"deep": True}, timeout=timedelta(seconds=5))
    key = await bench.trigger(job)
    await bench.pass_time(3)
    claimed = await bench.claim_one(await bench.seat())
    assert (claimed.key, claimed.name, claimed.attempt, claimed.spent) == (key, "nightly", 1, 1)
    assert claimed.claimed_at == bench.after(3)
    assert (claimed.spec.args, claimed.spec.kwargs, claimed.spec.timeout) == ([1], {"deep": True}, 5)


async def test_a_high_priority_comes_first_within_a_tenant(bench: Bench) -> None:
    for priority in (1, 9, 5, 9, 1, 5):
        await bench.send(priority=priority)
    seat = await bench.seat()
    taken = []
    for _ in range(3):
        keys = [claimed.key.job_id for claimed in await bench.claim(seat, 2)]
        rows = await bench.sql("select priority from queue where job_id = any ($1)", keys)
        taken.append([row[0] for row in rows])
    assert taken == [[9, 9], [5, 5], [1, 1]]


async def test_the_oldest_comes_first_within_a_priority(bench: Bench) -> None:
    await bench.pass_time(10)
    for seconds in (5, 1, 3):
        await bench.send(at=bench.after(seconds))
    seat = await bench.seat()
    claimed = [await bench.claim(seat, 1) for _ in range(3)]
    assert [bench.seconds(c.key.scheduled_for) for [c] in claimed] == [1, 3, 5]


async def test_each_tenant_gets_its_share_of_a_batch(bench: Bench) -> None:
    tenants = [1, *await bench.tenants(3)]
    for tenant in tenants:
        for _ in range(20):
            await bench.send(tenant=tenant)
    taken, _ = await claim.claim(bench.store, await bench.seat(), 12, Turn())
    assert Counter(claimed.tenant_id for claimed in taken) == dict.fromkeys(tenants, 3)


async def test_a_share_that_a_tenant_does_not_need_is_not_lost_for_long(bench: Bench) -> None:
    [second] = await bench.tenants(1)
    await bench.send(tenant=second)
    for _ in range(40):
        await bench.send()
    seat, turn, taken = await bench.seat(), Turn(), 0
    for _ in range(5):
        batch, turn = await claim.claim(bench.store, seat, 10, turn)
        taken += len(batch)
    assert taken == 41


async def test_tenants_take_turns_where_there_are_more_of_them_than_seats(bench: Bench) -> None:
    tenants = [1, *await bench.tenants(9)]
    for tenant in tenants:
        for _ in range(10):
            await bench.send(tenant=tenant)
    seat, turn = await bench.seat(), Turn()
    served: Counter[int] = Counter()
    for _ in range(15):
        taken, turn = await claim.claim(bench.store, seat, 2, turn)
        served.update(claimed.tenant_id for claimed in taken)
    assert sum(served.values()) == 30
    assert min(served[tenant] for tenant in tenants) >= 2


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 3, 99])
async def test_a_claim_finds_everything_wherever_it_starts(bench: Bench, after: int) -> None:
    for tenant in (1, *await bench.tenants(2)):
        for priority in (0, 5, 9):
            await bench.send(tenant=tenant, priority=priority)
    taken, _ = await claim.claim(bench.store, await bench.seat(), 100, Turn(after=after))
    assert len(taken) == len({claimed.key for claimed in taken}) == 9


async def test_each_claim_is_a_new_attempt(bench: Bench) -> None:
    await bench.send()
    seat = await bench.seat()
    for attempt in (1, 2):
        claimed = await bench.claim_one(seat)
        assert claimed.attempt == attempt
        await bench.fail(seat, claimed)
        await bench.pass_time(60)


async def test_what_is_given_back_counts_as_never_taken(bench: Bench) -> None:
    await bench.send()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    assert await queue.give_back(bench.store, seat.worker_id, [(claimed.key, claimed.attempt)]) == 1
    assert await queue.give_back(bench.store, seat.worker_id, [(claimed.key, claimed.attempt)]) == 0
    assert (await bench.claim_one(seat)).attempt == 1
    assert await bench.value("select count(*) from attempts") == 0


async def test_only_what_is_held_can_be_given_back(bench: Bench) -> None:
    await bench.send()
    seat, other = await bench.seat(), await bench.seat()
    claimed = await bench.claim_one(seat)
    assert await queue.give_back(bench.store, other.worker_id, [(claimed.key, claimed.attempt)]) == 0
    assert await queue.give_back(bench.store, seat.worker_id, [(claimed.key, 2)]) == 0
    assert await queue.give_back(bench.store, seat.worker_id, []) == 0


async def test_what_is_given_back_to_a_paused_job_is_held(bench: Bench) -> None:
    job = await bench.job("job")
    await bench.trigger(job)
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    await bench.pause(job)
    await queue.give_back(bench.store, seat.worker_id, [(claimed.key, claimed.attempt)])
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert (await bench.claim_one(seat)).attempt == 1
