"""A clock that a test moves: the real engine asks `bellringer.now()`, and here that reads a table.

Leases and heartbeats keep real time. To move the clock alone means that meanwhile nobody was there to tick;
to live through the time, advance the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store.cohorts import Hand
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("clock", "bellringer.testing")
MOST_HANDS: Final = 1_000
_FLAGS: Final = ("timers", "pauses", "backfills", "undecided", "frozen", "stuck", "cancels", "stops", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An instant, and what is due at it."""

    now: datetime
    hands: Sequence[Hand] = ()
    timers: bool = False
    pauses: bool = False  # one is over
    backfills: bool = False  # one is open
    undecided: bool = False  # the time of a run that overlaps has come
    frozen: bool = False  # a freeze holds a run
    stuck: bool = False  # a run is held, and none is under way whose end could free it
    cancels: bool = False  # a worker is asked to stop one
    stops: bool = False  # a workflow run was cancelled, or has had its time
    waiting: int = 0  # runs in the queue that nobody holds, ready or not
    pools: Sequence[int] = ()  # where some of them are ready

    @property
    def presses(self) -> bool:
        """Whether schedulers have something to do before time goes on."""
        return bool(self.hands) or self.timers or self.pauses


class TestClock:
    """Schedule time in one test database."""

    __test__ = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moment: datetime | None = None

    async def install(self, at: datetime | str) -> None:
        """Put this clock in place of the database's own, at this instant."""
        moment = read_instant(at, what="at")
        await self._store.pool.execute(_SQL.one_partition)
        await self._store.pool.execute(_SQL.install)
        await self.put(moment)

    def now(self) -> datetime:
        if self._moment is None:
            raise InvalidInput("the test's clock is not installed", hint="call `await clock.install(…)` first")
        return self._moment

    async def set(self, at: datetime | str) -> None:
        """Show this instant; time never goes back."""
        moment = read_instant(at, what="at")
        if moment < self.now():
            raise InvalidInput(f"{moment.isoformat()} is before the test's now, {self.now().isoformat()}")
        await self.put(moment)

    async def advance(self, by: str | float | timedelta) -> None:
        await self.set(self.now() + parse_duration(by, what="advance"))

    async def leap(self, until: datetime, *, schedulers: bool = True, workers: bool = True) -> Due:
        """Go to the next instant at which something happens by itself, at most to `until`; in one round trip.

        Without `schedulers` nobody waits for hands and timers, without `workers` nobody for retries.
        """
        row = await self._store.pool.fetchrow(_SQL.leap, until, schedulers, workers, MOST_HANDS)
        assert row is not None
        now, ats, shards, schedules, jumps, *rest, pools = row
        self._moment = now
        hands = [Hand(*hand) for hand in zip(ats, shards, schedules, jumps, strict=True)] if ats else ()
        return Due(now=now, hands=hands, **dict(zip(_FLAGS, rest, strict=True)), pools=pools or ())

    async def put(self, moment: datetime) -> None:
        """Show any instant, also an earlier one."""
        await self._store.pool.execute(_SQL.put, moment)
        self._moment = moment
