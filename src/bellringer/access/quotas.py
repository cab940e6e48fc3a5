"""Quotas of a tenant, and a rate limiter with constant memory (GCRA)."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec


class Quotas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a tenant. None means unlimited."""

    jobs: int | None = None
    fires_per_minute: float | None = None  # average over its schedules; sends are limited separately to the same number
    in_flight: int | None = None  # concurrent runs
    payload_bytes: int | None = None  # of one job's or run's arguments
    api_per_minute: int | None = None  # requests


NO_QUOTAS = Quotas()


class QuotaDecision(NamedTuple):
    """Whether a request is allowed, how many more are allowed now, and the seconds until the limit is fully
    available (if allowed) or until the next request is allowed (if not).
    """

    allowed: bool
    left: int
    reset: float


def seconds_to_full(per_minute: float, verdict: QuotaDecision) -> float:
    """Returns the seconds until the limit is fully available. `reset` of a rejection only tells when the next
    request is allowed.
    """
    if verdict.allowed or per_minute <= 0:
        return verdict.reset
    cost = 60.0 / per_minute
    return verdict.reset + max(60.0, cost) - cost


class RateLimiter:
    """Limits the requests per minute with GCRA: it stores only the time at which the full limit is available again."""

    __slots__ = ("_whole_at", "per_minute")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._whole_at = -math.inf

    def spend(self, now: float, *, count: int = 1) -> QuotaDecision:
        """Consumes `count` requests if they are allowed. `now` is a monotonic time in seconds."""
        verdict, whole_at = self._judge(now, count)
        if verdict.allowed:
            self._whole_at = whole_at
        return verdict

    def look(self, now: float) -> QuotaDecision:
        """Returns the decision for one more request without consuming it."""
        return self._judge(now, 1)[0]

    def _judge(self, now: float, count: int) -> tuple[QuotaDecision, float]:
        if self.per_minute <= 0:
            return QuotaDecision(allowed=False, left=0, reset=60.0), self._whole_at
        cost = 60.0 / self.per_minute
        burst = max(60.0, cost)  # a limit below one per minute still allows one
        whole_at = max(self._whole_at, now) + cost * count
        if whole_at - now > burst + 1e-9:
            return QuotaDecision(allowed=False, left=0, reset=whole_at - now - burst), whole_at
        left = int((now + burst - whole_at) / cost + 1e-9)
        return QuotaDecision(allowed=True, left=left, reset=whole_at - now), whole_at
