"""Progress details of an attempt, as the next attempt of the run reads them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, settle
from bellringer.store import queue

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

    from bellringer.store.queue import ClaimedRun

ERROR = {"type": "ValueError", "message": "no", "lineage": ["ValueError"]}


async def begin(harness: EngineHarness, seat: ClaimSpec) -> ClaimedRun:
    """Claim as a worker does."""
    [claimed] = await harness.claim(seat, begin=False)
    return (await queue.begin_attempts(harness.store, seat.worker_id, [claimed]))[0]


async def fail(harness: EngineHarness, seat: ClaimSpec, claimed: ClaimedRun, details: Any, **more: Any) -> None:
    progress = None if details is None else {"done": 1, "details": details}
    ending = Ending(**{"outcome": Outcome.FAILED, "error": ERROR, "progress": progress, **more})
    assert (await settle(harness.store, seat.worker_id, [decide(claimed, ending)])).written == 1


@pytest.mark.parametrize("wait", [30, 90])  # a near retry stays in the queue, a far one waits in timers
async def test_the_next_attempt_reads_what_the_failed_one_reported(harness: EngineHarness, wait: int) -> None:
    await harness.send(retry=Retry(5, delays=[wait], jitter=0))
    seat = await harness.join_worker()
    claimed = await begin(harness, seat)
    assert claimed.resume_from is None
    await fail(harness, seat, claimed, {"row": 500})
    await harness.pass_time(wait)
    await harness.ring()
    claimed = await begin(harness, seat)
    assert claimed.resume_from == {"row": 500}
    assert (await harness.run(claimed.key)).progress is None
    await fail(harness, seat, claimed, None)  # it failed before it could report
    await harness.pass_time(wait)
    await harness.ring()
    assert (await begin(harness, seat)).resume_from == {"row": 500}


async def test_the_report_right_before_the_error_wins_over_the_stored_one(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(2, delays=["0s"], jitter=0))
    seat = await harness.join_worker()
    claimed = await begin(harness, seat)
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 1, {"done": 1, "details": 1})])
    await fail(harness, seat, claimed, 2)
    # An older report that arrives after the settle changes nothing.
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 1, {"done": 1, "details": 1})])
    assert (await begin(harness, seat)).resume_from == 2


async def test_a_lost_attempt_leaves_what_was_stored(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await begin(harness, seat)
    await queue.record_progress(harness.store, seat.worker_id, [(claimed.key, 1, {"done": 7, "details": [7]})])
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, timedelta(minutes=30))
    assert (await begin(harness, await harness.join_worker())).resume_from == [7]


async def test_a_snoozed_attempt_leaves_its_details(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    await fail(harness, seat, await begin(harness, seat), "page 3", outcome=Outcome.OK, error=None, snooze=timedelta(0))
    assert (await begin(harness, seat)).resume_from == "page 3"


async def test_a_redriven_run_resumes(harness: EngineHarness) -> None:
    await harness.send(retry=Retry(1))
    seat = await harness.join_worker()
    claimed = await begin(harness, seat)
    await fail(harness, seat, claimed, {"row": 9})
    assert await harness.state(claimed.key) is State.DEAD
    await harness.redrive(claimed.key)
    assert (await begin(harness, seat)).resume_from == {"row": 9}


async def test_a_settle_of_another_worker_stores_nothing(harness: EngineHarness) -> None:
    await harness.send()
    seat, other = await harness.join_worker(), await harness.join_worker()
    claimed = await begin(harness, seat)
    stale = decide(claimed, Ending(outcome=Outcome.FAILED, error=ERROR, progress={"done": 1, "details": "stale"}))
    settlement = await settle(harness.store, other.worker_id, [stale])
    assert len(settlement.refused) == 1
    assert (await harness.run(claimed.key)).progress is None


async def test_only_the_runs_that_reported_are_changed(harness: EngineHarness) -> None:
    for _ in range(3):
        await harness.send(retry=Retry(2, delays=["0s"], jitter=0))
    seat = await harness.join_worker()
    held = await harness.claim(seat)
    batch = [
        decide(run, Ending(outcome=Outcome.FAILED, error=ERROR, progress=None if n == 1 else {"done": 1, "details": n}))
        for n, run in enumerate(held)
    ]
    assert (await settle(harness.store, seat.worker_id, batch)).written == 3
    again = await queue.begin_attempts(harness.store, seat.worker_id, await harness.claim(seat, begin=False))
    assert {run.key: run.resume_from for run in again} == {held[0].key: 0, held[1].key: None, held[2].key: 2}
