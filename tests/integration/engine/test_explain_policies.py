"""Why, where policies, limits, freezes and calendars decided: one constructed situation a test."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.core.policies import Limit, Misfire, Missed, Overlap
from bellringer.core.runs import Outcome, RunKey, State
from bellringer.engine import backfill, explain
from bellringer.engine.explain import ExplainResult
from bellringer.explain import ExplainReason
from bellringer.schedule import at, cron, delay, every
from bellringer.store import backfills
from bellringer.store.backfills import NewBackfill

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def why(harness: EngineHarness, job_id: UUID, seconds: float | None = None) -> ExplainReason:
    """The decisive reason of a job now, or of its instant so many seconds after noon."""
    return (await told(harness, job_id, seconds)).reasons[0]


async def told(harness: EngineHarness, job_id: UUID, seconds: float | None = None) -> ExplainResult:
    at = None if seconds is None else harness.after(seconds).isoformat()
    return await explain.load_job_explanation(harness.store, job_id, at, tenant_id=harness.tenant)


async def strike(harness: EngineHarness, seconds: float) -> None:
    await harness.set_clock(harness.after(seconds))
    await harness.tick_all()


async def test_an_occurrence_was_skipped_because_its_predecessor_ran(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.SKIP)
    seat = await harness.join_worker()
    await strike(harness, 10)
    await harness.claim_one(seat)
    await strike(harness, 20)
    reason = await why(harness, job, 20)
    assert reason.code == "skipped_overlap"
    assert "the run of 2" in reason.text
    assert "12:00:10Z was unfinished" in reason.text
    assert reason.fix == "bellringer jobs update slow --overlap queue"


async def test_an_occurrence_waits_for_its_predecessor(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.QUEUE)
    seat = await harness.join_worker()
    await strike(harness, 10)
    running = await harness.claim_one(seat)
    await strike(harness, 20)
    reason = await why(harness, job, 20)
    assert reason.code == "blocked_by_predecessor"
    assert reason.fix == f"bellringer runs cancel {running.key.id}"


async def test_an_occurrence_was_coalesced_into_the_one_that_waits(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.COLLAPSE)
    seat = await harness.join_worker()
    await strike(harness, 10)
    await harness.claim_one(seat)
    await strike(harness, 20)
    await strike(harness, 30)
    reason = await why(harness, job, 30)
    assert reason.code == "coalesced"
    assert "12:00:20Z, which was already waiting" in reason.text


async def test_an_occurrence_was_replaced_by_its_successor(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.REPLACE)
    await strike(harness, 10)
    await strike(harness, 20)
    reason = await why(harness, job, 10)
    assert (await harness.state(harness.key(job, 10))) is State.CANCELLED
    assert reason.code == "ended"
    assert "replaced by the run of 2" in reason.text
    assert "12:00:20Z (overlap: replace)" in reason.text
    assert (await why(harness, job, 20)).code == "no_worker_for_pool"


async def test_a_run_that_is_replaced_while_it_runs_is_asked_to_stop(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.REPLACE)
    seat = await harness.join_worker()
    await strike(harness, 10)
    running = await harness.claim_one(seat)
    await strike(harness, 20)
    reason = await why(harness, job, 10)
    assert reason.code == "cancel_requested"
    assert "a cancel was requested by the run of 2" in reason.text
    assert "12:00:20Z (overlap: replace)" in reason.text
    assert (await why(harness, job, 20)).code == "blocked_by_predecessor"
    await harness.pass_time(1)
    await harness.end(seat, running, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "on request"})
    reason = await why(harness, job, 10)
    assert reason.code == "ended"
    assert "12:00:20Z (overlap: replace)" in reason.text


async def test_a_run_that_somebody_cancelled_was_not_replaced(harness: EngineHarness) -> None:
    job = await harness.job("slow", every("10s"), overlap=Overlap.REPLACE)
    seat = await harness.join_worker()
    await strike(harness, 10)
    running = await harness.claim_one(seat)
    await harness.pass_time(5)
    await harness.cancel(running.key)
    assert "overlap" not in (await why(harness, job, 10)).text
    await harness.end(seat, running, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "on request"})
    await strike(harness, 20)
    assert "overlap" not in (await why(harness, job, 10)).text


async def test_a_shared_limit_is_reached(harness: EngineHarness) -> None:
    one = await harness.job("one", limit=Limit("db", 1))
    two = await harness.job("two", limit=Limit("db", 1))
    seat = await harness.join_worker()
    await harness.trigger(one)
    running = await harness.claim_one(seat)
    waiting = await harness.trigger(two)
    assert await harness.claim(seat) == []
    reason = await why(harness, two)
    assert await harness.state(waiting) is State.QUEUED
    assert reason.code == "limit_reached"
    assert "the concurrency key db uses 1 of at most 1 concurrent run" in reason.text
    assert reason.fix == f"bellringer runs cancel {running.key.id}"


async def test_a_jobs_own_limit_is_reached(harness: EngineHarness) -> None:
    job = await harness.job("capped", max_concurrency=2)
    seat = await harness.join_worker()
    for _ in range(3):
        await harness.trigger(job)
    assert len(await harness.claim(seat)) + len(await harness.claim(seat)) == 2
    reason = await why(harness, job)
    assert reason.code == "limit_reached"
    assert "the job uses 2 of at most 2 concurrent runs" in reason.text


async def freeze(harness: EngineHarness, policy: str, until: float, tags: tuple[str, ...] = ()) -> None:
    await harness.sql(
        "insert into freezes (tenant_id, name, from_at, to_at, policy, tags, reason, made_by, made_at)"
        " values ($1, 'peak', bellringer.now(), $2, $3, $4, 'black friday', 'me', bellringer.now())",
        harness.tenant,
        harness.after(until),
        policy,
        list(tags),
    )


async def test_a_freeze_defers_an_occurrence(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10s"))
    await freeze(harness, "defer", 600)
    await strike(harness, 10)
    reason = await why(harness, job, 10)
    assert reason.code == "frozen"
    assert "the freeze peak (black friday) is in effect until" in reason.text
    assert reason.fix == "bellringer freezes lift peak"


async def test_a_freeze_skipped_an_occurrence(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10s"))
    await freeze(harness, "skip", 600)
    await strike(harness, 10)
    reason = await why(harness, job, 10)
    assert reason.code == "skipped"
    assert "freeze peak" in reason.text


async def test_a_job_rests_in_a_freeze(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"))
    await harness.hold()
    await freeze(harness, "defer", 600)
    assert (await why(harness, job)).code == "frozen"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("skip", "it will be skipped"),
        ("defer", "it will run after the freeze"),
        ("collapse", "one run after the freeze replaces"),
    ],
)
async def test_a_freeze_that_covers_a_time_to_come_is_reported_first(
    harness: EngineHarness, policy: str, says: str
) -> None:
    job = await harness.job("report", every("1h"), tags=("finance",))
    await freeze(harness, policy, 7000, ("finance",))
    reason = await why(harness, job, 3600)
    assert (reason.code, reason.holds, reason.fix) == ("frozen", True, "bellringer freezes lift peak")
    assert "the freeze peak (black friday) covers this occurrence until" in reason.text
    assert says in reason.text
    assert (await why(harness, job, 7200)).code != "frozen"  # its end is not in it
    other = await harness.job("other", every("1h"))
    assert (await why(harness, other, 3600)).code != "frozen"


async def test_of_freezes_that_overlap_the_one_that_decides_is_reported(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"))
    await freeze(harness, "defer", 7000)
    await freeze(harness, "skip", 4000)
    assert "it will be skipped" in (await why(harness, job, 3600)).text


async def test_a_one_shot_is_deferred_whatever_the_freeze_says(harness: EngineHarness) -> None:
    job = await harness.job("once", at(harness.after(3600)))
    await freeze(harness, "skip", 7000)
    reason = await why(harness, job, 3600)
    assert reason.code == "frozen"
    assert "it will run after the freeze" in reason.text


async def test_a_time_to_come_is_shown_in_the_present(harness: EngineHarness) -> None:
    job = await harness.job("manual")
    assert (await why(harness, job, 3600)).text == "the job has no schedule: it runs only when triggered"
    assert (await why(harness, job, 0)).code == "before_job"
    rests = await harness.job("rests", delay("1h"))
    assert "no run is due at" in (await why(harness, rests, 7200)).text


async def ask_for(harness: EngineHarness, job_id: UUID, start: float, end: float) -> RunKey:
    """A backfill of these seconds around noon, of one occurrence; answers its run."""
    [row] = await harness.sql("select shard, revision from jobs where job_id = $1", job_id)
    asked = NewBackfill(
        job_id=job_id,
        revision=row["revision"],
        from_at=harness.after(start),
        to_at=harness.after(end),
        newest_first=False,
        reprocess="none",
        parallelism=1,
        rate=None,
        total=1,
    )
    number = await backfills.create(harness.store, asked, harness.tenant, "me")
    assert number is not None
    holding = harness.holding if harness.holding.tokens else await harness.hold()
    assert await backfill.run_backfills(harness.store, harness.catalog, holding, await harness.now()) == 1
    [made] = await harness.sql("select scheduled_for, slot from runs where job_id = $1 and cause = 'backfill'", job_id)
    return RunKey(job_id, *made)


async def test_an_instant_before_the_job_existed_is_that_of_its_backfill(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"))
    key = await ask_for(harness, job, -3600, -10)
    found = await told(harness, job, -3600)
    assert found.run is not None
    assert found.run.key == key
    assert found.reasons[0].text.startswith("created by backfill bf_1: ")
    assert (found.reasons[1].code, found.reasons[1].holds) == ("before_job", False)


async def test_an_instant_that_a_gap_covers_is_that_of_its_backfill(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"), misfire=Misfire.SKIP)
    await strike(harness, 3600 + 600)
    key = await ask_for(harness, job, 3600, 3610)
    found = await told(harness, job, 3600)
    assert found.run is not None
    assert found.run.key == key
    assert [(r.code, r.holds) for r in found.reasons[:2]] == [("no_worker_for_pool", True), ("gap", False)]
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat))
    assert (await why(harness, job, 3600)).text == "created by backfill bf_1: the run succeeded now, on attempt 1"


async def test_a_suspended_tenant_fires_nothing(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10s"))
    await harness.sql("update tenants set suspended_at = bellringer.now() where tenant_id = $1", harness.tenant)
    await strike(harness, 10)
    assert "tenant suspended" in (await why(harness, job, 10)).text
    assert (await why(harness, job)).code == "tenant_suspended"


async def test_a_missed_occurrence_was_to_be_skipped(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"), misfire=Misfire.SKIP)
    await strike(harness, 3600 + 600)
    reason = await why(harness, job, 3600)
    assert reason.code == "gap"
    assert "no scheduler ran in time" in reason.text
    assert "1 occurrence in all" in reason.text
    assert "ran instead" not in reason.text


async def test_a_missed_occurrence_waits_in_its_catch_up(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10m"), misfire=Misfire.FIRE_ALL)
    await strike(harness, 3700)
    reason = await why(harness, job, 1200)
    assert reason.code == "catchup_waits"
    assert "catch-up bf_" in reason.text


async def test_a_resumed_job_catches_up(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10m"))
    await harness.pause(job)
    await harness.set_clock(harness.after(3700))
    await harness.resume(job, Missed.ALL)
    assert (await why(harness, job, 1200)).code == "catchup_waits"


async def test_a_resumed_job_runs_only_its_latest(harness: EngineHarness) -> None:
    job = await harness.job("report", every("10m"))
    await harness.pause(job)
    await harness.set_clock(harness.after(3700))
    await harness.resume(job, Missed.LATEST)
    assert (await why(harness, job, 3600)).code == "catchup_waits"
    reason = await why(harness, job, 1200)
    assert reason.code == "gap"
    assert "ran instead" in reason.text


async def test_a_run_behind_live_work_says_so(harness: EngineHarness) -> None:
    job = await harness.job("report", every("1h"))
    await strike(harness, 3600)
    await harness.sql("update queue set priority = -5 where job_id = $1", job)
    assert "behind_live_work" in [reason.code for reason in (await told(harness, job, 3600)).reasons]


async def test_no_time_of_the_schedule_has_its_neighbours_named(harness: EngineHarness) -> None:
    job = await harness.job("report", cron("0 * * * *"))
    reason = await why(harness, job, 1800)
    assert reason.code == "not_an_instant"
    assert "13:00Z" in reason.text
