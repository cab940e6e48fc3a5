"""Register, change, pause, resume and delete: what a job gets of its schedule, and what it does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.jobs import Definition, shard_of
from bellringer.core.policies import Misfire, Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import State
from bellringer.engine import register
from bellringer.engine.shard_placement import new_id
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.schedule import at, cron, every
from bellringer.store import jobs, partitions, revisions
from bellringer.store.tenant_scope import ScopedStore

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


# Creating


async def test_ids_of_many_jobs_are_of_version_7_and_differ(harness: EngineHarness) -> None:
    ids = [await new_id(harness.catalog, Definition(name="job", task="demo")) for _ in range(500)]
    assert len(set(ids)) == 500
    assert [UUID(str(job_id)) for job_id in ids] == ids
    assert {job_id.version for job_id in ids} == {7}


async def test_a_new_job_is_the_member_that_it_is_after_a_pause(harness: EngineHarness) -> None:
    """When it is new its members are made of what was sent, later of what is stored."""
    soon, late = harness.after(3600), harness.after(7200)
    several = (every("10s"), every("25s"), cron("7 3 * * *"))
    made = await harness.register(
        *(harness.definition(f"plain {n}", every("10s")) for n in range(3)),
        harness.definition("several", *several, misfire=Misfire.FIRE_ALL, overlap=Overlap.REPLACE, priority=9),
        harness.definition("within", every("10s"), starts_at=soon, ends_at=late, misfire=Misfire.SKIP),
        harness.definition("capped", every("10s"), max_concurrency=2, overlap=Overlap.QUEUE),
        harness.definition("jittered", every("10s"), jitter=timedelta(minutes=5), overlap=Overlap.COLLAPSE),
        harness.definition("told", every("10s"), late_after=timedelta(seconds=9), overlap=Overlap.SKIP),
        harness.definition("off", every("10s"), enabled=False),
    )
    members = "select to_jsonb(m) - 'revision' as it from members m order by job_id, schedule_id"
    new = await harness.sql(members)
    assert len(new) == 10
    for job in made:
        await harness.pause(job.job_id)
    assert await harness.sql(members) == []
    for job in made:
        await harness.resume(job.job_id)
    assert await harness.sql(members) == new


async def test_a_new_job_joins_the_cohort_of_its_schedule(harness: EngineHarness) -> None:
    [taken] = await harness.register(harness.definition("job", every("10s")))
    assert (taken.revision, taken.active_since) == (1, harness.noon)
    [row] = await harness.sql(
        "select m.*, c.next_at from members m join cohorts c using (shard, schedule_id) where job_id = $1",
        taken.job_id,
    )
    assert row["shard"] == shard_of(taken.job_id, 64)
    assert (row["active_since"], row["next_at"]) == (harness.noon, harness.after(10))


async def test_jobs_that_share_a_shard_and_a_schedule_share_one_cohort(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("10s")) for n in range(5)))
    assert await harness.value("select count(*) from cohorts") == 1
    assert await harness.value("select count(*) from members") == 5


async def test_creation_never_fires_the_past(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.job("old", every("10s"))
    await harness.set_clock(harness.after(35))
    late = await harness.job("new", every("10s"))  # the hand still stands at 10
    await harness.tick_all()
    assert await harness.fired(late) == []
    await harness.set_clock(harness.after(40))
    await harness.tick_all()
    assert await harness.fired(late) == [40]


async def test_an_occurrence_at_the_very_instant_of_creation_is_past(harness: EngineHarness) -> None:
    await harness.set_clock(harness.after(10))
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    assert await harness.fired(job) == [20]


async def test_a_job_gets_what_a_cohort_that_runs_ahead_has_passed_already_once(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.job("first", every("1s"))
    await harness.tick_all(lead=3)  # fires 1, 2 and 3 ahead of their time
    late = await harness.job("late", every("1s"))
    assert await harness.fired(late) == await harness.queued(late) == [1, 2, 3]
    await harness.set_clock(harness.after(5))
    await harness.tick_all()
    assert await harness.fired(late) == [1, 2, 3, 4, 5]


async def test_beside_jobs_that_are_due_soon_the_others_are_not_looked_at_again(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.job("first", every("1s"))
    await harness.tick_all(lead=3)
    soon, once = harness.definition("soon", every("1s")), harness.definition("once", at(harness.after(60)))
    alike = harness.definition("later", cron("0 3 * * *"))
    later = [replace(alike, name=f"later {n}") for n in range(200)]
    store = ScopedStore(harness.store, None, None)
    async with store.transaction():
        made = await register.create(store, harness.catalog, [*later, soon, once], tenant_id=harness.tenant, who="me")
        read = await store.pool.fetchval("select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'jobs'")
    assert read < 30
    assert await harness.fired(made[-2].job_id) == await harness.queued(made[-2].job_id) == [1, 2, 3]
    assert await harness.timers(made[-1].job_id) == [60]
    assert await harness.fired(made[0].job_id) == await harness.timers(made[0].job_id) == []


@pytest.mark.parametrize("side", ["before the cursor", "behind the cursor"])
async def test_a_job_that_joins_a_cohort_in_the_middle_of_its_chunks_misses_nothing(
    harness: EngineHarness, side: str
) -> None:
    await harness.share_shard()
    ids = sorted([await harness.job(f"job {n}", every("1s")) for n in range(4)])
    await harness.tick(lead=1, most=2)
    assert await harness.value("select cursor from cohorts") == ids[1]
    late = await harness.job("late", every("1s"))
    if side == "before the cursor":  # as it is where two hosts' clocks differ
        await harness.retire(late)
        await harness.sql("update cohorts set cursor = $1", UUID(int=(1 << 128) - 1))
        late = await harness.job("late", every("1s"))
        assert await harness.fired(late) == [1]
        await harness.sql("update cohorts set cursor = $1", ids[1])
    else:
        assert await harness.fired(late) == []
    await harness.set_clock(harness.after(1))
    await harness.tick_all()
    assert await harness.fired(late) == [1]
    assert [await harness.fired(job) for job in ids] == [[1]] * 4


async def test_a_name_is_taken_whatever_its_case(harness: EngineHarness) -> None:
    await harness.job("Nightly Report")
    with pytest.raises(Conflict, match="already exists"):
        await harness.job("nightly REPORT")


async def test_two_tenants_may_use_one_name(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    assert await harness.job("job") != await harness.for_tenant(other).job("job")


async def test_jobs_are_created_all_or_none(harness: EngineHarness) -> None:
    await harness.job("taken")
    with pytest.raises(Conflict):
        await harness.register(harness.definition("fresh", every("1s")), harness.definition("taken"))
    assert await harness.value("select array_agg(name) from jobs") == ["taken"]
    assert await harness.value("select count(*) from members") == 0


async def test_a_disabled_job_does_not_fire_until_it_is_enabled(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"), enabled=False)
    assert await harness.value("select count(*) from members") == 0
    await harness.set_clock(harness.after(5))
    await harness.change(job, harness.definition("job", every("1s")))
    await harness.set_clock(harness.after(6))
    await harness.tick_all()
    assert await harness.fired(job) == [6]


async def test_the_first_and_the_last_instant_of_its_span_belong_to_a_job(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), starts_at=harness.after(20), ends_at=harness.after(40))
    await harness.set_clock(harness.after(59))
    await harness.tick_all()
    assert await harness.fired(job) == [20, 30, 40]


async def test_a_job_may_have_several_schedules(harness: EngineHarness) -> None:
    job = await harness.job("job", every("7s"), every("10s"))
    await harness.set_clock(harness.after(22))
    await harness.tick_all()
    fired = await harness.fired(job)
    start = int(harness.noon.timestamp())
    assert fired == [s for s in range(1, 23) if (start + s) % 7 == 0 or (start + s) % 10 == 0]


async def test_a_definition_that_breaks_a_rule_is_refused_before_anything_is_written(harness: EngineHarness) -> None:
    with pytest.raises(InvalidInput):
        await harness.job("job", every("1s"), priority=10)
    with pytest.raises(InvalidInput):
        await harness.job("job", starts_at=harness.after(2), ends_at=harness.after(1))
    assert await harness.value("select count(*) from jobs") == 0


async def test_instants_that_were_computed_too_long_ago_are_refused(harness: EngineHarness) -> None:
    instants = jobs.ScheduleInstants(asof=harness.after(-6), first={}, soon=[])
    with pytest.raises(jobs.StaleInstants):
        await jobs.register(harness.store, b"[]", [], "me", instants)


# Changing


async def test_a_change_moves_a_job_to_the_cohort_of_its_new_schedule(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.change(job, harness.definition("job", every("15s")))
    await harness.set_clock(harness.after(30))
    await harness.tick_all()
    assert await harness.fired(job) == [15, 30]


async def test_a_change_takes_back_what_was_fired_ahead_of_its_time(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.tick_all(lead=2)
    assert await harness.fired(job) == [1, 2]
    await harness.change(job, harness.definition("job", every("2s")))
    assert await harness.fired(job) == await harness.queued(job) == []
    await harness.set_clock(harness.after(4))
    await harness.tick_all()
    assert await harness.fired(job) == [2, 4]


async def test_a_change_that_keeps_the_schedule_keeps_what_was_fired_ahead(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.tick_all(lead=2)
    changed = await harness.change(job, harness.definition("job", every("1s"), priority=9))
    assert await harness.fired(job) == await harness.queued(job) == [1, 2]
    assert await harness.value("select array_agg(distinct (priority, revision)::text) from queue") == ["(9,2)"]
    assert changed.revision == 2


async def test_a_change_creates_the_oldest_owed_occurrence_and_records_the_rest(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(35))  # nobody ticked: 10, 20 and 30 are owed
    await harness.change(job, harness.definition("job", every("10s"), args=["new"]))
    assert await harness.fired(job) == await harness.queued(job) == [10]
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["reason"], gap["into_at"]) == (10.000001, "edited", 10)
    assert gap["to_at"] >= 35
    await harness.set_clock(harness.after(40))
    await harness.tick_all()
    assert await harness.fired(job) == [10, 40]


async def test_a_change_of_what_was_read_too_long_ago_is_refused(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.change(job, harness.definition("job", every("2s")))
    with pytest.raises(Conflict, match="someone else"):
        await harness.change(job, harness.definition("job", every("3s")), revision=1)
    assert (await harness.read(job)).schedules == (every("2s"),)


async def test_of_many_who_change_a_job_at_once_one_succeeds(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    changes = [harness.change(job, harness.definition("job", every(n)), revision=1) for n in range(2, 8)]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(isinstance(answer, Conflict) for answer in answers) == 5
    assert await harness.value("select count(*) from members") == 1


async def test_a_change_of_a_job_that_does_not_exist_is_refused(harness: EngineHarness) -> None:
    unknown = UUID(int=(await harness.job("job")).int ^ 1)
    with pytest.raises((NotFound, Conflict)):
        await harness.change(unknown, harness.definition("ghost"), revision=3)


async def test_another_tenants_job_cannot_be_changed(harness: EngineHarness) -> None:
    [other] = await harness.tenants(1)
    job = await harness.job("job", every("1s"))
    with pytest.raises((NotFound, Conflict)):
        await harness.for_tenant(other).change(job, harness.definition("mine"), revision=1)
    with pytest.raises(NotFound):
        await harness.for_tenant(other).pause(job)
    with pytest.raises(NotFound):
        await harness.for_tenant(other).resume(job)
    with pytest.raises(NotFound):
        await harness.for_tenant(other).retire(job)
    assert (await harness.read(job)).revision == 1
    assert await harness.value("select count(*) from members") == 1


async def test_every_change_leaves_a_revision(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.change(job, harness.definition("job", every("2s")))
    await harness.pause(job)
    await harness.resume(job)
    await harness.retire(job)
    rows = await revisions.newest(harness.store, job, 10)
    assert [row["what"] for row in rows] == ["deleted", "resumed", "paused", "changed", "created"]
    assert [row["revision"] for row in rows] == [5, 4, 3, 2, 1]
    assert rows[-1]["definition"]["schedules"] == [{"every": "1s"}]


# Declaring


async def test_declaring_what_is_there_already_changes_nothing(harness: EngineHarness) -> None:
    wanted = [
        harness.definition("a", every("1s"), args=[1, 2.5], kwargs={"x": [None]}, tags=("t",)),
        harness.definition("B", cron("0 8 * * mon-fri", tz="Europe/Berlin"), retry=Retry(5, base="1m")),
        harness.definition("c", timeout=timedelta(seconds=1.5), starts_at=harness.after(5)),
    ]
    assert len(await harness.declare(*wanted)) == 3
    assert await harness.declare(*wanted) == []
    assert await harness.value("select max(revision) from jobs") == 1


async def test_declaring_changes_only_what_differs(harness: EngineHarness) -> None:
    a, b = harness.definition("a", every("1s")), harness.definition("b", every("1s"))
    await harness.declare(a, b)
    [changed] = await harness.declare(a, replace(b, priority=9))
    assert (await harness.read(changed.job_id)).name == "b"
    assert changed.revision == 2


async def test_declaring_a_paused_job_leaves_it_paused(harness: EngineHarness) -> None:
    [taken] = await harness.declare(harness.definition("a", every("1s")))
    await harness.pause(taken.job_id)
    await harness.declare(harness.definition("a", every("2s")))
    assert (await harness.read(taken.job_id)).paused_at is not None
    assert await harness.value("select count(*) from members") == 0


# Pausing


async def test_a_paused_job_makes_no_runs_and_resumes_with_the_future(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.pause(job)
    await harness.set_clock(harness.after(35))
    await harness.tick_all()
    await harness.resume(job)
    assert await harness.fired(job) == []
    await harness.set_clock(harness.after(40))
    await harness.tick_all()
    assert await harness.fired(job) == [40]


async def test_a_pause_holds_what_is_due_and_resume_frees_it(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    await harness.pause(job)
    seat = await harness.join_worker()
    assert await harness.claim(seat) == []
    assert await harness.state(harness.key(job, 10)) is State.BLOCKED
    await harness.resume(job)
    assert (await harness.claim_one(seat)).key == harness.key(job, 10)


@pytest.mark.parametrize("wait", ["30s", "5m"])
async def test_a_pause_holds_retries_near_and_far(harness: EngineHarness, wait: str) -> None:
    job = await harness.job("job", every("10s"), retry=Retry(delays=[wait], jitter=0))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.pause(job)
    await harness.set_clock(harness.after(1000))
    await harness.ring()
    assert await harness.claim(seat) == []
    await harness.resume(job)
    assert (await harness.claim_one(seat)).attempt == 2


async def test_a_pause_takes_back_what_was_fired_ahead_of_its_time(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1s"))
    await harness.tick_all(lead=1)
    await harness.pause(job)
    assert await harness.fired(job) == await harness.queued(job) == []
    await harness.resume(job)  # before its time: it is owed again
    assert await harness.fired(job) == [1]


async def test_a_pause_creates_what_a_late_cohort_owes_and_holds_it(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(25))
    await harness.pause(job)
    assert await harness.fired(job) == [10]
    assert await harness.state(harness.key(job, 10)) is State.BLOCKED
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["reason"]) == (10.000001, "paused")


async def test_a_pause_of_what_a_cohort_has_fired_in_part_owes_nothing_twice(harness: EngineHarness) -> None:
    await harness.share_shard()
    ids = sorted([await harness.job(f"job {n}", every("10s")) for n in range(4)])
    await harness.set_clock(harness.after(10))
    await harness.tick(most=2)
    for job in ids:
        await harness.pause(job)
    await harness.tick_all()
    assert [await harness.fired(job) for job in ids] == [[10]] * 4
    assert await harness.value("select count(*) from queue") == 4


async def test_pausing_and_resuming_again_changes_nothing_more(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.pause(job)
    await harness.set_clock(harness.after(5))
    await harness.pause(job)
    assert (await harness.read(job)).paused_at == harness.noon
    revision = await harness.resume(job)
    assert await harness.resume(job) == revision
    assert await harness.value("select count(*) from members") == 1


async def test_what_runs_when_its_job_is_paused_finishes(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.pause(job)
    assert await harness.end(seat, claimed) == 1
    assert await harness.state(claimed.key) is State.SUCCEEDED


# Deleting


async def test_deleting_ends_what_waits_and_lets_what_runs_finish(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    running = await harness.claim_one(seat)
    await harness.set_clock(harness.after(20))
    await harness.tick_all()
    await harness.retire(job)
    assert await harness.state(harness.key(job, 20)) is State.CANCELLED
    assert await harness.state(running.key) is State.RUNNING
    assert await harness.end(seat, running) == 1
    await harness.set_clock(harness.after(60))
    await harness.tick_all()
    assert await harness.fired(job) == [10, 20]


async def test_deleting_ends_a_far_retry(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"), retry=Retry(delays=["5m"], jitter=0))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.retire(job)
    assert await harness.timers(job) == []
    assert await harness.state(harness.key(job, 10)) is State.CANCELLED


async def test_deleting_records_what_a_late_cohort_owed_and_fires_none_of_it(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(25))
    await harness.retire(job)
    assert await harness.fired(job) == []
    [gap] = await harness.gaps(job)
    assert (gap["from_at"], gap["reason"]) == (10, "deleted")
    assert gap["to_at"] >= 25


async def test_the_name_of_a_deleted_job_is_free_at_once(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await harness.retire(job)
    assert await harness.job("JOB") != job
    with pytest.raises(NotFound):
        await harness.retire(job)
    with pytest.raises(NotFound):
        await harness.pause(job)
    with pytest.raises(NotFound):
        await harness.trigger(job)


async def test_a_cohort_that_no_one_needs_is_forgotten_and_comes_back(harness: EngineHarness) -> None:
    job = await harness.job("job", every("10s"))
    await harness.retire(job)
    for shard in range(64):
        await partitions.delete_empty_cohorts(harness.store, shard)
    assert await harness.value("select count(*) from cohorts") == 0
    again = await harness.job("job", every("10s"))
    await harness.set_clock(harness.after(10))
    await harness.tick_all()
    assert await harness.fired(again) == [10]
