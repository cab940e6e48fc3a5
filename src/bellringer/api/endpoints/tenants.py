"""Tenants and their quotas; the caller's identity and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.access.quotas import Quotas
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import PAGE_LIMITS, RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.core.payload import MAX_PAYLOAD_BYTES as PAYLOAD_LIMIT
from bellringer.errors import InvalidInput
from bellringer.store import load, tenants
from bellringer.wire.access import (
    Limits,
    Quota,
    Tenant,
    TenantLoad,
    TenantPage,
    TenantPatch,
    TenantRequest,
    TenantUsage,
    Whoami,
    no_tenant,
)
from bellringer.wire.decode import Gathering, read
from bellringer.wire.routes import BODY_LIMIT, PREFIX, Routes

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._ -]{0,61}[A-Za-z0-9])?")
MAX_WEIGHT: Final = 1000.0
MIN_WEIGHT: Final = 0.001
MAX_BULK_ITEMS: Final = 10_000
RETRIES_WINDOW: Final = timedelta(hours=1)
_MAX_QUOTA: Final = 1e12  # fits into the columns of the database
_OBJECTIVE: Final = {"target": (0.5, 0.99999), "within": (0.1, 86400.0), "max_missed": (0.000001, 0.5)}
_NO_OBJECTIVE: Final[Mapping[str, Any]] = {}


class TenantMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a tenant in a list."""

    name: str


@operation(Routes.whoami, role=Role.VIEWER)
async def whoami(call: RequestContext) -> Response:
    """Returns the caller: its tenant, role and scopes."""
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


@operation(Routes.limits, role=Role.VIEWER)
async def limits(call: RequestContext) -> Response:
    """Returns the quotas and the usage of the caller's tenant, and the limits for all tenants."""
    call.query()
    tenant = await _own(call)
    return reply(
        Limits(
            tenant=tenant.name,
            quotas=await _quotas(call, tenant),
            body_bytes=BODY_LIMIT,
            payload_bytes=PAYLOAD_LIMIT,
            page_items=PAGE_LIMITS[-1],
            bulk_items=MAX_BULK_ITEMS,
        )
    )


@operation(Routes.own_tenant, role=Role.VIEWER)
async def own(call: RequestContext) -> Response:
    """Returns the caller's tenant."""
    call.query()
    return reply(_render_tenant(await _own(call)))


