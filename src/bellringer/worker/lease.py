"""The worker's own view of its lease."""

from __future__ import annotations

from typing import Final

from bellringer.clock import Clock
from bellringer.engine.reap import WORKER_SILENCE

# Shorter than the silence after which a worker is declared lost.
LEASE_SECONDS: Final = WORKER_SILENCE.total_seconds() * 0.8


class WorkerLease:
    """The worker's own view of its lease. It starts when a heartbeat is sent and is always shorter than the database's.

    A process that was suspended or cut off from the database finds its lease expired when it resumes, and starts
    nothing: other workers may already execute the runs that it holds.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._expires_at = float("-inf")

    def renew(self, sent_at: float) -> None:
        """Extend the lease after a successful heartbeat; `sent_at` is the monotonic time at which it was sent."""
        self._expires_at = max(self._expires_at, sent_at + LEASE_SECONDS)

    def revoke(self) -> None:
        """End the lease, because the database has declared this worker lost."""
        self._expires_at = float("-inf")

    @property
    def valid(self) -> bool:
        return self._monotonic() < self._expires_at
