"""How much a tenant may have, and rates that are kept without remembering each call."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec


class Quotas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant may have at most; None: as much as it wants."""

    jobs: int | None = None
    fires_per_minute: float | None = None  # of its schedules on average; and, by itself, of what it sends
    in_flight: int | None = None  # runs under way
    payload_bytes: int | None = None  # of one job's or run's arguments
    api_per_minute: int | None = None  # requests


NO_QUOTAS = Quotas()


class Verdict(NamedTuple):
    """Whether one more may come; how many more could at once; seconds until all could again, or the next one."""

    allowed: bool
    left: int
    reset: float


class Rate:
    """At most so many a minute, in a row or spread out (GCRA): it remembers only when its credit is whole again."""

    __slots__ = ("_whole_at", "per_minute")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._whole_at = -math.inf

    def spend(self, now: float, *, count: int = 1) -> Verdict:
        """Take so many, if they are there; `now` is monotonic, in seconds."""
        verdict, whole_at = self._judge(now, count)
        if verdict.allowed:
            self._whole_at = whole_at
        return verdict

    def look(self, now: float) -> Verdict:
        """What one more would be told."""
        return self._judge(now, 1)[0]

    def _judge(self, now: float, count: int) -> tuple[Verdict, float]:
        if self.per_minute <= 0:
            return Verdict(allowed=False, left=0, reset=60.0), self._whole_at
        cost = 60.0 / self.per_minute
        burst = max(60.0, cost)  # less than one a minute is still one
        whole_at = max(self._whole_at, now) + cost * count
        if whole_at - now > burst + 1e-9:
            return Verdict(allowed=False, left=0, reset=whole_at - now - burst), whole_at
        left = int((now + burst - whole_at) / cost + 1e-9)
        return Verdict(allowed=True, left=left, reset=whole_at - now), whole_at
