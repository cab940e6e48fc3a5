"""Fair claims: each tenant's part by its weight, no more under way than its cap, and nobody is left out."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.policies import Limit
from bellringer.engine import claim
from bellringer.engine.claim import MAX_FRUITLESS_CLAIMS, MAX_TENANTS_PER_CLAIM, ClaimSpec, TenantCursor
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

HERD = int(os.environ.get("BELLRINGER_HERD", "10000"))  # ready runs of the noisy tenant; the issue names 100,000
READY = """
insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, shard, pool_id, priority, cause, spec)
select gen_random_uuid(), bellringer.now(), 0, bellringer.now() + make_interval(secs => $5), t, $3, 0, 1, $4, 'send',
       '{}'
from unnest($1::integer[]) t cross join generate_series(1, $2)
"""


async def fill(
    harness: EngineHarness, tenants: list[int], runs: int, *, task: str = "greet", priority: int = 5, lead: float = 0
) -> None:
    """So many ready runs of each of these tenants."""
    task_id = (await harness.catalog.task_ids([task]))[task]
    await harness.sql(READY, tenants, runs, task_id, priority, lead)


async def cap(harness: EngineHarness, tenant: int, most: int) -> None:
    await harness.sql(
        "update tenants set quotas = jsonb_build_object('in_flight', $2::int) where tenant_id = $1", tenant, most
    )


async def weigh(harness: EngineHarness, tenant: int, weight: float) -> None:
    await harness.sql("update tenants set weight = $2 where tenant_id = $1", tenant, weight)


async def under_way(harness: EngineHarness, tenant: int) -> int:
    return int(await harness.value("select count(*) from queue where tenant_id = $1 and worker_id is not null", tenant))


async def served(
    harness: EngineHarness, seat: ClaimSpec, most: int, claims: int, turn: TenantCursor | None = None
) -> Counter[int]:
    """How many runs each tenant got in so many claims."""
    turn, found = turn or TenantCursor(), Counter[int]()
    for _ in range(claims):
        taken, turn = await claim.claim(harness.store, seat, most, turn)
        found.update(claimed.tenant_id for claimed in taken)
    return found


# Shares


async def test_ten_runs_beside_a_herd_are_claimed_as_soon_as_without_it(harness: EngineHarness) -> None:
    """The issue's case, in claims instead of seconds, so that a busy machine changes nothing."""
    [small] = await harness.tenants(1)

    async def claims_for_ten(most: int) -> int:
        await fill(harness, [small], 10)
        seat, turn, got, count = await harness.join_worker(), TenantCursor(), 0, 0
        while got < 10:
            taken, turn = await claim.claim(harness.store, seat, most, turn)
            got += sum(claimed.tenant_id == small for claimed in taken)
            count += 1
        return count

    alone = {most: await claims_for_ten(most) for most in (20, 50, 200)}
    await fill(harness, [1], HERD)
    beside = {most: await claims_for_ten(most) for most in (20, 50, 200)}
    assert alone == dict.fromkeys(alone, 1)
    assert all(beside[most] <= 1.5 * alone[most] for most in alone), beside


async def test_what_one_tenant_leaves_goes_to_the_others_in_the_same_claim(harness: EngineHarness) -> None:
    few, some, many = [1, *await harness.tenants(2)]
    await fill(harness, [few], 1)
    await fill(harness, [some], 10)
    await fill(harness, [many], 100)
    assert await served(harness, await harness.join_worker(), 60, 1) == {few: 1, some: 10, many: 49}


