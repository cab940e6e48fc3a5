"""Claim: who gets which run, in what order, and never twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from bellringer.engine import claim
from bellringer.engine.claim import TenantCursor
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def test_what_many_claim_at_once_is_disjoint_and_complete(harness: EngineHarness) -> None:
    await asyncio.gather(*(harness.send() for _ in range(200)))
    seats = [await harness.join_worker() for _ in range(8)]

    async def drain(seat: claim.ClaimSpec) -> list[object]:
        mine: list[object] = []
        while taken := await harness.claim(seat, 7):
            mine += [claimed.key for claimed in taken]
        return mine

    taken = [key for keys in await asyncio.gather(*map(drain, seats)) for key in keys]
    assert len(taken) == len(set(taken)) == 200


async def test_a_claim_takes_no_more_than_asked(harness: EngineHarness) -> None:
    for _ in range(5):
        await harness.send()
    seat = await harness.join_worker()
    assert [len(await harness.claim(seat, 3)) for _ in range(3)] == [3, 2, 0]


async def test_nothing_is_claimed_before_it_is_available(harness: EngineHarness) -> None:
    await harness.send(at=harness.after(1))
    seat = await harness.join_worker()
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(0.999999))
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(1))
    assert len(await harness.claim(seat)) == 1


async def test_what_is_held_for_any_reason_is_not_claimed(harness: EngineHarness) -> None:
    for _ in range(8):
        await harness.send()
    await harness.sql(
        "update queue q set blocked = n.n from (select ctid, row_number() over () - 1 as n from queue) n"
        " where n.ctid = q.ctid"
    )
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_worker_claims_only_tasks_that_it_knows_of_pools_that_it_serves(harness: EngineHarness) -> None:
    known = await harness.send(task="greet")
    await harness.send(task="unknown")
    await harness.send(task="greet", pool="long")
    taken = await harness.claim(await harness.join_worker("greet"))
    assert [claimed.key for claimed in taken] == [known.key]


async def test_a_claim_brings_what_the_attempt_needs(harness: EngineHarness) -> None:
    job = await harness.job("nightly", args=[1], kwargs={"deep": True}, timeout=timedelta(seconds=5))
    key = await harness.trigger(job)
    await harness.pass_time(3)
    claimed = await harness.claim_one(await harness.join_worker())
    assert (claimed.key, claimed.name, claimed.attempt, claimed.spent) == (key, "nightly", 1, 1)
    assert claimed.claimed_at == harness.after(3)
    assert (claimed.spec.args, claimed.spec.kwargs, claimed.spec.timeout) == ([1], {"deep": True}, 5)


async def test_a_high_priority_comes_first_within_a_tenant(harness: EngineHarness) -> None:
    for priority in (1, 9, 5, 9, 1, 5):
        await harness.send(priority=priority)
    seat = await harness.join_worker()
    taken = []
    for _ in range(3):
        keys = [claimed.key.job_id for claimed in await harness.claim(seat, 2)]
        rows = await harness.sql("select priority from queue where job_id = any ($1)", keys)
        taken.append([row[0] for row in rows])
    assert taken == [[9, 9], [5, 5], [1, 1]]


async def test_the_oldest_comes_first_within_a_priority(harness: EngineHarness) -> None:
    await harness.pass_time(10)
    for seconds in (5, 1, 3):
        await harness.send(at=harness.after(seconds))
    seat = await harness.join_worker()
    claimed = [await harness.claim(seat, 1) for _ in range(3)]
    assert [harness.seconds(c.key.scheduled_for) for [c] in claimed] == [1, 3, 5]


async def test_each_tenant_gets_its_share_of_a_batch(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(3)]
    for tenant in tenants:
        for _ in range(20):
            await harness.send(tenant=tenant)
    taken, _ = await claim.claim(harness.store, await harness.join_worker(), 12, TenantCursor())
    assert Counter(claimed.tenant_id for claimed in taken) == dict.fromkeys(tenants, 3)


async def test_a_share_that_a_tenant_does_not_need_is_not_lost_for_long(harness: EngineHarness) -> None:
    [second] = await harness.tenants(1)
    await harness.send(tenant=second)
    for _ in range(40):
        await harness.send()
    seat, turn, taken = await harness.join_worker(), TenantCursor(), 0
    for _ in range(5):
        batch, turn = await claim.claim(harness.store, seat, 10, turn)
        taken += len(batch)
    assert taken == 41


async def test_tenants_take_turns_where_there_are_more_of_them_than_seats(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(9)]
    for tenant in tenants:
        for _ in range(10):
            await harness.send(tenant=tenant)
    seat, turn = await harness.join_worker(), TenantCursor()
    served: Counter[int] = Counter()
    for _ in range(15):
        taken, turn = await claim.claim(harness.store, seat, 2, turn)
        served.update(claimed.tenant_id for claimed in taken)
    assert sum(served.values()) == 30
    assert min(served[tenant] for tenant in tenants) >= 2


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 3, 99])
async def test_a_claim_finds_everything_wherever_it_starts(harness: EngineHarness, after: int) -> None:
    for tenant in (1, *await harness.tenants(2)):
        for priority in (0, 5, 9):
            await harness.send(tenant=tenant, priority=priority)
    taken, _ = await claim.claim(harness.store, await harness.join_worker(), 100, TenantCursor(after_tenant=after))
    assert len(taken) == len({claimed.key for claimed in taken}) == 9


async def test_each_claim_is_a_new_attempt(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    for attempt in (1, 2):
        claimed = await harness.claim_one(seat)
        assert claimed.attempt == attempt
        await harness.fail(seat, claimed)
        await harness.pass_time(60)


async def test_what_is_given_back_counts_as_never_taken(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert await queue.give_back(harness.store, seat.worker_id, [(claimed.key, claimed.attempt)]) == 1
    assert await queue.give_back(harness.store, seat.worker_id, [(claimed.key, claimed.attempt)]) == 0
    assert (await harness.claim_one(seat)).attempt == 1
    assert await harness.value("select count(*) from attempts") == 0


async def test_only_what_is_held_can_be_given_back(harness: EngineHarness) -> None:
    await harness.send()
    seat, other = await harness.join_worker(), await harness.join_worker()
    claimed = await harness.claim_one(seat)
    assert await queue.give_back(harness.store, other.worker_id, [(claimed.key, claimed.attempt)]) == 0
    assert await queue.give_back(harness.store, seat.worker_id, [(claimed.key, 2)]) == 0
    assert await queue.give_back(harness.store, seat.worker_id, []) == 0


async def test_what_is_given_back_to_a_paused_job_is_held(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await harness.trigger(job)
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.pause(job)
    await queue.give_back(harness.store, seat.worker_id, [(claimed.key, claimed.attempt)])
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert (await harness.claim_one(seat)).attempt == 1
