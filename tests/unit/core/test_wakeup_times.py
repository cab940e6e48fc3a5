"""Wake-up times: a worker sleeps until the next instant that it was notified of, within its limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.core.background_loops import MAX_WAKEUP_TIMES, WakeupTimes

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_without_a_hint_a_worker_sleeps_as_long_as_it_may() -> None:
    assert WakeupTimes().seconds_until_next(NOW, 0.5) == 0.5


def test_the_next_due_time_cuts_the_sleep_short() -> None:
    times = WakeupTimes()
    times.add(after(0.3), after(0.1), after(9))
    assert times.seconds_until_next(NOW, 0.5) == 0.1
    times.discard_until(after(0.1))
    assert times.seconds_until_next(after(0.1), 0.5) == 0.2
    times.discard_until(after(0.3))
    assert times.seconds_until_next(after(0.3), 0.5) == 0.5


def test_a_time_that_comes_during_a_claim_is_not_slept_over() -> None:
    times = WakeupTimes()
    times.add(NOW, after(0.001))
    times.discard_until(NOW)
    assert times.seconds_until_next(after(0.005), 0.5) == 0.0


def test_there_is_a_limit_to_what_is_remembered() -> None:
    times = WakeupTimes()
    for n in range(MAX_WAKEUP_TIMES + 10):
        times.add(after(10 + n))
    times.add(after(0.1))
    assert times.seconds_until_next(NOW, 0.5) == 0.5
