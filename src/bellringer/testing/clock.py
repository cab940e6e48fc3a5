"""A clock that a test controls: the engine reads `bellringer.now()`, and `TestClock` makes that function read a table.

Leases and heartbeats keep using real time. Moving only the clock simulates an outage: no scheduler ran in between.
To run the schedules up to a time, call `advance` on the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store.cohorts import Cohort
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("clock", "bellringer.testing")
MAX_DUE_COHORTS: Final = 1_000
_FLAGS: Final = (
    "timers",
    "pauses",
    "backfills",
    "undecided",
    "frozen",
    "stuck",
    "cancels",
    "stops",
    "expired",
    "waiting",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An instant, and everything that is due at it."""

    now: datetime
    hands: Sequence[Cohort] = ()
    timers: bool = False
    pauses: bool = False  # one is over
    backfills: bool = False  # one is open
    undecided: bool = False  # the time of a run that overlaps has come
    frozen: bool = False  # a freeze holds a run
    stuck: bool = False  # a run is held, and no run is executing whose end could release it
    cancels: bool = False  # a worker is asked to stop one
    stops: bool = False  # a workflow run was cancelled, or has had its time
    expired: bool = False  # the deadline of a waiting run has passed
    waiting: int = 0  # unclaimed runs in the queue, ready or not
    pools: Sequence[int] = ()  # where some of them are ready

    @property
    def is_due(self) -> bool:
        """Whether schedulers have work to do before the clock may advance."""
        return bool(self.hands) or self.timers or self.pauses


class TestClock:
    """The schedule time of one test database."""

    __test__ = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moment: datetime | None = None

    async def install(self, at: datetime | str) -> None:
        """Replaces the database's clock, and sets it to this instant."""
        moment = read_instant(at, what="at")
        await self._store.pool.execute(_SQL.one_partition)
        await self._store.pool.execute(_SQL.install)
        await self.put(moment)

    def now(self) -> datetime:
        if self._moment is None:
            raise InvalidInput("the test's clock is not installed", hint="call `await clock.install(…)` first")
        return self._moment

    async def set(self, at: datetime | str) -> None:
        """Sets the clock. It cannot go back."""
        moment = read_instant(at, what="at")
        if moment < self.now():
            raise InvalidInput(f"{moment.isoformat()} is before the test's now, {self.now().isoformat()}")
        await self.put(moment)

    async def advance(self, by: str | float | timedelta) -> None:
        await self.set(self.now() + parse_duration(by, what="advance"))

    async def leap(self, until: datetime, *, schedulers: bool = True, workers: bool = True) -> Due:
        """Jumps to the next instant at which something is due, at most to `until`, in one round trip.

        Without `schedulers`, due cohorts and timers are ignored; without `workers`, retries are ignored.
        """
        row = await self._store.pool.fetchrow(_SQL.leap, until, schedulers, workers, MAX_DUE_COHORTS)
        assert row is not None
        now, ats, shards, schedules, jumps, *rest, pools = row
        self._moment = now
        hands = [Cohort(*hand) for hand in zip(ats, shards, schedules, jumps, strict=True)] if ats else ()
        return Due(now=now, hands=hands, **dict(zip(_FLAGS, rest, strict=True)), pools=pools or ())

    async def put(self, moment: datetime) -> None:
        """Sets the clock to any instant, including an earlier one."""
        await self._store.pool.execute(_SQL.put, moment)
        self._moment = moment
