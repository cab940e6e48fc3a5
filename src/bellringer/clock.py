"""Clocks. No other module reads the time of this host.

Host clocks decide only when to query. The database's clock decides which work is due and which leases have expired.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

MAX_CLOCK_DRIFT: Final = 0.0005  # between two clocks; NTP corrects a clock at most at this rate


class Clock(Protocol):
    """The time functions that loops use. Tests pass their own implementation."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this host."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class DatabaseClock:
    """Estimates the database's time: the last observed value plus the time elapsed on this host's monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reading = (clock.now(), clock.monotonic())  # one tuple, because threads of handlers read it concurrently

    def observe(self, database_now: datetime, *, sent_at: float | None = None) -> None:
        """Records the database's time as returned by a query that has just finished.

        The database read its clock before the response arrived, so the estimate is late by the way back. An earlier
        estimate is kept, less the possible drift, if it is ahead of the new one and possible for a query that was sent
        at `sent_at` (monotonic): the fastest response of a while counts. The estimate must not be ahead of the
        database, because a claim before its time finds nothing.
        """
        moment = self._clock.monotonic()
        read, read_at = self._reading
        elapsed = moment - read_at
        earlier = read + timedelta(seconds=elapsed * (1 - MAX_CLOCK_DRIFT))
        latest = database_now + timedelta(seconds=0.0 if sent_at is None else moment - sent_at)
        self._reading = (earlier if database_now < earlier <= latest else database_now, moment)

    def now(self) -> datetime:
        read, read_at = self._reading
        return read + timedelta(seconds=self._clock.monotonic() - read_at)

    def skew(self) -> timedelta:
        """Returns how far this host's wall clock is ahead of the database's clock."""
        return self._clock.now() - self.now()
