"""Why, where policies, limits, freezes and calendars decided: one constructed situation a test."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from bellringer.lifecycle import explain
from bellringer.lifecycle.explain import Explained
from bellringer.policies import Limit, Misfire, Missed, Overlap
from bellringer.reasons import Reason
from bellringer.runs import State
from bellringer.schedule import cron, every

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Bench


async def why(bench: Bench, job_id: UUID, seconds: float | None = None) -> Reason:
    """The decisive reason of a job now, or of its instant so many seconds after noon."""
    return (await told(bench, job_id, seconds)).reasons[0]


async def told(bench: Bench, job_id: UUID, seconds: float | None = None) -> Explained:
    at = None if seconds is None else bench.after(seconds).isoformat()
    return await explain.why(bench.store, job_id, at, tenant_id=bench.tenant)


async def strike(bench: Bench, seconds: float) -> None:
    await bench.set_clock(bench.after(seconds))
    await bench.tick_all()


async def test_an_occurrence_was_skipped_because_its_predecessor_ran(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.SKIP)
    seat = await bench.seat()
    await strike(bench, 10)
    await bench.claim_one(seat)
    await strike(bench, 20)
    reason = await why(bench, job, 20)
    assert reason.code == "skipped_overlap"
    assert "the run of 2" in reason.text
    assert "12:00:10Z was unfinished" in reason.text
    assert reason.fix == "bellringer jobs update slow --overlap queue"


async def test_an_occurrence_waits_for_its_predecessor(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.QUEUE)
    seat = await bench.seat()
    await strike(bench, 10)
    running = await bench.claim_one(seat)
    await strike(bench, 20)
    reason = await why(bench, job, 20)
    assert reason.code == "blocked_by_predecessor"
    assert reason.fix == f"bellringer runs cancel {running.key.id}"


async def test_an_occurrence_was_coalesced_into_the_one_that_waits(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.COLLAPSE)
    seat = await bench.seat()
    await strike(bench, 10)
    await bench.claim_one(seat)
    await strike(bench, 20)
    await strike(bench, 30)
    reason = await why(bench, job, 30)
    assert reason.code == "coalesced"
    assert "12:00:20Z, which waited already" in reason.text


async def test_an_occurrence_was_replaced_by_its_successor(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.REPLACE)
    await strike(bench, 10)
    await strike(bench, 20)
    reason = await why(bench, job, 10)
    assert (await bench.state(bench.key(job, 10))) is State.CANCELLED
    assert reason.code == "ended"
    assert "replaced" in reason.text
    assert (await why(bench, job, 20)).code == "no_worker_for_pool"


async def test_a_run_that_is_replaced_while_it_runs_is_asked_to_stop(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.REPLACE)
    seat = await bench.seat()
    await strike(bench, 10)
    await bench.claim_one(seat)
    await strike(bench, 20)
    assert (await why(bench, job, 10)).code == "cancel_requested"
    assert (await why(bench, job, 20)).code == "blocked_by_predecessor"


async def test_a_shared_limit_is_reached(bench: Bench) -> None:
    one = await bench.job("one", limit=Limit("db", 1))
    two = await bench.job("two", limit=Limit("db", 1))
    seat = await bench.seat()
    await bench.trigger(one)
    running = await bench.claim_one(seat)
    waiting = await bench.trigger(two)
    assert await bench.claim(seat) == []
    reason = await why(bench, two)
    assert await bench.state(waiting) is State.QUEUED
    assert reason.code == "limit_reached"
    assert "1 of the 1 run that may be under way at once for the key db" in reason.text
    assert reason.fix == f"bellringer runs cancel {running.key.id}"


async def test_a_jobs_own_limit_is_reached(bench: Bench) -> None:
    job = await bench.job("capped", max_concurrency=2)
    seat = await bench.seat()
    for _ in range(3):
        await bench.trigger(job)
    assert len(await bench.claim(seat)) + len(await bench.claim(seat)) == 2
    reason = await why(bench, job)
    assert reason.code == "limit_reached"
    assert "2 of the 2 runs that may be under way at once for this job" in reason.text


async def freeze(bench: Bench, policy: str, until: float, tags: tuple[str, ...] = ()) -> None:
    await bench.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, tags, reason, made_by, made_at)"
        " values ($1, 'peak', bellringer.now(), $2, $3, $4, 'black friday', 'me', bellringer.now())",
        bench.tenant,
        bench.after(until),
        policy,
        list(tags),
    )


async def test_a_freeze_defers_an_occurrence(bench: Bench) -> None:
    job = await bench.job("report", every("10s"))
    await freeze(bench, "defer", 600)
    await strike(bench, 10)
    reason = await why(bench, job, 10)
    assert reason.code == "frozen"
    assert "the freeze peak (black friday) holds it until" in reason.text
    assert reason.fix == "bellringer freezes lift peak"


async def test_a_freeze_skipped_an_occurrence(bench: Bench) -> None:
    job = await bench.job("report", every("10s"))
    await freeze(bench, "skip", 600)
    await strike(bench, 10)
    reason = await why(bench, job, 10)
    assert reason.code == "skipped"
    assert "freeze peak" in reason.text


async def test_a_job_rests_in_a_freeze(bench: Bench) -> None:
    job = await bench.job("report", every("1h"))
    await bench.hold()
    await freeze(bench, "defer", 600)
    assert (await why(bench, job)).code == "frozen"


async def test_a_suspended_tenant_fires_nothing(bench: Bench) -> None:
    job = await bench.job("report", every("10s"))
    await bench.sql("update tenants set suspended_at = bellringer.now() where tenant_id = $1", bench.tenant)
    await strike(bench, 10)
    assert "tenant suspended" in (await why(bench, job, 10)).text
    assert (await why(bench, job)).code == "tenant_suspended"


async def test_a_missed_occurrence_was_to_be_skipped(bench: Bench) -> None:
    job = await bench.job("report", every("1h"), misfire=Misfire.SKIP)
    await strike(bench, 3600 + 600)
    reason = await why(bench, job, 3600)
    assert reason.code == "gap"
    assert "no scheduler ticked in time" in reason.text
    assert "1 occurrence in all" in reason.text
    assert "ran in their place" not in reason.text


async def test_a_missed_occurrence_waits_in_its_catch_up(bench: Bench) -> None:
    job = await bench.job("report", every("10m"), misfire=Misfire.FIRE_ALL)
    await strike(bench, 3700)
    reason = await why(bench, job, 1200)
    assert reason.code == "catchup_waits"
    assert "catch-up bf_" in reason.text


async def test_a_resumed_job_catches_up(bench: Bench) -> None:
    job = await bench.job("report", every("10m"))
    await bench.pause(job)
    await bench.set_clock(bench.after(3700))
    await bench.resume(job, Missed.ALL)
    assert (await why(bench, job, 1200)).code == "catchup_waits"


async def test_a_resumed_job_runs_only_its_latest(bench: Bench) -> None:
    job = await bench.job("report", every("10m"))
    await bench.pause(job)
    await bench.set_clock(bench.after(3700))
    await bench.resume(job, Missed.LATEST)
    assert (await why(bench, job, 3600)).code == "catchup_waits"
    reason = await why(bench, job, 1200)
    assert reason.code == "gap"
    assert "ran in their place" in reason.text


async def test_a_run_behind_live_work_says_so(bench: Bench) -> None:
    job = await bench.job("report", every("1h"))
    await strike(bench, 3600)
    await bench.sql("update queue set priority = -5 where job_id = $1", job)
    assert "behind_live_work" in [reason.code for reason in (await told(bench, job, 3600)).reasons]


async def test_no_time_of_the_schedule_has_its_neighbours_named(bench: Bench) -> None:
    job = await bench.job("report", cron("0 * * * *"))
    reason = await why(bench, job, 1800)
    assert reason.code == "not_an_instant"
    assert "13:00Z" in reason.text
