"""Check-ins: jobs that run elsewhere and report by calling a secret URL."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response
from uuid_utils.compat import uuid7

from bellringer.access import Role
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import BigInt, RequestContext, reply
from bellringer.core import checkins as core
from bellringer.core.checkins import MAX_BODY_BYTES, MAX_PINGS_PER_MINUTE, CheckinRecord, PingKind
from bellringer.core.jobs import MAX_TAGS, check_name
from bellringer.durations import format_duration
from bellringer.engine import checkins as receiving
from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule import Schedule, cron, to_document
from bellringer.store import checkins
from bellringer.store.checkins import NewPing, PingRow
from bellringer.wire import checkins as wire
from bellringer.wire.checkins import CheckinRequest, PingReceived, no_checkin
from bellringer.wire.decode import Gathering, duration
from bellringer.wire.models import Empty
from bellringer.wire.routes import PREFIX, Routes

MAX_DESCRIPTION_LENGTH: Final = 500  # characters
_EXIT_CODE: Final = re.compile(r"[0-9]{1,3}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_PING_PROBLEMS: Final = (404, 408, 409, 413, 422, 429, 503)


class CheckinMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a check-in in a list."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)  # a forged cursor may contain text that the database cannot store


class PingMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a ping in a list."""

    ping_id: BigInt


