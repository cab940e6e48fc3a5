"""Strikes: a worker sleeps to the next instant that it was told of, and no longer than it may."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.strikes import MOST, Strikes

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_without_a_hint_a_worker_sleeps_as_long_as_it_may() -> None:
    assert Strikes().until_next(NOW, 0.5) == 0.5


def test_the_next_strike_cuts_the_sleep_short() -> None:
    strikes = Strikes()
    for seconds in (0.3, 0.1, 9):
        strikes.add(after(seconds))
    assert strikes.until_next(NOW, 0.5) == 0.1
    assert strikes.until_next(after(0.1), 0.5) == 0.2
    assert strikes.until_next(after(0.3), 0.5) == 0.5


def test_what_has_struck_is_forgotten() -> None:
    strikes = Strikes()
    strikes.add(after(-1))
    assert strikes.until_next(NOW, 0.5) == 0.5


def test_there_is_a_limit_to_what_is_remembered() -> None:
    strikes = Strikes()
    for n in range(MOST + 10):
        strikes.add(after(10 + n))
    strikes.add(after(0.1))
    assert strikes.until_next(NOW, 0.5) == 0.5
