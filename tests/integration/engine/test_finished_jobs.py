"""Jobs that have nothing more to fire are done: they leave their cohorts, count against no quota, and can come back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.clock import SystemClock
from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.policies import AfterCompletion
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine.prune import Retention
from bellringer.errors import Conflict, NotFound, QuotaExceeded
from bellringer.schedule import at, delay, every, rrule
from bellringer.scheduler.maintenance import Maintenance
from bellringer.store import jobs, runs, tenants
from bellringer.store.jobs import FinishCursor, JobFilter

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def finish(harness: EngineHarness, most: int = 1000) -> int:
    """Pass by pass, until the look comes to its end."""
    total, cursor = 0, None
    for _ in range(100):
        passed = await jobs.finish(harness.store, cursor, most)
        total, cursor = total + passed.jobs, passed.at
        if cursor is None:
            return total
    raise AssertionError("the passes never came to an end")


async def is_done(harness: EngineHarness, job: UUID) -> bool:
    return (await harness.read(job)).done_at is not None


async def used(harness: EngineHarness) -> int:
    return (await tenants.load_usage(harness.store, 1)).jobs


async def in_state(harness: EngineHarness, state: str, *, by_name: bool = False) -> list[str]:
    found, _ = await jobs.page(harness.store, 1, JobFilter(state=state), by_name=by_name, most=100)
    return [job.name for job in found]


async def work(harness: EngineHarness) -> None:
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))


async def test_a_one_shot_is_done_when_its_run_has_ended(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(2)))
    await harness.job("other", every("1h"))
    assert await finish(harness) == 0
    await harness.pass_time(3)
    assert await finish(harness) == 0, "its timer waits"
    await harness.ring()
    assert await finish(harness) == 0, "its run is queued"
    await work(harness)
    assert await finish(harness) == 1
    assert await is_done(harness, job)
    assert (await harness.read(job)).next_fire is None
    assert await finish(harness) == 0


async def test_a_run_that_waits_for_its_retry_keeps_a_one_shot_active(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(1)), retry=Retry(delays=["1h"], jitter=0))
    await harness.pass_time(2)
    await harness.ring()
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    assert await finish(harness) == 0
    assert not await is_done(harness, job)


async def test_jobs_that_are_done_do_not_count_against_the_quota(harness: EngineHarness) -> None:
    await harness.sql("""update tenants set quotas = '{"jobs": 2}'""")
    for name in ("a", "b"):
        await harness.job(name, at(harness.after(2)))
    with pytest.raises(QuotaExceeded):
        await harness.job("c", at(harness.after(5)))
    await harness.pass_time(3)
    await harness.ring()
    await work(harness)
    await finish(harness)
    assert await used(harness) == 0
    await harness.job("c", at(harness.after(5)))
    await harness.job("d", every("1m"))
    with pytest.raises(QuotaExceeded):
        await harness.job("e", every("1m"))


async def test_lists_know_the_state(harness: EngineHarness) -> None:
    await harness.job("once", at(harness.after(1)))
    await harness.job("live", every("1h"))
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    for by_name in (False, True):
        assert await in_state(harness, "done", by_name=by_name) == ["once"]
        assert await in_state(harness, "enabled", by_name=by_name) == ["live"]


async def test_a_job_past_its_end_is_done_and_leaves_its_cohort(harness: EngineHarness) -> None:
    ended = await harness.job("ended", every("1s"), ends_at=harness.after(2))
    live = await harness.job("live", every("1s"))
    await harness.pass_time(2)
    await harness.tick_all()
    await work(harness)
    assert await finish(harness) == 0, "its end is now"
    await harness.pass_time(1)
    await harness.tick_all()
    await work(harness)
    assert await finish(harness) == 1
    assert await is_done(harness, ended)
    assert not await is_done(harness, live)
    assert await harness.value("select count(*) from members where job_id = $1", ended) == 0
    await harness.pass_time(1)
    await harness.tick_all()
    assert await harness.fired(ended) == [1, 2]
    assert await harness.fired(live) == [1, 2, 3, 4]


async def test_a_cohort_that_has_not_passed_the_end_keeps_its_members(harness: EngineHarness) -> None:
    job = await harness.job("late", every("1s"), ends_at=harness.after(2))
    await harness.pass_time(5)
    assert await finish(harness) == 0, "nobody has fired what it is owed"
    await harness.tick_all()
    await work(harness)
    assert await finish(harness) == 1
    assert await is_done(harness, job)


@pytest.mark.parametrize("bound", ["COUNT=1", "UNTIL"])
async def test_a_rule_that_has_ended_is_done(harness: EngineHarness, bound: str) -> None:
    start = harness.noon.replace(tzinfo=None) + timedelta(seconds=2)
    text = bound if bound != "UNTIL" else f"UNTIL={start:%Y%m%dT%H%M%SZ}"
    job = await harness.job("rule", rrule(f"FREQ=DAILY;{text}", start=start))
    other = await harness.job("two", rrule(f"FREQ=DAILY;{text}", start=start), every("1h"))
    await harness.pass_time(2)
    await harness.tick_all()
    assert await finish(harness) == 0
    await work(harness)
    assert await finish(harness) == 1
    assert await is_done(harness, job)
    assert not await is_done(harness, other), "it has another schedule"
    assert (await harness.read(job)).next_fire is None
    assert (await harness.read(other)).next_fire == harness.after(3600)


async def test_a_rule_that_had_ended_when_it_was_given_is_done(harness: EngineHarness) -> None:
    job = await harness.job("past", rrule("FREQ=DAILY;COUNT=1", start="2020-01-01T00:00"))
    assert (await harness.read(job)).next_fire is None
    assert await finish(harness) == 1
    assert await is_done(harness, job)


async def test_what_can_still_fire_or_was_never_to_fire_is_not_done(harness: EngineHarness) -> None:
    for name, schedules in (("hand", ()), ("wait", (delay("1m"),)), ("tick", (every("1m"),))):
        await harness.job(name, *schedules)
    paused = await harness.job("paused", at(harness.after(1)))
    await harness.pause(paused)
    await harness.job("disabled", at(harness.after(1)), enabled=False)
    await harness.pass_time(3600)
    assert await finish(harness) == 0
    await harness.resume(paused)
    assert await finish(harness) == 1, "its time passed while it was paused"


async def test_a_change_makes_a_job_active_again(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    assert await used(harness) == 0
    await harness.change(job, harness.definition("once", every("1s")))
    assert not await is_done(harness, job)
    assert await used(harness) == 1
    await harness.pass_time(1)
    await harness.tick_all()
    assert len(await harness.queued(job)) == 1
    await harness.retire(job)
    assert await used(harness) == 0


async def test_deleting_a_job_that_is_done_counts_once(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    await harness.retire(job)
    assert await used(harness) == 0


async def test_one_that_is_stuck_does_not_keep_others_from_being_done(harness: EngineHarness) -> None:
    for n in range(3):
        await harness.job(f"stuck{n}", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    for n in range(3):
        await harness.job(f"quick{n}", at(harness.after(3)))
    await harness.pass_time(2)
    quick = [row[0] for row in await harness.sql("select job_id from jobs where name like 'quick%'")]
    await harness.sql("delete from timers where job_id = any ($1)", quick)
    first = await jobs.finish(harness.store, None, 2)
    assert (first.jobs, first.at is not None) == (0, True)
    assert await finish(harness, most=2) == 3


async def test_a_look_that_came_to_its_end_starts_again(harness: EngineHarness) -> None:
    assert (await jobs.finish(harness.store, FinishCursor(time=harness.after(10)), 10)).at is None


async def test_reviving_a_done_job_counts_again_and_may_exceed_the_quota(harness: EngineHarness) -> None:
    await harness.sql("""update tenants set quotas = '{"jobs": 1}'""")
    job = await harness.job("once", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    other = await harness.job("other", at(harness.after(60)))
    again = harness.definition("once", at(harness.after(30)))
    with pytest.raises(QuotaExceeded):
        await harness.change(job, again)
    assert await is_done(harness, job)
    await harness.retire(other)
    await harness.change(job, again)
    assert (await harness.read(job)).next_fire == harness.after(30)
    assert await used(harness) == 1


async def test_the_quota_is_exact_when_revivals_and_creations_race(harness: EngineHarness) -> None:
    done = [await harness.job(f"done{n}", at(harness.after(1))) for n in range(6)]
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    await harness.sql("""update tenants set quotas = '{"jobs": 4}'""")
    revivals = [
        harness.change(job, harness.definition(f"done{n}", at(harness.after(60)))) for n, job in enumerate(done)
    ]
    creations = [harness.job(f"new{n}", every("1h")) for n in range(6)]
    ended = await asyncio.gather(*revivals, *creations, return_exceptions=True)
    assert sum(not isinstance(one, BaseException) for one in ended) == 4
    assert all(isinstance(one, QuotaExceeded) for one in ended if isinstance(one, BaseException))
    assert await used(harness) == 4
    assert await harness.value("select count(*) from jobs where done_at is null") == 4


async def test_work_on_demand_leaves_a_done_job_done(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(1)))
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await finish(harness)
    await harness.trigger(job)
    assert await is_done(harness, job)
    assert await used(harness) == 0
    await work(harness)
    assert await harness.value("select count(*) from attempts where job_id = $1 and ends_as = 'succeeded'", job) == 2


# Jobs that are deleted once they are done

DELETE = AfterCompletion.DELETE
TRIGGER = "select o_slot from bellringer.trigger_job($1, 1, null)"


async def delete(harness: EngineHarness, most: int = 1000) -> int:
    """Deletes done jobs, pass by pass."""
    total, cursor = 0, None
    for _ in range(100):
        passed = await jobs.delete_done(harness.store, cursor, most)
        total, cursor = total + passed.jobs, passed.at
        if cursor is None:
            return total
    raise AssertionError("the passes never came to an end")


async def done_once(harness: EngineHarness, name: str = "once", **more: Any) -> UUID:
    """A job that is to be deleted, with its only run ended and the job marked as done."""
    job = await harness.job(name, at(harness.after(1)), **{"after_completion": DELETE, **more})
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    assert await finish(harness) == 1
    return job


async def dead_once(harness: EngineHarness) -> tuple[UUID, RunKey]:
    """A done job that is to be deleted, whose only run is a dead letter."""
    job = await harness.job("once", at(harness.after(1)), after_completion=DELETE, retry=Retry(1))
    await harness.pass_time(2)
    await harness.ring()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.fail(seat, claimed)
    assert await finish(harness) == 1
    return job, claimed.key


async def what_of(harness: EngineHarness, job: UUID) -> str:
    return str(await harness.value("select what from jobs where job_id = $1", job))


async def test_a_done_job_is_deleted_if_it_is_not_to_be_kept(harness: EngineHarness) -> None:
    kept = await done_once(harness, "kept", after_completion=AfterCompletion.KEEP)
    gone = await harness.job("gone", at(harness.after(4)), after_completion=DELETE)
    assert await delete(harness) == 0, "it is not done"
    await harness.pass_time(3)
    await harness.ring()
    assert await delete(harness) == 0
    await work(harness)
    assert (await finish(harness), await delete(harness), await delete(harness)) == (1, 1, 0)
    assert await is_done(harness, kept)
    assert await jobs.get(harness.store, gone, 1) is None
    assert [run.state for run in await runs.of_job(harness.store, gone, 1, None, 10)] == [State.SUCCEEDED]
    [row] = await harness.sql("select who, action, revision from audit where action = 'job.deleted'")
    assert tuple(row) == ("bellringer", "job.deleted", 2)
    assert await harness.value("select why from jobs where job_id = $1", gone) == "the job was done"
    assert await used(harness) == 0


async def test_the_name_of_a_deleted_job_is_free(harness: EngineHarness) -> None:
    gone = await done_once(harness)
    await delete(harness)
    new = await harness.declare(harness.definition("once", at(harness.after(60)), after_completion=DELETE))
    assert new[0].job_id != gone
    assert (await harness.read(new[0].job_id)).revision == 1


async def test_a_dead_letter_keeps_a_job_until_it_is_redriven(harness: EngineHarness) -> None:
    job, key = await dead_once(harness)
    assert await delete(harness) == 0
    assert await commands.redrive(harness.store, [key], tenant_id=1) == 1
    assert await delete(harness) == 0, "its run is queued"
    await work(harness)
    assert await delete(harness) == 1
    assert await what_of(harness, job) == "deleted"


async def test_a_dead_letter_keeps_a_job_until_it_is_discarded(harness: EngineHarness) -> None:
    _, key = await dead_once(harness)
    assert await commands.discard(harness.store, [key], tenant_id=1) == 1
    assert await delete(harness) == 1


async def test_a_dead_letter_does_not_keep_other_jobs_from_being_deleted(harness: EngineHarness) -> None:
    await dead_once(harness)
    for n in range(3):
        await harness.job(f"quick{n}", at(harness.after(3)), after_completion=DELETE)
    await harness.pass_time(3)
    await harness.ring()
    await work(harness)
    assert await finish(harness) == 3
    assert await delete(harness, most=1) == 3


async def test_a_paused_job_is_not_deleted(harness: EngineHarness) -> None:
    job = await done_once(harness)
    await harness.pause(job)
    assert await delete(harness) == 0
    await harness.resume(job)
    assert (await delete(harness), await finish(harness), await delete(harness)) == (0, 1, 1)


async def test_a_change_keeps_a_done_job_from_being_deleted(harness: EngineHarness) -> None:
    job = await done_once(harness)
    await harness.change(job, harness.definition("once", every("1h"), after_completion=DELETE))
    assert await delete(harness) == 0
    assert await what_of(harness, job) == "changed"


async def test_a_trigger_and_a_deletion_at_once_do_not_lose_the_run(harness: EngineHarness) -> None:
    """Either the trigger is first and its run keeps the job, or the deletion is first and the trigger finds no job."""
    names = [f"job{n}" for n in range(20)]
    ids = [await harness.job(name, at(harness.after(1)), after_completion=DELETE) for name in names]
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    assert await finish(harness) == len(ids)
    triggers = [harness.trigger(job) for job in ids]
    ended = await asyncio.gather(delete(harness), *triggers, delete(harness), return_exceptions=True)
    for job, outcome in zip(ids, ended[1:-1], strict=True):
        waits = await harness.value("select count(*) from queue where job_id = $1", job)
        deleted = await what_of(harness, job) == "deleted"
        assert (waits, deleted) == ((0, True) if isinstance(outcome, NotFound) else (1, False)), outcome
    await work(harness)
    await delete(harness)
    assert await harness.value("select count(*) from jobs where deleted_at is null") == 0


async def test_a_trigger_that_has_not_committed_keeps_the_job(harness: EngineHarness) -> None:
    job = await done_once(harness)
    async with harness.store.pool.acquire() as other, other.transaction():
        assert await other.fetchval(TRIGGER, job) == 1
        assert await delete(harness) == 0
    assert await delete(harness) == 0
    assert await harness.value("select count(*) from queue where job_id = $1", job) == 1


async def test_a_trigger_that_waits_for_a_deletion_finds_no_job(harness: EngineHarness) -> None:
    job = await done_once(harness)
    shard = await harness.value("select shard from jobs where job_id = $1", job)
    async with harness.store.pool.acquire() as tick:
        async with tick.transaction():
            await tick.execute("select pg_advisory_xact_lock($1, $2)", AdvisoryLock.SHARD, shard)
            deletion = asyncio.create_task(delete(harness))
            await harness.blocked_by(tick)
            manual = asyncio.create_task(harness.trigger(job))
            await harness.blocked_by(tick, 2)
        assert await deletion == 1
    with pytest.raises(NotFound):
        await manual
    assert await harness.value("select count(*) from queue where job_id = $1", job) == 0


async def test_a_change_that_waits_for_a_deletion_is_refused(harness: EngineHarness) -> None:
    job = await done_once(harness)
    shard = await harness.value("select shard from jobs where job_id = $1", job)
    async with harness.store.pool.acquire() as tick:
        async with tick.transaction():
            await tick.execute("select pg_advisory_xact_lock($1, $2)", AdvisoryLock.SHARD, shard)
            deletion = asyncio.create_task(delete(harness))
            await harness.blocked_by(tick)
            change = asyncio.create_task(harness.change(job, harness.definition("once", every("1h"))))
            await harness.blocked_by(tick, 2)
        assert await deletion == 1
    with pytest.raises(Conflict):
        await change
    assert await what_of(harness, job) == "deleted"


async def test_two_nodes_delete_the_same_jobs_once(harness: EngineHarness) -> None:
    for n in range(40):
        await harness.job(f"job{n}", at(harness.after(1)), after_completion=DELETE)
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    finished = await asyncio.gather(*(finish(harness, 10) for _ in range(3)))
    deleted = await asyncio.gather(*(delete(harness, 10) for _ in range(3)))
    assert (sum(finished), sum(deleted)) == (40, 40)
    assert await harness.value("select count(*) from audit where action = 'job.deleted'") == 40
    assert await harness.value("select count(*) from job_revisions") == 40
    assert await used(harness) == 0


async def test_a_recurring_job_that_has_ended_is_deleted(harness: EngineHarness) -> None:
    job = await harness.job("ended", every("1s"), ends_at=harness.after(1), after_completion=DELETE)
    await harness.pass_time(2)
    await harness.tick_all()
    await work(harness)
    assert (await finish(harness), await delete(harness)) == (1, 1)
    assert await what_of(harness, job) == "deleted"


async def test_maintenance_finishes_and_deletes_in_one_step(harness: EngineHarness) -> None:
    maintenance = Maintenance(
        harness.store, harness.catalog, SystemClock(), SystemClock().now, Retention(), timedelta(seconds=10)
    )
    job = await harness.job("once", at(harness.after(1)), after_completion=DELETE)
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)
    await maintenance.finish()
    assert await what_of(harness, job) == "deleted"


async def test_no_cached_response_outlives_a_change_by_maintenance(harness: EngineHarness) -> None:
    """Responses about jobs are cached only while no maintenance step can change them."""
    rest = timedelta(seconds=10)
    ids = {
        "active": await harness.job("active", every("1h")),
        "soon": await harness.job("soon", every("1h"), ends_at=harness.after(5)),
        "far": await harness.job("far", at(harness.after(900))),
        "ended rule": await harness.job("rule", rrule("FREQ=DAILY;COUNT=1", start="2020-01-01T00:00")),
        "kept": await harness.job("kept", at(harness.after(1))),
        "gone": await harness.job("gone", at(harness.after(1)), after_completion=DELETE, retry=Retry(1)),
    }
    await harness.pass_time(2)
    await harness.ring()
    await work(harness)

    async def resting() -> set[str]:
        found = await jobs.find_idle(harness.store, list(ids.values()), 1, rest)
        return {name for name, job in ids.items() if job in found}

    assert await resting() == {"active", "far"}
    assert await finish(harness) == 3
    assert await resting() == {"active", "far", "kept", "ended rule"}
