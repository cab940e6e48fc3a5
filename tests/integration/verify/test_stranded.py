"""Verify finds what nobody executes, and what was cancelled without a request."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from bellringer.core.runs import Outcome
from bellringer.schedule import every

if TYPE_CHECKING:
    from tests.integration.verify.conftest import Check
    from tests.support.engine_harness import EngineHarness

STOPPED = {"type": "Cancelled", "message": "this worker was declared lost"}


async def test_a_claim_that_its_worker_does_not_know_is_found(harness: EngineHarness, check: Check) -> None:
    await harness.send()
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    assert (await check()).summary.clean
    await harness.sql("update workers set confirmed_at = bellringer.now() - interval '1 hour'")
    verified = await check()
    assert verified.told == [("stranded", 0.0)]
    assert "does not confirm" in verified.findings[0].detail
    assert not verified.summary.clean


async def test_the_rows_of_a_worker_that_is_gone_are_found(harness: EngineHarness, check: Check) -> None:
    job = await harness.job("held", every("1m"))
    await harness.set_clock(harness.after(60))
    await harness.tick()
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await harness.pass_time(300)
    await harness.sql("update workers set state = 'lost'")
    verified = await check(until=61)
    assert [(f.kind, f.job_id, f.job) for f in verified.findings] == [("stranded", job, "held")]
    assert (await check(until=61, job="held")).summary.stranded == 1


async def test_a_cancel_without_a_request_is_found(harness: EngineHarness, check: Check) -> None:
    await harness.send()
    asked = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim(seat)
    await harness.cancel(asked.key)
    await harness.end(seat, claimed, outcome=Outcome.CANCELLED, error=STOPPED)
    verified = await check()
    assert [f.kind for f in verified.findings] == ["unrequested"]
    assert verified.findings[0].job_id != asked.key.job_id
    assert (verified.summary.unrequested, verified.summary.clean) == (1, False)


async def test_cancels_outside_of_the_window_are_not_reported(harness: EngineHarness, check: Check) -> None:
    await harness.send()
    seat = await harness.join_worker()
    await harness.end(seat, await harness.claim_one(seat), outcome=Outcome.CANCELLED, error=STOPPED)
    await harness.pass_time(600)
    verified = await check(start=harness.noon + timedelta(seconds=60), until=300)
    assert verified.findings == []
