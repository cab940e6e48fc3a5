"""Cohorts and timers: reads those that are due, and calls the SQL functions that fire them under the shard leases.

A cohort is all jobs of one schedule in one shard. Its row holds the next instant at which they fire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from bellringer.core.leases import Holding
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("cohorts")
MAX_COUNTED_OVERDUE: Final = 10_000
MAX_RUNS_PER_TICK: Final = 8_000  # takes about 100 ms, so a new lease holder never waits long


@dataclass(frozen=True, slots=True, kw_only=True)
class TickLimits:
    """How early a run may be created, how late a cohort may be before it counts as misfired, and the runs of one
    call.
    """

    lead: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=60)
    max_runs: int = MAX_RUNS_PER_TICK


class Cohort(NamedTuple):
    """The cursor of a cohort: the next instant that fires. A tuple, because a heap compares cohorts often."""

    next_at: datetime
    shard: int
    schedule_id: int
    target_at: datetime | None = None  # the target of an unfinished fast-forward


@dataclass(frozen=True, slots=True)
class CohortMove:
    """A cohort that fires, and its next instant. A late cohort that fires repeatedly in one call has several moves.

    `base` is the instant of the cohort's row before the first of these moves.
    """

    cohort: Cohort
    to: datetime
    missed: int = 0
    base: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOutcome:
    """The result of one call: runs created, cohorts moved; `refused` lists shards whose lease was lost."""

    fired: int = 0
    moved: int = 0
    missed: int = 0
    cut: bool = False  # the cohort after the moved ones fired in part: it has more jobs than fit
    first_due_at: datetime | None = None  # of the timers that fired
    refused: frozenset[int] = frozenset()


async def upcoming(store: Store, shards: Sequence[int], until: datetime, limit: int) -> list[Cohort]:
    rows = await store.pool.fetch(_SQL.upcoming, shards, until, limit)
    return [Cohort(next_at, shard, schedule_id, target_at) for shard, schedule_id, next_at, target_at in rows]


class DueSoon(NamedTuple):
    """The time by the database's clock, the cohorts that fire soon, and the shards that have a due timer."""

    now: datetime
    cohorts: list[Cohort]
    timer_shards: list[int]


async def due_soon(store: Store, shards: Sequence[int], lead: timedelta, ahead: timedelta, limit: int) -> DueSoon:
    """Reads cohorts that fire within `ahead`, at most `limit`, and finds shards with timers due within `lead`."""
    row = await store.pool.fetchrow(_SQL.due_soon, shards, lead, ahead, limit)
    assert row is not None
    cohorts = map(Cohort, row["next_at"], row["shards"], row["schedule_ids"], row["target_at"])
    return DueSoon(row["now"], list(cohorts), row["timer_shards"])


async def first_timers(store: Store, shards: Sequence[int]) -> dict[int, datetime]:
    """Returns when the first timer of each shard is due."""
    rows = await store.pool.fetch(_SQL.first_timers, shards)
    return {row["shard"]: row["due_at"] for row in rows if row["due_at"] is not None}


class OccurrenceExists(Exception):
    """A run of the occurrence exists already; nothing was written."""


async def tick(
    store: Store,
    holding: Holding,
    moves: Sequence[CohortMove],
    limits: TickLimits,
    tz_id: int | None,
    *,
    careful: bool = False,
) -> TickOutcome:
    """Creates the runs of due cohorts. `careful` skips occurrences that already have a run."""
    shards, tokens = holding.tokens_for([m.cohort.shard for m in moves])
    try:
        row = await store.pool.fetchrow(
            _SQL.tick,
            holding.holder,
            shards,
            tokens,
            *_cohorts(moves),
            [m.base or m.cohort.next_at for m in moves],
            *_instants(moves),
            limits.lead,
            limits.grace,
            limits.max_runs,
            tz_id,
            careful,
        )
    except asyncpg.UniqueViolationError:
        raise OccurrenceExists from None
    assert row is not None
    moved = row["reached"] - row["is_cut"]
    return TickOutcome(
        fired=row["fired"], moved=moved, missed=row["missed"], cut=row["is_cut"], refused=frozenset(row["refused"])
    )


async def fast_forward(
    store: Store, holding: Holding, moves: Sequence[CohortMove], limit: int = MAX_RUNS_PER_TICK
) -> TickOutcome:
    """Moves late cohorts to their latest missed instant, and records the skipped occurrences as gaps."""
    shards, tokens = holding.tokens_for([m.cohort.shard for m in moves])
    row = await store.pool.fetchrow(
        _SQL.fast_forward,
        holding.holder,
        shards,
        tokens,
        *_cohorts(moves),
        *_instants(moves),
        [m.missed for m in moves],
        limit,
    )
    assert row is not None
    moved = row["reached"] - row["is_cut"]
    return TickOutcome(moved=moved, missed=row["missed"], cut=row["is_cut"], refused=frozenset(row["refused"]))


def _cohorts(moves: Sequence[CohortMove]) -> tuple[list[int], list[int]]:
    return [m.cohort.shard for m in moves], [m.cohort.schedule_id for m in moves]


def _instants(moves: Sequence[CohortMove]) -> tuple[list[datetime], list[datetime]]:
    return [m.cohort.next_at for m in moves], [m.to for m in moves]


async def fire_timers(
    store: Store, holding: Holding, shards: Sequence[int], lead: timedelta, limit: int, *, careful: bool = False
) -> TickOutcome:
    """Moves due timers into the queue. `careful` drops timers whose run already exists."""
    held, tokens = holding.tokens_for(shards)
    try:
        row = await store.pool.fetchrow(_SQL.fire_timers, holding.holder, held, tokens, lead, limit, careful)
    except asyncpg.UniqueViolationError:
        raise OccurrenceExists from None
    assert row is not None
    return TickOutcome(
        fired=row["fired"],
        moved=row["moved"],
        missed=row["missed"],
        first_due_at=row["first_due_at"],
        refused=frozenset(row["refused"]),
    )


async def count_overdue(store: Store, by: timedelta, *, most: int = MAX_COUNTED_OVERDUE) -> int:
    """Returns how many jobs and timers should have fired `by` ago or earlier. Each kind is counted up to `most`."""
    count: int = await store.pool.fetchval(_SQL.overdue, by, most)
    return count
