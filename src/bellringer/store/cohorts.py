"""The clock hands: reading them, and moving them under the fence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from bellringer.leases import Holding
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("cohorts")
MOST_RUNS: Final = 8_000  # a chunk: about 100 ms, so that a takeover never waits long


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far ahead of its time a run may be born, and how late a hand may be before it has misfired."""

    lead: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=60)
    most: int = MOST_RUNS


class Hand(NamedTuple):
    """One cohort's clock hand: the instant that it strikes next. A tuple, because a heap compares it often."""

    next_at: datetime
    shard: int
    schedule_id: int
    jump_to: datetime | None = None  # it was left behind, and is on its way there


@dataclass(frozen=True, slots=True)
class Move:
    """A hand that strikes, and where it goes then."""

    hand: Hand
    to: datetime
    missed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What one call did: runs born, hands moved; `refused` names shards whose lease was lost."""

    fired: int = 0
    moved: int = 0
    missed: int = 0
    cut: bool = False  # the hand after those that moved strikes on: it has more members than fit
    strikes: tuple[datetime, ...] = ()  # when runs that timers made may be claimed
    refused: frozenset[int] = frozenset()


async def coming(store: Store, shards: Sequence[int], until: datetime, most: int) -> list[Hand]:
    rows = await store.pool.fetch(_SQL.coming, shards, until, most)
    return [Hand(next_at, shard, schedule_id, jump_to) for shard, schedule_id, next_at, jump_to in rows]


async def rung(store: Store, shards: Sequence[int], until: datetime) -> list[int]:
    rows = await store.pool.fetch(_SQL.rung, shards, until)
    return [row["shard"] for row in rows]


async def first_timers(store: Store, shards: Sequence[int]) -> dict[int, datetime]:
    """When the first timer of each of these shards is due, where it has one."""
    rows = await store.pool.fetch(_SQL.first_timers, shards)
    return {row["shard"]: row["due_at"] for row in rows if row["due_at"] is not None}


class Occupied(Exception):
    """An occurrence exists already; nothing was written."""


async def tick(
    store: Store,
    holding: Holding,
    moves: Sequence[Move],
    pace: Pace,
    tz_id: int | None,
    *,
    careful: bool = False,
) -> Fired:
    """Fire hands that strike. With care it passes over occurrences that exist."""
    shards, tokens = holding.within([m.hand.shard for m in moves])
    try:
        row = await store.pool.fetchrow(
            _SQL.tick,
            holding.holder,
            shards,
            tokens,
            *_columns(moves),
            pace.lead,
            pace.grace,
            pace.most,
            tz_id,
            careful,
        )
    except asyncpg.UniqueViolationError:
        raise Occupied from None
    assert row is not None
    moved = row["reached"] - row["cut"]
    return Fired(fired=row["fired"], moved=moved, cut=row["cut"], refused=frozenset(row["refused"]))


async def jump(store: Store, holding: Holding, moves: Sequence[Move], most: int = MOST_RUNS) -> Fired:
    """Let hands that were left behind jump to their latest missed instant, and record what they pass over."""
    shards, tokens = holding.within([m.hand.shard for m in moves])
    row = await store.pool.fetchrow(
        _SQL.jump, holding.holder, shards, tokens, *_columns(moves), [m.missed for m in moves], most
    )
    assert row is not None
    moved = row["reached"] - row["cut"]
    return Fired(moved=moved, missed=row["missed"], cut=row["cut"], refused=frozenset(row["refused"]))


def _columns(moves: Sequence[Move]) -> tuple[list[int], list[int], list[datetime], list[datetime]]:
    return (
        [m.hand.shard for m in moves],
        [m.hand.schedule_id for m in moves],
        [m.hand.next_at for m in moves],
        [m.to for m in moves],
    )


async def ring(store: Store, holding: Holding, shards: Sequence[int], lead: timedelta, most: int) -> Fired:
    """Move due timers into the queue."""
    held, tokens = holding.within(shards)
    row = await store.pool.fetchrow(_SQL.ring, holding.holder, held, tokens, lead, most)
    assert row is not None
    strikes = tuple(row["strikes"] or ())
    return Fired(fired=row["fired"], moved=row["moved"], strikes=strikes, refused=frozenset(row["refused"]))


async def overdue(store: Store, by: timedelta) -> int:
    count: int = await store.pool.fetchval(_SQL.overdue, by)
    return count
