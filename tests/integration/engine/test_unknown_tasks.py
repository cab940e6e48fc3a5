"""Runs that no worker can start are reported, and jobs that skip behind a run that never ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.policies import Limit, Overlap
from bellringer.engine import explain
from bellringer.engine.monitor import SKIPS_IN_A_ROW, StuckPass, report_recoveries, report_stuck_jobs
from bellringer.schedule import every
from bellringer.store import overview, pools

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness


async def stuck(harness: EngineHarness) -> StuckPass:
    return await report_stuck_jobs(harness.store, await harness.now())


async def told(harness: EngineHarness) -> list[tuple[Any, ...]]:
    rows = await harness.sql(
        "select e.kind, j.name, e.data from events e left join jobs j on j.job_id = e.job_id order by e.event_id"
    )
    return [(row["kind"], row["name"], json.loads(row["data"])) for row in rows]


async def fire(harness: EngineHarness, times: int, seconds: float = 60) -> None:
    for _ in range(times):
        await harness.pass_time(seconds)
        await harness.tick_all()
        await harness.pass_time(2)
        await harness.sweep()
        await harness.sql("select decide_overlaps(1000)")


async def test_an_unknown_task_is_reported_once_and_again_when_a_worker_knows_it(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    await harness.job("typo", every("1m"), task="graet")
    await harness.job("fine", every("1m"), task="greet")
    await fire(harness, 1, 60)
    assert await stuck(harness) == StuckPass(unknown=0, known_again=0, skipping=0)  # a deployment may be under way
    await harness.pass_time(30)
    assert await stuck(harness) == StuckPass(unknown=1, known_again=0, skipping=0)
    await fire(harness, 3)
    await harness.job("typo too", every("1m"), task="graet")
    await fire(harness, 1)
    assert await stuck(harness) == StuckPass(unknown=0, known_again=0, skipping=0)
    [(kind, job, data)] = await told(harness)
    assert (kind, job, data["task"], data["pool"]) == ("unknown_task", "typo", "graet", "short")

    seat = await harness.join_worker("graet")
    assert await stuck(harness) == StuckPass(unknown=0, known_again=1, skipping=0)
    await harness.sweep()
    assert len(await harness.claim(seat)) == 6
    assert [(kind, data.get("after")) for kind, _, data in await told(harness)][1:] == [("recovered", "unknown_task")]
    assert await stuck(harness) == StuckPass(unknown=0, known_again=0, skipping=0)


async def test_jobs_of_parked_runs_are_in_trouble_until_none_is_parked(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    job_id = await harness.job("typo", every("1m"), task="graet")
    await fire(harness, 2)
    assert (await overview.load_counts(harness.store, 1)).late == 1
    await report_recoveries(harness.store)
    assert (await overview.load_counts(harness.store, 1)).late == 1
    await harness.join_worker("graet")
    await harness.sweep()
    await report_recoveries(harness.store)
    assert (await overview.load_counts(harness.store, 1)).late == 0
    assert await harness.value("select count(*) from troubles where job_id = $1", job_id) == 0


async def test_what_was_cancelled_is_over_but_has_not_recovered(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    sent = await harness.send(task="graet")
    await harness.pass_time(40)
    await harness.sweep()
    assert (await stuck(harness)).unknown == 1
    await harness.cancel(sent.key)
    assert await stuck(harness) == StuckPass(unknown=0, known_again=0, skipping=0)
    assert await harness.value("select count(*) from unknown_tasks") == 0
    assert [kind for kind, _, _ in await told(harness)] == ["unknown_task"]


async def test_runs_that_share_a_limit_are_parked_and_reported_too(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    await harness.job("limited", every("1m"), task="graet", limit=Limit("one", 1))
    await fire(harness, 1)
    assert await harness.value("select blocked from queue") == 36
    await harness.pass_time(30)
    assert (await stuck(harness)).unknown == 1
    seat = await harness.join_worker("graet")
    await harness.sweep()
    assert await harness.value("select blocked from queue") == 32
    assert len(await harness.claim(seat)) == 1


async def test_metrics_and_the_overview_count_runs_of_unknown_tasks(harness: EngineHarness) -> None:
    await harness.join_worker("greet")
    job_id = await harness.job("typo", every("1m"), task="graet")
    await fire(harness, 3)
    await stuck(harness)
    [short] = [signal for signal in await pools.autoscaling_signals(harness.store) if signal.pool == "short"]
    assert (short.ready, short.unknown, short.unknown_tasks) == (0, 3, 1)
    assert short.oldest == 126  # 60 + 2 seconds each after the first, and it was due at 60
    assert short.oldest_ready == 0
    [found] = await overview.list_unknown_tasks(harness.store, 1, 8)
    assert (found.task, found.pool, found.runs, found.job) == ("graet", "short", 3, "typo")
    assert (found.key, found.since) == (harness.key(job_id, 60), harness.after(60))
    assert await overview.list_unknown_tasks(harness.for_tenant(1).store, 2, 8) == []


async def test_a_job_that_skips_behind_a_run_that_does_not_end_is_reported_once_a_day(harness: EngineHarness) -> None:
    seat = await harness.join_worker("greet")
    await harness.job("slow", every("1m"), overlap=Overlap.SKIP)
    await harness.job("other", every("1m"), overlap=Overlap.SKIP)
    await fire(harness, 1)
    slow, other = sorted(await harness.claim(seat), key=lambda claimed: claimed.name != "slow")
    for _ in range(SKIPS_IN_A_ROW + 1):
        await harness.end(seat, other)
        await fire(harness, 1, 58)
        [other] = await harness.claim(seat)
    assert (await stuck(harness)).skipping == 1
    assert (await stuck(harness)).skipping == 0
    [(kind, job, data)] = await told(harness)
    assert (kind, job, data["skipped"]) == ("skipping", "slow", SKIPS_IN_A_ROW)
    await report_recoveries(harness.store)
    assert [t.kind for t in await overview.list_troubles(harness.store, 1, 8)] == ["skipping"]
    await harness.pass_time(1)
    await harness.end(seat, slow)
    await report_recoveries(harness.store)
    assert await overview.list_troubles(harness.store, 1, 8) == []
    assert [kind for kind, _, _ in await told(harness)] == ["skipping", "recovered"]


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
async def test_why_names_the_unknown_task_first_and_suggests_nothing_that_cannot_help(
    harness: EngineHarness, overlap: Overlap
) -> None:
    await harness.join_worker("greet")
    await harness.hold()
    job_id = await harness.job("typo", every("1m"), task="graet", overlap=overlap)
    await fire(harness, 3, 58)
    second = harness.key(job_id, 120)
    for found in (
        await explain.load_run_explanation(harness.store, second, tenant_id=1),
        await explain.load_job_explanation(harness.store, job_id, tenant_id=1),
    ):
        assert found.reasons[0].code == "task_unknown"
        assert "did you mean greet?" in found.reasons[0].text
        assert not [r.fix for r in found.reasons if "overlap" in r.fix or "cancel" in r.fix]
    first = await explain.load_run_explanation(harness.store, harness.key(job_id, 60), tenant_id=1)
    assert first.reasons[0].code == "task_unknown"


async def test_why_of_a_skip_behind_a_run_that_runs_is_as_before(harness: EngineHarness) -> None:
    seat = await harness.join_worker("greet")
    job_id = await harness.job("slow", every("1m"), overlap=Overlap.SKIP)
    await fire(harness, 1, 58)
    assert not await harness.claim(seat)
    await harness.pass_time(2)
    await harness.tick_all()
    assert await harness.claim(seat)
    await fire(harness, 1, 60)
    found = await explain.load_run_explanation(harness.store, harness.key(job_id, 120), tenant_id=1)
    assert (found.reasons[0].code, found.reasons[0].fix) == (
        "skipped_overlap",
        "bellringer jobs update slow --overlap queue",
    )


async def test_a_job_that_skips_behind_a_run_that_no_worker_takes_is_reported(harness: EngineHarness) -> None:
    await harness.job("waiting", every("1m"), overlap=Overlap.SKIP)
    await harness.job("many", every("1m"), overlap=Overlap.ALLOW)
    await fire(harness, SKIPS_IN_A_ROW + 2, 58)
    assert (await stuck(harness)).skipping == 1
    assert (await stuck(harness)).skipping == 0
    [(job, data)] = [(job, data) for kind, job, data in await told(harness) if kind == "skipping"]
    assert (job, data["skipped"]) == ("waiting", SKIPS_IN_A_ROW)
    assert data["waiting_for"] > 600
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim(seat))
    await report_recoveries(harness.store)
    assert [job for kind, job, _ in await told(harness) if kind == "recovered"] == ["waiting"]
