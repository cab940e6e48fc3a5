"""How a tenant fares among the others, as the API tells it."""

from __future__ import annotations

from datetime import datetime

from bellringer.wire.answers import Answer


class PoolUse(Answer, frozen=True):
    """What a pool did in a minute in which runs were late.

    `cause`: there was `no_worker`; the slots were `full`; or some were `free`, so something else held the runs.
    `own` and `others` are parts of the busy time; `named` are the others that used most, for who may know them.
    """

    pool: str
    cause: str
    saturation: float | None
    own: float
    others: float
    named: dict[str, float]


class LateMinute(Answer, frozen=True):
    """A minute in which runs were due that started too late."""

    at: datetime
    started: int
    late: int
    pools: list[PoolUse]


class Burn(Answer, frozen=True):
    """How fast the error budget was used up over some time; at a rate of 1 it lasts for just the window."""

    over: str
    started: int
    late: int
    rate: float


class Objective(Answer, frozen=True, rename={"start": "from", "end": "to"}):
    """Which part of a tenant's runs started in time: `target` of them shall, `within` of when they were due.

    Runs count for the minute in which they were due, once they have started. `budget_left` is 1 while none was late,
    and below 0 when the objective is missed.
    """

    tenant: str
    target: float
    within: str
    start: datetime
    end: datetime
    started: int
    late: int
    compliance: float | None
    budget_left: float
    burns: list[Burn]
    worst: list[LateMinute]
