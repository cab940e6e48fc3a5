"""Limits: so many runs of a job, or of all jobs with a key, are under way at once, and never one more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.lifecycle import claim
from bellringer.lifecycle.claim import Seat, Turn
from bellringer.lifecycle.reap import reap
from bellringer.policies import Limit, Overlap, Retry
from bellringer.schedule import every
from bellringer.store import queue
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench

SILENCE = timedelta(minutes=30)
LIMITED = 32


async def waiting(bench: Bench, name: str, runs: int, **more: Any) -> UUID:
    """A job with so many runs by hand that wait."""
    job = await bench.job(name, **more)
    for _ in range(runs):
        await bench.trigger(job)
    return job


async def held(bench: Bench, job: UUID | None = None) -> int:
    """How many runs are under way."""
    query = "select count(*) from queue where worker_id is not null and ($1::uuid is null or job_id = $1)"
    return int(await bench.value(query, job))


async def marks(bench: Bench, job: UUID) -> set[tuple[int, bool]]:
    """How the runs of a job are held, and whether they have the key of the job as it is now."""
    rows = await bench.sql(
        "select q.blocked, q.key_id is not distinct from j.key_id and q.cap is not distinct from j.cap"
        " from queue q join jobs j using (job_id) where job_id = $1",
        job,
    )
    return {(blocked, same) for blocked, same in rows}


async def claim_behind(bench: Bench, seat: Seat, most: int, behind: int, turn: Turn | None = None) -> list[Claimed]:
    return (await claim.claim(bench.store, seat, most, turn or Turn(), behind=behind))[0]


async def fall_behind(bench: Bench, job: UUID) -> None:
    """Let what waits of a job be a backfill."""
    query = "update queue set priority = priority - 10, cause = 'backfill' where job_id = $1 and worker_id is null"
    await bench.sql(query, job)


# A job's own limit


async def test_a_job_has_no_more_runs_under_way_than_it_wants(bench: Bench) -> None:
    job = await waiting(bench, "job", 5, max_concurrency=2)
    seat = await bench.seat()
    first = await bench.claim(seat)
    assert len(first) == 2
    assert await bench.claim(seat) == []
    await bench.end(seat, first[0])
    assert len(await bench.claim(seat)) == 1
    assert await held(bench, job) == 2


async def test_runs_of_a_limited_job_start_in_the_order_of_their_time(bench: Bench) -> None:
    job = await bench.job("job", every("1s"), max_concurrency=1)
    await bench.set_clock(bench.after(5))
    await bench.tick_all()
    seat = await bench.seat()
    for second in (1, 2, 3, 4, 5):
        claimed = await bench.claim_one(seat)
        assert claimed.key == bench.key(job, second)
        await bench.end(seat, claimed)


async def test_a_limited_run_is_not_claimed_before_its_time(bench: Bench) -> None:
    await bench.job("job", every("10s"), max_concurrency=1)
    await bench.set_clock(bench.after(9.5))
    await bench.tick_all(lead=1)
    seat = await bench.seat()
    assert await bench.claim(seat) == []
    await bench.set_clock(bench.after(10))
    assert len(await bench.claim(seat)) == 1


async def test_a_limited_run_is_claimed_only_by_who_knows_its_task(bench: Bench) -> None:
    await waiting(bench, "job", 1, max_concurrency=1)
    assert await bench.claim(await bench.seat("other")) == []
    assert len(await bench.claim(await bench.seat())) == 1


async def test_a_limited_run_is_claimed_only_in_its_pool(bench: Bench) -> None:
    await waiting(bench, "job", 2, max_concurrency=1, pool="long")
    assert await bench.claim(await bench.seat()) == []
    assert len(await bench.claim(await bench.seat(pool="long"))) == 1


async def test_a_paused_limited_job_rests(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1)
    await bench.pause(job)
    seat = await bench.seat()
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(seat)) == 1


# A key that jobs share


async def test_jobs_with_one_key_share_its_limit(bench: Bench) -> None:
    for name in "abc":
        await waiting(bench, name, 3, limit=Limit("database", 2))
    seat = await bench.seat()
    claimed = await bench.claim(seat)
    assert len(claimed) == 2
    assert await bench.claim(seat) == []
    await bench.end(seat, claimed)
    assert len(await bench.claim(seat)) == 2


async def test_a_key_counts_in_all_pools_together(bench: Bench) -> None:
    await waiting(bench, "a", 2, limit=Limit("database", 1))
    await waiting(bench, "b", 2, limit=Limit("database", 1), pool="long")
    assert len(await bench.claim(await bench.seat())) == 1
    assert await bench.claim(await bench.seat(pool="long")) == []


async def test_tenants_that_use_the_same_key_do_not_share_it(bench: Bench) -> None:
    await bench.sql("insert into tenants (name) values ('other')")
    await waiting(bench, "job", 2, limit=Limit("database", 1))
    await waiting(bench.of(2), "job", 2, limit=Limit("database", 1))
    claimed = await bench.claim(await bench.seat())
    assert sorted(c.tenant_id for c in claimed) == [1, 2]


async def test_a_job_may_have_a_limit_of_its_own_within_that_of_its_key(bench: Bench) -> None:
    narrow = await waiting(bench, "narrow", 5, limit=Limit("database", 3), max_concurrency=1)
    await waiting(bench, "wide", 5, limit=Limit("database", 3))
    seat = await bench.seat()
    assert len(await bench.claim(seat)) == 3
    assert await held(bench, narrow) == 1


async def test_a_key_at_its_limit_does_not_stand_in_the_way_of_others(bench: Bench) -> None:
    await waiting(bench, "full", 50, limit=Limit("full", 1), priority=9)
    seat = await bench.seat()
    await bench.claim(seat)
    other = await waiting(bench, "other", 1, limit=Limit("other", 1), priority=0)
    free = await waiting(bench, "free", 1, priority=0)
    assert {c.key.job_id for c in await bench.claim(seat)} == {other, free}


async def test_a_job_at_its_own_limit_does_not_stand_in_the_way_of_others_with_its_key(bench: Bench) -> None:
    await waiting(bench, "full", 5, limit=Limit("key", 10), max_concurrency=1, priority=9)
    seat = await bench.seat()
    assert len(await bench.claim(seat)) == 1
    other = await waiting(bench, "other", 2, limit=Limit("key", 10), priority=0)
    assert [c.key.job_id for c in await bench.claim(seat)] == [other, other]


# Fairness


async def comes_up(bench: Bench, job: UUID, most: int) -> bool:
    """Whether a run of the job is among the first fifty that are claimed; with room for one, it is up to chance."""
    seat = await bench.seat()
    for _ in range(50 // most):
        claimed = await bench.claim(seat, most)
        if job in {c.key.job_id for c in claimed}:
            return True
        await bench.end(seat, claimed)
    return False


@pytest.mark.parametrize("most", [1, 2, 10])
async def test_limited_runs_without_end_do_not_starve_those_without_a_limit(bench: Bench, most: int) -> None:
    await waiting(bench, "limited", 60, limit=Limit("key", 1000))
    assert await comes_up(bench, await waiting(bench, "free", 1), most)


@pytest.mark.parametrize("most", [1, 2, 10])
async def test_runs_without_a_limit_do_not_starve_limited_ones(bench: Bench, most: int) -> None:
    limited = await waiting(bench, "limited", 1, limit=Limit("key", 1))
    await waiting(bench, "free", 60)
    assert await comes_up(bench, limited, most)


async def test_no_key_is_always_last(bench: Bench) -> None:
    jobs = [await waiting(bench, f"job {n}", 40, limit=Limit(f"key {n}", 1000)) for n in range(3)]
    seat = await bench.seat()
    seen: set[UUID] = set()
    for _ in range(40):
        claimed = await bench.claim(seat, 1)
        seen |= {c.key.job_id for c in claimed}
        await bench.end(seat, claimed)
    assert seen == set(jobs)


async def test_among_more_keys_than_one_claim_looks_at_each_comes_to_its_turn(bench: Bench) -> None:
    definitions = [bench.definition(f"job {n}", every("1s"), max_concurrency=1) for n in range(300)]
    await bench.register(*definitions)
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    seat = await bench.seat()
    for _ in range(60):
        await bench.claim(seat, 300)
    assert await held(bench) == 300


async def test_the_room_of_a_claim_is_never_exceeded(bench: Bench) -> None:
    await waiting(bench, "limited", 20, limit=Limit("key", 1000))
    await waiting(bench, "free", 20)
    seat = await bench.seat()
    for most in (1, 2, 3, 7):
        assert len(await bench.claim(seat, most)) == most


# Live work first


async def test_work_behind_is_claimed_up_to_its_bound(bench: Bench) -> None:
    job = await waiting(bench, "job", 10)
    await fall_behind(bench, job)
    seat = await bench.seat()
    assert await claim_behind(bench, seat, 5, 0) == []
    claimed = await claim_behind(bench, seat, 5, 2)
    assert [c.behind for c in claimed] == [True, True]
    assert len(await bench.claim(seat)) == 8


async def test_live_work_comes_first(bench: Bench) -> None:
    old = await waiting(bench, "old", 5)
    await fall_behind(bench, old)
    live = await waiting(bench, "live", 3, priority=0)
    claimed = await claim_behind(bench, await bench.seat(), 4, 4)
    assert sorted(c.behind for c in claimed) == [False, False, False, True]
    assert sum(c.key.job_id == live for c in claimed) == 3


async def test_live_work_comes_first_among_limited_runs(bench: Bench) -> None:
    old = await waiting(bench, "old", 5, limit=Limit("a", 10))
    await fall_behind(bench, old)
    await waiting(bench, "live", 3, limit=Limit("b", 10))
    seat = await bench.seat()
    claimed = await claim_behind(bench, seat, 6, 6)  # half of it is for limited runs
    assert [c.behind for c in claimed[:3]] == [False] * 3


async def test_limited_work_behind_does_not_come_before_live_work_without_a_limit(bench: Bench) -> None:
    old = await waiting(bench, "old", 5, limit=Limit("a", 10))
    await fall_behind(bench, old)
    await waiting(bench, "live", 4)
    claimed = await claim_behind(bench, await bench.seat(), 4, 4)
    assert [c.behind for c in claimed] == [False] * 4


async def test_the_bound_of_work_behind_holds_for_limited_and_other_runs_together(bench: Bench) -> None:
    for name, more in (("limited", {"limit": Limit("a", 10)}), ("free", {})):
        await fall_behind(bench, await waiting(bench, name, 5, **more))
    claimed = await claim_behind(bench, await bench.seat(), 10, 2)
    assert len(claimed) == 2


async def test_work_behind_waits_though_live_work_is_of_a_tenant_whose_share_is_full(bench: Bench) -> None:
    await bench.sql("insert into tenants (name) values ('other')")
    await waiting(bench, "live", 20)
    old = await waiting(bench.of(2), "old", 20)
    await fall_behind(bench, old)
    seat = await bench.seat()
    claimed = await claim_behind(bench, seat, 10, 10, Turn(after=2))
    assert [c.behind for c in claimed] == [False] * 10


async def test_work_behind_is_found_whatever_tenant_has_its_turn(bench: Bench) -> None:
    await bench.sql("insert into tenants (name) values ('other')")
    old = await waiting(bench.of(2), "old", 2)
    await fall_behind(bench, old)
    claimed = await claim_behind(bench, await bench.seat(), 10, 10, Turn(after=1))
    assert len(claimed) == 2


# What keeps its limit on its way


async def test_a_near_retry_comes_back_limited(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1, retry=Retry(delays=["5s"]))
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    await bench.fail(seat, first)
    assert await marks(bench, job) == {(LIMITED, True)}
    second = await bench.claim_one(seat)
    await bench.pass_time(6)
    assert await bench.claim(seat) == []
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == first.key


async def test_a_far_retry_comes_back_limited(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1, retry=Retry(delays=["15m"]))
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    await bench.fail(seat, first)
    assert await bench.timers(job) == [900]
    second = await bench.claim_one(seat)
    await bench.pass_time(900)
    await bench.ring()
    assert await marks(bench, job) == {(LIMITED, True)}
    assert await bench.claim(seat) == []
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == first.key


async def test_a_run_that_is_given_back_frees_its_place_and_stays_limited(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1)
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    assert await queue.give_back(bench.store, seat.worker_id, [(first.key, 1)]) == 1
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(seat)) == 1


async def test_the_place_of_a_vanished_worker_is_free_again(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1, retry=Retry(3, base="1s"))
    gone, seat = await bench.seat(), await bench.seat()
    await bench.claim(gone)
    assert await bench.claim(seat) == []
    await bench.vanish(gone)
    assert await reap(bench.store, bench.names, SILENCE) == 1
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(seat)) == 1


async def test_a_redriven_run_is_limited(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, max_concurrency=1, retry=Retry(1))
    seat = await bench.seat()
    dead = await bench.claim_one(seat)
    await bench.fail(seat, dead)
    second = await bench.claim_one(seat)
    assert await bench.redrive(dead.key) == 1
    assert await marks(bench, job) == {(LIMITED, True)}
    assert await bench.claim(seat) == []
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == dead.key


async def test_a_hastened_retry_is_limited(bench: Bench) -> None:
    await waiting(bench, "job", 2, max_concurrency=1, retry=Retry(delays=["30s"]))
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    await bench.fail(seat, first)
    second = await bench.claim_one(seat)
    await bench.retry(first.key)
    assert await bench.claim(seat) == []
    await bench.end(seat, second)
    assert (await bench.claim_one(seat)).key == first.key


async def test_a_cancelled_run_gives_its_place_away_when_it_has_stopped(bench: Bench) -> None:
    await waiting(bench, "job", 2, max_concurrency=1)
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    await bench.cancel(first.key)
    assert await bench.claim(seat) == []
    await bench.fail(seat, first)
    assert len(await bench.claim(seat)) == 1


# Edits


async def test_a_limit_that_is_added_holds_for_what_waits(bench: Bench) -> None:
    job = await waiting(bench, "job", 4)
    await bench.change(job, bench.definition("job", max_concurrency=1))
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(await bench.seat())) == 1


async def test_a_limit_that_is_added_holds_for_runs_with_arguments_of_their_own(bench: Bench) -> None:
    job = await bench.job("job")
    for number in range(3):
        await bench.trigger(job, kwargs={"number": number})
    await bench.change(job, bench.definition("job", max_concurrency=1))
    assert len(await bench.claim(await bench.seat())) == 1


async def test_a_limit_that_is_added_counts_what_is_under_way(bench: Bench) -> None:
    job = await waiting(bench, "job", 3)
    seat = await bench.seat()
    first = await bench.claim(seat, 1)
    await bench.change(job, bench.definition("job", max_concurrency=1))
    assert await bench.claim(seat) == []
    await bench.end(seat, first)
    assert len(await bench.claim(seat)) == 1


async def test_a_shared_limit_that_is_added_counts_what_is_under_way(bench: Bench) -> None:
    job = await waiting(bench, "job", 3)
    seat = await bench.seat()
    first = await bench.claim(seat, 1)
    await bench.change(job, bench.definition("job", limit=Limit("key", 1)))
    await waiting(bench, "other", 1, limit=Limit("key", 1))
    assert await bench.claim(seat) == []
    await bench.end(seat, first)
    assert len(await bench.claim(seat)) == 1


async def test_a_limit_that_is_added_holds_for_the_retry_of_what_is_under_way(bench: Bench) -> None:
    job = await waiting(bench, "job", 2, retry=Retry(delays=["1s"]))
    seat = await bench.seat()
    first = await bench.claim(seat, 1)
    await bench.change(job, bench.definition("job", max_concurrency=1, retry=Retry(delays=["1s"])))
    await bench.fail(seat, first)
    await bench.pass_time(2)
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(seat)) == 1


async def test_a_limit_that_is_added_holds_for_what_is_given_back(bench: Bench) -> None:
    job = await waiting(bench, "job", 2)
    seat = await bench.seat()
    [first] = await bench.claim(seat, 1)
    await bench.change(job, bench.definition("job", max_concurrency=1))
    await queue.give_back(bench.store, seat.worker_id, [(first.key, 1)])
    assert await marks(bench, job) == {(LIMITED, True)}
    assert len(await bench.claim(seat)) == 1


async def test_a_limit_that_is_removed_lets_all_go(bench: Bench) -> None:
    job = await waiting(bench, "job", 4, max_concurrency=1, retry=Retry(delays=["1s"]))
    seat = await bench.seat()
    first = await bench.claim_one(seat)
    await bench.change(job, bench.definition("job", retry=Retry(delays=["1s"])))
    assert len(await bench.claim(seat)) == 3
    await bench.fail(seat, first)
    assert await marks(bench, job) == {(0, True)}


async def test_a_job_that_moves_to_another_key_leaves_the_old_one(bench: Bench) -> None:
    job = await waiting(bench, "job", 3, limit=Limit("old", 1))
    await waiting(bench, "other", 2, limit=Limit("old", 1))
    seat = await bench.seat()
    await bench.change(job, bench.definition("job", limit=Limit("new", 2)))
    assert await marks(bench, job) == {(LIMITED, True)}
    claimed = await bench.claim(seat)
    assert sorted(c.name or "" for c in claimed) == ["job", "job", "other"]


async def test_a_lowered_limit_holds_as_places_become_free(bench: Bench) -> None:
    job = await waiting(bench, "job", 6, max_concurrency=3)
    seat = await bench.seat()
    claimed = await bench.claim(seat)
    assert len(claimed) == 3
    await bench.change(job, bench.definition("job", max_concurrency=1))
    for one in claimed[:2]:
        await bench.end(seat, one)
        assert await bench.claim(seat) == []
    await bench.end(seat, claimed[2])
    assert len(await bench.claim(seat)) == 1


async def test_a_raised_limit_holds_at_once(bench: Bench) -> None:
    job = await waiting(bench, "job", 6, max_concurrency=1)
    seat = await bench.seat()
    await bench.claim(seat)
    await bench.change(job, bench.definition("job", max_concurrency=3))
    assert len(await bench.claim(seat)) == 2


async def test_an_edit_keeps_what_else_holds_a_run(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    for second in (10, 20):
        await bench.set_clock(bench.after(second))
        await bench.tick_all()
    await bench.change(job, bench.definition("job", every("10s"), overlap=Overlap.QUEUE, max_concurrency=1))
    assert await bench.value("select blocked from queue where scheduled_for = $1", bench.after(20)) == LIMITED | 2
    assert len(await bench.claim(seat)) == 1


async def test_a_limited_run_that_nobody_knows_comes_to_its_turn_when_somebody_does(bench: Bench) -> None:
    await waiting(bench, "job", 1, task="strange", max_concurrency=1)
    await bench.seat()
    await bench.pass_time(5)
    await bench.sweep()
    knower = await bench.seat("strange")
    await bench.sweep()
    assert len(await bench.claim(knower)) == 1


# Many at once


async def test_eight_claimers_at_once_never_exceed_a_limit(bench: Bench) -> None:
    for name in "abcd":
        await waiting(bench, name, 60, limit=Limit("shared", 3), max_concurrency=2)
    alone = await waiting(bench, "alone", 100, max_concurrency=2)
    stores = [await Store.open(bench.store.dsn, size=2) for _ in range(8)]
    seats = [await bench.seat() for _ in stores]
    stop = asyncio.Event()
    worst = {"shared": 0, "alone": 0, "own": 0}
    done: list[Claimed] = []

    async def work(store: Store, seat: Seat) -> None:
        mine = type(bench)(store, bench.names, bench.noon)
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
            rows = await bench.sql("select job_id, count(*) from queue where worker_id is not null group by 1")
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
