"""The tenant's objective: the share of runs that start in time, and the causes of delays."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import choice, operation, string
from bellringer.api.http.request import RequestContext, reply
from bellringer.durations import format_duration, parse_duration
from bellringer.engine import objective
from bellringer.errors import InvalidInput
from bellringer.wire import access as wire
from bellringer.wire.routes import Routes

DIGITS = 6
SHARE_DIGITS = 9


@operation(
    Routes.objective,
    role=Role.VIEWER,
    query=(
        string("window", "how far to look back; 30d at most, and by default (of the installation 1d)"),
        choice("scope", "of the tenant, or of all tenants together (installation keys)", ["tenant", "installation"]),
    ),
)
async def get(call: RequestContext) -> Response:
    """Returns the share of the tenant's runs that started in time and of occurrences that were missed, the burn rates
    of the error budgets, and the usage of capacity.
    """
    query = call.query()
    scope = query.get("scope", "tenant")
    if scope not in ("tenant", "installation"):
        raise InvalidInput("scope must be tenant or installation", code="choice")
    given = parse_duration(query["window"], what="window") if "window" in query else None
    if scope == "installation":
        if not call.caller.everywhere:
            raise Refused(403, "forbidden", "the objective of all tenants requires an installation key")
        length = objective.MAX_INSTALLATION_WINDOW if given is None else given
        return reply(_document(await objective.load_installation_objective(call.service.store, call.tenant_id, length)))
    window = objective.MAX_WINDOW if given is None else given
    named = call.service.store if call.caller.everywhere else None
    return reply(_document(await objective.load_objective(call.store, call.tenant_id, window, named=named)))


def _document(found: objective.ObjectiveReport) -> wire.Objective:
    return wire.Objective(
        tenant=found.tenant,
        target=found.target,
        within=format_duration(found.within),
        start=found.since,
        end=found.until,
        started=found.started,
        late=found.late,
        missed=found.missed,
        compliance=None if found.compliance is None else round(found.compliance, DIGITS),
        budget_left=round(found.budget_left, DIGITS),
        burns=[
            wire.Burn(
                over=_hours(burn.over),
                started=burn.started,
                late=burn.late,
                missed=burn.missed,
                rate=round(burn.rate, DIGITS),
            )
            for burn in found.burns
        ],
        worst=[
            wire.LateMinute(
                at=minute.at,
                started=minute.started,
                late=minute.late,
                missed=minute.missed,
                pools=[_use(used) for used in minute.pools],
            )
            for minute in found.worst
        ],
        occurrences=_missed(found.occurrences),
    )


def _missed(found: objective.MissedReport) -> wire.MissedObjective:
    return wire.MissedObjective(
        max_rate=found.max_share,
        expected=found.whole.expected,
        missed=found.whole.missed,
        rate=round_share(found.whole.share),
        budget_left=round(found.budget_left, DIGITS),
        burns=[
            wire.MissedBurn(
                over=_hours(one.over),
                expected=one.expected,
                missed=one.missed,
                rate=round_share(one.share),
                burn=round(one.burn, DIGITS),
            )
            for one in found.burns
        ],
    )


def round_share(share: float | None) -> float | None:
    """Rounds a share of missed occurrences, which may be small."""
    return None if share is None else round(share, SHARE_DIGITS)


def _use(used: objective.PoolUsage) -> wire.PoolUse:
    return wire.PoolUse(
        pool=used.pool,
        cause=used.cause,
        saturation=None if used.saturation is None else round(used.saturation, DIGITS),
        own=round(used.own, DIGITS),
        others=round(used.others, DIGITS),
        named={name: round(part, DIGITS) for name, part in used.named.items()},
    )


def _hours(length: timedelta) -> str:
    """Formats hours: burn rates are usually given as 24h rather than 1d."""
    return f"{length // timedelta(hours=1)}h"
