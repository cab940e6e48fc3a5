"""Retime: hands follow new rules of the time zones. One bounded pass a call, shard by shard, under the fence.

A shard remembers by which rules its hands were last looked through, and under which lease. A new holder looks through
them again if its rules are newer, or if somebody held the shard in between who never said by which rules he fired. A
holder with older rules leaves the hands where they are and says that it fires by those: so the next one looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.leases import Holding
from bellringer.schedule import Schedule
from bellringer.schedule.tzversion import Rules
from bellringer.store import tz
from bellringer.store.cohorts import Hand
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.tz import Applied, Correction

CHUNK: Final = 500  # evaluated at one go: some tens of milliseconds
MOST_HANDS: Final = 20_000  # a pass; the shard that exceeds it is finished
AHEAD: Final = timedelta(seconds=5)  # more than any lead
FARTHEST: Final = timedelta(hours=26)  # no zone is farther from another
_MOMENT: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """What a pass did: hands moved, and the shards that are done; the others want another pass."""

    moved: int = 0
    shards: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


def is_settled(applied: Applied | None, token: int, rules: Rules) -> bool:
    """Whether a shard's hands need no look: they follow these rules, or newer ones, without a break."""
    if applied is None:
        return False
    if applied.rules == rules:
        return applied.token in (token, token - 1)
    return applied.rules.newer_than(rules)


def corrections(hands: Sequence[Hand], schedules: Mapping[int, Schedule], now: datetime) -> list[Correction]:
    """Where hands should be and are not; never in the past. What this version cannot read stays."""
    moves = []
    for hand in hands:
        schedule = schedules.get(hand.schedule_id)
        if schedule is not None and (to := _place_of(schedule, hand.next_at, now)) != hand.next_at:
            moves.append(Correction(hand, to, _lost(schedule, hand.next_at, to, now)))
    return moves


def _place_of(schedule: Schedule, at: datetime, now: datetime) -> datetime:
    """The first instant to come; or where the hand is, if only what may be fired ahead of its time lies before that."""
    first = to = schedule.next_after(now - _MOMENT)
    while to is not None and to < at and to <= now + AHEAD:
        to = schedule.next_after(to)
    return at if to == at else first or datetime.max.replace(tzinfo=now.tzinfo, microsecond=0)


def _lost(schedule: Schedule, at: datetime, to: datetime, now: datetime) -> datetime | None:
    """What a hand waited for, if that has gone by: an instant of the past that is nearer to it than the next."""
    reach = min(to - at, FARTHEST)
    if reach <= timedelta(0):
        return None
    return schedule.last_at_or_before(now - _MOMENT, not_before=at - reach + _MOMENT)


async def retime(store: Store, names: Names, holding: Holding, now: datetime, rules: Rules) -> Retimed:
    """Bring the hands of the held shards in line with the rules, as many as one pass takes."""
    applied = await tz.applied(store)
    settled = {s for s, token in holding.tokens.items() if is_settled(applied.get(s), token, rules)}
    moved = looked = 0
    for shard in sorted(holding.tokens.keys() - settled):
        if looked >= MOST_HANDS:
            break
        done = await _retime_shard(store, names, holding, shard, now, rules)
        looked, moved = looked + done.looked, moved + done.moved
        if done.whole:
            settled.add(shard)
    refused = await tz.apply_rules(store, holding, rules, settled) if settled else frozenset()
    return Retimed(moved=moved, shards=frozenset(settled - refused), refused=refused)


@dataclass(frozen=True, slots=True)
class _Looked:
    looked: int
    moved: int
    whole: bool


async def _retime_shard(
    store: Store, names: Names, holding: Holding, shard: int, now: datetime, rules: Rules
) -> _Looked:
    """A shard, chunk by chunk. A hand that moved meanwhile was moved by a tick or an edit: then look once more."""
    looked = moved = wanted = after = 0
    while hands := await tz.hands(store, shard, after, now, CHUNK):
        schedules = await names.schedules({hand.schedule_id for hand in hands})
        moves = corrections(hands, schedules, now)
        if moves:
            fired = await tz.retime(store, holding, rules, moves)
            if fired.refused:
                return _Looked(looked, moved, whole=False)
            moved += fired.moved
        looked, wanted, after = looked + len(hands), wanted + len(moves), hands[-1].schedule_id
        if len(hands) < CHUNK:
            break
    return _Looked(looked, moved, whole=moved == wanted)


async def newest_rules(store: Store, rules: Rules) -> Rules:
    """The newest rules that anybody here has computed by."""
    for other in await tz.versions(store):
        if other.newer_than(rules):
            rules = other
    return rules
