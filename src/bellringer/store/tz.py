"""The rules of the time zones in the database: which versions there were, who follows which, what they moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from weakref import WeakKeyDictionary

from bellringer.leases import Holding
from bellringer.schedule.tzversion import Rules, tz_version
from bellringer.store.cohorts import Fired, Hand
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("tz")
_KNOWN: Final[WeakKeyDictionary[Store, dict[str, Rules]]] = WeakKeyDictionary()
MOST_COUNTED: Final = 1_000  # jobs of one schedule and shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """By which rules a shard's hands were last looked through, and under which lease."""

    rules: Rules
    token: int


@dataclass(frozen=True, slots=True)
class Correction:
    """A hand, where it should be; and what it waited for, if by the rules that lies in the past."""

    hand: Hand
    to: datetime
    lost: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Hands of one schedule that new rules have moved."""

    version: str
    schedule_id: int
    old_next: datetime
    new_next: datetime
    moved_at: datetime
    shards: Sequence[int]
    jobs: int


async def rules_here(store: Store) -> Rules:
    """The rules that this process computes by, under their number; asked for once in a process."""
    version, known = tz_version(), _KNOWN.setdefault(store, {})
    if version not in known:
        await store.pool.execute(_SQL.add_version, version)
        known.update({rules.version: rules for rules in await versions(store)})
    return known[version]


async def tz_id(store: Store) -> int:
    """The number of the rules that this process computes by."""
    return (await rules_here(store)).tz_id


async def versions(store: Store) -> list[Rules]:
    """All rules that anybody here has computed by."""
    return [Rules(**dict(row)) for row in await store.pool.fetch(_SQL.versions)]


async def applied(store: Store) -> Mapping[int, Applied]:
    """What each shard follows; one that nobody has looked through is not among them."""
    return {
        shard: Applied(rules=Rules(number, version), token=token)
        for shard, number, version, token in await store.pool.fetch(_SQL.applied)
    }


async def hands(store: Store, shard: int, after: int, now: datetime, most: int) -> list[Hand]:
    """The next of a shard's hands, in order of their schedules, that depend on the rules and may be moved."""
    rows = await store.pool.fetch(_SQL.hands, shard, after, now, most)
    return [Hand(next_at, shard, schedule_id) for schedule_id, next_at in rows]


async def retime(store: Store, holding: Holding, rules: Rules, moves: Sequence[Correction]) -> Fired:
    """Move hands to where the rules say, and record it; one that is not where it was seen stays."""
    shards, tokens = holding.within([m.hand.shard for m in moves])
    row = await store.pool.fetchrow(
        _SQL.retime,
        holding.holder,
        shards,
        tokens,
        rules.tz_id,
        [m.hand.shard for m in moves],
        [m.hand.schedule_id for m in moves],
        [m.hand.next_at for m in moves],
        [m.to for m in moves],
        [m.lost for m in moves],
    )
    assert row is not None
    return Fired(moved=row["moved"], refused=frozenset(row["refused"]))


async def apply_rules(store: Store, holding: Holding, rules: Rules, shards: Collection[int]) -> frozenset[int]:
    """Say that these shards follow the rules from now on; answers those whose lease was lost."""
    held, tokens = holding.within(list(shards))
    return frozenset(await store.pool.fetchval(_SQL.apply_rules, holding.holder, held, tokens, rules.tz_id))


async def moves(store: Store, most: int) -> list[Moved]:
    """The newest moves."""
    return [Moved(**dict(row)) for row in await store.pool.fetch(_SQL.moves, most, MOST_COUNTED)]


async def moves_of(store: Store, tenant_id: int, most: int) -> list[Moved]:
    """The newest of those that concern a tenant; its jobs are counted once a minute."""
    return [Moved(**dict(row)) for row in await store.pool.fetch(_SQL.moves_of, most, tenant_id)]
