"""Why, where policies, limits, freezes and calendars decided: one constructed situation a test."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bellringer.lifecycle import backfill, explain
from bellringer.lifecycle.explain import Explained
from bellringer.policies import Limit, Misfire, Missed, Overlap
from bellringer.reasons import Reason
from bellringer.runs import Outcome, RunKey, State
from bellringer.schedule import at, cron, delay, every
from bellringer.store import backfills
from bellringer.store.backfills import Asked

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
    assert "replaced by the run of 2" in reason.text
    assert "12:00:20Z, as the job's overlap is replace" in reason.text
    assert (await why(bench, job, 20)).code == "no_worker_for_pool"


async def test_a_run_that_is_replaced_while_it_runs_is_asked_to_stop(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.REPLACE)
    seat = await bench.seat()
    await strike(bench, 10)
    running = await bench.claim_one(seat)
    await strike(bench, 20)
    reason = await why(bench, job, 10)
    assert reason.code == "cancel_requested"
    assert "asked to stop for the run of 2" in reason.text
    assert "12:00:20Z: the job's overlap is replace" in reason.text
    assert (await why(bench, job, 20)).code == "blocked_by_predecessor"
    await bench.pass_time(1)
    await bench.end(seat, running, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "on request"})
    reason = await why(bench, job, 10)
    assert reason.code == "ended"
    assert "12:00:20Z, as the job's overlap is replace" in reason.text


async def test_a_run_that_somebody_cancelled_was_not_replaced(bench: Bench) -> None:
    job = await bench.job("slow", every("10s"), overlap=Overlap.REPLACE)
    seat = await bench.seat()
    await strike(bench, 10)
    running = await bench.claim_one(seat)
    await bench.pass_time(5)
    await bench.cancel(running.key)
    assert "overlap" not in (await why(bench, job, 10)).text
    await bench.end(seat, running, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "on request"})
    await strike(bench, 20)
    assert "overlap" not in (await why(bench, job, 10)).text


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


@pytest.mark.parametrize(
    ("policy", "says"),
    [("skip", "it will be skipped"), ("defer", "run after the end"), ("collapse", "one run waits for the end")],
)
async def test_a_freeze_that_covers_a_time_to_come_is_told_first(bench: Bench, policy: str, says: str) -> None:
    job = await bench.job("report", every("1h"), tags=("finance",))
    await freeze(bench, policy, 7000, ("finance",))
    reason = await why(bench, job, 3600)
    assert (reason.code, reason.holds, reason.fix) == ("frozen", True, "bellringer freezes lift peak")
    assert "the freeze peak (black friday) covers it until" in reason.text
    assert says in reason.text
    assert (await why(bench, job, 7200)).code != "frozen"  # its end is not in it
    other = await bench.job("other", every("1h"))
    assert (await why(bench, other, 3600)).code != "frozen"


async def test_of_freezes_that_overlap_the_one_that_decides_is_told(bench: Bench) -> None:
    job = await bench.job("report", every("1h"))
    await freeze(bench, "defer", 7000)
    await freeze(bench, "skip", 4000)
    assert "it will be skipped" in (await why(bench, job, 3600)).text


async def test_a_one_shot_is_deferred_whatever_the_freeze_says(bench: Bench) -> None:
    job = await bench.job("once", at(bench.after(3600)))
    await freeze(bench, "skip", 7000)
    reason = await why(bench, job, 3600)
    assert reason.code == "frozen"
    assert "it will wait, and run after the end" in reason.text


async def test_a_time_to_come_is_told_in_the_present(bench: Bench) -> None:
    job = await bench.job("manual")
    assert (await why(bench, job, 3600)).text == "the job has no schedule: it runs only by hand"
    assert (await why(bench, job, 0)).code == "before_job"
    rests = await bench.job("rests", delay("1h"))
    assert "no run is due at" in (await why(bench, rests, 7200)).text


async def ask_for(bench: Bench, job_id: UUID, start: float, end: float) -> RunKey:
    """A backfill of these seconds around noon, of one occurrence; answers its run."""
    [row] = await bench.sql("select shard, revision from jobs where job_id = $1", job_id)
    asked = Asked(
        job_id=job_id,
        revision=row["revision"],
        from_at=bench.after(start),
        to_at=bench.after(end),
        newest_first=False,
        reprocess="none",
        parallelism=1,
        rate=None,
        total=1,
    )
    number = await backfills.create(bench.store, asked, bench.tenant, "me")
    assert number is not None
    holding = bench.holding if bench.holding.tokens else await bench.hold()
    assert await backfill.backfill(bench.store, bench.names, holding, await bench.now()) == 1
    [made] = await bench.sql("select scheduled_for, slot from runs where job_id = $1 and cause = 'backfill'", job_id)
    return RunKey(job_id, *made)


async def test_an_instant_before_the_job_existed_is_that_of_its_backfill(bench: Bench) -> None:
    job = await bench.job("report", every("1h"))
    key = await ask_for(bench, job, -3600, -10)
    found = await told(bench, job, -3600)
    assert found.run is not None
    assert found.run.key == key
    assert found.reasons[0].text.startswith("by the backfill bf_1: ")
    assert (found.reasons[1].code, found.reasons[1].holds) == ("before_job", False)


async def test_an_instant_that_a_gap_covers_is_that_of_its_backfill(bench: Bench) -> None:
    job = await bench.job("report", every("1h"), misfire=Misfire.SKIP)
    await strike(bench, 3600 + 600)
    key = await ask_for(bench, job, 3600, 3610)
    found = await told(bench, job, 3600)
    assert found.run is not None
    assert found.run.key == key
    assert [(r.code, r.holds) for r in found.reasons[:2]] == [("no_worker_for_pool", True), ("gap", False)]
    seat = await bench.seat()
    await bench.end(seat, await bench.claim_one(seat))
    assert (await why(bench, job, 3600)).text == "by the backfill bf_1: it succeeded now, by attempt 1"


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
