"""Runs that are taken and that nobody executes are found, told of and explained."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from bellringer.core.runs import Outcome, RunKey
from bellringer.engine import explain, monitor
from bellringer.store import workers

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

    from bellringer.engine.claim import ClaimSpec


async def take(harness: EngineHarness) -> tuple[ClaimSpec, RunKey]:
    """A run that a live worker has held for a minute."""
    sent = await harness.send()
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await harness.sql("update workers set confirmed_at = null")
    await harness.pass_time(60)
    return seat, sent.key


async def stranded(harness: EngineHarness) -> dict[str, int]:
    found = await monitor.report_stranded_runs(harness.store, await harness.now())
    return {reason: runs for reason, runs in found.items() if runs}


async def reason(harness: EngineHarness, key: RunKey) -> str:
    return (await explain.load_run_explanation(harness.store, key, tenant_id=harness.tenant)).reasons[0].code


async def test_a_row_that_its_live_worker_confirms_is_not_stranded(harness: EngineHarness) -> None:
    seat, key = await take(harness)
    await workers.record_heartbeat(harness.store, seat.worker_id, 1, "live", await harness.now() - timedelta(seconds=3))
    assert await stranded(harness) == {}
    assert await reason(harness, key) == "running"


async def test_a_row_that_its_live_worker_does_not_confirm_is_reported_once(harness: EngineHarness) -> None:
    seat, key = await take(harness)
    await workers.record_heartbeat(harness.store, seat.worker_id, 0, "live")
    assert await stranded(harness) == {"unconfirmed": 1}
    assert await stranded(harness) == {"unconfirmed": 1}
    assert await harness.value("select count(*) from events where kind = 'stranded'") == 1
    assert await reason(harness, key) == "unconfirmed"


async def test_a_worker_that_stops_confirming_strands_what_it_confirmed_before(harness: EngineHarness) -> None:
    seat, key = await take(harness)
    await workers.record_heartbeat(harness.store, seat.worker_id, 1, "live", await harness.now())
    assert await stranded(harness) == {}
    await harness.pass_time(40)
    await workers.record_heartbeat(harness.store, seat.worker_id, 1, "live")
    assert await stranded(harness) == {"unconfirmed": 1}
    assert await reason(harness, key) == "unconfirmed"


async def test_rows_of_a_worker_that_is_gone_are_stranded_until_they_are_reaped(harness: EngineHarness) -> None:
    seat, key = await take(harness)
    await harness.silence_worker(seat)
    assert await stranded(harness) == {"worker_gone": 1}
    assert await reason(harness, key) == "worker_silent"
    await harness.sql("delete from workers where worker_id = $1", seat.worker_id)
    assert await stranded(harness) == {"worker_gone": 1}


async def test_a_message_that_no_worker_takes_is_stranded(harness: EngineHarness) -> None:
    await harness.send()
    await harness.sql("update queue set blocked = blocked | 64, sent_at = clock_timestamp() - interval '2 minutes'")
    assert await stranded(harness) == {"not_taken": 1}


async def test_a_cancelled_run_that_no_one_asked_to_cancel_is_reported(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    error = {"type": "Cancelled", "message": "this worker was declared lost"}
    await harness.end(seat, claimed, outcome=Outcome.CANCELLED, error=error)
    assert await stranded(harness) == {"cancelled_unasked": 1}
    assert await reason(harness, sent.key) == "cancelled_unasked"


async def test_a_requested_cancel_is_not_reported(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.cancel(sent.key)
    await harness.end(seat, claimed, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "asked"})
    assert await stranded(harness) == {}
    assert await reason(harness, sent.key) == "ended"
