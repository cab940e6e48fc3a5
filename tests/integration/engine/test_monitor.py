"""Watch: what is late is told once, and so is what takes far longer than usual."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.engine import monitor as watching
from bellringer.engine import prune
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.monitor import JobBaseline, LatenessPass, SlowRunPass, compute_baseline, next_interval
from bellringer.engine.prune import Retention
from bellringer.schedule import cron, every
from bellringer.scheduler.monitoring import Monitoring
from bellringer.store.connection_pool import Store
from bellringer.telemetry import LATE as LATE_TOTAL

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

SECOND = timedelta(seconds=1)
NOTHING = LatenessPass(waiting=0, not_created=0, more=False)
LATE = {"late_after": 5 * SECOND}


async def watch(harness: EngineHarness) -> LatenessPass:
    return await watching.report_late_runs(harness.store, await harness.now())


async def compare(harness: EngineHarness) -> SlowRunPass:
    return await watching.report_slow_runs(harness.store, harness.catalog, await harness.now())


async def told(harness: EngineHarness, kind: str) -> list[dict[str, Any]]:
    rows = await harness.sql("select * from events where kind = $1 order by event_id", kind)
    return [{**dict(row), "data": json.loads(row["data"])} for row in rows]


async def struck(harness: EngineHarness, **more: Any) -> UUID:
    """A job that was due, and fired, a minute after noon."""
    job = await harness.job("job", every("1m"), **more)
    await harness.set_clock(harness.after(60))
    assert await harness.tick_all() == 1
    return job


# Late


async def test_a_run_that_does_not_start_in_time_is_reported_once(harness: EngineHarness) -> None:
    job = await struck(harness, **LATE)
    await harness.pass_time(4)
    assert await watch(harness) == NOTHING
    await harness.pass_time(1)
    assert await watch(harness) == LatenessPass(waiting=1, not_created=0, more=False)
    assert await watch(harness) == NOTHING
    [event] = await told(harness, "late")
    assert (event["job_id"], harness.seconds(event["scheduled_for"]), event["slot"]) == (job, 60, 0)
    assert (event["tenant_id"], harness.seconds(event["at"])) == (harness.tenant, 65)
    data = event["data"]
    assert (harness.seconds(datetime.fromisoformat(data["due"])), data["late_after"], data["blocked"]) == (60, 5, 0)


async def test_a_job_that_does_not_ask_is_never_reported(harness: EngineHarness) -> None:
    await struck(harness)
    await harness.pass_time(3600)
    assert await watch(harness) == NOTHING


async def test_a_run_that_started_in_time_is_not_late(harness: EngineHarness) -> None:
    await struck(harness, **LATE)
    await harness.claim_one(await harness.join_worker())
    await harness.pass_time(60)
    assert (await watch(harness)).waiting == 0
    assert await harness.value("select count(*) from queue where late_at is not null") == 0


async def test_a_retry_that_waits_has_started_in_time(harness: EngineHarness) -> None:
    await struck(harness, **LATE, retry=Retry(3, base="30s"))
    seat = await harness.join_worker()
    await harness.fail(seat, await harness.claim_one(seat))
    await harness.pass_time(10)
    assert (await watch(harness)).waiting == 0


async def test_a_late_event_says_what_the_run_waits_for(harness: EngineHarness) -> None:
    await harness.pause(await struck(harness, **LATE))
    await harness.pass_time(5)
    assert (await watch(harness)).waiting == 1
    assert (await told(harness, "late"))[0]["data"]["blocked"] == 1


async def test_a_cohort_that_is_behind_is_reported_though_nothing_was_created(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1m"), **LATE)
    await harness.job("silent", every("1m"))
    await harness.set_clock(harness.after(64))
    assert await watch(harness) == NOTHING
    await harness.pass_time(1)
    assert await watch(harness) == LatenessPass(waiting=0, not_created=1, more=False)
    assert await watch(harness) == NOTHING
    [event] = await told(harness, "late")
    assert (event["job_id"], harness.seconds(event["scheduled_for"]), event["data"]["not_created"]) == (job, 60, True)
    await harness.tick_all()
    assert await watch(harness) == NOTHING  # it is born, and late; but that was told
    assert len(await told(harness, "late")) == 1


async def test_who_got_its_run_from_a_cohort_in_the_middle_is_not_behind(harness: EngineHarness) -> None:
    await harness.share_shard()
    jobs = sorted([await harness.job(f"job {n}", every("1m"), **LATE) for n in range(3)])
    await harness.set_clock(harness.after(60))
    await harness.tick(most=2)
    assert await harness.value("select cursor from cohorts") == jobs[1]
    seat = await harness.join_worker()
    assert len(await harness.claim(seat)) == 2
    await harness.pass_time(5)
    assert await watch(harness) == LatenessPass(waiting=0, not_created=1, more=False)
    assert [event["job_id"] for event in await told(harness, "late")] == [jobs[2]]


async def test_a_member_that_has_not_begun_is_owed_nothing(harness: EngineHarness) -> None:
    await harness.job("job", every("1m"), **LATE, starts_at=harness.after(90))
    await harness.set_clock(harness.after(80))
    assert await watch(harness) == NOTHING


async def test_a_pass_is_bounded_and_says_that_there_is_more(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_LATE_RUNS_PER_PASS", 2)
    for n in range(3):
        await harness.job(f"job {n}", every("1m"), **LATE)
    await harness.set_clock(harness.after(60))
    await harness.tick_all()
    await harness.pass_time(5)
    assert await watch(harness) == LatenessPass(waiting=2, not_created=0, more=True)
    assert await watch(harness) == LatenessPass(waiting=1, not_created=0, more=False)
    await harness.set_clock(harness.after(125))
    assert await watch(harness) == LatenessPass(waiting=0, not_created=2, more=True)
    assert await watch(harness) == LatenessPass(waiting=0, not_created=1, more=False)


async def test_a_node_goes_on_until_all_is_reported_and_counts_it(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_LATE_RUNS_PER_PASS", 2)
    for n in range(5):
        await harness.job(f"job {n}", every("1m"), **LATE)
    await harness.set_clock(harness.after(65))
    before = LATE_TOTAL.labels("not_created")._value.get()
    await Monitoring(harness.store, harness.catalog).watch()
    assert LATE_TOTAL.labels("not_created")._value.get() - before == 5
    assert len(await told(harness, "late")) == 5


async def test_a_row_that_somebody_holds_is_left_for_the_next_pass(harness: EngineHarness) -> None:
    await struck(harness, **LATE)
    await harness.pass_time(5)
    other = await Store.open(harness.store.dsn, size=1)
    async with other.pool.acquire() as claimer, claimer.transaction():
        await claimer.execute("select 1 from queue for update")
        assert await watch(harness) == NOTHING
    await other.close()
    assert (await watch(harness)).waiting == 1


async def test_old_events_are_forgotten(harness: EngineHarness) -> None:
    await struck(harness, **LATE)
    await harness.pass_time(5)
    await watch(harness)
    await prune.prune(harness.store, harness.noon + timedelta(days=29), Retention())
    assert len(await told(harness, "late")) == 1
    await prune.prune(harness.store, harness.noon + timedelta(days=31), Retention())
    assert await told(harness, "late") == []


# What is usual


async def lived(harness: EngineHarness, job: UUID, *took: float) -> ClaimSpec:
    """Runs of a job that took so many seconds each."""
    seat = await harness.join_worker()
    for ran in took:
        await harness.trigger(job)
        await harness.pass_time(ran)
        await harness.end(seat, await harness.claim_one(seat), ran=ran)
    return seat


async def test_a_run_that_takes_far_longer_than_usual_is_reported_once(harness: EngineHarness) -> None:
    job = await harness.job("job")
    seat = await lived(harness, job, 1, 2, 2, 2, 6)
    key = await harness.trigger(job)
    claimed = await harness.claim_one(seat)
    await harness.pass_time(12)
    assert await compare(harness) == SlowRunPass(slow=0, outgrown=0)
    await harness.pass_time(1)
    assert await compare(harness) == SlowRunPass(slow=1, outgrown=0)
    assert await compare(harness) == SlowRunPass(slow=0, outgrown=0)
    [event] = await told(harness, "slow")
    assert (event["job_id"], event["scheduled_for"], event["slot"]) == (key.job_id, key.scheduled_for, key.slot)
    assert (event["attempt"], event["tenant_id"]) == (1, harness.tenant)
    assert event["data"] == {"running_for": 13, "usual": 2, "longest": 6}
    await harness.end(seat, claimed)


async def test_a_run_whose_worker_is_silent_or_lost_is_not_slow(harness: EngineHarness) -> None:
    job = await harness.job("job")
    seat = await lived(harness, job, 1, 1, 1, 1, 1)
    await harness.trigger(job)
    await harness.claim_one(seat)
    await harness.pass_time(3600)
    await harness.silence_worker(seat)
    assert await compare(harness) == SlowRunPass(slow=0, outgrown=0)
    await harness.sql("update workers set seen_at = clock_timestamp(), state = 'lost'")
    assert await compare(harness) == SlowRunPass(slow=0, outgrown=0)
    await harness.sql("update workers set state = 'live'")
    assert await compare(harness) == SlowRunPass(slow=1, outgrown=0)


async def test_a_job_without_a_history_has_no_slow_runs(harness: EngineHarness) -> None:
    job = await harness.job("job")
    seat = await lived(harness, job, 1, 1, 1, 1)
    await harness.trigger(job)
    await harness.send()
    await harness.claim(seat)
    await harness.pass_time(3600)
    assert await compare(harness) == SlowRunPass(slow=0, outgrown=0)


async def test_only_what_ended_well_is_usual(harness: EngineHarness) -> None:
    job = await harness.job("job", retry=Retry(1))
    seat = await lived(harness, job, 1, 2, 3)
    await harness.trigger(job)
    await harness.fail(seat, await harness.claim_one(seat), ran=100)
    found = await watching.load_baseline(
        harness.store, harness.catalog, job, await harness.now(), tenant_id=harness.tenant
    )
    assert found == JobBaseline(runs=3, median=2 * SECOND, longest=3 * SECOND)


async def test_only_the_last_twenty_are_usual(harness: EngineHarness) -> None:
    job = await harness.job("job")
    await lived(harness, job, *([100] * 5), *([1] * 20))
    found = await watching.load_baseline(
        harness.store, harness.catalog, job, await harness.now(), tenant_id=harness.tenant
    )
    assert found == JobBaseline(runs=20, median=SECOND, longest=SECOND)


async def test_a_job_that_outgrows_its_interval_is_reported_once_a_day(harness: EngineHarness) -> None:
    job = await harness.job("job", every("1m"))
    seat = await lived(harness, job, *([90] * 5))
    for day in range(2):
        await harness.set_clock(harness.noon + timedelta(days=day, hours=1))
        for _ in range(2):
            await harness.trigger(job)
            claimed = await harness.claim_one(seat)
            await harness.pass_time(2)
            await compare(harness)
            await harness.end(seat, claimed, ran=90)
        events = await told(harness, "outgrown")
        assert len(events) == day + 1
        assert (events[-1]["job_id"], events[-1]["data"]) == (job, {"usual": 90, "interval": 60})


async def test_a_baseline_is_its_tenants_own(harness: EngineHarness) -> None:
    job = await harness.job("job")
    [other] = await harness.tenants(1)
    assert (
        await watching.load_baseline(harness.store, harness.catalog, job, await harness.now(), tenant_id=other) is None
    )
    await harness.retire(job)
    assert (
        await watching.load_baseline(harness.store, harness.catalog, job, await harness.now(), tenant_id=harness.tenant)
        is None
    )


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("took", "slow_after"),
    [
        ([1.0] * 4, None),
        ([1.0] * 5, 10.0),  # never below ten seconds
        ([4.0] * 4 + [9.0], 18.0),  # twice the longest
        ([8.0] * 5, 24.0),  # three times the median
        ([], None),
    ],
)
def test_slow_is_far_beyond_both_the_longest_and_the_median(took: list[float], slow_after: float | None) -> None:
    expected = None if slow_after is None else timedelta(seconds=slow_after)
    assert compute_baseline(took, [], NOON).slow_after == expected


@pytest.mark.parametrize(("seconds", "outgrown"), [(60.0, False), (60.001, True)])
def test_a_job_outgrows_its_interval_when_its_median_exceeds_it(seconds: float, outgrown: bool) -> None:
    assert compute_baseline([seconds] * 5, [every("1m")], NOON).outgrown is outgrown
    assert not compute_baseline([seconds] * 4, [every("1m")], NOON).outgrown
    assert not compute_baseline([seconds] * 5, [], NOON).outgrown


def test_the_interval_is_between_the_next_two_occurrences_of_all_schedules() -> None:
    hour = timedelta(hours=1)
    assert next_interval([every("1h")], NOON) == hour
    assert next_interval([every("1h"), cron("20 * * * *")], NOON) == hour * 2 / 3
    assert next_interval([cron("0 9 * * *"), cron("0 9 * * MON")], NOON) == 24 * hour
    assert next_interval([], NOON) is None