@operation(Routes.tenants, role=Role.ADMIN, everywhere=True, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists tenants by name."""
    call.query()
    limit, mark = call.limit(), call.cursor("tenants", TenantMark)
    found = await tenants.list_page(call.service.store, mark.name if mark else None, limit + 1)
    following = call.cursor_to("tenants", TenantMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(TenantPage(items=[_render_tenant(tenant) for tenant in found[:limit]], next_cursor=following))


@operation(Routes.create_tenant, role=Role.ADMIN, everywhere=True, problems=(409,))
async def create(call: RequestContext) -> Response:
    """Creates a tenant, without jobs and keys."""
    request = await call.body(TenantRequest)
    g = Gathering()
    name = g.take("/name", lambda: _name(request.name), "")
    weight = g.take("/weight", lambda: _weight(request.weight), 1.0)
    quotas = g.take("/quotas", lambda: _merge_quotas(Quotas(), request.quotas), Quotas())
    objective = g.take("/objective", lambda: _objective(request.objective), _NO_OBJECTIVE)
    g.done()
    made = await tenants.add(call.service.store, name, weight=weight, quotas=quotas, objective=objective)
    return reply(_render_tenant(made), 201, Location=f"{PREFIX}/tenants/{quote(made.name)}")


@operation(Routes.tenant, role=Role.ADMIN, everywhere=True)
async def get(call: RequestContext) -> Response:
    """Returns a tenant by name."""
    call.query()
    return reply(_render_tenant(await _named(call)))


@operation(Routes.patch_tenant, role=Role.ADMIN, everywhere=True)
async def change(call: RequestContext) -> Response:
    """Changes the weight, quotas or objective of a tenant; suspends or reactivates it. All servers apply the change
    within five seconds.
    """
    patch = read(TenantPatch, await call.document())
    tenant = await _named(call)
    g = Gathering()
    weight, quotas, objective = patch.weight, patch.quotas, patch.objective
    changes: dict[str, Any] = {}
    if weight is not UNSET:
        changes["weight"] = g.take("/weight", lambda: _weight(weight), 1.0)
    if quotas is not UNSET:
        kept = Quotas() if quotas is None else tenant.quotas
        changes["quotas"] = g.take("/quotas", lambda: _merge_quotas(kept, quotas or {}), kept)
    if objective is not UNSET:
        changes["objective"] = g.take("/objective", lambda: _objective(objective or {}), _NO_OBJECTIVE)
    if patch.suspended is not UNSET:
        changes["suspended"] = patch.suspended
    g.done()
    changed = await tenants.change(call.service.store, tenant.tenant_id, **changes)
    if changed is None:
        raise no_tenant()
    return reply(_render_tenant(changed))


@operation(Routes.tenant_usage, role=Role.ADMIN, everywhere=True)
async def usage(call: RequestContext) -> Response:
    """Returns a tenant's quotas with their usage, and its load: waiting, running and retried runs."""
    call.query()
    tenant = await _named(call)
    return reply(
        TenantUsage(tenant=tenant.name, items=await _quotas(call, tenant), load=await _load(call, tenant.tenant_id))
    )


async def _load(call: RequestContext, tenant_id: int) -> TenantLoad:
    store = call.service.store
    now = await store.now()
    found = next(iter(await load.tenant_loads(store, tenant_id)), load.TenantLoadRow(tenant_id=tenant_id, tenant=""))
    attempts = next(iter(await load.tenant_retries(store, now - RETRIES_WINDOW, tenant_id)), None)
    return TenantLoad(
        ready=found.ready,
        retrying=found.retrying,
        running=found.running,
        held=found.held,
        oldest=None if found.oldest is None else max((now - found.oldest).total_seconds(), 0.0),
        started=attempts.started if attempts else 0,
        retried=attempts.retried if attempts else 0,
    )


async def _own(call: RequestContext) -> tenants.TenantRow:
    found = await tenants.get_by_id(call.store, call.tenant_id)
    if found is None:
        raise no_tenant()
    return found


async def _named(call: RequestContext) -> tenants.TenantRow:
    try:
        found = await tenants.get_by_name(call.service.store, check_name(call.part("name")))
    except InvalidInput:
        found = None
    if found is None:
        raise no_tenant()
    return found


async def _quotas(call: RequestContext, tenant: tenants.TenantRow) -> list[Quota]:
    """Returns the quotas with their usage; rates have none."""
    store = call.service.store if call.operation.everywhere else call.store
    used = await tenants.load_usage(store, tenant.tenant_id)
    has: Mapping[str, float | None] = {
        "jobs": used.jobs,
        "fires_per_minute": round(used.fires_per_minute, 3),
        "in_flight": used.in_flight,
    }
    most = msgspec.structs.asdict(tenant.quotas)
    return [Quota(name=name, used=has.get(name), most=most[name]) for name in most]


def _name(text: str) -> str:
    """Checks a tenant's name: plain ASCII, because it is sent in headers and tokens."""
    if not _NAME.fullmatch(text):
        hint = "use up to 63 letters, digits, dots, hyphens, underscores and spaces"
        raise InvalidInput("a tenant cannot have this name", hint=hint, code="name_charset")
    return text


def _weight(value: float) -> float:
    if not MIN_WEIGHT <= value <= MAX_WEIGHT:
        raise InvalidInput(f"weight must be from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}", code="limit")
    return value


def _merge_quotas(quotas: Quotas, patch: Mapping[str, Any]) -> Quotas:
    """Merges a patch into the quotas; null removes a quota."""
    values = msgspec.structs.asdict(quotas)
    for name, value in patch.items():
        if name not in values:
            hint = f"known quotas: {', '.join(values)}"
            raise InvalidInput(f"unknown quota {name[:40]!r}", hint=hint, pointer="/quotas", code="unknown_field")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value <= _MAX_QUOTA):
            message = f"the quota {name} must be a number of at least 0, or null for no limit"
            raise InvalidInput(message, pointer=f"/quotas/{name}", code="type")
        if is_number and name != "fires_per_minute" and value != int(value):
            raise InvalidInput(f"the quota {name} must be a whole number", pointer=f"/quotas/{name}", code="type")
        values[name] = int(value) if is_number and name != "fires_per_minute" else value
    return Quotas(**values)


def _objective(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in given.items():
        if name not in _OBJECTIVE:
            hint = f"known fields: {', '.join(_OBJECTIVE)}"
            raise InvalidInput(
                f"an objective has no field {name[:40]!r}", hint=hint, pointer="/objective", code="unknown_field"
            )
        least, most = _OBJECTIVE[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and least <= value <= most):
            message = f"{name} must be a number from {least:g} to {most:g}"
            raise InvalidInput(message, pointer=f"/objective/{name}", code="limit")
    return given


def _render_tenant(tenant: tenants.TenantRow) -> Tenant:
    return Tenant(
        name=tenant.name,
        weight=round(tenant.weight, 6),
        quotas=tenant.quotas,
        objective=dict(tenant.objective),
        suspended_at=tenant.suspended_at,
        created_at=tenant.created_at,
    )