@operation(Routes.checkins, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists check-ins with their states, by name."""
    call.query()
    limit, mark = call.limit(), call.cursor("check-ins", CheckinMark)
    found = await checkins.list_page(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = call.cursor_to("check-ins", CheckinMark(found[limit - 1].name)) if len(found) > limit else None
    items = [await _shown(call, checkin) for checkin in found[:limit]]
    return reply(wire.CheckinPage(items=items, next_cursor=following))


@operation(Routes.put_checkin, role=Role.EDITOR, problems=(409,), secret=True)
async def put(call: RequestContext) -> Response:
    """Creates or replaces a check-in: 201 or 200. Only the response that creates it contains the URL to call."""
    request = await call.body(CheckinRequest)
    name = check_name(call.part("name"), pointer="")
    values = _values(call, request)

    def changed(before: CheckinRecord, now: Any) -> CheckinRecord:
        after = replace(before, **values)
        return core.expect_from(after, now) if after.schedule != before.schedule else _with_grace(before, after)

    stored = await checkins.change(call.store, call.tenant_id, name, call.who, changed)
    if stored is not None:
        return reply(await _shown(call, stored))
    token, now = core.generate_token(), await call.store.now()
    new = CheckinRecord(
        checkin_id=uuid7(),
        tenant_id=call.tenant_id,
        name=name,
        **values,
        created_at=now,
        changed_at=now,
        changed_by=call.who,
    )
    if not await checkins.add(call.store, new, core.hash_token(token)):
        hint = f"a tenant has at most {checkins.MAX_CHECKINS} check-ins, and a name is used once"
        raise Conflict("the check-in was not created", hint=hint, code="limit")
    return reply(await _shown(call, await _stored(call), token), 201, Location=f"{PREFIX}/checkins/{call.part('name')}")


@operation(Routes.checkin, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a check-in."""
    call.query()
    return reply(await _shown(call, await _stored(call)))


@operation(Routes.delete_checkin, role=Role.EDITOR)
async def delete(call: RequestContext) -> Response:
    """Deletes a check-in; its URL stops working."""
    if not await checkins.delete(call.store, call.tenant_id, _name(call)):
        raise no_checkin()
    return Response(status_code=204)


@operation(Routes.pause_checkin, role=Role.OPERATOR)
async def pause(call: RequestContext) -> Response:
    """Pauses a check-in: pings are recorded, and none is expected."""
    await call.body(Empty)
    return await _changed(call, core.pause)


@operation(Routes.resume_checkin, role=Role.OPERATOR)
async def resume(call: RequestContext) -> Response:
    """Resumes a check-in: the next ping is expected as if one had arrived now."""
    await call.body(Empty)
    return await _changed(call, core.resume)


@operation(Routes.rotate_checkin, role=Role.EDITOR, secret=True)
async def rotate(call: RequestContext) -> Response:
    """Replaces the URL of a check-in; the old one stops working at once."""
    await call.body(Empty)
    token = core.generate_token()
    if not await checkins.set_token(call.store, call.tenant_id, _name(call), core.hash_token(token), call.who):
        raise no_checkin()
    return reply(await _shown(call, await _stored(call), token))


@operation(Routes.checkin_pings, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def list_pings(call: RequestContext) -> Response:
    """Lists the last pings of a check-in, the newest first."""
    call.query()
    limit, stored = call.limit(), await _stored(call)
    of = f"pings of {stored.checkin_id}"
    mark = call.cursor(of, PingMark)
    before = mark.ping_id if mark else None
    found = await checkins.list_pings(call.store, call.tenant_id, stored.checkin_id, before, limit + 1)
    following = call.cursor_to(of, PingMark(found[limit - 1].ping_id)) if len(found) > limit else None
    return reply(wire.PingPage(items=[_ping(row) for row in found[:limit]], next_cursor=following))


# Pings: the token is the credential


@operation(Routes.ping, role=None, problems=_PING_PROBLEMS)
async def ping(call: RequestContext) -> Response:
    """Reports a success of a check-in. The token in the URL is the only credential."""
    return await _receive(call, "0")


@operation(Routes.post_ping, role=None, problems=_PING_PROBLEMS)
async def post_ping(call: RequestContext) -> Response:
    """Reports a success, with the output of the job as the body; its first 10,000 bytes are stored."""
    return await _receive(call, "0")


@operation(Routes.ping_outcome, role=None, problems=_PING_PROBLEMS)
async def ping_outcome(call: RequestContext) -> Response:
    """Reports `start`, `fail`, or an exit code from 0 to 255, where 0 is success."""
    return await _receive(call, call.part("outcome"))


@operation(Routes.post_ping_outcome, role=None, problems=_PING_PROBLEMS)
async def post_ping_outcome(call: RequestContext) -> Response:
    """Reports `start`, `fail` or an exit code, with the output of the job as the body."""
    return await _receive(call, call.part("outcome"))


async def _receive(call: RequestContext, outcome: str) -> Response:
    token = call.part("token")
    kind, exit_code = _read_outcome(outcome)
    hashed = core.hash_token(token)
    found = await checkins.find_by_token(call.service.store, hashed) if _TOKEN.fullmatch(token) else None
    if found is None:
        raise no_checkin()
    checkin_id, tenant_id = found
    verdict = call.service.ping_limits.spend(tenant_id, str(checkin_id), MAX_PINGS_PER_MINUTE)
    if not verdict.allowed:
        wait = str(int(verdict.reset) + 1)
        detail = f"a check-in accepts {MAX_PINGS_PER_MINUTE} pings a minute"
        raise Refused(429, "rate_limited", detail, hint=f"wait {wait} s", headers={"Retry-After": wait})
    received = NewPing(kind=kind, exit_code=exit_code, origin=call.caller.origin, body=await _body(call))
    after = await receiving.ping(call.service.store, hashed, received)
    if after is None:
        raise no_checkin()
    return reply(PingReceived(ok=True, state=after.shown_state(await call.service.store.now())))


def _read_outcome(outcome: str) -> tuple[PingKind, int | None]:
    if outcome in (PingKind.START, PingKind.FAIL):
        return PingKind(outcome), None
    if not _EXIT_CODE.fullmatch(outcome) or int(outcome) > 255:
        raise InvalidInput("the outcome is not start, fail or an exit code from 0 to 255", code="choice")
    return (PingKind.SUCCESS if int(outcome) == 0 else PingKind.FAIL), int(outcome)


async def _body(call: RequestContext) -> str | None:
    if call.request.method != "POST":
        return None
    try:
        data = await call.raw()
    except Refused as refused:
        if refused.status != 413:
            raise
        return "(the body was too long)"  # the ping counts all the same
    return data[:MAX_BODY_BYTES].decode(errors="replace").replace("\0", "\ufffd") or None


# Requests and responses


def _values(call: RequestContext, request: CheckinRequest) -> dict[str, Any]:
    g = Gathering()
    no_schedule: Schedule = cron("0 0 * * *")
    least, most = core.MIN_GRACE, core.MAX_GRACE
    grace = g.take("/grace", lambda: duration(request.grace, what="grace", least=least, most=most), None)
    owner = request.owner
    no_tags: tuple[str, ...] = ()
    values = {
        "schedule": g.take("/schedule", lambda: core.parse_checkin_schedule(request.schedule), no_schedule),
        "grace": grace,
        "description": g.take("/description", lambda: _description(request.description), ""),
        "tags": g.take("/tags", lambda: _tags(request.tags), no_tags),
        "owner": g.take("/owner", lambda: call.who if owner is None else check_name(owner, what="owner"), ""),
    }
    g.done()
    return values


def _description(text: str) -> str:
    if len(text) > MAX_DESCRIPTION_LENGTH or "\0" in text:
        message = f"description has NUL or more than {MAX_DESCRIPTION_LENGTH} characters"
        raise InvalidInput(message, pointer="/description", code="limit")
    return text


def _tags(tags: list[str]) -> tuple[str, ...]:
    if len(tags) > MAX_TAGS:
        raise InvalidInput(f"more than {MAX_TAGS} tags", pointer="/tags", code="limit")
    return tuple(check_name(tag, what="tag", pointer=f"/tags/{place}") for place, tag in enumerate(tags))


def _with_grace(before: CheckinRecord, after: CheckinRecord) -> CheckinRecord:
    """Moves the deadline by the change of the grace period."""
    if before.deadline_at is None:
        return after
    return replace(after, deadline_at=before.deadline_at + (after.grace - before.grace))


async def _changed(call: RequestContext, change: Any) -> Response:
    stored = await checkins.change(call.store, call.tenant_id, _name(call), call.who, change)
    if stored is None:
        raise no_checkin()
    return reply(await _shown(call, stored))


async def _stored(call: RequestContext) -> CheckinRecord:
    stored = await checkins.get(call.store, call.tenant_id, _name(call))
    if stored is None:
        raise no_checkin()
    return stored


def _name(call: RequestContext) -> str:
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise no_checkin() from None


async def _shown(call: RequestContext, checkin: CheckinRecord, token: str | None = None) -> wire.Checkin:
    base = call.service.public_url or str(call.request.base_url)
    names = ("name", "description", "owner", "due_at", "deadline_at", "started_at", "pinged_at", "succeeded_at")
    return wire.Checkin(
        **{name: getattr(checkin, name) for name in (*names, "down_since", "pings", "created_at", "changed_at")},
        schedule=to_document(checkin.schedule),
        grace=format_duration(checkin.grace),
        tags=list(checkin.tags),
        state=checkin.shown_state(await call.store.now()),
        duration_seconds=None if checkin.duration is None else checkin.duration.total_seconds(),
        changed_by=checkin.changed_by,
        ping_url=UNSET if token is None else f"{base.rstrip('/')}/ping/{token}",
    )


def _ping(row: PingRow) -> wire.Ping:
    names = ("ping_id", "at", "kind", "exit_code", "origin", "body")
    duration_seconds = None if row.duration is None else row.duration.total_seconds()
    return wire.Ping(**{name: getattr(row, name) for name in names}, duration_seconds=duration_seconds)
