"""Tenants and what each may have; who am I, and what may I have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.access.quotas import Quotas
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import LIMITS, Call, reply
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.payload import LIMIT as PAYLOAD_LIMIT
from bellringer.store import tenants
from bellringer.wire import read
from bellringer.wire.access import (
    Limits,
    Quota,
    Tenant,
    TenantPage,
    TenantPatch,
    TenantRequest,
    TenantUsage,
    Whoami,
    no_tenant,
)
from bellringer.wire.asks import BODY_LIMIT, PREFIX
from bellringer.wire.reading import Gathering

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._ -]{0,61}[A-Za-z0-9])?")
HEAVIEST: Final = 1000.0
LIGHTEST: Final = 0.001
BULK_ITEMS: Final = 10_000
_MOST: Final = 1e12  # beyond any need, within what the database can count
_OBJECTIVE: Final = {"target": (0.5, 0.99999), "within": (0.1, 86400.0)}
_NO_OBJECTIVE: Final[Mapping[str, Any]] = {}


class TenantMark(msgspec.Struct, frozen=True, array_like=True):
    """The last tenant of a page."""

    name: str


@operation("service", role=Role.VIEWER, answers={200: Whoami})
async def whoami(call: Call) -> Response:
    """As whom the server sees the caller."""
    call.query()
    caller = call.caller
    return reply(
        Whoami(
            who=caller.who,
            role=caller.role.word,
            tenant=caller.tenant,
            everywhere=caller.everywhere,
            scopes=sorted(caller.scopes),
            origin=caller.origin,
        )
    )


@operation("service", role=Role.VIEWER, answers={200: Limits})
async def limits(call: Call) -> Response:
    """What the tenant may have and has, and what holds for everyone."""
    call.query()
    tenant = await _own(call)
    return reply(
        Limits(
            tenant=tenant.name,
            quotas=await _quotas(call, tenant),
            body_bytes=BODY_LIMIT,
            payload_bytes=PAYLOAD_LIMIT,
            page_items=LIMITS[-1],
            bulk_items=BULK_ITEMS,
        )
    )


@operation("access", role=Role.VIEWER, answers={200: Tenant})
async def own(call: Call) -> Response:
    """The caller's tenant."""
    call.query()
    return reply(_shown(await _own(call)))


