"""Missed occurrences are never silent: each raises an event, counts in the metric, and counts against the objective."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from bellringer.core.policies import Catchup, Misfire
from bellringer.engine import objective
from bellringer.engine.backfill import BackfillCursor, run_backfills
from bellringer.engine.explain import load_job_explanation
from bellringer.engine.settle import decide, settle
from bellringer.schedule import at, every
from bellringer.store import job_history, queue
from bellringer.worker.results import expired_ending

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def events(harness: EngineHarness, job_id: UUID) -> Sequence[dict[str, Any]]:
    rows = await harness.sql("select scheduled_for, data from events where job_id = $1 and kind = 'missed'", job_id)
    return [{"at": harness.seconds(row["scheduled_for"]), **json.loads(row["data"])} for row in rows]


async def outage(harness: EngineHarness, seconds: float) -> int:
    """Nobody ticks for so long; returns how many occurrences were counted as missed when somebody does again."""
    await harness.pass_time(seconds)
    missed = 0
    while await harness.due_cohorts():
        missed += (await harness.tick()).fired.missed
    turn = BackfillCursor()
    await run_backfills(harness.store, harness.catalog, harness.holding, await harness.now(), turn)
    return missed + turn.missed


async def test_an_outage_raises_an_event_for_each_job_without_late_after(harness: EngineHarness) -> None:
    once = await harness.job("once", every("10s"))
    skip = await harness.job("skip", every("10s"), misfire=Misfire.SKIP)
    assert await outage(harness, 120) == 22  # of each 11; the one at 120 s is in time
    for job_id, policy in ((once, "fire_once"), (skip, "skip")):
        [event] = await events(harness, job_id)
        assert (event["at"], event["count"], event["misfire"]) == (10, 11, policy)


async def test_what_a_capped_catch_up_cuts_off_is_counted_and_reported(harness: EngineHarness) -> None:
    capped = await harness.job("capped", every("10s"), misfire=Misfire.FIRE_ALL, catchup=Catchup(most=3))
    whole = await harness.job("whole", every("10s"), misfire=Misfire.FIRE_ALL)
    assert await outage(harness, 120) == 8
    assert [gap["count"] for gap in await harness.gaps(capped)] == [8]
    assert [(event["at"], event["count"]) for event in await events(harness, capped)] == [(10, 8)]
    assert await events(harness, whole) == []  # all of it will run


async def test_a_late_tick_or_timer_of_a_job_that_skips_is_counted_and_reported(harness: EngineHarness) -> None:
    hourly = await harness.job("hourly", every("1h"), misfire=Misfire.SKIP)
    single = await harness.job("single", at(harness.after(3600)), misfire=Misfire.SKIP)
    assert await outage(harness, 3600 + 61) == 1
    assert (await harness.ring()).missed == 1
    for job_id in (hourly, single):
        assert [(event["at"], event["count"]) for event in await events(harness, job_id)] == [(3600, 1)]


async def test_pauses_and_edits_miss_nothing(harness: EngineHarness) -> None:
    job_id = await harness.job("paused", every("10s"))
    await harness.pause(job_id)
    assert await outage(harness, 120) == 0
    await harness.resume(job_id)
    assert await harness.gaps(job_id)
    assert await events(harness, job_id) == []
    assert await harness.value("select coalesce(sum(missed), 0) from usage") == 0


async def test_the_objective_counts_missed_occurrences_as_late(harness: EngineHarness) -> None:
    await harness.job("once", every("10s"))
    await harness.sql(
        "insert into usage (minute, pool_id, tenant_id, started, late) select $1, pool_id, 1, 100, 1 from pools"
        " where name = 'short'",
        harness.noon,
    )
    await outage(harness, 120)
    found = await objective.load_objective(harness.store, 1, timedelta(hours=1))
    assert (found.started, found.late, found.missed) == (100, 1, 11)
    assert found.compliance == 1 - 12 / 111
    assert found.budget_left < 0
    assert [(minute.at, minute.missed) for minute in found.worst] == [(harness.after(60), 11), (harness.noon, 0)]
    assert found.burns[0].missed == 11


async def test_the_events_and_usage_of_many_members_are_complete(harness: EngineHarness) -> None:
    await harness.share_shard()
    await harness.register(*(harness.definition(f"job {n}", every("1m")) for n in range(300)))
    assert await outage(harness, 600) == 300 * 9
    assert await harness.value("select count(*) from events where kind = 'missed'") == 300
    assert await harness.value("select sum(missed) from usage") == 2700


async def test_the_share_of_missed_occurrences_is_reported_against_its_objective(harness: EngineHarness) -> None:
    await harness.job("once", every("10s"))
    await outage(harness, 120)  # 11 missed, one fired
    await harness.sql(
        "insert into usage (minute, pool_id, tenant_id, started, occurrences) select $1, pool_id, 1, 100000, 10989"
        " from pools where name = 'long'",
        harness.noon,
    )
    found = (await objective.load_objective(harness.store, 1, timedelta(hours=1))).occurrences
    assert (found.max_share, found.whole.expected, found.whole.missed) == (0.0001, 11_000, 11), "sends do not count"
    assert found.whole.share == pytest.approx(0.001)
    assert found.whole.burn == pytest.approx(10)
    assert found.budget_left == pytest.approx(-9)
    await harness.sql("update tenants set objective = '{\"max_missed\": 0.01}'")
    found = (await objective.load_objective(harness.store, 1, timedelta(hours=1))).occurrences
    assert found.budget_left == pytest.approx(0.9)
    everyone = await objective.load_installation_objective(harness.store, 1, timedelta(hours=1))
    assert (everyone.tenant, everyone.occurrences.whole.missed, everyone.started) == ("all tenants", 11, 100_000)


async def test_skips_on_purpose_are_neither_expected_nor_missed(harness: EngineHarness) -> None:
    paused = await harness.job("paused", every("10s"))
    await harness.pause(paused)
    await outage(harness, 120)
    await harness.resume(paused)
    found = await job_history.count_missed(
        harness.store, 1, paused, harness.noon, await harness.now() + timedelta(seconds=1), 1000
    )
    assert (found.missed, found.fired) == (0, 0)
    late = await harness.job("late", every("10s"))
    await outage(harness, 120)
    found = await job_history.count_missed(
        harness.store, 1, late, harness.noon, await harness.now() + timedelta(seconds=1), 1000
    )
    assert (found.missed, found.fired, found.more) == (11, 1, False)


# Runs whose deadline passes


async def expired_events(harness: EngineHarness) -> list[tuple[UUID, dict[str, Any]]]:
    rows = await harness.sql("select job_id, data from events where kind = 'expired' order by event_id")
    return [(row["job_id"], json.loads(row["data"])) for row in rows]


async def expire(harness: EngineHarness) -> None:
    await queue.expire_runs(harness.store, 1000)


async def test_occurrences_that_expire_are_missed_and_an_event_an_hour(harness: EngineHarness) -> None:
    """All workers are down, so no run starts: the objective must not stay at 100 %."""
    job_id = await harness.job("urgent", every("10s"), expires_in=timedelta(seconds=5))
    for _ in range(12):
        await harness.pass_time(5)
        await expire(harness)
        await harness.pass_time(5)
        await harness.tick_all()
    await harness.pass_time(5)
    await expire(harness)
    assert await expired_events(harness) == [(job_id, {"count": 1})]
    found = await objective.load_objective(harness.store, 1, timedelta(hours=1))
    assert (found.started, found.missed, found.compliance) == (0, 12, 0)
    assert (found.occurrences.whole.expected, found.occurrences.whole.missed) == (12, 12)
    until = await harness.now() + timedelta(seconds=1)
    counted = await job_history.count_missed(harness.store, 1, job_id, harness.noon, until, 1000)
    assert (counted.fired, counted.missed) == (0, 12)
    await harness.pass_time(3600)
    await harness.tick_all(grace=10_000)
    await harness.pass_time(5)
    await expire(harness)
    assert len(await expired_events(harness)) == 2


async def test_sends_that_expire_are_late_and_share_an_event(harness: EngineHarness) -> None:
    for _ in range(50):
        await harness.send(expires_in=timedelta(seconds=5))
    await harness.send(expires_in=timedelta(seconds=5), task="other")
    await harness.pass_time(5)
    await expire(harness)
    told = sorted((data["task"], data["count"]) for _, data in await expired_events(harness))
    assert told == [("greet", 50), ("other", 1)]
    await harness.send(expires_in=timedelta(seconds=5))
    await harness.pass_time(5)
    await expire(harness)
    assert len(await expired_events(harness)) == 2
    found = await objective.load_objective(harness.store, 1, timedelta(hours=1))
    assert (found.started, found.late, found.missed) == (52, 52, 0)
    assert found.occurrences.whole.expected == 0


async def test_a_run_that_a_worker_does_not_start_in_time_counts_too(harness: EngineHarness) -> None:
    job_id = await harness.job("urgent", every("10s"), expires_in=timedelta(seconds=5))
    await harness.pass_time(10)
    await harness.tick_all()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.pass_time(5)
    now = await harness.now()
    assert (await settle(harness.store, seat.worker_id, [decide(claimed, expired_ending(), now=now)])).written == 1
    assert await expired_events(harness) == [(job_id, {"count": 1})]
    assert await harness.value("select sum(missed) from usage") == 1


async def test_background_runs_that_expire_have_no_objective(harness: EngineHarness) -> None:
    await harness.job("caught", every("10s"), expires_in=timedelta(hours=1), misfire=Misfire.FIRE_ALL)
    await outage(harness, 120)
    await harness.sql("delete from usage")
    await harness.pass_time(4000)
    await expire(harness)
    by_cause = await harness.sql(
        "select run.cause::text, count(*) as runs from attempts join runs run using (job_id, scheduled_for, slot)"
        " where attempts.ends_as = 'skipped' group by 1"
    )
    counts = {row["cause"]: row["runs"] for row in by_cause}
    assert counts["catchup"] > 0
    assert await harness.value("select coalesce(sum(missed), 0) from usage") == counts.get("schedule", 0)


async def test_why_mentions_an_outage_of_the_last_days(harness: EngineHarness) -> None:
    job_id = await harness.job("skip", every("10s"), misfire=Misfire.SKIP)
    await outage(harness, 120)
    found = await load_job_explanation(harness.store, job_id, tenant_id=harness.tenant)
    [gap] = [reason for reason in found.reasons if reason.code == "last_gap"]
    assert gap.text.startswith("11 occurrences missed from ")
    assert gap.text.endswith(": no scheduler ran in time")
    assert gap.fix.startswith("bellringer why skip ")
    await harness.pass_time(timedelta(days=8).total_seconds())
    later = await load_job_explanation(harness.store, job_id, tenant_id=harness.tenant)
    assert "last_gap" not in [reason.code for reason in later.reasons]
