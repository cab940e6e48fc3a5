"""The tenant's objective: how many of its runs start in time, and what is in the way."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, reply
from bellringer.api.operations import operation, string
from bellringer.durations import format_duration, parse_duration
from bellringer.lifecycle import objective
from bellringer.wire import fairness as wire

DIGITS = 6


@operation(
    "tenants",
    role=Role.VIEWER,
    answers={200: wire.Objective},
    query=(string("window", "how far to look back, 30d at most and where it is not given"),),
)
async def get(call: Call) -> Response:
    """How many of the tenant's runs started in time, the burn of its error budget, and who used the capacity."""
    query = call.query()
    window = parse_duration(query["window"], what="window") if "window" in query else objective.WINDOW
    named = call.service.store if call.caller.everywhere else None
    return reply(_document(await objective.objective(call.store, call.tenant_id, window, named=named)))


def _document(found: objective.Objective) -> wire.Objective:
    return wire.Objective(
        tenant=found.tenant,
        target=found.target,
        within=format_duration(found.within),
        start=found.since,
        end=found.until,
        started=found.started,
        late=found.late,
        compliance=None if found.compliance is None else round(found.compliance, DIGITS),
        budget_left=round(found.budget_left, DIGITS),
        burns=[
            wire.Burn(over=_hours(burn.over), started=burn.started, late=burn.late, rate=round(burn.rate, DIGITS))
            for burn in found.burns
        ],
        worst=[
            wire.LateMinute(
                at=minute.at, started=minute.started, late=minute.late, pools=[_use(used) for used in minute.pools]
            )
            for minute in found.worst
        ],
    )


def _use(used: objective.Used) -> wire.PoolUse:
    return wire.PoolUse(
        pool=used.pool,
        cause=used.cause,
        saturation=None if used.saturation is None else round(used.saturation, DIGITS),
        own=round(used.own, DIGITS),
        others=round(used.others, DIGITS),
        named={name: round(part, DIGITS) for name, part in used.named.items()},
    )


def _hours(length: timedelta) -> str:
    """A day is 24h here, as people say it of burns."""
    return f"{length // timedelta(hours=1)}h"
