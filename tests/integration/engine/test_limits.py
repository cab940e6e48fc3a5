"""Limits: so many runs of a job, or of all jobs with a key, are under way at once, and never one more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Limit, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.engine import claim
from bellringer.engine.claim import ClaimSpec, TenantCursor
from bellringer.engine.reap import reap
from bellringer.schedule import every
from bellringer.store import queue
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SILENCE = timedelta(minutes=30)
LIMITED = 32


async def waiting(harness: EngineHarness, name: str, runs: int, **more: Any) -> UUID:
    """A job with so many runs by hand that wait."""
    job = await harness.job(name, **more)
    for _ in range(runs):
        await harness.trigger(job)
    return job


async def held(harness: EngineHarness, job: UUID | None = None) -> int:
    """How many runs are under way."""
    query = "select count(*) from queue where worker_id is not null and ($1::uuid is null or job_id = $1)"
    return int(await harness.value(query, job))


async def marks(harness: EngineHarness, job: UUID) -> set[tuple[int, bool]]:
    """How the runs of a job are held, and whether they have the key of the job as it is now."""
    rows = await harness.sql(
        "select q.blocked, q.key_id is not distinct from j.key_id and q.cap is not distinct from j.cap"
        " from queue q join jobs j using (job_id) where job_id = $1",
        job,
    )
    return {(blocked, same) for blocked, same in rows}


async def claim_behind(
    harness: EngineHarness, seat: ClaimSpec, most: int, behind: int, turn: TenantCursor | None = None
) -> list[ClaimedRun]:
    return (await claim.claim(harness.store, seat, most, turn or TenantCursor(), background=behind))[0]


async def fall_behind(harness: EngineHarness, job: UUID) -> None:
    """Let what waits of a job be a backfill."""
    query = "update queue set priority = priority - 10, cause = 'backfill' where job_id = $1 and worker_id is null"
    await harness.sql(query, job)


# A job's own limit


async def test_a_job_has_no_more_runs_under_way_than_it_wants(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 5, max_concurrency=2)
    seat = await harness.join_worker()
    first = await harness.claim(seat)
    assert len(first) == 2
    assert await harness.claim(seat) == []
    await harness.end(seat, first[0])
    assert len(await harness.claim(seat)) == 1
    assert await held(harness, job) == 2


async def test_runs_of_a_limited_job_start_in_the_order_of_their_time(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"), max_concurrency=1)
    await harness.set_clock(harness.after(5))
    await harness.tick_all()
    seat = await harness.join_worker()
    for second in (1, 2, 3, 4, 5):
        claimed = await harness.claim_one(seat)
        assert claimed.key == harness.key(job, second)
        await harness.end(seat, claimed)


async def test_a_limited_run_is_not_claimed_before_its_time(harness: EngineHarness) -> None:
    await harness.job("job", every("10s"), max_concurrency=1)
    await harness.set_clock(harness.after(9.5))
    await harness.tick_all(lead=1)
    seat = await harness.join_worker()
    assert await harness.claim(seat) == []
    await harness.set_clock(harness.after(10))
    assert len(await harness.claim(seat)) == 1


async def test_a_limited_run_is_claimed_only_by_who_knows_its_task(harness: EngineHarness) -> None:
    await waiting(harness, "job", 1, max_concurrency=1)
    assert await harness.claim(await harness.join_worker("other")) == []
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_limited_run_is_claimed_only_in_its_pool(harness: EngineHarness) -> None:
    await waiting(harness, "job", 2, max_concurrency=1, pool="long")
    assert await harness.claim(await harness.join_worker()) == []
    assert len(await harness.claim(await harness.join_worker(pool="long"))) == 1


async def test_a_paused_limited_job_rests(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1)
    await harness.pause(job)
    seat = await harness.join_worker()
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(seat)) == 1


# A key that jobs share


async def test_jobs_with_one_key_share_its_limit(harness: EngineHarness) -> None:
    for name in "abc":
        await waiting(harness, name, 3, limit=Limit("database", 2))
    seat = await harness.join_worker()
    claimed = await harness.claim(seat)
    assert len(claimed) == 2
    assert await harness.claim(seat) == []
    await harness.end(seat, claimed)
    assert len(await harness.claim(seat)) == 2


async def test_a_key_counts_in_all_pools_together(harness: EngineHarness) -> None:
    await waiting(harness, "a", 2, limit=Limit("database", 1))
    await waiting(harness, "b", 2, limit=Limit("database", 1), pool="long")
    assert len(await harness.claim(await harness.join_worker())) == 1
    assert await harness.claim(await harness.join_worker(pool="long")) == []


async def test_tenants_that_use_the_same_key_do_not_share_it(harness: EngineHarness) -> None:
    await harness.sql("insert into tenants (name) values ('other')")
    await waiting(harness, "job", 2, limit=Limit("database", 1))
    await waiting(harness.for_tenant(2), "job", 2, limit=Limit("database", 1))
    claimed = await harness.claim(await harness.join_worker())
    assert sorted(c.tenant_id for c in claimed) == [1, 2]


async def test_a_job_may_have_a_limit_of_its_own_within_that_of_its_key(harness: EngineHarness) -> None:
    narrow = await waiting(harness, "narrow", 5, limit=Limit("database", 3), max_concurrency=1)
    await waiting(harness, "wide", 5, limit=Limit("database", 3))
    seat = await harness.join_worker()
    assert len(await harness.claim(seat)) == 3
    assert await held(harness, narrow) == 1


async def test_a_key_at_its_limit_does_not_stand_in_the_way_of_others(harness: EngineHarness) -> None:
    await waiting(harness, "full", 50, limit=Limit("full", 1), priority=9)
    seat = await harness.join_worker()
    await harness.claim(seat)
    other = await waiting(harness, "other", 1, limit=Limit("other", 1), priority=0)
    free = await waiting(harness, "free", 1, priority=0)
    assert {c.key.job_id for c in await harness.claim(seat)} == {other, free}


async def test_a_job_at_its_own_limit_does_not_stand_in_the_way_of_others_with_its_key(harness: EngineHarness) -> None:
    await waiting(harness, "full", 5, limit=Limit("key", 10), max_concurrency=1, priority=9)
    seat = await harness.join_worker()
    assert len(await harness.claim(seat)) == 1
    other = await waiting(harness, "other", 2, limit=Limit("key", 10), priority=0)
    assert [c.key.job_id for c in await harness.claim(seat)] == [other, other]


# Fairness


async def comes_up(harness: EngineHarness, job: UUID, most: int) -> bool:
    """Whether a run of the job is among the first fifty that are claimed; with room for one, it is up to chance."""
    seat = await harness.join_worker()
    for _ in range(50 // most):
        claimed = await harness.claim(seat, most)
        if job in {c.key.job_id for c in claimed}:
            return True
        await harness.end(seat, claimed)
    return False


@pytest.mark.parametrize("most", [1, 2, 10])
async def test_limited_runs_without_end_do_not_starve_those_without_a_limit(harness: EngineHarness, most: int) -> None:
    await waiting(harness, "limited", 60, limit=Limit("key", 1000))
    assert await comes_up(harness, await waiting(harness, "free", 1), most)


@pytest.mark.parametrize("most", [1, 2, 10])
async def test_runs_without_a_limit_do_not_starve_limited_ones(harness: EngineHarness, most: int) -> None:
    limited = await waiting(harness, "limited", 1, limit=Limit("key", 1))
    await waiting(harness, "free", 60)
    assert await comes_up(harness, limited, most)


async def test_no_key_is_always_last(harness: EngineHarness) -> None:
    jobs = [await waiting(harness, f"job {n}", 40, limit=Limit(f"key {n}", 1000)) for n in range(3)]
    seat = await harness.join_worker()
    seen: set[UUID] = set()
    for _ in range(40):
        claimed = await harness.claim(seat, 1)
        seen |= {c.key.job_id for c in claimed}
        await harness.end(seat, claimed)
    assert seen == set(jobs)


async def test_among_more_keys_than_one_claim_looks_at_each_comes_to_its_turn(harness: EngineHarness) -> None:
    definitions = [harness.definition(f"job {n}", every("1s"), max_concurrency=1) for n in range(300)]
    await harness.register(*definitions)
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    seat = await harness.join_worker()
    for _ in range(60):
        await harness.claim(seat, 300)
    assert await held(harness) == 300


async def test_the_room_of_a_claim_is_never_exceeded(harness: EngineHarness) -> None:
    await waiting(harness, "limited", 20, limit=Limit("key", 1000))
    await waiting(harness, "free", 20)
    seat = await harness.join_worker()
    for most in (1, 2, 3, 7):
        assert len(await harness.claim(seat, most)) == most


# Live work first


async def test_work_behind_is_claimed_up_to_its_bound(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 10)
    await fall_behind(harness, job)
    seat = await harness.join_worker()
    assert await claim_behind(harness, seat, 5, 0) == []
    claimed = await claim_behind(harness, seat, 5, 2)
    assert [c.background for c in claimed] == [True, True]
    assert len(await harness.claim(seat)) == 8


async def test_live_work_comes_first(harness: EngineHarness) -> None:
    old = await waiting(harness, "old", 5)
    await fall_behind(harness, old)
    live = await waiting(harness, "live", 3, priority=0)
    claimed = await claim_behind(harness, await harness.join_worker(), 4, 4)
    assert sorted(c.background for c in claimed) == [False, False, False, True]
    assert sum(c.key.job_id == live for c in claimed) == 3


async def test_live_work_comes_first_among_limited_runs(harness: EngineHarness) -> None:
    old = await waiting(harness, "old", 5, limit=Limit("a", 10))
    await fall_behind(harness, old)
    await waiting(harness, "live", 3, limit=Limit("b", 10))
    seat = await harness.join_worker()
    claimed = await claim_behind(harness, seat, 6, 6)  # half of it is for limited runs
    assert [c.background for c in claimed[:3]] == [False] * 3


async def test_limited_work_behind_does_not_come_before_live_work_without_a_limit(harness: EngineHarness) -> None:
    old = await waiting(harness, "old", 5, limit=Limit("a", 10))
    await fall_behind(harness, old)
    await waiting(harness, "live", 4)
    claimed = await claim_behind(harness, await harness.join_worker(), 4, 4)
    assert [c.background for c in claimed] == [False] * 4


async def test_the_bound_of_work_behind_holds_for_limited_and_other_runs_together(harness: EngineHarness) -> None:
    for name, more in (("limited", {"limit": Limit("a", 10)}), ("free", {})):
        await fall_behind(harness, await waiting(harness, name, 5, **more))
    claimed = await claim_behind(harness, await harness.join_worker(), 10, 2)
    assert len(claimed) == 2


async def test_work_behind_waits_though_live_work_is_of_a_tenant_whose_share_is_full(harness: EngineHarness) -> None:
    await harness.sql("insert into tenants (name) values ('other')")
    await waiting(harness, "live", 20)
    old = await waiting(harness.for_tenant(2), "old", 20)
    await fall_behind(harness, old)
    seat = await harness.join_worker()
    claimed = await claim_behind(harness, seat, 10, 10, TenantCursor(after_tenant=2))
    assert [c.background for c in claimed] == [False] * 10


async def test_work_behind_is_found_whatever_tenant_has_its_turn(harness: EngineHarness) -> None:
    await harness.sql("insert into tenants (name) values ('other')")
    old = await waiting(harness.for_tenant(2), "old", 2)
    await fall_behind(harness, old)
    claimed = await claim_behind(harness, await harness.join_worker(), 10, 10, TenantCursor(after_tenant=1))
    assert len(claimed) == 2


# What keeps its limit on its way


async def test_a_near_retry_comes_back_limited(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1, retry=Retry(delays=["5s"], jitter=0))
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    await harness.fail(seat, first)
    assert await marks(harness, job) == {(LIMITED, True)}
    second = await harness.claim_one(seat)
    await harness.pass_time(6)
    assert await harness.claim(seat) == []
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == first.key


async def test_a_far_retry_comes_back_limited(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1, retry=Retry(delays=["15m"], jitter=0))
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    await harness.fail(seat, first)
    assert await harness.timers(job) == [900]
    second = await harness.claim_one(seat)
    await harness.pass_time(900)
    await harness.ring()
    assert await marks(harness, job) == {(LIMITED, True)}
    assert await harness.claim(seat) == []
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == first.key


async def test_a_run_that_is_given_back_frees_its_place_and_stays_limited(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1)
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    assert await queue.give_back(harness.store, seat.worker_id, [(first.key, 1)]) == 1
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(seat)) == 1


async def test_the_place_of_a_lost_worker_is_free_again(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1, retry=Retry(3, base="1s"))
    gone, seat = await harness.join_worker(), await harness.join_worker()
    await harness.claim(gone)
    assert await harness.claim(seat) == []
    await harness.silence_worker(gone)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(seat)) == 1


async def test_a_redriven_run_is_limited(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, max_concurrency=1, retry=Retry(1))
    seat = await harness.join_worker()
    dead = await harness.claim_one(seat)
    await harness.fail(seat, dead)
    second = await harness.claim_one(seat)
    assert await harness.redrive(dead.key) == 1
    assert await marks(harness, job) == {(LIMITED, True)}
    assert await harness.claim(seat) == []
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == dead.key


async def test_an_immediate_retry_is_limited(harness: EngineHarness) -> None:
    await waiting(harness, "job", 2, max_concurrency=1, retry=Retry(delays=["30s"], jitter=0))
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    await harness.fail(seat, first)
    second = await harness.claim_one(seat)
    await harness.retry(first.key)
    assert await harness.claim(seat) == []
    await harness.end(seat, second)
    assert (await harness.claim_one(seat)).key == first.key


async def test_a_cancelled_run_gives_its_place_away_when_it_has_stopped(harness: EngineHarness) -> None:
    await waiting(harness, "job", 2, max_concurrency=1)
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    await harness.cancel(first.key)
    assert await harness.claim(seat) == []
    await harness.fail(seat, first)
    assert len(await harness.claim(seat)) == 1


# Edits


async def test_a_limit_that_is_added_holds_for_what_waits(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 4)
    await harness.change(job, harness.definition("job", max_concurrency=1))
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_limit_that_is_added_holds_for_runs_with_arguments_of_their_own(harness: EngineHarness) -> None:
    job = await harness.job("job")
    for number in range(3):
        await harness.trigger(job, kwargs={"number": number})
    await harness.change(job, harness.definition("job", max_concurrency=1))
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_limit_that_is_added_counts_what_is_under_way(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 3)
    seat = await harness.join_worker()
    first = await harness.claim(seat, 1)
    await harness.change(job, harness.definition("job", max_concurrency=1))
    assert await harness.claim(seat) == []
    await harness.end(seat, first)
    assert len(await harness.claim(seat)) == 1


async def test_a_shared_limit_that_is_added_counts_what_is_under_way(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 3)
    seat = await harness.join_worker()
    first = await harness.claim(seat, 1)
    await harness.change(job, harness.definition("job", limit=Limit("key", 1)))
    await waiting(harness, "other", 1, limit=Limit("key", 1))
    assert await harness.claim(seat) == []
    await harness.end(seat, first)
    assert len(await harness.claim(seat)) == 1


async def test_a_limit_that_is_added_holds_for_the_retry_of_what_is_under_way(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2, retry=Retry(delays=["1s"], jitter=0))
    seat = await harness.join_worker()
    first = await harness.claim(seat, 1)
    await harness.change(job, harness.definition("job", max_concurrency=1, retry=Retry(delays=["1s"], jitter=0)))
    await harness.fail(seat, first)
    await harness.pass_time(2)
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(seat)) == 1


async def test_a_limit_that_is_added_holds_for_what_is_given_back(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 2)
    seat = await harness.join_worker()
    [first] = await harness.claim(seat, 1)
    await harness.change(job, harness.definition("job", max_concurrency=1))
    await queue.give_back(harness.store, seat.worker_id, [(first.key, 1)])
    assert await marks(harness, job) == {(LIMITED, True)}
    assert len(await harness.claim(seat)) == 1


async def test_a_limit_that_is_removed_lets_all_go(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 4, max_concurrency=1, retry=Retry(delays=["1s"], jitter=0))
    seat = await harness.join_worker()
    first = await harness.claim_one(seat)
    await harness.change(job, harness.definition("job", retry=Retry(delays=["1s"], jitter=0)))
    assert len(await harness.claim(seat)) == 3
    await harness.fail(seat, first)
    assert await marks(harness, job) == {(0, True)}


async def test_a_job_that_moves_to_another_key_leaves_the_old_one(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 3, limit=Limit("old", 1))
    await waiting(harness, "other", 2, limit=Limit("old", 1))
    seat = await harness.join_worker()
    await harness.change(job, harness.definition("job", limit=Limit("new", 2)))
    assert await marks(harness, job) == {(LIMITED, True)}
    claimed = await harness.claim(seat)
    assert sorted(c.name or "" for c in claimed) == ["job", "job", "other"]


async def test_a_lowered_limit_holds_as_places_become_free(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 6, max_concurrency=3)
    seat = await harness.join_worker()
    claimed = await harness.claim(seat)
    assert len(claimed) == 3
    await harness.change(job, harness.definition("job", max_concurrency=1))
    for one in claimed[:2]:
        await harness.end(seat, one)
        assert await harness.claim(seat) == []
    await harness.end(seat, claimed[2])
    assert len(await harness.claim(seat)) == 1


async def test_a_raised_limit_holds_at_once(harness: EngineHarness) -> None:
    job = await waiting(harness, "job", 6, max_concurrency=1)
    seat = await harness.join_worker()
    await harness.claim(seat)
    await harness.change(job, harness.definition("job", max_concurrency=3))
    assert len(await harness.claim(seat)) == 2


async def test_an_edit_keeps_what_else_holds_a_run(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    for second in (10, 20):
        await harness.set_clock(harness.after(second))
        await harness.tick_all()
    await harness.change(job, harness.definition("job", every("10s"), overlap=Overlap.QUEUE, max_concurrency=1))
    assert await harness.value("select blocked from queue where scheduled_for = $1", harness.after(20)) == LIMITED | 2
    assert len(await harness.claim(seat)) == 1


async def test_a_limited_run_of_an_unknown_task_is_claimed_once_a_worker_knows_it(harness: EngineHarness) -> None:
    await waiting(harness, "job", 1, task="strange", max_concurrency=1)
    await harness.join_worker()
    await harness.pass_time(5)
    await harness.sweep()
    knower = await harness.join_worker("strange")
    await harness.sweep()
    assert len(await harness.claim(knower)) == 1


# Many at once


async def test_eight_claimers_at_once_never_exceed_a_limit(harness: EngineHarness) -> None:
    for name in "abcd":
        await waiting(harness, name, 60, limit=Limit("shared", 3), max_concurrency=2)
    alone = await waiting(harness, "alone", 100, max_concurrency=2)
    stores = [await Store.open(harness.store.dsn, size=2) for _ in range(8)]
    seats = [await harness.join_worker() for _ in stores]
    stop = asyncio.Event()
    worst = {"shared": 0, "alone": 0, "own": 0}
    done: list[ClaimedRun] = []

    async def work(store: Store, seat: ClaimSpec) -> None:
        mine = type(harness)(store, harness.catalog, harness.noon)
        idle = 0
        while idle < 40:
            claimed = await mine.claim(seat, 4)
            idle = 0 if claimed else idle + 1
            await asyncio.sleep(0.002)
            if claimed and len(done) % 7 == 0:
                await queue.give_back(store, seat.worker_id, [(claimed[-1].key, claimed[-1].attempt)])
                claimed = claimed[:-1]
            await mine.end(seat, claimed)
            done.extend(claimed)

    async def watch() -> None:
        while not stop.is_set():
            rows = await harness.sql("select job_id, count(*) from queue where worker_id is not null group by 1")
            counts = {row[0]: row[1] for row in rows}
            worst["alone"] = max(worst["alone"], counts.pop(alone, 0))
            worst["own"] = max(worst["own"], *counts.values(), 0)
            worst["shared"] = max(worst["shared"], sum(counts.values()))

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(work(store, seat) for store, seat in zip(stores, seats, strict=True)))
    stop.set()
    await watching
    for store in stores:
        await store.close()
    assert len({c.key for c in done}) == len(done) == 340
    assert worst == {"shared": 3, "alone": 2, "own": 2}
