"""The only reader of time on this host.

Host clocks decide when to look; what is due, and what has expired, the database's clock decides.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What the loops need of time; tests bring their own."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """This host's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class DatabaseClock:
    """What the database's clock shows, carried forward on this host's monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reading = (clock.now(), clock.monotonic())  # one value, because handlers' threads read it too

    def observe(self, database_now: datetime) -> None:
        """Take a reading that a query has just brought back."""
        self._reading = (database_now, self._clock.monotonic())

    def now(self) -> datetime:
        read, read_at = self._reading
        return read + timedelta(seconds=self._clock.monotonic() - read_at)

    def skew(self) -> timedelta:
        """How far this host's wall clock is ahead of the database's."""
        return self._clock.now() - self.now()
