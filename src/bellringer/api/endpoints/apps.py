"""Apps: list, read, and activate an earlier version."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.overview import bounded_count
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import apps
from bellringer.store.apps import MAX_JOBS_COUNTED, AppSummary
from bellringer.wire.apps import ActivateRequest, AppDetails, AppItem, AppPage, AppVersionItem
from bellringer.wire.routes import Routes


class AppMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an app in a list."""

    name: str


@operation(Routes.apps, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists the apps whose code declares jobs, by name."""
    call.query()
    limit = call.limit()
    mark = call.cursor("apps", AppMark)
    found = await apps.page(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = call.cursor_to("apps", AppMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(AppPage(items=[AppItem(**_fields(app)) for app in found[:limit]], next_cursor=following))


@operation(Routes.app, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns an app with its versions."""
    call.query()
    return await _reply(call, _name(call))


@operation(Routes.activate_app, role=Role.EDITOR)
async def activate(call: RequestContext) -> Response:
    """Makes an earlier version of an app current again, for a rollback: its processes declare their jobs soon."""
    request = await call.body(ActivateRequest)
    name = _name(call)
    if not await apps.activate(call.store, call.tenant_id, name, request.version or "", call.who):
        raise NotFound("there is no such app or version", hint="list them with `bellringer apps get NAME`")
    return await _reply(call, name)


def _name(call: RequestContext) -> str:
    """Returns the name in the path; raises NotFound if it cannot be that of an app."""
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise _no_app() from None


async def _reply(call: RequestContext, name: str) -> Response:
    found = await apps.page(call.store, call.tenant_id, None, 1, name=name)
    if not found:
        raise _no_app()
    versions = [
        AppVersionItem(
            version=row.version,
            current=row.is_current,
            first_seen_at=row.first_seen_at,
            activated_at=row.activated_at,
            activated_by=row.activated_by,
        )
        for row in await apps.versions(call.store, call.tenant_id, name)
    ]
    return reply(AppDetails(**_fields(found[0]), versions=versions))


def _no_app() -> NotFound:
    return NotFound("there is no such app")


def _fields(app: AppSummary) -> dict[str, Any]:
    return {
        "name": app.name,
        "version": app.version,
        "policy": app.policy,
        "declared_at": app.declared_at,
        "created_at": app.created_at,
        "jobs": bounded_count(app.jobs, MAX_JOBS_COUNTED),
        "orphans": bounded_count(app.orphans, MAX_JOBS_COUNTED),
    }
