"""Fires cohorts that are due: computes their next occurrences in Python, then inserts the runs in one SQL call.

`plan_moves` decides which occurrence each cohort fires and where its cursor goes; it is pure. The SQL function
`bellringer.tick` checks the shard leases and inserts the runs. One call is bounded. A late cohort fires several
occurrences in one call, so catching up takes as long as inserting the runs takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from bellringer.core.leases import Holding
from bellringer.schedule import Schedule
from bellringer.store import cohorts, partitions
from bellringer.store.cohorts import Cohort, CohortMove, OccurrenceExists, TickLimits, TickOutcome
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

MAX_MOVES_PER_TICK: Final = 2_000  # unless more cohorts than this are due
MAX_TIMERS_PER_CALL: Final = 4_000  # takes about 100 ms
MAX_LATE_RUNS_PER_TICK: Final = 2_000  # lower, because overlapping runs of a job cost more to insert

__all__ = ["TickLimits", "TickPlan", "TickResult", "fire_timers", "max_timers", "plan_moves", "tick"]


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The moves of due cohorts: `moves` fire one occurrence each, `fast_forwards` skip missed occurrences."""

    moves: Sequence[CohortMove]
    fast_forwards: Sequence[CohortMove]


def plan_moves(due: Sequence[Cohort], schedules: Mapping[int, Schedule], now: datetime, limits: TickLimits) -> TickPlan:
    """Plans the next move of each due cohort.

    A late cohort fires one occurrence after the other. A cohort that is later than the grace period is
    fast-forwarded to its latest missed occurrence. Each (schedule, instant) is computed once for all shards. A
    schedule that this version cannot read is left to a scheduler that can.
    """
    moves: list[CohortMove] = []
    jumps: list[CohortMove] = []
    cache: _MoveCache = {}
    for cohort in due:
        schedule = schedules.get(cohort.schedule_id)
        if schedule is None:
            continue
        to, missed = _next_move_cached(cache, schedule, cohort, now, limits)
        (jumps if missed or cohort.target_at is not None else moves).append(CohortMove(cohort, to, missed))
    return TickPlan(moves if jumps else _add_late_moves(moves, schedules, cache, now, limits), jumps)


_MoveCache = dict[tuple[int, datetime, datetime | None], tuple[datetime, int]]


def _next_move_cached(
    cache: _MoveCache, schedule: Schedule, cohort: Cohort, now: datetime, limits: TickLimits
) -> tuple[datetime, int]:
    case = (cohort.schedule_id, cohort.next_at, cohort.target_at)
    if case not in cache:
        cache[case] = _next_move(schedule, cohort, now, limits)
    return cache[case]


def _add_late_moves(
    moves: Sequence[CohortMove], schedules: Mapping[int, Schedule], cache: _MoveCache, now: datetime, limits: TickLimits
) -> Sequence[CohortMove]:
    """Returns the moves plus the following moves of cohorts that are still late, ordered by instant."""
    planned_moves, last, until = list(moves), moves, now + limits.lead
    while last and len(planned_moves) < MAX_MOVES_PER_TICK:
        late = [move for move in last if move.to <= until][: MAX_MOVES_PER_TICK - len(planned_moves)]
        last = []
        for move in late:
            cohort = move.cohort._replace(next_at=move.to)
            to, _ = _next_move_cached(cache, schedules[cohort.schedule_id], cohort, now, limits)
            last.append(CohortMove(cohort, to, base=move.base or move.cohort.next_at))
        planned_moves += last
    if len(planned_moves) > len(moves):
        planned_moves.sort(key=attrgetter("cohort.next_at"))  # stable; the instants of each cohort ascend
    return planned_moves


def _next_move(schedule: Schedule, cohort: Cohort, now: datetime, limits: TickLimits) -> tuple[datetime, int]:
    """Returns the next position of a cohort's cursor and the number of occurrences that it skips."""
    at = cohort.next_at
    if cohort.target_at is not None:
        return cohort.target_at, schedule.count_between(at, cohort.target_at)
    if now - at > limits.grace:
        latest = schedule.last_at_or_before(now, not_before=at)
        if latest is not None and latest > at:
            return latest, schedule.count_between(at, latest)
    following = schedule.next_after(at)
    return following or datetime.max.replace(tzinfo=at.tzinfo, microsecond=0), 0


