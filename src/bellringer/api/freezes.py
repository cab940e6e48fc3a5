"""Freezes: let schedules rest for a time, read what rests, change its end, and lift it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.bodies import JSON, MERGE_PATCH
from bellringer.api.calls import BigInt, Call, reply
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import FARTHEST, check_name
from bellringer.lifecycle import freeze
from bellringer.lifecycle.freeze import LONGEST, Policy, Wish
from bellringer.schedule.instants import read_instant
from bellringer.store import freezes
from bellringer.store.wakeups import WORK
from bellringer.wire import duration, note, read
from bellringer.wire.asks import PREFIX
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
from bellringer.wire.definitions import word
from bellringer.wire.reading import Gathering


class FreezeMark(msgspec.Struct, frozen=True, array_like=True):
    """The last freeze of a page, and when it ends."""

    to_at: datetime
    freeze_id: BigInt

    def __post_init__(self) -> None:
        """A forged mark may name an instant or a number that the database cannot hold."""
        if self.to_at.utcoffset() != timedelta(0) or self.freeze_id >= 1 << 31:
            raise ValueError("not a mark of ours")


@operation("freezes", role=Role.OPERATOR, answers={201: Freeze}, body=FreezeRequest, problems=(409,))
async def create(call: Call) -> Response:
    """Let schedules rest for a time."""
    request = await call.body(FreezeRequest)
    now = await call.store.now()
    made = await freeze.freeze(call.store, _wish(request, now), now, tenant_id=call.tenant_id, who=call.who)
    return reply(await _counted(call, made, now), 201, Location=f"{PREFIX}/freezes/{encode_freeze(made.freeze_id)}")


def _wish(r: FreezeRequest, now: datetime) -> Wish:
    g = Gathering()
    start = g.take("/from", lambda: _read_start(r.from_at, now), now)
    end = g.take("/to", lambda: _read_end(r.to_at, start), start)
    policy = g.take("/policy", lambda: word(Policy, r.policy, "policy"), Policy.DEFER)
    reason = g.take("/reason", lambda: note(r.reason, what="reason"), None)
    g.done()
    return Wish(name=r.name, from_at=start, to_at=end, policy=policy, tags=tuple(r.tags), reason=reason)


def _read_start(text: str | None, now: datetime) -> datetime:
    start = now if text is None else read_instant(text, what="from")
    if start > now + FARTHEST:
        raise InvalidInput(f"{start:%Y-%m-%d} is more than ten years away", code="limit")
    return start


def _read_end(value: str | float, start: datetime) -> datetime:
    """An instant, or a length of time after the start: what begins like a date is one."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        return read_instant(value, what="to")
    length = duration(value, what="to", least=timedelta(seconds=1), most=LONGEST)
    assert length is not None
    return start + length


@operation("freezes", role=Role.VIEWER, answers={200: FreezePage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """What is to come and what holds first, then what is over, the latest first."""
    call.query()
    limit = call.limit()
    mark = call.cursor("freezes", FreezeMark)
    before = (mark.to_at, mark.freeze_id) if mark else None
    found = await freezes.listing(call.store, call.tenant_id, before, limit + 1)
    now = await call.store.now()
    following = None
    if len(found) > limit:
        last = found[limit - 1]
        following = call.cursor_to("freezes", FreezeMark(last.to_at, last.freeze_id))
    return reply(FreezePage(items=[_freeze(f, now) for f in found[:limit]], next_cursor=following))


@operation("freezes", role=Role.VIEWER, answers={200: Freeze}, problems=(409,))
async def get(call: Call) -> Response:
    """A freeze by its id or name, with how many jobs it covers."""
    call.query()
    return reply(await _counted(call, await _find(call), await call.store.now()))


@operation(
    "freezes", role=Role.OPERATOR, answers={200: Freeze}, body=FreezePatch, media=(MERGE_PATCH, JSON), problems=(409,)
)
async def amend(call: Call) -> Response:
    """Another end, which may be a length of time from now, or another reason."""
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


@operation("freezes", role=Role.OPERATOR, answers={200: Lifted}, problems=(409,))
async def lift(call: Call) -> Response:
    """It ends now, and what it held goes at once."""
    stored, now = await _find(call), await call.store.now()
    freed = await freeze.lift(call.store, stored.freeze_id, tenant_id=call.tenant_id)
    await call.service.wake(WORK, now.isoformat())
    return reply(Lifted(freed=freed, was_over=stored.to_at <= now))


async def _find(call: Call) -> freezes.Freeze:
    """The freeze that the path names by its id, or by its name where one alone of that name is not over."""
    text, tenant_id = call.part("id"), call.tenant_id
    number = decode_freeze(text)
    stored = None if number is None else await freezes.get(call.store, tenant_id, number)
    if stored is not None:
        return stored
    try:
        found = await freezes.named(call.store, tenant_id, check_name(text))
    except InvalidInput:
        found = []
    if len(found) > 1:
        ids = " or ".join(encode_freeze(f.freeze_id) for f in found)
        raise Conflict("several freezes have this name", hint=f"give an id, such as {ids}", code="name_ambiguous")
    if not found:
        raise no_freeze()
    return found[0]


async def _counted(call: Call, stored: freezes.Freeze, now: datetime) -> Freeze:
    covered = await freezes.covered(call.store, call.tenant_id, stored.tags)
    return msgspec.structs.replace(_freeze(stored, now), jobs=covered)


def _freeze(stored: freezes.Freeze, now: datetime) -> Freeze:
    state = "over" if stored.to_at <= now else "active" if stored.from_at <= now else "coming"
    values: dict[str, Any] = {name: getattr(stored, name) for name in stored.__dataclass_fields__}
    values |= {"freeze_id": encode_freeze(stored.freeze_id), "tags": list(stored.tags), "state": state}
    return Freeze(**values)