@pytest.mark.parametrize("most", [1, 2, 7, 40])
async def test_three_to_one_by_weight_while_both_have_work(harness: EngineHarness, most: int) -> None:
    heavy, light = [1, *await harness.tenants(1)]
    await weigh(harness, heavy, 3)
    await fill(harness, [heavy, light], 400)
    claims = max(400 // most, 10)
    got = await served(harness, await harness.join_worker(), most, claims if most * claims <= 480 else 12)
    share = got[heavy] / got.total()
    assert 0.65 <= share <= 0.85, got  # 400 draws at 3:1 are 0.75 ± 0.022


async def test_a_tenant_of_small_weight_is_served_by_chance_but_served(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(3)]
    await weigh(harness, tenants[0], 0.25)
    await fill(harness, tenants, 300)
    got = await served(harness, await harness.join_worker(), 4, 150)
    assert 0.02 <= got[tenants[0]] / got.total() <= 0.16, got  # 1 in 13 is 0.077
    rest = [got[tenant] for tenant in tenants[1:]]
    assert max(rest) < 1.4 * min(rest)


async def test_only_the_ratio_of_weights_counts(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(4)]
    for tenant in tenants:
        await weigh(harness, tenant, 1000)
    await fill(harness, tenants, 20)
    assert await served(harness, await harness.join_worker(), 2, 5) == dict.fromkeys(tenants, 2)


async def test_what_a_full_batch_cut_off_is_given_with_the_next(harness: EngineHarness) -> None:
    heavy, *light = [1, *await harness.tenants(3)]
    await weigh(harness, heavy, 9)  # of a round of four: three of heavy's, one of the others
    await fill(harness, [heavy, *light], 50)
    seat, turn, parts = await harness.join_worker(), TenantCursor(), []
    for _ in range(4):
        taken, turn = await claim.claim(harness.store, seat, 2, turn)
        parts.append([claimed.tenant_id for claimed in taken])
    assert parts[0] == [heavy, heavy]
    assert parts[1][0] == heavy, "the third of its turn"


async def test_priorities_go_in_order_inside_a_tenant_and_not_between_tenants(harness: EngineHarness) -> None:
    urgent, calm = [1, *await harness.tenants(1)]
    for priority in (9, 1):
        await fill(harness, [urgent], 10, priority=priority)
    await fill(harness, [calm], 10, priority=0)
    taken, _ = await claim.claim(harness.store, await harness.join_worker(), 16, TenantCursor())
    found = Counter(
        (row["tenant_id"], row["priority"])
        for row in await harness.sql("select tenant_id, priority from queue where worker_id is not null")
    )
    assert len(taken) == 16
    assert found == {(urgent, 9): 8, (calm, 0): 8}


async def test_a_higher_priority_that_is_not_due_does_not_hide_a_lower_one(harness: EngineHarness) -> None:
    await fill(harness, [1], 5, priority=9, lead=1)
    await fill(harness, [1], 5, priority=1)
    assert (await served(harness, await harness.join_worker(), 10, 1)).total() == 5


# Caps


@pytest.mark.parametrize("kind", ["free", "limited", "behind", "mixed"])
async def test_a_cap_is_never_exceeded_by_eight_claimers_at_once(harness: EngineHarness, kind: str) -> None:
    [tenant] = await harness.tenants(1)
    await cap(harness, tenant, 7)
    if kind in {"free", "mixed"}:
        await fill(harness, [tenant], 60)
    if kind in {"behind", "mixed"}:
        await fill(harness, [tenant], 60, priority=-5)
    if kind in {"limited", "mixed"}:
        job = await harness.for_tenant(tenant).job("job", limit=Limit("key", 50))
        for _ in range(60):
            await harness.for_tenant(tenant).trigger(job)
    seats = [await harness.join_worker() for _ in range(8)]
    most = ended = 0

    async def drain(seat: ClaimSpec) -> None:
        nonlocal most, ended
        turn = TenantCursor()
        while ended < 40:
            taken, turn = await claim.claim(harness.store, seat, 5, turn)
            most = max(most, await under_way(harness, tenant))
            if taken:
                await harness.end(seat, taken)
                ended += len(taken)
            await asyncio.sleep(0.001)

    await asyncio.gather(*map(drain, seats))
    assert most <= 7
    assert ended >= 40


async def test_a_cap_is_filled_and_counts_what_every_worker_holds(harness: EngineHarness) -> None:
    await cap(harness, 1, 10)
    await fill(harness, [1], 50)
    first, second = await harness.join_worker(), await harness.join_worker()
    assert (await served(harness, first, 6, 1))[1] == 6
    assert (await served(harness, second, 20, 1))[1] == 4
    assert await harness.claim(second) == []


async def test_one_claim_keeps_the_cap_over_all_its_stages(harness: EngineHarness) -> None:
    await cap(harness, 1, 9)
    job = await harness.job("limited", limit=Limit("key", 50))
    for _ in range(20):
        await harness.trigger(job)
    await fill(harness, [1], 3)
    await fill(harness, [1], 20, priority=-5)
    taken, _ = await claim.claim(harness.store, await harness.join_worker(), 100, TenantCursor())
    assert len(taken) == 9
    assert await under_way(harness, 1) == 9


async def test_a_cap_that_was_lowered_lets_what_runs_go_on(harness: EngineHarness) -> None:
    await fill(harness, [1], 20)
    seat = await harness.join_worker()
    taken = await harness.claim(seat, 10)
    await cap(harness, 1, 4)
    assert await harness.claim(seat) == []
    await harness.end(seat, taken[:7])
    assert len(await harness.claim(seat)) == 1


async def test_tenants_at_their_cap_take_nothing_from_the_others(harness: EngineHarness) -> None:
    capped, free = [1, *await harness.tenants(1)]
    await cap(harness, capped, 0)
    await fill(harness, [capped, free], 50)
    assert await served(harness, await harness.join_worker(), 40, 1) == {free: 40}


async def test_a_tenant_that_another_claims_for_right_now_is_passed_over(harness: EngineHarness) -> None:
    capped, free = [1, *await harness.tenants(1)]
    await cap(harness, capped, 5)
    await fill(harness, [capped, free], 10)
    async with harness.store.pool.acquire() as other, other.transaction():
        await other.execute("select pg_advisory_xact_lock($1, $2)", AdvisoryLock.TENANT_CAP, capped)
        assert await served(harness, await harness.join_worker(), 8, 1) == {free: 8}
    assert (await served(harness, await harness.join_worker(), 8, 1))[capped] == 5


async def test_what_a_lost_worker_holds_counts_until_it_is_reaped(harness: EngineHarness) -> None:
    await cap(harness, 1, 5)
    await fill(harness, [1], 20)
    gone = await harness.join_worker()
    taken = await harness.claim(gone, 5)
    await harness.silence_worker(gone)
    seat = await harness.join_worker()
    assert await harness.claim(seat) == []
    await queue.give_back(harness.store, gone.worker_id, [(c.key, c.attempt) for c in taken])
    assert len(await harness.claim(seat)) == 5


async def test_among_many_at_their_cap_two_others_take_turns(harness: EngineHarness) -> None:
    many = await harness.tenants(100)
    await harness.sql("update tenants set quotas = '{\"in_flight\": 0}' where tenant_id = any ($1)", many)
    [row] = await harness.sql("insert into tenants (name) values ('last') returning tenant_id")
    others = [1, row["tenant_id"]]
    await fill(harness, [*many, *others], 30)
    turn = TenantCursor(fruitless_claims=1)  # so that it looks at all of them
    assert await served(harness, await harness.join_worker(), 10, 1, turn) == dict.fromkeys(others, 5)


# More tenants than a claim looks at


async def test_every_one_of_many_tenants_is_served_in_its_turn(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(2 * MAX_TENANTS_PER_CLAIM + 50)]
    await fill(harness, tenants, 1)
    claims = -(-len(tenants) // 100) + 1
    assert await served(harness, await harness.join_worker(), 100, claims) == dict.fromkeys(tenants, 1)


@pytest.mark.parametrize("reason", ["capped", "suspended", "unknown", "future"])
async def test_a_tenant_behind_many_that_can_give_nothing_is_found(harness: EngineHarness, reason: str) -> None:
    many = await harness.tenants(3 * MAX_TENANTS_PER_CLAIM)
    [last] = await harness.sql("insert into tenants (name) values ('last') returning tenant_id")
    await fill(harness, many, 2, task="other" if reason == "unknown" else "greet", lead=60 if reason == "future" else 0)
    await fill(harness, [last["tenant_id"]], 3)
    if reason == "capped":
        await harness.sql("update tenants set quotas = '{\"in_flight\": 0}' where tenant_id = any ($1)", many)
    if reason == "suspended":
        await harness.sql("update tenants set suspended_at = now() where tenant_id = any ($1)", many)
    seat, turn, found = await harness.join_worker(), TenantCursor(), Counter[int]()
    looked = 0
    while looked < MAX_FRUITLESS_CLAIMS:
        looked += 1
        taken, turn = await claim.claim(harness.store, seat, 100, turn)
        found.update(claimed.tenant_id for claimed in taken)
        if not turn.should_continue:
            break
    assert found == {last["tenant_id"]: 3}
    assert looked >= 3, "no claim looks at more tenants than it may"


async def test_a_worker_that_finds_nothing_among_very_many_rests_in_the_end(harness: EngineHarness) -> None:
    tenants = await harness.tenants(MAX_TENANTS_PER_CLAIM + 50)
    await fill(harness, tenants, 1, lead=60)
    seat, turn = await harness.join_worker(), TenantCursor()
    rested = 0
    for _ in range(3 * MAX_FRUITLESS_CLAIMS):
        taken, turn = await claim.claim(harness.store, seat, 500, turn)
        assert taken == []
        rested += not turn.should_continue
    assert rested >= 3


async def test_nothing_is_claimed_twice_by_many_who_share(harness: EngineHarness) -> None:
    tenants = [1, *await harness.tenants(30)]
    await fill(harness, tenants, 10)
    seats = [await harness.join_worker() for _ in range(6)]
    taken: list[UUID] = []

    async def drain(seat: ClaimSpec) -> None:
        turn, idle = TenantCursor(), 0
        while idle < 3:
            batch, turn = await claim.claim(harness.store, seat, 13, turn)
            taken.extend(claimed.key.job_id for claimed in batch)
            idle = 0 if batch else idle + 1

    await asyncio.gather(*map(drain, seats))
    assert len(taken) == len(set(taken)) == 310
