"""Notifications: channels, routes, test messages, history and incidents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, flag, operation, string
from bellringer.api.http.request import BigInt, RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.core.notifications import ALL_TENANTS, GROUPINGS, SEVERITIES
from bellringer.core.quiet_hours import parse_quiet_hours, quiet_hours_document
from bellringer.durations import format_duration
from bellringer.egress.mail import check_recipients
from bellringer.egress.notification_payloads import PAGERDUTY_URL
from bellringer.egress.target_secrets import URL_MASK
from bellringer.egress.urls import parse_url
from bellringer.engine import http_targets
from bellringer.engine import notifications as sending
from bellringer.errors import Conflict, InvalidInput
from bellringer.store import egress, notifications, runs
from bellringer.store.events import EventKind
from bellringer.store.notifications import ChannelInUse, ChannelRow, IncidentRow, NewRoute, NotificationRow, RouteRow
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.wire import notifications as wire
from bellringer.wire.decode import Gathering, duration
from bellringer.wire.models import Empty
from bellringer.wire.notifications import ChannelRequest, RouteRequest, no_channel, no_route
from bellringer.wire.routes import PREFIX, Routes

CHANNEL_KINDS: Final = ("slack", "pagerduty", "teams", "email", "webhook")
MAX_WAIT: Final = timedelta(hours=1)
MAX_INTERVAL: Final = timedelta(days=1)
MIN_REPEAT: Final = timedelta(minutes=1)
MAX_REPEAT: Final = timedelta(days=7)
MAX_ROUTING_KEY_LENGTH: Final = 128
MAX_PATTERNS: Final = 50


class NameMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a channel or route in a list."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)  # a forged cursor may contain text that the database cannot store


class NotificationMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a message in a list."""

    notification_id: BigInt


class IncidentMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of an incident in a list."""

    incident_id: UUID


# Channels


@operation(Routes.notification_channels, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def list_channels(call: RequestContext) -> Response:
    """Lists notification channels by name."""
    call.query()
    limit, of = call.limit(), "notification channels"
    mark = call.cursor(of, NameMark)
    found = await notifications.list_channels(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = call.cursor_to(of, NameMark(found[limit - 1].name)) if len(found) > limit else None
    return reply(wire.ChannelPage(items=[_channel(row) for row in found[:limit]], next_cursor=following))


@operation(Routes.put_notification_channel, role=Role.EDITOR, problems=(409,))
async def put_channel(call: RequestContext) -> Response:
    """Creates or replaces a notification channel: 201 or 200."""
    request = await call.body(ChannelRequest)
    name = check_name(call.part("name"), pointer="")
    before = await notifications.get_channel(call.store, call.tenant_id, name)
    if before is not None:
        await _check_foreign(call, name)
    secret, settings = _channel_settings(call, request, before)
    secret_id = None
    if secret is not None:
        secret_id = await http_targets.store_secret(call.store, call.service.egress, secret, tenant_id=call.tenant_id)
    made = await notifications.put_channel(
        call.store,
        call.tenant_id,
        name,
        kind=request.kind,
        settings=settings,
        secret_id=secret_id,
        enabled=request.enabled,
        who=call.who,
    )
    obsolete = secret_id if made is None else before.secret_id if before and secret_id else None
    if obsolete is not None:
        await egress.drop_secret(call.store, call.tenant_id, obsolete)
    if made is None:
        message = f"there are {notifications.MAX_CHANNELS} notification channels already"
        raise Conflict(message, hint="delete one", code="limit")
    return reply(_channel(await _stored_channel(call, name)), 200 if before else 201)


@operation(Routes.notification_channel, role=Role.VIEWER)
async def get_channel(call: RequestContext) -> Response:
    """Returns a notification channel without its secret."""
    call.query()
    return reply(_channel(await _stored_channel(call, _name(call))))


@operation(Routes.delete_notification_channel, role=Role.EDITOR, problems=(409,))
async def delete_channel(call: RequestContext) -> Response:
    """Deletes a notification channel: 409 while routes use it."""
    name = _name(call)
    await _check_foreign(call, name)
    try:
        gone = await notifications.delete_channel(call.store, call.tenant_id, name)
    except ChannelInUse:
        raise Conflict("routes use this channel", hint="delete them first", code="channel_in_use") from None
    if gone is None:
        raise no_channel()
    if gone.secret_id is not None:
        await egress.drop_secret(call.store, call.tenant_id, gone.secret_id)
    return Response(status_code=204)


@operation(Routes.test_notification_channel, role=Role.OPERATOR, problems=(409,))
async def test_channel(call: RequestContext) -> Response:
    """Sends a test message to a channel."""
    await call.body(Empty)
    stored = await _stored_channel(call, _name(call))
    if not stored.enabled:
        raise Conflict("the channel is disabled", hint="enable it first", code="channel_disabled")
    number, key = await sending.send_test(call.store, call.catalog, stored, await call.store.now(), call.who)
    await call.service.wake(WORK_CHANNEL, key.scheduled_for.isoformat())
    [made, *_] = await notifications.list_history(call.store, call.tenant_id, number + 1, 1)
    return reply(await _notification(call, made), 202, Location=f"{PREFIX}/runs/{key.id}")


def _channel_settings(
    call: RequestContext, request: ChannelRequest, before: ChannelRow | None
) -> tuple[str | None, dict[str, Any]]:
    """Returns the secret, or None to keep the stored one, and the other settings."""
    _choose(request.kind, CHANNEL_KINDS, "kind")
    keeps = before is not None and before.kind == request.kind
    _check_fields(request)
    if request.kind == "email":
        return None, {"to": check_recipients(request.to)}
    if request.kind == "pagerduty":
        key = request.routing_key
        if key is None and not keeps:
            raise InvalidInput("routing_key is missing", pointer="/routing_key", code="missing_field")
        if key is not None and not (key.isascii() and key.isalnum() and len(key) <= MAX_ROUTING_KEY_LENGTH):
            raise InvalidInput("routing_key is not valid", pointer="/routing_key", code="secret_invalid")
        url = parse_url(request.url or PAGERDUTY_URL, call.service.egress.allowed)
        return key, {"url": str(url)}
    if request.url is None:
        if not keeps or before is None:
            raise InvalidInput("url is missing", pointer="/url", code="missing_field")
        return None, dict(before.settings)
    url = parse_url(request.url, call.service.egress.allowed)
    return str(url), {"shown": f"{url.origin}/{URL_MASK}"}


def _check_fields(request: ChannelRequest) -> None:
    """Raises InvalidInput for fields that this kind of channel does not have."""
    if request.to and request.kind != "email":
        raise InvalidInput("only e-mail has recipients", pointer="/to", code="conflicting_fields")
    if request.routing_key is not None and request.kind != "pagerduty":
        raise InvalidInput("only PagerDuty has a routing key", pointer="/routing_key", code="conflicting_fields")
    if request.url is not None and request.kind == "email":
        hint = "the mail server is the setting smtp_url"
        raise InvalidInput("e-mail has no url", hint=hint, pointer="/url", code="conflicting_fields")


def _channel(row: ChannelRow) -> wire.Channel:
    return wire.Channel(
        name=row.name,
        kind=row.kind,
        url=row.settings.get("shown") or row.settings.get("url"),
        to=list(row.settings.get("to", ())),
        has_secret=row.secret_id is not None,
        enabled=row.enabled,
        created_at=row.created_at,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )


async def _stored_channel(call: RequestContext, name: str) -> ChannelRow:
    stored = await notifications.get_channel(call.store, call.tenant_id, name)
    if stored is None:
        raise no_channel()
    return stored


async def _check_foreign(call: RequestContext, channel: str) -> None:
    """Raises if the channel gets events of other tenants and the caller belongs to one tenant."""
    if not call.caller.everywhere and await notifications.has_foreign_routes(call.store, call.tenant_id, channel):
        raise _installation_only()


# Routes


@operation(Routes.notification_routes, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def list_routes(call: RequestContext) -> Response:
    """Lists notification routes by name."""
    call.query()
    limit, of = call.limit(), "notification routes"
    mark = call.cursor(of, NameMark)
    found = await notifications.list_routes(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = call.cursor_to(of, NameMark(found[limit - 1].route.name)) if len(found) > limit else None
    return reply(wire.RoutePage(items=[_route(row) for row in found[:limit]], next_cursor=following))


@operation(Routes.put_notification_route, role=Role.EDITOR, problems=(409,))
async def put_route(call: RequestContext) -> Response:
    """Creates or replaces a notification route: 201 or 200."""
    request = await call.body(RouteRequest)
    name = check_name(call.part("name"), pointer="")
    before = await notifications.get_route(call.store, call.tenant_id, name)
    is_foreign = bool(request.tenants or (before and before.route.tenants))
    if is_foreign and not call.caller.everywhere:
        raise _installation_only()
    channel = await notifications.get_channel(call.store, call.tenant_id, check_name(request.channel))
    if channel is None:
        hint = "create the channel first"
        raise InvalidInput("there is no such channel", hint=hint, pointer="/channel", code="channel_unknown")
    new = _new_route(name, channel.channel_id, request)
    if await notifications.put_route(call.store, call.tenant_id, new, call.who) is None:
        message = f"there are {notifications.MAX_ROUTES} notification routes already"
        raise Conflict(message, hint="delete one", code="limit")
    stored = await notifications.get_route(call.store, call.tenant_id, name)
    if stored is None:
        raise no_route()
    return reply(_route(stored), 200 if before else 201)


@operation(Routes.notification_route, role=Role.VIEWER)
async def get_route(call: RequestContext) -> Response:
    """Returns a notification route."""
    call.query()
    stored = await notifications.get_route(call.store, call.tenant_id, _route_name(call))
    if stored is None:
        raise no_route()
    return reply(_route(stored))


@operation(Routes.delete_notification_route, role=Role.EDITOR)
async def delete_route(call: RequestContext) -> Response:
    """Deletes a notification route and its incidents."""
    name = _route_name(call)
    stored = await notifications.get_route(call.store, call.tenant_id, name)
    if stored is not None and stored.route.tenants and not call.caller.everywhere:
        raise _installation_only()
    if not await notifications.delete_route(call.store, call.tenant_id, name):
        raise no_route()
    return Response(status_code=204)


def _new_route(name: str, channel_id: int, request: RouteRequest) -> NewRoute:
    g = Gathering()
    quiet = request.quiet
    wait = g.take("/wait", lambda: duration(request.wait, what="wait", least=timedelta(0), most=MAX_WAIT), None)
    interval = g.take(
        "/interval", lambda: duration(request.interval, what="interval", least=timedelta(0), most=MAX_INTERVAL), None
    )
    repeat = g.take("/repeat", lambda: duration(request.repeat, what="repeat", least=MIN_REPEAT, most=MAX_REPEAT), None)
    new = NewRoute(
        name=name,
        channel_id=channel_id,
        enabled=request.enabled,
        tenants=g.take("/tenants", lambda: _names(request.tenants, "tenants"), []),
        kinds=g.take("/kinds", lambda: _kinds(request.kinds), []),
        severity=g.take("/severity", lambda: _choose(request.severity, SEVERITIES, "severity"), ""),
        jobs=g.take("/jobs", lambda: _names(request.jobs, "jobs"), []),
        tags=g.take("/tags", lambda: _names(request.tags, "tags"), []),
        owners=g.take("/owners", lambda: _names(request.owners, "owners"), []),
        group_by=g.take("/group_by", lambda: _choose(request.group_by, GROUPINGS, "group_by"), ""),
        wait=wait or timedelta(0),
        min_interval=interval or timedelta(0),
        repeat_after=repeat,
        quiet=g.take("/quiet", lambda: None if quiet is None else parse_quiet_hours(quiet), None),
        recoveries=request.recoveries,
    )
    g.done()
    return new


def _names(names: Sequence[str], what: str) -> list[str]:
    if len(names) > MAX_PATTERNS:
        raise InvalidInput(f"{what} has more than {MAX_PATTERNS} entries", pointer=f"/{what}", code="limit")
    return [
        name if name == ALL_TENANTS else check_name(name, what=what, pointer=f"/{what}/{place}")
        for place, name in enumerate(names)
    ]


def _kinds(kinds: Sequence[str]) -> list[str]:
    for place, kind in enumerate(kinds):
        _choose(kind, list(EventKind), f"kinds/{place}")
    return sorted(set(kinds))


def _choose(given: str, known: Sequence[str], what: str) -> str:
    if given not in known:
        near = get_close_matches(given[:40], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
        raise InvalidInput(f"{what} cannot be {given[:40]!r}", hint=hint, pointer=f"/{what}", code="choice")
    return given


def _route(row: RouteRow) -> wire.NotificationRoute:
    route = row.route
    lists = {name: list(getattr(route, name)) for name in ("tenants", "kinds", "jobs", "tags", "owners")}
    return wire.NotificationRoute(
        name=route.name,
        channel=row.channel,
        enabled=row.enabled,
        **lists,
        severity=route.severity,
        group_by=route.group_by,
        wait=format_duration(route.wait),
        interval=format_duration(route.min_interval),
        repeat=None if route.repeat_after is None else format_duration(route.repeat_after),
        quiet=None if route.quiet is None else quiet_hours_document(route.quiet),
        recoveries=route.recoveries,
        active_since=route.active_since,
        created_at=row.created_at,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )


# History


@operation(
    Routes.notification_history,
    role=Role.VIEWER,
    query=(LIMIT_PARAMETER, CURSOR_PARAMETER, string("channel", "only messages to this channel")),
)
async def history(call: RequestContext) -> Response:
    """Lists messages with the state of their delivery, the newest first."""
    channel = call.query().get("channel")
    limit, of = call.limit(), f"notifications to {channel}"
    mark = call.cursor(of, NotificationMark)
    before = mark.notification_id if mark else None
    found = await notifications.list_history(call.store, call.tenant_id, before, limit + 1, channel=channel)
    following = call.cursor_to(of, NotificationMark(found[limit - 1].notification_id)) if len(found) > limit else None
    items = [await _notification(call, row) for row in found[:limit]]
    return reply(wire.NotificationPage(items=items, next_cursor=following))


@operation(
    Routes.notification_incidents,
    role=Role.VIEWER,
    query=(LIMIT_PARAMETER, CURSOR_PARAMETER, flag("resolved", "also resolved incidents")),
)
async def incidents(call: RequestContext) -> Response:
    """Lists open incidents of routes, the newest first."""
    only_open = call.query().get("resolved") != "true"
    limit, of = call.limit(), f"notification incidents {only_open}"
    mark = call.cursor(of, IncidentMark)
    before = mark.incident_id if mark else None
    found = await notifications.list_incidents(call.store, call.tenant_id, before, limit + 1, only_open=only_open)
    following = call.cursor_to(of, IncidentMark(found[limit - 1].incident_id)) if len(found) > limit else None
    return reply(wire.IncidentPage(items=[_incident(row) for row in found[:limit]], next_cursor=following))


async def _notification(call: RequestContext, row: NotificationRow) -> wire.Notification:
    run = await runs.get(call.reads, row.key, call.tenant_id) if row.key is not None else None
    error = run.error if run is not None and isinstance(run.error, dict) else {}
    return wire.Notification(
        notification_id=row.notification_id,
        channel=row.channel,
        route=row.route,
        incidents=list(row.incident_ids),
        reason=row.reason,
        severity=row.message.severity,
        title=row.message.title,
        message=msgspec.to_builtins(row.message),
        made_at=row.made_at,
        run_id=None if row.key is None else row.key.id,
        state=None if run is None else run.state.value,
        attempt=None if run is None else run.attempt,
        error=error.get("message"),
    )


def _incident(row: IncidentRow) -> wire.NotificationIncident:
    return wire.NotificationIncident(
        incident_id=row.incident_id,
        route=row.route,
        group=row.group_key,
        opened_at=row.opened_at,
        resolved_at=row.resolved_at,
        last_at=row.last_at,
        severity=row.severity,
        count=row.count,
        subjects=[msgspec.to_builtins(subject) for subject in row.subjects.values()],
        more=row.more,
        messages=row.sent,
        sent_at=row.sent_at,
        next_at=row.next_at,
        held=row.held,
    )


def _name(call: RequestContext) -> str:
    """Returns the channel's name in the path; raises NotFound if it cannot be one."""
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise no_channel() from None


def _route_name(call: RequestContext) -> str:
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise no_route() from None


def _installation_only() -> Refused:
    detail = "routes with events of other tenants are managed by callers of the whole installation"
    return Refused(403, "forbidden", detail, hint="use an installation key")
