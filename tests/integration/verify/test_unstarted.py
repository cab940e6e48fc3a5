"""Verify tells created, started and finished runs apart, and finds those that nobody starts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.policies import Limit, Misfire, Overlap
from bellringer.core.runs import Outcome
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.integration.verify.conftest import Check
    from tests.support.engine_harness import EngineHarness

JUDGED = {"unstarted_after": timedelta(minutes=5)}


async def test_created_started_and_finished_are_distinguished(harness: EngineHarness, check: Check) -> None:
    await harness.job("tens", every("10s"))
    seat = await harness.join_worker()
    for ends in ("well", "dead", "runs", "waits"):
        await harness.pass_time(10)
        await harness.tick_all()
        if ends != "waits":
            claimed = await harness.claim_one(seat)
        if ends == "dead":
            await harness.cancel(claimed.key)
        if ends in {"well", "dead"}:
            await harness.end(seat, claimed, outcome=Outcome.OK if ends == "well" else Outcome.CANCELLED)
    summary = (await check(**JUDGED)).summary
    assert (summary.expected, summary.created, summary.started, summary.finished) == (4, 4, 3, 2)
    assert summary.clean  # nobody has started the last one, but that is not long ago


async def test_a_run_of_an_unknown_task_is_found_and_those_skipped_behind_it_are_counted(
    harness: EngineHarness, check: Check
) -> None:
    await harness.join_worker("greet")
    await harness.job("typo", every("1m"), task="graet", overlap=Overlap.SKIP)
    for _ in range(15):
        await harness.pass_time(60)
        await harness.tick_all()
        await harness.sweep()
        await harness.sql("select decide_overlaps(100)")
    verified = await check(**JUDGED)
    assert verified.told == [("unstarted", 60.0)]
    assert "no live worker of pool short knows the task graet" in verified.findings[0].detail
    summary = verified.summary
    assert (summary.created, summary.started, summary.unstarted, summary.skipped) == (1, 0, 1, {"overlap": 14})
    assert not summary.clean


async def test_a_send_that_no_one_starts_is_found(harness: EngineHarness, check: Check) -> None:
    sent = await harness.send(task="graet")
    await harness.pass_time(600)
    verified = await check(**JUDGED)
    assert [(f.kind.value, f.job_id, f.job) for f in verified.findings] == [
        ("unstarted", sent.key.job_id, "graet"),
    ]
    assert "no live worker serves pool short" in verified.findings[0].detail


async def test_a_run_that_no_free_worker_takes_is_found(harness: EngineHarness, check: Check) -> None:
    await harness.join_worker("greet")
    await harness.job("tens", every("10m"))
    await harness.pass_time(600)
    await harness.tick_all()
    await harness.pass_time(301)
    verified = await check(**JUDGED)
    assert verified.told == [("unstarted", 600.0)]
    assert verified.findings[0].detail.endswith("no worker of pool short has taken it")


@pytest.mark.parametrize("why", ["job", "pool", "tenant", "freeze", "predecessor", "limit", "catch-up"])
async def test_what_waits_on_purpose_is_not_a_finding(harness: EngineHarness, check: Check, why: str) -> None:
    seat = await harness.join_worker("greet")
    kinds: dict[str, Any] = {"predecessor": {"overlap": Overlap.QUEUE}, "limit": {"limit": Limit("one", 1)}}
    more = kinds.get(why, {})
    if why == "catch-up":
        more = {"misfire": Misfire.FIRE_ALL}
    job_id = await harness.job("ten", every("10m"), **more)
    if why == "freeze":
        await harness.sql(
            "insert into freezes (tenant_id, name, from_at, to_at, policy, made_by, made_at)"
            " values (1, 'f', $1, $2, 'defer', 'me', $1)",
            harness.noon,
            harness.after(86400),
        )
    await harness.pass_time(600)
    await harness.tick_all()
    if why in {"predecessor", "limit"}:
        assert await harness.claim(seat)
        await harness.pass_time(600)
        await harness.tick_all()
        await harness.sql("select decide_overlaps(100)")
    if why == "catch-up":
        await harness.sql("update queue set cause = 'catchup', priority = -10")
    if why == "job":
        await harness.pause(job_id)
    if why == "pool":
        await harness.sql("update pools set paused_at = now() where name = 'short'")
    if why == "tenant":
        await harness.sql("update tenants set suspended_at = now()")
    await harness.pass_time(599)
    verified = await check(**JUDGED)
    assert verified.told == []
    assert await harness.value("select count(*) from queue where worker_id is null") == 1


async def test_only_the_job_that_was_asked_for_is_looked_at(harness: EngineHarness, check: Check) -> None:
    first, _ = await harness.job("one", every("10m")), await harness.job("two", every("10m"))
    await harness.pass_time(600)
    await harness.tick_all()
    await harness.pass_time(301)
    for name in ("one", str(first)):
        assert [f.job for f in (await check(job=name, **JUDGED)).findings] == ["one"]
    assert {f.job for f in (await check(**JUDGED)).findings} == {"one", "two"}
