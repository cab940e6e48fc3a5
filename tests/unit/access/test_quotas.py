from __future__ import annotations

from bellringer.access.quotas import RateLimiter


def test_a_minutes_worth_may_come_at_once_and_then_one_at_a_time() -> None:
    rate = RateLimiter(60)
    verdicts = [rate.spend(100.0) for _ in range(60)]
    assert all(v.allowed for v in verdicts)
    assert [v.left for v in verdicts] == list(range(59, -1, -1))
    refused = rate.spend(100.0)
    assert not refused.allowed
    assert abs(refused.reset - 1.0) < 1e-6
    assert rate.spend(101.0).allowed
    assert not rate.spend(101.0).allowed
    assert rate.spend(1000.0).left == 59  # credit does not grow beyond a minute's


def test_a_look_takes_nothing() -> None:
    rate = RateLimiter(1)
    assert rate.look(0.0).allowed
    assert rate.look(0.0).allowed
    assert rate.spend(0.0).allowed
    assert not rate.look(30.0).allowed
    assert rate.look(60.0).allowed


def test_less_than_one_a_minute_is_still_one_and_nothing_is_nothing() -> None:
    slow = RateLimiter(0.5)
    assert slow.spend(0.0).allowed
    assert not slow.spend(119.0).allowed
    assert slow.spend(120.0).allowed
    assert not RateLimiter(0).spend(0.0).allowed


def test_many_are_taken_together_or_not_at_all() -> None:
    rate = RateLimiter(10)
    assert not rate.spend(0.0, count=11).allowed
    assert rate.spend(0.0, count=10).left == 0
