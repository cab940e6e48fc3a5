"""Tick: hands that strike become runs. One bounded pass a call: plan purely, then write once under the fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bellringer.leases import Holding
from bellringer.schedule import Schedule
from bellringer.store import cohorts, history
from bellringer.store.cohorts import MOST_RUNS, Fired, Hand, Move
from bellringer.store.names import Names
from bellringer.store.pool import Store



@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far ahead of its time a run may be born, and how late a hand may be before it has misfired."""

    lead: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=60)
    most: int = MOST_RUNS


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with hands that are due."""

    moves: Sequence[Move]
    jumps: Sequence[Move]


def plan(hands: Sequence[Hand], schedules: Mapping[int, Schedule], now: datetime, pace: Pace) -> Plan:
    """Late hands walk on, one occurrence at a time; those later than the grace jump to their latest missed instant.

    Each (schedule, instant) is worked out once, however many shards share it.
    """
    moves: list[Move] = []
    jumps: list[Move] = []
    known: dict[tuple[int, datetime], tuple[datetime, int]] = {}
    for hand in hands:
        at = hand.next_at
        if (hand.schedule_id, at) not in known:
            known[hand.schedule_id, at] = _onward(schedules[hand.schedule_id], at, now, pace)
        to, missed = known[hand.schedule_id, at]
        (jumps if missed else moves).append(Move(hand, to, missed))
    return Plan(moves, jumps)


def _onward(schedule: Schedule, at: datetime, now: datetime, pace: Pace) -> tuple[datetime, int]:
    """Where a hand at this instant goes, and how many occurrences it misses on the way."""
    if now - at > pace.grace:
        latest = schedule.last_at_or_before(now, not_before=at)
        if latest is not None and latest > at:
            return latest, schedule.count_between(at, latest)
    following = schedule.next_after(at)
    return following or datetime.max.replace(tzinfo=at.tzinfo, microsecond=0), 0


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a pass did, and where the given hands stand now as far as is known."""

    fired: Fired
    hands: Sequence[Hand]


async def tick(
    store: Store, names: Names, holding: Holding, hands: Sequence[Hand], now: datetime, pace: Pace
) -> Ticked:
    """Fire what the given hands strike, as much as one call takes.

    Jumps come first and alone: a hand that has jumped strikes in a later pass, so that a crash in between leaves
    nothing half done.
    """
    schedules = await names.schedules({hand.schedule_id for hand in hands})
    planned = plan(hands, schedules, now, pace)
    if planned.jumps:
        fired = await cohorts.jump(store, holding, planned.jumps)
        rest = [move.hand for move in planned.moves]
        return Ticked(fired, [*rest, *map(_moved, planned.jumps)] if fired.moved == len(planned.jumps) else rest)
    await history.ensure_days(store, {move.hand.next_at.date() for move in planned.moves})
    fired = await cohorts.tick(store, holding, planned.moves, pace.lead, pace.most)
    if fired.refused or not (fired.moved or fired.cut):
        return Ticked(fired, [])  # what the caller remembered was wrong
    return Ticked(fired, [*map(_moved, planned.moves[: fired.moved]), *hands[fired.moved :]])


def _moved(move: Move) -> Hand:
    return move.hand._replace(next_at=move.to)


async def ring(store: Store, holding: Holding, shards: Sequence[int], pace: Pace) -> Fired:
    """Let timers that are due in these shards become runs; a far retry's day exists since its birth."""
    return await cohorts.ring(store, holding, shards, pace.lead, pace.most)
