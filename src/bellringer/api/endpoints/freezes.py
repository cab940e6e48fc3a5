"""Freezes: create, list, change and lift. A freeze holds schedules back for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import BigInt, RequestContext, reply
from bellringer.core.jobs import MAX_RUN_AT_DISTANCE, check_name
from bellringer.engine import freeze
from bellringer.engine.freeze import MAX_FREEZE_LENGTH, FreezePolicy, FreezeSpec
from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store import freezes
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.wire.calendars import (
    Freeze,
    FreezePage,
    FreezePatch,
    FreezeRequest,
    Lifted,
    decode_freeze,
    encode_freeze,
    no_freeze,
)
from bellringer.wire.decode import Gathering, duration, note, read
from bellringer.wire.definitions import word
from bellringer.wire.routes import PREFIX, Routes


class FreezeMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a freeze in a list, and its end."""

    to_at: datetime
    freeze_id: BigInt

    def __post_init__(self) -> None:
        """Rejects values of forged cursors that the database cannot store."""
        if self.to_at.utcoffset() != timedelta(0) or self.freeze_id >= 1 << 31:
            raise ValueError("not a cursor of this list")


@operation(Routes.create_freeze, role=Role.OPERATOR, problems=(409,))
async def create(call: RequestContext) -> Response:
    """Creates a freeze."""
    request = await call.body(FreezeRequest)
    now = await call.store.now()
    made = await freeze.freeze(call.store, _read_freeze(request, now), now, tenant_id=call.tenant_id, who=call.who)
    return reply(
        await _with_job_count(call, made, now), 201, Location=f"{PREFIX}/freezes/{encode_freeze(made.freeze_id)}"
    )


def _read_freeze(r: FreezeRequest, now: datetime) -> FreezeSpec:
    g = Gathering()
    start = g.take("/from", lambda: _read_start(r.from_at, now), now)
    end = g.take("/to", lambda: _read_end(r.to_at, start), start)
    policy = g.take("/policy", lambda: word(FreezePolicy, r.policy, "policy"), FreezePolicy.DEFER)
    reason = g.take("/reason", lambda: note(r.reason, what="reason"), None)
    g.done()
    return FreezeSpec(name=r.name, from_at=start, to_at=end, policy=policy, tags=tuple(r.tags), reason=reason)


def _read_start(text: str | None, now: datetime) -> datetime:
    start = now if text is None else read_instant(text, what="from")
    if start > now + MAX_RUN_AT_DISTANCE:
        raise InvalidInput(f"{start:%Y-%m-%d} is more than ten years away", code="limit")
    return start


def _read_end(value: str | float, start: datetime) -> datetime:
    """Parses an instant, or a duration after the start; text that begins like a date is an instant."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        return read_instant(value, what="to")
    length = duration(value, what="to", least=timedelta(seconds=1), most=MAX_FREEZE_LENGTH)
    assert length is not None
    return start + length


@operation(Routes.freezes, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists freezes: upcoming and active ones first, then ended ones, the latest first."""
    call.query()
    limit = call.limit()
    mark = call.cursor("freezes", FreezeMark)
    before = (mark.to_at, mark.freeze_id) if mark else None
    found = await freezes.list_page(call.store, call.tenant_id, before, limit + 1)
    now = await call.store.now()
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        following = call.cursor_to("freezes", FreezeMark(last.to_at, last.freeze_id))
    return reply(FreezePage(items=[_freeze(f, now) for f in found[:limit]], next_cursor=following))


@operation(Routes.freeze, role=Role.VIEWER, problems=(409,))
async def get(call: RequestContext) -> Response:
    """Returns a freeze by id or name, with the number of jobs that it covers."""
    call.query()
    return reply(await _with_job_count(call, await _find(call), await call.store.now()))


@operation(Routes.patch_freeze, role=Role.OPERATOR, problems=(409,))
async def amend(call: RequestContext) -> Response:
    """Changes the end, which may be a duration from now, or the reason."""
    patch = read(FreezePatch, await call.document())
    stored, now = await _find(call), await call.store.now()
    end = None
    if patch.to_at is not UNSET:
        g = Gathering()
        end = g.take("/to", lambda: _read_end(patch.to_at, now), now)  # type: ignore[arg-type] # it is set
        g.done()
    reason = stored.reason if patch.reason is UNSET else note(patch.reason, what="reason")
    tenant_id = call.tenant_id
    amended = await freeze.amend(call.store, stored, now, tenant_id=tenant_id, to_at=end, reason=reason)
    return reply(_freeze(amended, now))


@operation(Routes.lift_freeze, role=Role.OPERATOR, problems=(409,))
async def lift(call: RequestContext) -> Response:
    """Lifts a freeze: it ends now, and the runs that it held back start at once."""
    stored, now = await _find(call), await call.store.now()
    freed = await freeze.lift(call.store, stored.freeze_id, tenant_id=call.tenant_id)
    await call.service.wake(WORK_CHANNEL, now.isoformat())
    return reply(Lifted(freed=freed, was_over=stored.to_at <= now))


async def _find(call: RequestContext) -> freezes.FreezeRow:
    """Finds a freeze by id, or by name if exactly one freeze of that name has not ended."""
    text, tenant_id = call.part("id"), call.tenant_id
    number = decode_freeze(text)
    stored = None if number is None else await freezes.get(call.store, tenant_id, number)
    if stored is not None:
        return stored
    try:
        found = await freezes.find_by_name(call.store, tenant_id, check_name(text))
    except InvalidInput:
        found = []
    if len(found) > 1:
        ids = " or ".join(encode_freeze(f.freeze_id) for f in found)
        raise Conflict("several freezes have this name", hint=f"give an id, such as {ids}", code="name_ambiguous")
    if not found:
        raise no_freeze()
    return found[0]


async def _with_job_count(call: RequestContext, stored: freezes.FreezeRow, now: datetime) -> Freeze:
    covered = await freezes.count_covered_jobs(call.store, call.tenant_id, stored.tags)
    return msgspec.structs.replace(_freeze(stored, now), jobs=covered)


def _freeze(stored: freezes.FreezeRow, now: datetime) -> Freeze:
    state = "over" if stored.to_at <= now else "active" if stored.from_at <= now else "coming"
    values: dict[str, Any] = {name: getattr(stored, name) for name in stored.__dataclass_fields__}
    values |= {"freeze_id": encode_freeze(stored.freeze_id), "tags": list(stored.tags), "state": state}
    return Freeze(**values)