@dataclass(frozen=True, slots=True)
class TickResult:
    """The outcome of one pass and the new positions of the given cohorts.

    `stale` means that the caller's positions were wrong and must be read again. `due_instants` are the occurrences
    that fired, completely or in part.
    """

    fired: TickOutcome
    cohorts: Sequence[Cohort] = ()
    stale: bool = False
    due_instants: frozenset[datetime] = frozenset()


async def tick(
    store: Store,
    catalog: Catalog,
    holding: Holding,
    due: Sequence[Cohort],
    now: datetime,
    limits: TickLimits,
    tz_id: int | None = None,
) -> TickResult:
    """Fires the given cohorts, as many as one call allows; `tz_id` identifies the time zone rules in use.

    Fast-forwards are written first and alone: a cohort that was fast-forwarded fires in a later pass, so a crash in
    between leaves no partial work.
    """
    schedules = await catalog.schedules({cohort.schedule_id for cohort in due})
    planned = plan_moves(due, schedules, now, limits)
    given = planned.fast_forwards or planned.moves
    if not given:
        return TickResult(TickOutcome())
    if planned.fast_forwards:
        fired = await cohorts.fast_forward(store, holding, given, limits.max_runs)
    else:
        await partitions.ensure_days(store, {move.cohort.next_at.date() for move in given})
        fired = await _write_tick(store, holding, given, _limit_late_runs(limits, given), tz_id)
    if fired.refused or not (fired.moved or fired.cut):
        return TickResult(fired, stale=True)
    due_instants = frozenset(move.cohort.next_at for move in given[: fired.moved + fired.cut])
    if not planned.fast_forwards:
        return TickResult(fired, _cohorts_after(given, fired.moved), due_instants=due_instants)
    rest = given[fired.moved + fired.cut :]  # a partial fast-forward has stored its target, so its cohort is read again
    unmoved = (move.cohort for move in (*rest, *planned.moves))
    return TickResult(fired, [*map(_cohort_after, given[: fired.moved]), *unmoved], due_instants=due_instants)


def _limit_late_runs(limits: TickLimits, moves: Sequence[CohortMove]) -> TickLimits:
    """Lowers the number of runs per call when cohorts fire repeatedly, so that shard locks are held briefly."""
    if all(move.base is None for move in moves):
        return limits
    return replace(limits, max_runs=min(limits.max_runs, MAX_LATE_RUNS_PER_TICK))


async def _write_tick(
    store: Store, holding: Holding, moves: Sequence[CohortMove], limits: TickLimits, tz_id: int | None
) -> TickOutcome:
    try:
        return await cohorts.tick(store, holding, moves, limits, tz_id)
    except OccurrenceExists:
        return await cohorts.tick(store, holding, moves, limits, tz_id, careful=True)


def _cohorts_after(moves: Sequence[CohortMove], made: int) -> list[Cohort]:
    """Returns the position of each cohort after the first `made` moves."""
    positions = {(move.cohort.shard, move.cohort.schedule_id): move.cohort for move in moves if move.base is None}
    for move in moves[:made]:
        positions[move.cohort.shard, move.cohort.schedule_id] = _cohort_after(move)
    return list(positions.values())


def _cohort_after(move: CohortMove) -> Cohort:
    return move.cohort._replace(next_at=move.to, target_at=None)


def max_timers(limits: TickLimits) -> int:
    """Returns how many timers one call of `fire_timers` moves at most; if it moves so many, more may be due."""
    return min(limits.max_runs, MAX_TIMERS_PER_CALL)


async def fire_timers(store: Store, holding: Holding, shards: Sequence[int], limits: TickLimits) -> TickOutcome:
    """Moves due timers of these shards into the queue, and notifies workers."""
    limit = max_timers(limits)
    try:
        return await cohorts.fire_timers(store, holding, shards, limits.lead, limit)
    except OccurrenceExists:
        return await cohorts.fire_timers(store, holding, shards, limits.lead, limit, careful=True)