@operation("access", role=Role.ADMIN, everywhere=True, answers={200: TenantPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """All tenants by their names."""
    call.query()
    limit, mark = call.limit(), call.cursor("tenants", TenantMark)
    found = await tenants.listing(call.service.store, mark.name if mark else None, limit + 1)
    following = call.cursor_to("tenants", TenantMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(TenantPage(items=[_shown(tenant) for tenant in found[:limit]], next_cursor=following))


@operation("access", role=Role.ADMIN, everywhere=True, answers={201: Tenant}, body=TenantRequest, problems=(409,))
async def create(call: Call) -> Response:
    """A new tenant; it has nothing yet, not even a key."""
    request = await call.body(TenantRequest)
    g = Gathering()
    name = g.take("/name", lambda: _name(request.name), "")
    weight = g.take("/weight", lambda: _weight(request.weight), 1.0)
    quotas = g.take("/quotas", lambda: _merged(Quotas(), request.quotas), Quotas())
    objective = g.take("/objective", lambda: _objective(request.objective), _NO_OBJECTIVE)
    g.done()
    made = await tenants.add(call.service.store, name, weight=weight, quotas=quotas, objective=objective)
    return reply(_shown(made), 201, Location=f"{PREFIX}/tenants/{quote(made.name)}")


@operation("access", role=Role.ADMIN, everywhere=True, answers={200: Tenant})
async def get(call: Call) -> Response:
    """A tenant by its name."""
    call.query()
    return reply(_shown(await _named(call)))


@operation(
    "access",
    role=Role.ADMIN,
    everywhere=True,
    answers={200: Tenant},
    body=TenantPatch,
    media=(MERGE_PATCH, JSON),
)
async def change(call: Call) -> Response:
    """Another weight, quotas or objective; suspend it, or let it go on. All servers heed it within five seconds."""
    patch = read(TenantPatch, await call.document())
    tenant = await _named(call)
    g = Gathering()
    weight, quotas, objective = patch.weight, patch.quotas, patch.objective
    changes: dict[str, Any] = {}
    if weight is not UNSET:
        changes["weight"] = g.take("/weight", lambda: _weight(weight), 1.0)
    if quotas is not UNSET:
        kept = Quotas() if quotas is None else tenant.quotas
        changes["quotas"] = g.take("/quotas", lambda: _merged(kept, quotas or {}), kept)
    if objective is not UNSET:
        changes["objective"] = g.take("/objective", lambda: _objective(objective or {}), _NO_OBJECTIVE)
    if patch.suspended is not UNSET:
        changes["suspended"] = patch.suspended
    g.done()
    changed = await tenants.change(call.service.store, tenant.tenant_id, **changes)
    if changed is None:
        raise no_tenant()
    return reply(_shown(changed))


@operation("access", role=Role.ADMIN, everywhere=True, answers={200: TenantUsage})
async def usage(call: Call) -> Response:
    """What a tenant has, against its quotas."""
    call.query()
    tenant = await _named(call)
    return reply(TenantUsage(tenant=tenant.name, items=await _quotas(call, tenant)))


async def _own(call: Call) -> tenants.Tenant:
    found = await tenants.by_id(call.store, call.tenant_id)
    if found is None:
        raise no_tenant()
    return found


async def _named(call: Call) -> tenants.Tenant:
    try:
        found = await tenants.by_name(call.service.store, check_name(call.part("name")))
    except InvalidInput:
        found = None
    if found is None:
        raise no_tenant()
    return found


async def _quotas(call: Call, tenant: tenants.Tenant) -> list[Quota]:
    """What is counted in the database, and what only rates count."""
    store = call.service.store if call.operation.everywhere else call.store
    used = await tenants.used(store, tenant.tenant_id)
    has: Mapping[str, float | None] = {
        "jobs": used.jobs,
        "fires_per_minute": round(used.fires_per_minute, 3),
        "in_flight": used.in_flight,
    }
    most = msgspec.structs.asdict(tenant.quotas)
    return [Quota(name=name, used=has.get(name), most=most[name]) for name in most]


def _name(text: str) -> str:
    """Plain, because it travels in headers and tokens."""
    if not _NAME.fullmatch(text):
        hint = "use up to 63 letters, digits, dots, hyphens, underscores and spaces"
        raise InvalidInput("a tenant cannot have that name", hint=hint, code="name_charset")
    return text


def _weight(value: float) -> float:
    if not LIGHTEST <= value <= HEAVIEST:
        raise InvalidInput(f"weight must be from {LIGHTEST:g} to {HEAVIEST:g}", code="limit")
    return value


def _merged(quotas: Quotas, patch: Mapping[str, Any]) -> Quotas:
    """Quotas with what a patch names; null takes one away."""
    values = msgspec.structs.asdict(quotas)
    for name, value in patch.items():
        if name not in values:
            hint = f"known are {', '.join(values)}"
            raise InvalidInput(f"there is no quota {name[:40]!r}", hint=hint, pointer="/quotas", code="unknown_field")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value <= _MOST):
            message = f"the quota {name} must be a number from 0 on, or null for none"
            raise InvalidInput(message, pointer=f"/quotas/{name}", code="type")
        if is_number and name != "fires_per_minute" and value != int(value):
            raise InvalidInput(f"the quota {name} must be whole", pointer=f"/quotas/{name}", code="type")
        values[name] = int(value) if is_number and name != "fires_per_minute" else value
    return Quotas(**values)


def _objective(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in given.items():
        if name not in _OBJECTIVE:
            hint = f"known are {', '.join(_OBJECTIVE)}"
            raise InvalidInput(
                f"an objective has no {name[:40]!r}", hint=hint, pointer="/objective", code="unknown_field"
            )
        least, most = _OBJECTIVE[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and least <= value <= most):
            message = f"{name} must be a number from {least:g} to {most:g}"
            raise InvalidInput(message, pointer=f"/objective/{name}", code="limit")
    return given


def _shown(tenant: tenants.Tenant) -> Tenant:
    return Tenant(
        name=tenant.name,
        weight=round(tenant.weight, 6),
        quotas=tenant.quotas,
        objective=dict(tenant.objective),
        suspended_at=tenant.suspended_at,
        created_at=tenant.created_at,
    )
