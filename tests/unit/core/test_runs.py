"""Run keys as public ids, and what an attempt's ending means."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import (
    FINAL_STATES,
    POISON_LOST_ATTEMPTS,
    TRANSITIONS,
    Ending,
    Outcome,
    RetryWindow,
    RunEvent,
    RunKey,
    State,
    decide_next_step,
    decode_run_id,
    encode_run_id,
)
from bellringer.errors import NotFound

keys = st.builds(RunKey, st.uuids(), st.datetimes(timezones=st.just(UTC)), st.just(0) | st.integers(0, (1 << 63) - 1))
signs = string.digits + string.ascii_letters
endings = st.builds(
    Ending,
    outcome=st.sampled_from(Outcome),
    error=st.none() | st.just({"lineage": ["KeyError", "LookupError"]}) | st.just({}),
    snooze=st.none() | st.timedeltas(timedelta(0), timedelta(days=9)),
    discard=st.none() | st.just("no longer needed"),
)
retries = st.builds(
    Retry,
    st.integers(1, 9),
    base=st.integers(0, 99),
    cap=st.integers(0, 99),
    never_on=st.sampled_from([(), ("LookupError",)]),
)
budgets = st.integers(1, 12)


# Ids


@given(keys)
def test_a_key_survives_its_public_id(key: RunKey) -> None:
    assert decode_run_id(encode_run_id(key)) == key


@given(st.lists(keys, unique=True))
def test_different_keys_have_different_ids(some: list[RunKey]) -> None:
    assert len({key.id for key in some}) == len(some)


def test_an_id_of_the_schedules_own_slot_is_the_shorter_one() -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    assert len(RunKey(UUID(int=1), moment).id) == 37
    assert len(RunKey(UUID(int=1), moment, 1).id) == 48
    assert RunKey(UUID(int=1), moment).id.startswith("run_")


@given(st.text() | st.sampled_from([33, 44]).flatmap(lambda n: st.text(signs, min_size=n, max_size=n)))
def test_anything_else_is_not_found(text: str) -> None:
    for run_id in (text, "run_" + text):
        try:
            key = decode_run_id(run_id)
        except NotFound:
            continue
        assert encode_run_id(key) == run_id


@pytest.mark.parametrize("run_id", ["", "run_", "run_!", "job_" + "0" * 33, "run_" + "z" * 33, "run_" + "é" * 33])
def test_garbage_is_not_found(run_id: str) -> None:
    with pytest.raises(NotFound):
        decode_run_id(run_id)


# Verdicts


@given(endings, budgets, retries, st.sampled_from(Delivery), st.integers(0, 4))
def test_every_verdict_is_a_legal_move_of_a_running_run(
    ending: Ending, spent: int, retry: Retry, delivery: Delivery, lost: int
) -> None:
    verdict = decide_next_step(ending, spent, retry, delivery, lost)
    to = TRANSITIONS[State.RUNNING, verdict.event]
    assert verdict.ends_as == (to if to in FINAL_STATES else None)
    assert (verdict.wait is None) == (verdict.ends_as is not None)
    assert (verdict.reason is not None) == (verdict.ends_as in (State.DEAD, State.CANCELLED))


@given(endings, budgets, retries, st.sampled_from(Delivery), st.integers(0, 4))
def test_a_retry_is_within_the_budget_and_the_cap(
    ending: Ending, spent: int, retry: Retry, delivery: Delivery, lost: int
) -> None:
    verdict = decide_next_step(ending, spent, retry, delivery, lost)
    if verdict.event is RunEvent.FAILED and ending.outcome is Outcome.LOST:
        assert lost < POISON_LOST_ATTEMPTS
        assert (verdict.wait, verdict.counted) == (timedelta(0), False)
    elif verdict.event is RunEvent.FAILED:
        assert spent < retry.attempts
        assert verdict.wait is not None
        assert timedelta(0) <= verdict.wait <= retry.cap
        assert verdict.counted


@given(retries, budgets)
def test_a_snooze_does_not_count(retry: Retry, spent: int) -> None:
    verdict = decide_next_step(Ending(outcome=Outcome.OK, snooze=timedelta(hours=1)), spent, retry, "at_least_once")
    assert (verdict.ends_as, verdict.wait, verdict.counted) == (None, timedelta(hours=1), False)


def test_a_lost_attempt_is_tried_again_at_once_until_it_looks_like_poison() -> None:
    lost = Ending(outcome=Outcome.LOST)
    for times in range(1, POISON_LOST_ATTEMPTS):
        verdict = decide_next_step(lost, 1, Retry(1), Delivery.AT_LEAST_ONCE, times)
        assert (verdict.wait, verdict.counted) == (timedelta(0), False), "a loss uses up no attempt"
    assert decide_next_step(lost, 1, Retry(9), Delivery.AT_LEAST_ONCE, POISON_LOST_ATTEMPTS).ends_as is State.DEAD


def test_a_lost_attempt_that_is_delivered_at_most_once_is_dead() -> None:
    assert decide_next_step(Ending(outcome=Outcome.LOST), 1, Retry(9), Delivery.AT_MOST_ONCE).ends_as is State.DEAD


def test_a_failure_is_tried_again_even_where_losses_are_not() -> None:
    assert decide_next_step(Ending(outcome=Outcome.FAILED), 1, Retry(9), Delivery.AT_MOST_ONCE).ends_as is None


def test_an_error_is_never_retried_where_it_or_its_parent_is_named() -> None:
    failed = Ending(outcome=Outcome.FAILED, error={"lineage": ["KeyError", "LookupError"]})
    verdict = decide_next_step(failed, 1, Retry(9, never_on=[LookupError]), Delivery.AT_LEAST_ONCE)
    assert (verdict.ends_as, verdict.reason) == (State.DEAD, "LookupError is never retried")
    assert decide_next_step(failed, 1, Retry(9, never_on=[OSError]), Delivery.AT_LEAST_ONCE).ends_as is None


def test_a_final_state_is_left_only_by_reviving_the_dead() -> None:
    assert {(state, event) for state, event in TRANSITIONS if state in FINAL_STATES} == {
        (State.DEAD, RunEvent.REDRIVEN)
    }


def test_every_state_but_skipped_can_be_reached() -> None:
    assert set(TRANSITIONS.values()) | {State.QUEUED, State.SKIPPED} == set(State)


def _failed(*lineage: str, outcome: Outcome = Outcome.FAILED) -> Ending:
    return Ending(outcome=outcome, error={"type": lineage[0], "message": "no", "lineage": list(lineage)})


def test_only_listed_errors_and_their_subclasses_are_retried() -> None:
    retry = Retry(9, only_on=[OSError])
    kept = decide_next_step(_failed("ConnectionError", "OSError"), 1, retry, Delivery.AT_LEAST_ONCE)
    assert (kept.ends_as, kept.reason) == (None, None)
    ended = decide_next_step(_failed("KeyError", "LookupError"), 1, retry, Delivery.AT_LEAST_ONCE)
    assert ended.ends_as is State.DEAD
    assert ended.reason == "KeyError is not one of the errors that are retried: OSError"


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.TIMED_OUT])
def test_lost_workers_and_timeouts_are_retried_whatever_is_listed(outcome: Outcome) -> None:
    ending = _failed("TimedOut", "TimeoutError", outcome=outcome)
    verdict = decide_next_step(ending, 1, Retry(9, only_on=["OSError"]), Delivery.AT_LEAST_ONCE)
    assert verdict.ends_as is None


@given(
    wait=st.integers(0, 100),
    since=st.integers(0, 200),
    elapsed=st.none() | st.integers(1, 200),
    deadline=st.none() | st.integers(-50, 200),
)
def test_no_attempt_begins_outside_of_its_window(
    wait: int, since: int, elapsed: int | None, deadline: int | None
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    window = RetryWindow(
        now=now,
        first_started_at=now - timedelta(seconds=since),
        expires_at=None if deadline is None else now + timedelta(seconds=deadline),
    )
    retry = Retry(9, delays=[wait], jitter=0, max_elapsed=elapsed)
    verdict = decide_next_step(_failed("A"), 1, retry, Delivery.AT_LEAST_ONCE, window=window)
    too_late = (elapsed is not None and since + wait > elapsed) or (deadline is not None and wait >= deadline)
    assert (verdict.ends_as is State.DEAD) == too_late
    assert too_late or verdict.wait == timedelta(seconds=wait)


@pytest.mark.parametrize(("spent", "state"), [(1, State.SKIPPED), (2, State.DEAD)])
def test_an_expired_run_is_dead_only_if_attempts_have_failed(spent: int, state: State) -> None:
    ending = Ending(outcome=Outcome.CANCELLED, expired=True, started=False)
    verdict = decide_next_step(ending, spent, Retry(9), Delivery.AT_LEAST_ONCE)
    assert verdict.ends_as is state
    assert (verdict.reason or "").startswith("expired")
