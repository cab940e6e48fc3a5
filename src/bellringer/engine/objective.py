"""Computes how many of a tenant's runs started on time, how fast the error budget burns, and why the worst minutes
were late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import usage
from bellringer.store.connection_pool import Store
from bellringer.store.usage import ObjectiveRow, PoolMinute, Starts

DEFAULT_TARGET: Final = 0.999
DEFAULT_START_WITHIN: Final = timedelta(seconds=5)
DEFAULT_MAX_MISSED: Final = 0.0001  # of the occurrences
INSTALLATION: Final = "all tenants"
MAX_INSTALLATION_WINDOW: Final = timedelta(days=1)  # the usage of all tenants is summed when it is read
MAX_WINDOW: Final = timedelta(days=30)  # usage is kept for this long
MIN_WINDOW: Final = timedelta(minutes=1)
BURN_RATE_SPANS: Final = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))
MAX_WORST_MINUTES: Final = 10
MIN_ERROR_BUDGET: Final = 1e-6  # so that a target of 100 % can be missed
FULL_SATURATION: Final = 0.9  # busy share of slots from which on a pool counts as full

PoolCondition = Literal["no_worker", "full", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """The slots of a pool in one minute: the busy share, and how the busy time divides among tenants.

    `named` lists the other tenants that used most, for callers who may see them.
    """

    pool: str
    cause: PoolCondition
    saturation: float | None  # None: the pool had no slots
    own: float
    others: float
    named: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadMinute:
    """A minute whose due runs started late or were missed, with the usage of the pools that they waited for."""

    at: datetime
    started: int
    late: int
    missed: int
    pools: Sequence[PoolUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRate:
    """The speed at which the error budget was used over a span: at 1, the budget lasts exactly as long as the
    window.
    """

    over: timedelta
    started: int
    late: int
    missed: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedShare:
    """The missed occurrences of a span. `expected` are those that ran and those that were missed; deliberate skips
    (overlap, freeze, pause, calendar) are in neither. `burn` is the share as a multiple of the allowed share.
    """

    over: timedelta
    expected: int
    missed: int
    share: float | None  # None: nothing was expected
    burn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedReport:
    """The objective for missed occurrences over a window: at most `max_share` of them."""

    max_share: float
    whole: MissedShare
    budget_left: float
    burns: Sequence[MissedShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveReport:
    """A tenant's objective over a window. `compliance` is None if nothing was due.

    Missed occurrences count as late, in addition to the `late` runs that started.
    """

    tenant: str
    target: float
    within: timedelta
    since: datetime
    until: datetime
    started: int
    late: int
    missed: int
    compliance: float | None
    budget_left: float
    burns: Sequence[BurnRate]
    worst: Sequence[BadMinute]
    occurrences: MissedReport


def missed_share(over: timedelta, occurrences: int, missed: int, max_share: float) -> MissedShare:
    """Returns the share of missed occurrences, and how fast it uses the error budget."""
    expected = occurrences + missed
    share = None if expected == 0 else missed / expected
    return MissedShare(
        over=over,
        expected=expected,
        missed=missed,
        share=share,
        burn=(share or 0.0) / max(max_share, MIN_ERROR_BUDGET),
    )


def compliance(due: int, late: int) -> float | None:
    """Returns the share of due runs that started on time."""
    return None if due == 0 else 1 - late / due


def burn_rate(due: int, late: int, target: float) -> float:
    """Returns the share of late runs as a multiple of the allowed share."""
    return 0.0 if late == 0 else late / (due * max(1 - target, MIN_ERROR_BUDGET))


def budget_left(due: int, late: int, target: float) -> float:
    """Returns the share of the error budget that is left; negative if the objective is missed."""
    return 1 - burn_rate(due, late, target)


def pool_usage(pool_minute: PoolMinute) -> PoolUsage:
    """Divides the busy time of a pool among the tenant and the others."""
    busy = pool_minute.own_ms + pool_minute.others_ms
    saturation = busy / pool_minute.slots_ms if pool_minute.slots_ms else None
    cause: PoolCondition = "free"
    if saturation is None:
        cause = "no_worker"
    elif saturation >= FULL_SATURATION:
        cause = "full"
    return PoolUsage(
        pool=pool_minute.pool,
        cause=cause,
        saturation=None if saturation is None else min(saturation, 1.0),
        own=_part(pool_minute.own_ms, busy),
        others=_part(pool_minute.others_ms, busy),
        named={name: _part(spent, busy) for name, spent in pool_minute.others.items()},
    )


def check_window(window: timedelta, most: timedelta = MAX_WINDOW) -> timedelta:
    """Checks that usage is kept for a window of this length."""
    if not MIN_WINDOW <= window <= most:
        raise InvalidInput(
            f"a window of {format_duration(window)} is not supported",
            hint=f"give {format_duration(MIN_WINDOW)} to {format_duration(most)}"
            + ("; older data is not kept" if most == MAX_WINDOW else ""),
            code="limit_range",
            pointer="/window",
        )
    return window


async def load_objective(
    store: Store, tenant_id: int, window: timedelta = MAX_WINDOW, *, named: Store | None = None
) -> ObjectiveReport:
    """Reports on the runs that were due in the window up to now.

    `named` is a store that sees all tenants, for callers who may see the other tenants' names.
    """
    window = check_window(window)
    goal = await usage.load_objective(store, tenant_id)
    if goal is None:
        raise NotFound("there is no such tenant")
    until = goal.now
    spans = [until - length for length in (window, *BURN_RATE_SPANS)]
    sums = {found.since: found for found in await usage.starts_since(store, tenant_id, sorted({*spans}), until)}
    worst = await _load_worst_minutes(store, tenant_id, spans[0], until, named)
    return _report(goal, window, sums, worst)


async def load_installation_objective(
    store: Store, tenant_id: int, window: timedelta = MAX_INSTALLATION_WINDOW
) -> ObjectiveReport:
    """Reports on the runs of all tenants together, by the default objectives. `tenant_id` is the caller's.

    A run counts as late by the objective of its own tenant.
    """
    window = check_window(window, most=MAX_INSTALLATION_WINDOW)
    goal = await usage.load_objective(store, tenant_id)
    if goal is None:
        raise NotFound("there is no such tenant")
    spans = {goal.now - length for length in (window, *BURN_RATE_SPANS)}
    sums = {found.since: found for found in await usage.all_starts_since(store, sorted(spans), goal.now)}
    everyone = ObjectiveRow(tenant=INSTALLATION, target=None, within=None, now=goal.now)
    return _report(everyone, window, sums, [])


def _report(
    goal: ObjectiveRow, window: timedelta, sums: Mapping[datetime, Starts], worst: Sequence[BadMinute]
) -> ObjectiveReport:
    until = goal.now
    whole = sums[until - window]
    target = DEFAULT_TARGET if goal.target is None else goal.target
    max_missed = DEFAULT_MAX_MISSED if goal.max_missed is None else goal.max_missed
    missed = missed_share(window, whole.occurrences, whole.missed, max_missed)
    return ObjectiveReport(
        tenant=goal.tenant,
        target=target,
        within=DEFAULT_START_WITHIN if goal.within is None else timedelta(seconds=goal.within),
        since=until - window,
        until=until,
        started=whole.started,
        late=whole.late,
        missed=whole.missed,
        compliance=compliance(*_due_and_late(whole)),
        budget_left=budget_left(*_due_and_late(whole), target),
        burns=[_burn(length, sums[until - length], target) for length in BURN_RATE_SPANS],
        worst=worst,
        occurrences=MissedReport(
            max_share=max_missed,
            whole=missed,
            budget_left=1 - missed.burn,
            burns=[
                missed_share(length, found.occurrences, found.missed, max_missed)
                for length in BURN_RATE_SPANS
                for found in (sums[until - length],)
            ],
        ),
    )


async def _load_worst_minutes(
    store: Store, tenant_id: int, since: datetime, until: datetime, named: Store | None
) -> list[BadMinute]:
    worst = await usage.worst_minutes(store, tenant_id, since, until, MAX_WORST_MINUTES)
    if not worst:
        return []
    minutes = [minute.since for minute in worst]
    pools = await usage.pool_minutes(named or store, tenant_id, minutes, named=named is not None)
    return [
        BadMinute(
            at=minute.since,
            started=minute.started,
            late=minute.late,
            missed=minute.missed,
            pools=[pool_usage(pool_minute) for pool_minute in pools if pool_minute.minute == minute.since],
        )
        for minute in worst
    ]


def _burn(over: timedelta, found: Starts, target: float) -> BurnRate:
    return BurnRate(
        over=over,
        started=found.started,
        late=found.late,
        missed=found.missed,
        rate=burn_rate(*_due_and_late(found), target),
    )


def _due_and_late(found: Starts) -> tuple[int, int]:
    return found.started + found.missed, found.late + found.missed


def _part(some: int, all_of_it: int) -> float:
    return some / all_of_it if all_of_it else 0.0
