"""Time zone rules: the versions in use, the version that each shard follows, and the cohorts that new rules moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from weakref import WeakKeyDictionary

from bellringer.core.leases import Holding
from bellringer.schedule.time_zones import TzRules, tz_version
from bellringer.store.cohorts import Cohort, TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("tzdata")
_RULES_BY_STORE: Final[WeakKeyDictionary[Store, dict[str, TzRules]]] = WeakKeyDictionary()
MAX_JOBS_COUNTED: Final = 1_000  # per schedule and shard


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRules:
    """The rules that a shard's cohorts were last checked against, and the lease token of that check."""

    rules: TzRules
    token: int


@dataclass(frozen=True, slots=True)
class Correction:
    """A cohort and its correct instant; `passed_at` is the instant that it waited for if that has passed."""

    cohort: Cohort
    to: datetime
    passed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedCohorts:
    """Cohorts of one schedule that new rules have moved."""

    version: str
    schedule_id: int
    old_next: datetime
    new_next: datetime
    moved_at: datetime
    shards: Sequence[int]
    jobs: int


async def local_rules(store: Store) -> TzRules:
    """Returns the time zone rules of this process, registered once per process."""
    version, known = tz_version(), _RULES_BY_STORE.setdefault(store, {})
    if version not in known:
        await store.pool.execute(_SQL.add_version, version)
        known.update({rules.version: rules for rules in await list_versions(store)})
    return known[version]


async def local_tz_id(store: Store) -> int:
    """Returns the id of the rules of this process."""
    return (await local_rules(store)).tz_id


async def list_versions(store: Store) -> list[TzRules]:
    """Returns all rules that any process has used."""
    return [TzRules(**dict(row)) for row in await store.pool.fetch(_SQL.versions)]


async def applied_rules(store: Store) -> Mapping[int, AppliedRules]:
    """Returns the rules of each shard that was checked."""
    return {
        shard: AppliedRules(rules=TzRules(number, version), token=token)
        for shard, number, version, token in await store.pool.fetch(_SQL.applied)
    }


async def zoned_cohorts(store: Store, shard: int, after: int, now: datetime, limit: int) -> list[Cohort]:
    """Returns the next cohorts of a shard, by schedule, that depend on time zone rules and may be moved."""
    rows = await store.pool.fetch(_SQL.zoned_cohorts, shard, after, now, limit)
    return [Cohort(next_at, shard, schedule_id) for schedule_id, next_at in rows]


async def move_cohorts(store: Store, holding: Holding, rules: TzRules, moves: Sequence[Correction]) -> TickOutcome:
    """Moves cohorts to their correct instants and records the moves; a cohort that moved meanwhile is left alone."""
    shards, tokens = holding.tokens_for([m.cohort.shard for m in moves])
    row = await store.pool.fetchrow(
        _SQL.retime,
        holding.holder,
        shards,
        tokens,
        rules.tz_id,
        [m.cohort.shard for m in moves],
        [m.cohort.schedule_id for m in moves],
        [m.cohort.next_at for m in moves],
        [m.to for m in moves],
        [m.passed_at for m in moves],
    )
    assert row is not None
    return TickOutcome(moved=row["moved"], refused=frozenset(row["refused"]))


async def record_applied_rules(
    store: Store, holding: Holding, rules: TzRules, shards: Collection[int]
) -> frozenset[int]:
    """Records that these shards follow the rules; returns the shards whose lease was lost."""
    held, tokens = holding.tokens_for(list(shards))
    return frozenset(await store.pool.fetchval(_SQL.apply_rules, holding.holder, held, tokens, rules.tz_id))


async def recent_moves(store: Store, limit: int) -> list[MovedCohorts]:
    """Returns the newest moves."""
    return [MovedCohorts(**dict(row)) for row in await store.pool.fetch(_SQL.moves, limit, MAX_JOBS_COUNTED)]


async def recent_moves_of_tenant(store: Store, tenant_id: int, limit: int) -> list[MovedCohorts]:
    """Returns the newest moves that concern a tenant; its jobs are counted once a minute."""
    return [MovedCohorts(**dict(row)) for row in await store.pool.fetch(_SQL.moves_of_tenant, limit, tenant_id)]
