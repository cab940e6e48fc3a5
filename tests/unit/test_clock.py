"""The estimate of the database's time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bellringer.clock import DatabaseClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class HostClock:
    """A clock that a test sets; its wall time is an hour behind the database's."""

    moment = 100.0

    def now(self) -> datetime:
        return NOON - timedelta(hours=1)

    def monotonic(self) -> float:
        return self.moment

    async def sleep(self, seconds: float) -> None: ...


def test_the_estimate_follows_the_monotonic_clock_from_the_last_reading() -> None:
    host = HostClock()
    clock = DatabaseClock(host)
    clock.observe(NOON)
    host.moment += 2.5
    assert clock.now() == NOON + timedelta(seconds=2.5)
    assert clock.skew() == -timedelta(hours=1, seconds=2.5)


def test_the_fastest_response_counts() -> None:
    host = HostClock()
    clock = DatabaseClock(host)
    clock.observe(NOON, sent_at=host.moment - 0.001)
    host.moment += 0.1
    clock.observe(NOON + timedelta(seconds=0.05), sent_at=host.moment - 0.08)
    behind = NOON + timedelta(seconds=0.1) - clock.now()
    assert timedelta(0) < behind < timedelta(milliseconds=1)


def test_an_estimate_that_a_response_disproves_is_dropped() -> None:
    host = HostClock()
    clock = DatabaseClock(host)
    clock.observe(NOON, sent_at=host.moment - 0.001)
    for moved in (timedelta(seconds=-5), timedelta(hours=1)):
        clock.observe(NOON + moved, sent_at=host.moment - 0.001)
        assert clock.now() == NOON + moved
