"""Moves cohorts to the instants that a new time zone database gives, in bounded passes per shard, under the shard
leases.

Each shard records the rules its cohorts were last checked against, and the lease token. A new lease holder checks
the cohorts again if its rules are newer, or if a holder in between did not record its rules. A holder with older
rules leaves the cohorts unchanged and records its rules, so that the next holder checks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.core.leases import Holding
from bellringer.schedule import Schedule
from bellringer.schedule.time_zones import TzRules
from bellringer.store import tzdata
from bellringer.store.cohorts import Cohort
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tzdata import AppliedRules, Correction

COHORTS_PER_CHUNK: Final = 500  # evaluated in some tens of milliseconds
MAX_COHORTS_PER_PASS: Final = 20_000  # a shard that exceeds this is still completed
MAX_LEAD: Final = timedelta(seconds=5)  # more than any configured lead
MAX_OFFSET_DIFFERENCE: Final = timedelta(hours=26)  # the largest difference of two zones' offsets
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetimePass:
    """The outcome of a pass: cohorts moved, and the shards that are complete; the others need another pass."""

    moved: int = 0
    shards: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


def is_up_to_date(applied: AppliedRules | None, token: int, rules: TzRules) -> bool:
    """Whether a shard's cohorts follow these rules, or newer ones, without interruption."""
    if applied is None:
        return False
    if applied.rules == rules:
        return applied.token in (token, token - 1)
    return applied.rules.newer_than(rules)


def plan_corrections(cohorts: Sequence[Cohort], schedules: Mapping[int, Schedule], now: datetime) -> list[Correction]:
    """Returns the cohorts whose next instant differs under the rules, with the correct instant; never one in the
    past.

    Schedules that this version cannot read are left unchanged.
    """
    moves = []
    for cohort in cohorts:
        schedule = schedules.get(cohort.schedule_id)
        if schedule is not None and (to := _correct_next_at(schedule, cohort.next_at, now)) != cohort.next_at:
            moves.append(Correction(cohort, to, _passed_instant(schedule, cohort.next_at, to, now)))
    return moves


def _correct_next_at(schedule: Schedule, at: datetime, now: datetime) -> datetime:
    """Returns the first future instant, or the present one if only instants that may be fired ahead lie before it."""
    first = to = schedule.next_after(now - _MICROSECOND)
    while to is not None and to < at and to <= now + MAX_LEAD:
        to = schedule.next_after(to)
    return at if to == at else first or datetime.max.replace(tzinfo=now.tzinfo, microsecond=0)


def _passed_instant(schedule: Schedule, at: datetime, to: datetime, now: datetime) -> datetime | None:
    """Returns the instant that a cohort waited for if, under the new rules, that instant has passed.

    This is an instant in the past that is nearer to the old instant than the next one.
    """
    reach = min(to - at, MAX_OFFSET_DIFFERENCE)
    if reach <= timedelta(0):
        return None
    return schedule.last_at_or_before(now - _MICROSECOND, not_before=at - reach + _MICROSECOND)


async def retime_cohorts(store: Store, catalog: Catalog, holding: Holding, now: datetime, rules: TzRules) -> RetimePass:
    """Corrects the cohorts of the held shards, as many as one pass allows."""
    applied = await tzdata.applied_rules(store)
    up_to_date = {s for s, token in holding.tokens.items() if is_up_to_date(applied.get(s), token, rules)}
    moved = scanned = 0
    for shard in sorted(holding.tokens.keys() - up_to_date):
        if scanned >= MAX_COHORTS_PER_PASS:
            break
        done = await _retime_shard(store, catalog, holding, shard, now, rules)
        scanned, moved = scanned + done.scanned, moved + done.moved
        if done.is_complete:
            up_to_date.add(shard)
    refused = await tzdata.record_applied_rules(store, holding, rules, up_to_date) if up_to_date else frozenset()
    return RetimePass(moved=moved, shards=frozenset(up_to_date - refused), refused=refused)


@dataclass(frozen=True, slots=True)
class _ShardResult:
    scanned: int
    moved: int
    is_complete: bool


async def _retime_shard(
    store: Store, catalog: Catalog, holding: Holding, shard: int, now: datetime, rules: TzRules
) -> _ShardResult:
    """Corrects one shard in chunks. If a tick or an edit moved a cohort meanwhile, the shard needs another pass."""
    scanned = moved = wanted = after = 0
    while cohorts := await tzdata.zoned_cohorts(store, shard, after, now, COHORTS_PER_CHUNK):
        schedules = await catalog.schedules({cohort.schedule_id for cohort in cohorts})
        moves = plan_corrections(cohorts, schedules, now)
        if moves:
            fired = await tzdata.move_cohorts(store, holding, rules, moves)
            if fired.refused:
                return _ShardResult(scanned, moved, is_complete=False)
            moved += fired.moved
        scanned, wanted, after = scanned + len(cohorts), wanted + len(moves), cohorts[-1].schedule_id
        if len(cohorts) < COHORTS_PER_CHUNK:
            break
    return _ShardResult(scanned, moved, is_complete=moved == wanted)


async def newest_rules(store: Store, rules: TzRules) -> TzRules:
    """Returns the newest rules that any scheduler of the cluster has used."""
    for other in await tzdata.list_versions(store):
        if other.newer_than(rules):
            rules = other
    return rules
