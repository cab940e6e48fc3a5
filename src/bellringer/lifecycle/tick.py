"""Tick: hands that strike become runs. One bounded pass a call: plan purely, then write once under the fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from bellringer.leases import Holding
from bellringer.schedule import Schedule
from bellringer.store import cohorts, history
from bellringer.store.cohorts import Fired, Hand, Move, Occupied, Pace
from bellringer.store.names import Names
from bellringer.store.pool import Store

__all__ = ["Pace", "Plan", "Ticked", "plan", "ring", "tick"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with hands that are due."""

    moves: Sequence[Move]
    jumps: Sequence[Move]


def plan(hands: Sequence[Hand], schedules: Mapping[int, Schedule], now: datetime, pace: Pace) -> Plan:
    """Late hands walk on, one occurrence at a time; those later than the grace jump to their latest missed instant.

    Each (schedule, instant) is worked out once, however many shards share it. A schedule that this version cannot
    read is left for a node that can.
    """
    moves: list[Move] = []
    jumps: list[Move] = []
    known: dict[tuple[int, datetime, datetime | None], tuple[datetime, int]] = {}
    for hand in hands:
        schedule = schedules.get(hand.schedule_id)
        if schedule is None:
            continue
        case = (hand.schedule_id, hand.next_at, hand.jump_to)
        if case not in known:
            known[case] = _onward(schedule, hand, now, pace)
        to, missed = known[case]
        (jumps if missed or hand.jump_to is not None else moves).append(Move(hand, to, missed))
    return Plan(moves, jumps)


def _onward(schedule: Schedule, hand: Hand, now: datetime, pace: Pace) -> tuple[datetime, int]:
    """Where a hand goes, and how many occurrences it misses on the way."""
    at = hand.next_at
    if hand.jump_to is not None:
        return hand.jump_to, schedule.count_between(at, hand.jump_to)
    if now - at > pace.grace:
        latest = schedule.last_at_or_before(now, not_before=at)
        if latest is not None and latest > at:
            return latest, schedule.count_between(at, latest)
    following = schedule.next_after(at)
    return following or datetime.max.replace(tzinfo=at.tzinfo, microsecond=0), 0


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a pass did, and where the given hands stand now as far as is known; `stale`: that memory was wrong."""

    fired: Fired
    hands: Sequence[Hand] = ()
    stale: bool = False


async def tick(
    store: Store,
    names: Names,
    holding: Holding,
    hands: Sequence[Hand],
    now: datetime,
    pace: Pace,
    tz_id: int | None = None,
) -> Ticked:
    """Fire what the given hands strike, as much as one call takes; `tz_id` names the rules of the zones.

    Jumps come first and alone: a hand that has jumped strikes in a later pass, so that a crash in between leaves
    nothing half done.
    """
    schedules = await names.schedules({hand.schedule_id for hand in hands})
    planned = plan(hands, schedules, now, pace)
    given = planned.jumps or planned.moves
    if not given:
        return Ticked(Fired())
    if planned.jumps:
        fired = await cohorts.jump(store, holding, given, pace.most)
    else:
        await history.ensure_days(store, {move.hand.next_at.date() for move in given})
        fired = await _strike(store, holding, given, pace, tz_id)
    if fired.refused or not (fired.moved or fired.cut):
        return Ticked(fired, stale=True)
    rest = given[fired.moved + (fired.cut and bool(planned.jumps)) :]  # a cut jump has a goal now: it is read again
    others = planned.moves if planned.jumps else ()
    return Ticked(fired, [*map(_moved, given[: fired.moved]), *(move.hand for move in (*rest, *others))])


async def _strike(store: Store, holding: Holding, moves: Sequence[Move], pace: Pace, tz_id: int | None) -> Fired:
    try:
        return await cohorts.tick(store, holding, moves, pace, tz_id)
    except Occupied:
        return await cohorts.tick(store, holding, moves, pace, tz_id, careful=True)


def _moved(move: Move) -> Hand:
    return move.hand._replace(next_at=move.to, jump_to=None)


async def ring(store: Store, holding: Holding, shards: Sequence[int], pace: Pace) -> Fired:
    """Let timers that are due in these shards become runs; a far retry's day exists since its birth."""
    return await cohorts.ring(store, holding, shards, pace.lead, pace.most)
