"""Register, change, pause, resume and delete: what a job gets of its schedule, and what it does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.jobs import Definition, shard_of
from bellringer.lifecycle import register
from bellringer.lifecycle.homes import new_ids
from bellringer.policies import Misfire, Overlap, Retry
from bellringer.runs import State
from bellringer.schedule import at, cron, every
from bellringer.store import history, jobs, revisions
from bellringer.store.scope import ScopedStore

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


# Creating


async def test_ids_of_many_jobs_are_of_version_7_and_differ(bench: Bench) -> None:
    ids = await new_ids(bench.names, [Definition(name="job", task="demo")] * 500)
    assert len(set(ids)) == 500
    assert [UUID(str(job_id)) for job_id in ids] == ids
    assert {job_id.version for job_id in ids} == {7}


async def test_a_new_job_is_the_member_that_it_is_after_a_pause(bench: Bench) -> None:
    """When it is new its members are made of what was sent, later of what is stored."""
    soon, late = bench.after(3600), bench.after(7200)
    several = (every("10s"), every("25s"), cron("7 3 * * *"))
    made = await bench.register(
        *(bench.definition(f"plain {n}", every("10s")) for n in range(3)),
        bench.definition("several", *several, misfire=Misfire.FIRE_ALL, overlap=Overlap.REPLACE, priority=9),
        bench.definition("within", every("10s"), starts_at=soon, ends_at=late, misfire=Misfire.SKIP),
        bench.definition("capped", every("10s"), max_concurrency=2, overlap=Overlap.QUEUE),
        bench.definition("jittered", every("10s"), jitter=timedelta(minutes=5), overlap=Overlap.COLLAPSE),
        bench.definition("told", every("10s"), late_after=timedelta(seconds=9), overlap=Overlap.SKIP),
        bench.definition("off", every("10s"), enabled=False),
    )
    members = "select to_jsonb(m) - 'revision' as it from members m order by job_id, schedule_id"
    new = await bench.sql(members)
    assert len(new) == 10
    for job in made:
        await bench.pause(job.job_id)
    assert await bench.sql(members) == []
    for job in made:
        await bench.resume(job.job_id)
    assert await bench.sql(members) == new


async def test_a_new_job_joins_the_cohort_of_its_schedule(bench: Bench) -> None:
    [taken] = await bench.register(bench.definition("job", every("10s")))
    assert (taken.revision, taken.active_since) == (1, bench.noon)
    [row] = await bench.sql(
        "select m.*, c.next_at from members m join cohorts c using (shard, schedule_id) where job_id = $1",
        taken.job_id,
    )
    assert row["shard"] == shard_of(taken.job_id, 64)
    assert (row["active_since"], row["next_at"]) == (bench.noon, bench.after(10))


async def test_jobs_that_share_a_shard_and_a_schedule_share_one_hand(bench: Bench) -> None:
    await bench.share_shard()
    await bench.register(*(bench.definition(f"job {n}", every("10s")) for n in range(5)))
    assert await bench.value("select count(*) from cohorts") == 1
    assert await bench.value("select count(*) from members") == 5


async def test_creation_never_fires_the_past(bench: Bench) -> None:
    await bench.share_shard()
    await bench.job("old", every("10s"))
    await bench.set_clock(bench.after(35))
    late = await bench.job("new", every("10s"))  # the hand still stands at 10
    await bench.tick_all()
    assert await bench.fired(late) == []
    await bench.set_clock(bench.after(40))
    await bench.tick_all()
    assert await bench.fired(late) == [40]


async def test_an_occurrence_at_the_very_instant_of_creation_is_past(bench: Bench) -> None:
    await bench.set_clock(bench.after(10))
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(20))
    await bench.tick_all()
    assert await bench.fired(job) == [20]


async def test_a_job_gets_what_a_hand_that_runs_ahead_has_passed_already_once(bench: Bench) -> None:
    await bench.share_shard()
    await bench.job("first", every("1s"))
    await bench.tick_all(lead=3)  # fires 1, 2 and 3 ahead of their time
    late = await bench.job("late", every("1s"))
    assert await bench.fired(late) == await bench.queued(late) == [1, 2, 3]
    await bench.set_clock(bench.after(5))
    await bench.tick_all()
    assert await bench.fired(late) == [1, 2, 3, 4, 5]


async def test_beside_jobs_that_are_due_soon_the_others_are_not_looked_at_again(bench: Bench) -> None:
    await bench.share_shard()
    await bench.job("first", every("1s"))
    await bench.tick_all(lead=3)
    soon, once = bench.definition("soon", every("1s")), bench.definition("once", at(bench.after(60)))
    alike = bench.definition("later", cron("0 3 * * *"))
    later = [replace(alike, name=f"later {n}") for n in range(200)]
    store = ScopedStore(bench.store, None, None)
    async with store.transaction():
        made = await register.register(store, bench.names, [*later, soon, once], tenant_id=bench.tenant, who="me")
        read = await store.pool.fetchval("select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'")
    assert read < 30
    assert await bench.fired(made[-2].job_id) == await bench.queued(made[-2].job_id) == [1, 2, 3]
    assert await bench.timers(made[-1].job_id) == [60]
    assert await bench.fired(made[0].job_id) == await bench.timers(made[0].job_id) == []


@pytest.mark.parametrize("side", ["before the cursor", "behind the cursor"])
async def test_a_job_that_joins_a_cohort_in_the_middle_of_its_chunks_misses_nothing(bench: Bench, side: str) -> None:
    await bench.share_shard()
    ids = sorted([await bench.job(f"job {n}", every("1s")) for n in range(4)])
    await bench.tick(lead=1, most=2)
    assert await bench.value("select cursor from cohorts") == ids[1]
    late = await bench.job("late", every("1s"))
    if side == "before the cursor":  # as it is where two hosts' clocks differ
        await bench.retire(late)
        await bench.sql("update cohorts set cursor = $1", UUID(int=(1 << 128) - 1))
        late = await bench.job("late", every("1s"))
        assert await bench.fired(late) == [1]
        await bench.sql("update cohorts set cursor = $1", ids[1])
    else:
        assert await bench.fired(late) == []
    await bench.set_clock(bench.after(1))
    await bench.tick_all()
    assert await bench.fired(late) == [1]
    assert [await bench.fired(job) for job in ids] == [[1]] * 4


async def test_a_name_is_taken_whatever_its_case(bench: Bench) -> None:
    await bench.job("Nightly Report")
    with pytest.raises(Conflict, match="exists already"):
        await bench.job("nightly REPORT")


async def test_two_tenants_may_use_one_name(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    assert await bench.job("job") != await bench.of(other).job("job")


async def test_jobs_are_created_all_or_none(bench: Bench) -> None:
    await bench.job("taken")
    with pytest.raises(Conflict):
        await bench.register(bench.definition("fresh", every("1s")), bench.definition("taken"))
    assert await bench.value("select array_agg(name) from jobs") == ["taken"]
    assert await bench.value("select count(*) from members") == 0


async def test_a_disabled_job_does_not_fire_until_it_is_enabled(bench: Bench) -> None:
    job = await bench.job("job", every("1s"), enabled=False)
    assert await bench.value("select count(*) from members") == 0
    await bench.set_clock(bench.after(5))
    await bench.change(job, bench.definition("job", every("1s")))
    await bench.set_clock(bench.after(6))
    await bench.tick_all()
    assert await bench.fired(job) == [6]


async def test_the_first_and_the_last_instant_of_its_span_belong_to_a_job(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), starts_at=bench.after(20), ends_at=bench.after(40))
    await bench.set_clock(bench.after(59))
    await bench.tick_all()
    assert await bench.fired(job) == [20, 30, 40]


async def test_a_job_may_have_several_schedules(bench: Bench) -> None:
    job = await bench.job("job", every("7s"), every("10s"))
    await bench.set_clock(bench.after(22))
    await bench.tick_all()
    fired = await bench.fired(job)
    start = int(bench.noon.timestamp())
    assert fired == [s for s in range(1, 23) if (start + s) % 7 == 0 or (start + s) % 10 == 0]


async def test_a_definition_that_breaks_a_rule_is_refused_before_anything_is_written(bench: Bench) -> None:
    with pytest.raises(InvalidInput):
        await bench.job("job", every("1s"), priority=10)
    with pytest.raises(InvalidInput):
        await bench.job("job", starts_at=bench.after(2), ends_at=bench.after(1))
    assert await bench.value("select count(*) from jobs") == 0


async def test_instants_that_were_computed_too_long_ago_are_refused(bench: Bench) -> None:
    instants = jobs.Instants(asof=bench.after(-6), first={}, soon=[])
    with pytest.raises(jobs.Stale):
        await jobs.register(bench.store, b"[]", [], "me", instants)


# Changing


async def test_a_change_moves_a_job_to_the_cohort_of_its_new_schedule(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.change(job, bench.definition("job", every("15s")))
    await bench.set_clock(bench.after(30))
    await bench.tick_all()
    assert await bench.fired(job) == [15, 30]


async def test_a_change_takes_back_what_was_fired_ahead_of_its_time(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.tick_all(lead=2)
    assert await bench.fired(job) == [1, 2]
    await bench.change(job, bench.definition("job", every("2s")))
    assert await bench.fired(job) == await bench.queued(job) == []
    await bench.set_clock(bench.after(4))
    await bench.tick_all()
    assert await bench.fired(job) == [2, 4]


async def test_a_change_that_keeps_the_schedule_keeps_what_was_fired_ahead(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.tick_all(lead=2)
    changed = await bench.change(job, bench.definition("job", every("1s"), priority=9))
    assert await bench.fired(job) == await bench.queued(job) == [1, 2]
    assert await bench.value("select array_agg(distinct (priority, revision)::text) from queue") == ["(9,2)"]
    assert changed.revision == 2


async def test_a_change_gives_birth_to_the_oldest_owed_occurrence_and_records_the_rest(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(35))  # nobody ticked: 10, 20 and 30 are owed
    await bench.change(job, bench.definition("job", every("10s"), args=["new"]))
    assert await bench.fired(job) == await bench.queued(job) == [10]
    [gap] = await bench.gaps(job)
    assert (gap["from_at"], gap["reason"], gap["into_at"]) == (10.000001, "edited", 10)
    assert gap["to_at"] >= 35
    await bench.set_clock(bench.after(40))
    await bench.tick_all()
    assert await bench.fired(job) == [10, 40]


async def test_a_change_of_what_was_read_too_long_ago_is_refused(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.change(job, bench.definition("job", every("2s")))
    with pytest.raises(Conflict, match="someone else"):
        await bench.change(job, bench.definition("job", every("3s")), revision=1)
    assert (await bench.read(job)).schedules == (every("2s"),)


async def test_of_many_who_change_a_job_at_once_one_succeeds(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    changes = [bench.change(job, bench.definition("job", every(n)), revision=1) for n in range(2, 8)]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(isinstance(answer, Conflict) for answer in answers) == 5
    assert await bench.value("select count(*) from members") == 1


async def test_a_change_of_a_job_that_does_not_exist_is_refused(bench: Bench) -> None:
    unknown = UUID(int=(await bench.job("job")).int ^ 1)
    with pytest.raises((NotFound, Conflict)):
        await bench.change(unknown, bench.definition("ghost"), revision=3)


async def test_another_tenants_job_cannot_be_changed(bench: Bench) -> None:
    [other] = await bench.tenants(1)
    job = await bench.job("job", every("1s"))
    with pytest.raises((NotFound, Conflict)):
        await bench.of(other).change(job, bench.definition("mine"), revision=1)
    with pytest.raises(NotFound):
        await bench.of(other).pause(job)
    with pytest.raises(NotFound):
        await bench.of(other).resume(job)
    with pytest.raises(NotFound):
        await bench.of(other).retire(job)
    assert (await bench.read(job)).revision == 1
    assert await bench.value("select count(*) from members") == 1


async def test_every_change_leaves_a_revision(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.change(job, bench.definition("job", every("2s")))
    await bench.pause(job)
    await bench.resume(job)
    await bench.retire(job)
    rows = await revisions.newest(bench.store, job, 10)
    assert [row["what"] for row in rows] == ["deleted", "resumed", "paused", "changed", "created"]
    assert [row["revision"] for row in rows] == [5, 4, 3, 2, 1]
    assert rows[-1]["definition"]["schedules"] == [{"every": "1s"}]


# Declaring


async def test_declaring_what_is_there_already_changes_nothing(bench: Bench) -> None:
    wanted = [
        bench.definition("a", every("1s"), args=[1, 2.5], kwargs={"x": [None]}, tags=("t",)),
        bench.definition("B", cron("0 8 * * mon-fri", tz="Europe/Berlin"), retry=Retry(5, base="1m")),
        bench.definition("c", timeout=timedelta(seconds=1.5), starts_at=bench.after(5)),
    ]
    assert len(await bench.declare(*wanted)) == 3
    assert await bench.declare(*wanted) == []
    assert await bench.value("select max(revision) from jobs") == 1


async def test_declaring_changes_only_what_differs(bench: Bench) -> None:
    a, b = bench.definition("a", every("1s")), bench.definition("b", every("1s"))
    await bench.declare(a, b)
    [changed] = await bench.declare(a, replace(b, priority=9))
    assert (await bench.read(changed.job_id)).name == "b"
    assert changed.revision == 2


async def test_declaring_a_paused_job_leaves_it_paused(bench: Bench) -> None:
    [taken] = await bench.declare(bench.definition("a", every("1s")))
    await bench.pause(taken.job_id)
    await bench.declare(bench.definition("a", every("2s")))
    assert (await bench.read(taken.job_id)).paused_at is not None
    assert await bench.value("select count(*) from members") == 0


# Pausing


async def test_a_paused_job_makes_no_runs_and_resumes_with_the_future(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.pause(job)
    await bench.set_clock(bench.after(35))
    await bench.tick_all()
    await bench.resume(job)
    assert await bench.fired(job) == []
    await bench.set_clock(bench.after(40))
    await bench.tick_all()
    assert await bench.fired(job) == [40]


async def test_a_pause_holds_what_is_due_and_resume_frees_it(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    await bench.pause(job)
    seat = await bench.seat()
    assert await bench.claim(seat) == []
    assert await bench.state(bench.key(job, 10)) is State.BLOCKED
    await bench.resume(job)
    assert (await bench.claim_one(seat)).key == bench.key(job, 10)


@pytest.mark.parametrize("wait", ["30s", "5m"])
async def test_a_pause_holds_retries_near_and_far(bench: Bench, wait: str) -> None:
    job = await bench.job("job", every("10s"), retry=Retry(delays=[wait]))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.pause(job)
    await bench.set_clock(bench.after(1000))
    await bench.ring()
    assert await bench.claim(seat) == []
    await bench.resume(job)
    assert (await bench.claim_one(seat)).attempt == 2


async def test_a_pause_takes_back_what_was_fired_ahead_of_its_time(bench: Bench) -> None:
    job = await bench.job("job", every("1s"))
    await bench.tick_all(lead=1)
    await bench.pause(job)
    assert await bench.fired(job) == await bench.queued(job) == []
    await bench.resume(job)  # before its time: it is owed again
    assert await bench.fired(job) == [1]


async def test_a_pause_gives_birth_to_what_a_late_hand_owes_and_holds_it(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(25))
    await bench.pause(job)
    assert await bench.fired(job) == [10]
    assert await bench.state(bench.key(job, 10)) is State.BLOCKED
    [gap] = await bench.gaps(job)
    assert (gap["from_at"], gap["reason"]) == (10.000001, "paused")


async def test_a_pause_of_what_a_hand_has_fired_in_part_owes_nothing_twice(bench: Bench) -> None:
    await bench.share_shard()
    ids = sorted([await bench.job(f"job {n}", every("10s")) for n in range(4)])
    await bench.set_clock(bench.after(10))
    await bench.tick(most=2)
    for job in ids:
        await bench.pause(job)
    await bench.tick_all()
    assert [await bench.fired(job) for job in ids] == [[10]] * 4
    assert await bench.value("select count(*) from queue") == 4


async def test_pausing_and_resuming_again_changes_nothing_more(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.pause(job)
    await bench.set_clock(bench.after(5))
    await bench.pause(job)
    assert (await bench.read(job)).paused_at == bench.noon
    revision = await bench.resume(job)
    assert await bench.resume(job) == revision
    assert await bench.value("select count(*) from members") == 1


async def test_what_runs_when_its_job_is_paused_finishes(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    claimed = await bench.claim_one(seat)
    await bench.pause(job)
    assert await bench.end(seat, claimed) == 1
    assert await bench.state(claimed.key) is State.SUCCEEDED


# Deleting


async def test_deleting_ends_what_waits_and_lets_what_runs_finish(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    running = await bench.claim_one(seat)
    await bench.set_clock(bench.after(20))
    await bench.tick_all()
    await bench.retire(job)
    assert await bench.state(bench.key(job, 20)) is State.CANCELLED
    assert await bench.state(running.key) is State.RUNNING
    assert await bench.end(seat, running) == 1
    await bench.set_clock(bench.after(60))
    await bench.tick_all()
    assert await bench.fired(job) == [10, 20]


async def test_deleting_ends_a_far_retry(bench: Bench) -> None:
    job = await bench.job("job", every("10s"), retry=Retry(delays=["5m"]))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    seat = await bench.seat()
    await bench.fail(seat, await bench.claim_one(seat))
    await bench.retire(job)
    assert await bench.timers(job) == []
    assert await bench.state(bench.key(job, 10)) is State.CANCELLED


async def test_deleting_records_what_a_late_hand_owed_and_fires_none_of_it(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(25))
    await bench.retire(job)
    assert await bench.fired(job) == []
    [gap] = await bench.gaps(job)
    assert (gap["from_at"], gap["reason"]) == (10, "deleted")
    assert gap["to_at"] >= 25


async def test_the_name_of_a_deleted_job_is_free_at_once(bench: Bench) -> None:
    job = await bench.job("job")
    await bench.retire(job)
    assert await bench.job("JOB") != job
    with pytest.raises(NotFound):
        await bench.retire(job)
    with pytest.raises(NotFound):
        await bench.pause(job)
    with pytest.raises(NotFound):
        await bench.trigger(job)


async def test_a_hand_that_nobody_needs_is_forgotten_and_comes_back(bench: Bench) -> None:
    job = await bench.job("job", every("10s"))
    await bench.retire(job)
    for shard in range(64):
        await history.forget_cohorts(bench.store, shard)
    assert await bench.value("select count(*) from cohorts") == 0
    again = await bench.job("job", every("10s"))
    await bench.set_clock(bench.after(10))
    await bench.tick_all()
    assert await bench.fired(again) == [10]
