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


class Hand(NamedTuple):
    """One cohort's clock hand: the instant that it strikes next. A tuple, because a heap compares it often."""

    next_at: datetime
    shard: int
    schedule_id: int


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
    refused: frozenset[int] = frozenset()


async def coming(store: Store, shards: Sequence[int], until: datetime, most: int) -> list[Hand]:
    rows = await store.pool.fetch(_SQL.coming, shards, until, most)
    return [Hand(next_at, shard, schedule_id) for shard, schedule_id, next_at in rows]


async def rung(store: Store, shards: Sequence[int], until: datetime) -> list[int]:
    rows = await store.pool.fetch(_SQL.rung, shards, until)
    return [row["shard"] for row in rows]


async def tick(store: Store, holding: Holding, moves: Sequence[Move], lead: timedelta, most: int) -> Fired:
    """Fire hands that strike. An occurrence that exists already is met a second time with care, not with an error."""
    shards, tokens = holding.within([m.hand.shard for m in moves])
    columns = (
        [m.hand.shard for m in moves],
        [m.hand.schedule_id for m in moves],
        [m.hand.next_at for m in moves],
        [m.to for m in moves],
    )
    head = (holding.holder, shards, tokens, *columns, lead, most)
    try:
        row = await store.pool.fetchrow(_SQL.tick, *head, False)  # noqa: FBT003 - an SQL argument
    except asyncpg.UniqueViolationError:
        row = await store.pool.fetchrow(_SQL.tick, *head, True)  # noqa: FBT003
    assert row is not None
    moved = row["reached"] - row["cut"]
    return Fired(fired=row["fired"], moved=moved, cut=row["cut"], refused=frozenset(row["refused"]))


async def jump(store: Store, holding: Holding, moves: Sequence[Move]) -> Fired:
    """Let hands that were left behind jump to their latest missed instant, and record what they pass over."""
    shards, tokens = holding.within([m.hand.shard for m in moves])
    row = await store.pool.fetchrow(
        _SQL.jump,
        holding.holder,
        shards,
        tokens,
        [m.hand.shard for m in moves],
        [m.hand.schedule_id for m in moves],
        [m.hand.next_at for m in moves],
        [m.to for m in moves],
        [m.missed for m in moves],
    )
    assert row is not None
    missed = sum(m.missed for m in moves) if row["moved"] else 0
    return Fired(moved=row["moved"], missed=missed, refused=frozenset(row["refused"]))


async def ring(store: Store, holding: Holding, shards: Sequence[int], lead: timedelta, most: int) -> Fired:
    """Move due timers into the queue."""
    held, tokens = holding.within(shards)
    row = await store.pool.fetchrow(_SQL.ring, holding.holder, held, tokens, lead, most)
    assert row is not None
    return Fired(fired=row["fired"], refused=frozenset(row["refused"]))


async def overdue(store: Store, by: timedelta) -> int:
    count: int = await store.pool.fetchval(_SQL.overdue, by)
    return count
