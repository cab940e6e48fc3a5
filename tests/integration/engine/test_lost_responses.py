"""Calls whose response is lost after the commit, and workers that act after they were declared lost."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, State
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, settle
from bellringer.store import queue, runs, workers
from bellringer.store.queue import NotLive

if TYPE_CHECKING:
    from tests.support.engine_harness import EngineHarness

    from bellringer.engine.claim import ClaimSpec

SILENCE = timedelta(seconds=10)
OK = Ending(outcome=Outcome.OK)


async def lose(harness: EngineHarness, seat: ClaimSpec) -> None:
    await harness.silence_worker(seat)
    await reap(harness.store, harness.catalog, SILENCE)


# A worker that is not live


async def test_a_worker_that_was_declared_lost_cannot_claim(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    await lose(harness, seat)
    with pytest.raises(NotLive):
        await harness.claim(seat)
    assert len(await harness.claim(await harness.join_worker())) == 1


async def test_a_worker_that_left_cannot_claim(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    await workers.remove(harness.store, seat.worker_id)
    with pytest.raises(NotLive):
        await harness.claim(seat)


async def test_a_worker_that_was_declared_lost_cannot_settle_before_it_is_reaped(harness: EngineHarness) -> None:
    """The moment between being declared lost and being reaped is when a cancelled handler used to end its run."""
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.sql("update workers set state = 'lost' where worker_id = $1", seat.worker_id)
    stopped = Ending(outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "declared lost"})
    settlement = await settle(harness.store, seat.worker_id, [decide(claimed, stopped)])
    assert (settlement.written, [s.key for s in settlement.refused]) == (0, [sent.key])
    await reap(harness.store, harness.catalog, SILENCE)
    assert await harness.state(sent.key) is State.RETRYING


async def test_the_reaper_cannot_settle_the_attempts_of_a_live_worker(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    lost = decide(claimed, Ending(outcome=Outcome.LOST))
    settlement = await settle(harness.store, seat.worker_id, [lost], reaping=True)
    assert (settlement.written, len(settlement.refused)) == (0, 1)
    assert await harness.end(seat, claimed) == 1


async def test_rows_of_a_worker_that_does_not_exist_are_reaped(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await harness.sql("delete from workers where worker_id = $1", seat.worker_id)
    assert await reap(harness.store, harness.catalog, SILENCE) == 1
    assert await harness.state(sent.key) is State.RETRYING


# Lost responses


async def test_a_settle_that_is_repeated_after_its_response_was_lost_is_not_refused(harness: EngineHarness) -> None:
    for _ in range(3):
        await harness.send(retry=Retry(3))
    seat = await harness.join_worker()
    good, bad, snoozed = await harness.claim(seat)
    failed = Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "lineage": []})
    batch = [
        decide(good, OK),
        decide(bad, failed),
        decide(snoozed, Ending(outcome=Outcome.OK, snooze=timedelta(hours=1))),
    ]
    assert await settle(harness.store, seat.worker_id, batch) == (3, [])
    assert await settle(harness.store, seat.worker_id, batch) == (0, [])


async def test_a_repeated_settle_is_refused_where_the_reaper_was_first(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await lose(harness, seat)
    await harness.sql("update workers set state = 'live', seen_at = clock_timestamp()")
    settlement = await settle(harness.store, seat.worker_id, [decide(claimed, OK)])
    assert (settlement.written, len(settlement.refused)) == (0, 1)


async def test_a_worker_can_read_what_it_holds_and_return_what_it_does_not_know(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)  # and the response is lost
    heartbeat = await workers.record_heartbeat(harness.store, seat.worker_id, 0, "live")
    assert heartbeat is not None
    assert await workers.held_before(harness.store, seat.worker_id, heartbeat.settled_at) == set()
    await harness.pass_time(4)
    heartbeat = await workers.record_heartbeat(harness.store, seat.worker_id, 0, "live")
    assert heartbeat is not None
    held = await workers.held_before(harness.store, seat.worker_id, heartbeat.settled_at)
    assert held == {(claimed.key, 1)}
    await queue.give_back(harness.store, seat.worker_id, sorted(held))
    assert (await harness.claim_one(await harness.join_worker())).attempt == 1


# What counts as lost


async def member(harness: EngineHarness, process: object) -> ClaimSpec:
    """A seat of a given process."""
    seat = await harness.join_worker()
    await harness.sql("update workers set process = $2 where worker_id = $1", seat.worker_id, process)
    return seat


@pytest.mark.parametrize("retry", [Retry(), Retry(1), Retry(10)], ids=lambda retry: f"{retry.attempts} attempts")
async def test_one_process_that_is_lost_again_and_again_is_not_taken_for_poison(
    harness: EngineHarness, retry: Retry
) -> None:
    sent = await harness.send(retry=retry)
    process = uuid4()
    for attempt in range(1, 6):
        seat = await member(harness, process)
        assert (await harness.claim_one(seat)).attempt == attempt
        await lose(harness, seat)
    assert await harness.state(sent.key) is State.RETRYING


async def test_attempts_that_never_began_count_neither_as_poison_nor_against_the_retries(
    harness: EngineHarness,
) -> None:
    sent = await harness.send(retry=Retry(3))
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await lose(harness, seat)
    for _ in range(4):
        seat = await harness.join_worker()
        await harness.claim(seat, begin=False)
        await lose(harness, seat)
    claimed = await harness.claim_one(await harness.join_worker())
    assert (claimed.attempt, claimed.spent) == (6, 1)
    attempts = await runs.attempts(harness.store, sent.key, harness.tenant)
    assert [a.started_at is not None for a in attempts] == [True, False, False, False, False]


async def test_first_attempts_that_are_not_known_to_have_begun_have_no_start_and_are_no_poison(
    harness: EngineHarness,
) -> None:
    sent = await harness.send()
    for _ in range(2):  # the next claim is a first attempt again: it was given back
        seat = await harness.join_worker()
        [claimed] = await harness.claim(seat, begin=False)
        await queue.give_back(harness.store, seat.worker_id, [(claimed.key, claimed.attempt)])
    seat = await harness.join_worker()
    await harness.claim(seat, begin=False)
    await lose(harness, seat)
    [attempt] = await runs.attempts(harness.store, sent.key, harness.tenant)
    assert (attempt.attempt, attempt.outcome, attempt.started_at) == (1, "lost", None)
    for _ in range(2):
        seat = await harness.join_worker()
        await harness.claim(seat)
        await lose(harness, seat)
    assert await harness.state(sent.key) is State.RETRYING, "two processes have executed it"
    seat = await harness.join_worker()
    await harness.claim(seat)
    await lose(harness, seat)
    assert (await harness.run(sent.key)).error["reason"] == "poison: the worker disappeared 3 times"


async def test_a_lost_attempt_has_its_true_start(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    [claimed] = await harness.claim(seat, begin=False)
    began = claimed.claimed_at + timedelta(seconds=30)  # it waited for a thread
    await queue.record_starts(harness.store, seat.worker_id, [(claimed.key, 1, began)])
    await harness.pass_time(90)
    await lose(harness, seat)
    [attempt] = await runs.attempts(harness.store, sent.key, harness.tenant)
    assert attempt.started_at is not None
    assert abs(attempt.started_at - began) < timedelta(milliseconds=1)


@pytest.mark.parametrize("error", ["WorkerStopped", "EventLoopLost"])
async def test_what_a_live_worker_settles_as_lost_is_no_poison(harness: EngineHarness, error: str) -> None:
    """Two deployments past the grace period and a real crash."""
    sent = await harness.send()
    for _ in range(2):
        seat = await harness.join_worker()
        claimed = await harness.claim_one(seat)
        assert await harness.end(seat, claimed, outcome=Outcome.LOST, error={"type": error}, ran=5.0) == 1
    for _ in range(2):
        assert await harness.state(sent.key) is State.RETRYING
        seat = await harness.join_worker()
        await harness.claim(seat)
        await lose(harness, seat)
    assert await harness.state(sent.key) is State.RETRYING


async def test_a_start_is_recorded_only_for_the_worker_that_holds_the_attempt(harness: EngineHarness) -> None:
    await harness.send()
    seat = await harness.join_worker()
    [claimed] = await harness.claim(seat, begin=False)
    other = await harness.join_worker()
    await queue.record_starts(harness.store, other.worker_id, [(claimed.key, 1, claimed.claimed_at)])
    await queue.record_starts(harness.store, seat.worker_id, [(claimed.key, 2, claimed.claimed_at)])
    assert await harness.value("select started_at from queue") is None
    await queue.record_starts(harness.store, seat.worker_id, [(claimed.key, 1, claimed.claimed_at)])
    assert await harness.value("select started_at from queue") == claimed.claimed_at


async def test_a_run_delivered_at_most_once_that_never_began_is_tried_again(harness: EngineHarness) -> None:
    sent = await harness.send(delivery=Delivery.AT_MOST_ONCE)
    seat = await harness.join_worker()
    await harness.claim(seat, begin=False)
    await lose(harness, seat)
    assert await harness.state(sent.key) is State.RETRYING
    seat = await harness.join_worker()
    await harness.claim_one(seat)
    await lose(harness, seat)
    assert await harness.state(sent.key) is State.DEAD


async def test_an_attempt_cannot_begin_once_somebody_else_owns_it(harness: EngineHarness) -> None:
    await harness.send(delivery=Delivery.AT_MOST_ONCE)
    await harness.send(delivery=Delivery.AT_MOST_ONCE)
    seat = await harness.join_worker()
    mine, other = await harness.claim(seat, begin=False)
    await queue.give_back(harness.store, seat.worker_id, [(other.key, other.attempt)])
    await harness.claim(await harness.join_worker(), begin=False)
    assert await queue.begin_attempts(harness.store, seat.worker_id, [other, mine]) == [mine]


async def test_a_requested_cancel_is_recorded_with_the_attempt(harness: EngineHarness) -> None:
    sent = await harness.send()
    seat = await harness.join_worker()
    claimed = await harness.claim_one(seat)
    await harness.cancel(sent.key)
    await harness.end(seat, claimed, outcome=Outcome.CANCELLED, error={"type": "Cancelled", "message": "asked"})
    [attempt] = await runs.attempts(harness.store, sent.key, harness.tenant)
    assert attempt.error["requested"] is True
