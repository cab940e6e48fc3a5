"""Objective: how many of a tenant's runs started in time, how fast its error budget burns, and what was in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import usage
from bellringer.store.pool import Store
from bellringer.store.usage import Around, Starts

TARGET: Final = 0.999
WITHIN: Final = timedelta(seconds=5)
WINDOW: Final = timedelta(days=30)  # as long as usage is kept
SHORTEST: Final = timedelta(minutes=1)
BURNS: Final = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))
WORST: Final = 10
LEAST: Final = 1e-6  # which part may be late at least, so that a target of 1 can be missed and told
FULL: Final = 0.9  # the part of a pool's slots from which on it counts as full

Cause = Literal["no_worker", "full", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a pool did in a minute: which part of its slots was busy, and with whose work, in parts of the busy time.

    `named` are the other tenants that used most, for who may know them.
    """

    pool: str
    cause: Cause
    saturation: float | None  # None: there were no slots
    own: float
    others: float
    named: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """A minute in which runs were due that started too late, and the pools that they waited for."""

    at: datetime
    started: int
    late: int
    pools: Sequence[Used]


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """How fast the budget is used up over some time: at 1 it lasts just as long as the window."""

    over: timedelta
    started: int
    late: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A tenant's objective over a window. `compliance` is None where nothing was due."""

    tenant: str
    target: float
    within: timedelta
    since: datetime
    until: datetime
    started: int
    late: int
    compliance: float | None
    budget_left: float
    burns: Sequence[Burn]
    worst: Sequence[Minute]


def compliance(started: int, late: int) -> float | None:
    """The part that started in time."""
    return None if started == 0 else 1 - late / started


def burn_rate(started: int, late: int, target: float) -> float:
    """The part that was late, as a multiple of the part that may be."""
    return 0.0 if late == 0 else late / (started * max(1 - target, LEAST))


def budget_left(started: int, late: int, target: float) -> float:
    """The part of the error budget that is left; below 0 the objective is missed."""
    return 1 - burn_rate(started, late, target)


def used(around: Around) -> Used:
    """Whose work filled a pool."""
    busy = around.own_ms + around.others_ms
    saturation = busy / around.slots_ms if around.slots_ms else None
    cause: Cause = "free"
    if saturation is None:
        cause = "no_worker"
    elif saturation >= FULL:
        cause = "full"
    return Used(
        pool=around.pool,
        cause=cause,
        saturation=None if saturation is None else min(saturation, 1.0),
        own=_part(around.own_ms, busy),
        others=_part(around.others_ms, busy),
        named={name: _part(spent, busy) for name, spent in around.others.items()},
    )


def check_window(window: timedelta) -> timedelta:
    """A window that usage can tell of."""
    if not SHORTEST <= window <= WINDOW:
        raise InvalidInput(
            f"window is {format_duration(window)}",
            hint=f"give {format_duration(SHORTEST)} to {format_duration(WINDOW)}; no more is kept",
            code="limit_range",
            pointer="/window",
        )
    return window


async def objective(
    store: Store, tenant_id: int, window: timedelta = WINDOW, *, named: Store | None = None
) -> Objective:
    """What became of the runs that were due in the window up to now, as far as they have started.

    `named` is a store that sees all tenants, for who may know who the others are.
    """
    window = check_window(window)
    goal = await usage.goal(store, tenant_id)
    if goal is None:
        raise NotFound("there is no such tenant")
    until = goal.now
    spans = [until - length for length in (window, *BURNS)]
    sums = {found.since: found for found in await usage.sums(store, tenant_id, sorted({*spans}), until)}
    whole = sums[spans[0]]
    target = TARGET if goal.target is None else goal.target
    return Objective(
        tenant=goal.tenant,
        target=target,
        within=WITHIN if goal.within is None else timedelta(seconds=goal.within),
        since=spans[0],
        until=until,
        started=whole.started,
        late=whole.late,
        compliance=compliance(whole.started, whole.late),
        budget_left=budget_left(whole.started, whole.late, target),
        burns=[_burn(length, sums[until - length], target) for length in BURNS],
        worst=await _worst(store, tenant_id, spans[0], until, named),
    )


async def _worst(store: Store, tenant_id: int, since: datetime, until: datetime, named: Store | None) -> list[Minute]:
    worst = await usage.worst(store, tenant_id, since, until, WORST)
    if not worst:
        return []
    minutes = [minute.since for minute in worst]
    pools = await usage.around(named or store, tenant_id, minutes, named=named is not None)
    return [
        Minute(
            at=minute.since,
            started=minute.started,
            late=minute.late,
            pools=[used(around) for around in pools if around.minute == minute.since],
        )
        for minute in worst
    ]


def _burn(over: timedelta, found: Starts, target: float) -> Burn:
    return Burn(over=over, started=found.started, late=found.late, rate=burn_rate(found.started, found.late, target))


def _part(some: int, all_of_it: int) -> float:
    return some / all_of_it if all_of_it else 0.0
