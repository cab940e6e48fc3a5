"""How much of a pool may be with the broker: what its workers can start about now, and no more. A burst waits in the
database, where it is shared out fairly, and not in the broker, where first come is first served."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from bellringer.store.dispatch import Load

AHEAD: Final = 0.25  # seconds of work that may be out beyond the free seats: a message is that long on its way
BEHIND: Final = 0.25  # the part of the seats that catch-ups and backfills may take
FRESH: Final = timedelta(seconds=1)  # what was sent before is stuck: it waits for a seat no longer than that
STUCK: Final = 4  # times as much may be out in all: one consumer that is stuck does not stop the pool
MOST_OUT: Final = 20_000
MOST: Final = 2_000  # runs in one pass


class Outflow:
    """Measures how fast the workers of a pool take what is sent, so that neither seats nor messages wait long."""

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0.0
        self._since: float | None = None
        self._rate = 0.0

    def add(self, sent: int) -> None:
        self._sent += sent

    def measure(self, load: Load, moment: float) -> None:
        """Take the rate at which what was sent has gone, once some time has passed."""
        taken = float(self._sent - load.sent)
        if self._since is None:
            self._taken, self._since = taken, moment
            return
        passed = moment - self._since
        if passed >= AHEAD / 5:
            self._rate = self._rate * 0.5 + max(0.0, taken - self._taken) / passed * 0.5
            self._taken, self._since = taken, moment

    def room(self, slots: int, load: Load) -> int:
        """How many runs to send now."""
        ahead = int(self._rate * AHEAD)
        free = max(0, slots - load.held)
        most = min(MOST_OUT, STUCK * (slots + ahead))
        return max(0, min(MOST, free + ahead - load.fresh, most - load.sent))

    @staticmethod
    def behind(slots: int) -> int:
        """How many of them may be from behind live work; one seat is always theirs."""
        return max(1, int(slots * BEHIND))
