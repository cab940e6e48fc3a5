"""API keys: a tenant's own, and those of the whole installation. A secret is told once, by the answer that makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import ROLES, Role
from bellringer.access.keys import Key, make_key
from bellringer.api.calls import Call, reply
from bellringer.api.operations import CURSOR, LIMIT, TAGS, Operation, operation
from bellringer.api.problems import Refused
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.schedule.instants import read_instant
from bellringer.store import keys
from bellringer.store.keys import StoredKey
from bellringer.store.pool import Store
from bellringer.wire import duration
from bellringer.wire.access import ApiKey, ApiKeyPage, KeyRequest, KeyRotation, NewApiKey, no_key
from bellringer.wire.asks import PREFIX
from bellringer.wire.reading import Gathering

LONGEST_GRACE: Final = timedelta(days=30)
LONGEST_LIFE: Final = timedelta(days=3660)
_SECOND: Final = timedelta(seconds=1)


class KeyMark(msgspec.Struct, frozen=True, array_like=True):
    """The last key of a page."""

    created_at: datetime
    key_id: str


def routes(place: str, *, everywhere: bool) -> Mapping[str, Mapping[str, Operation]]:
    """The paths of one kind of keys, by the same code: a tenant's, or those of the whole installation."""
    return {
        f"{PREFIX}/{place}": {"GET": _listing(place, everywhere), "POST": _create(place, everywhere)},
        f"{PREFIX}/{place}/{{id}}": {"GET": _get(everywhere), "DELETE": _revoke(everywhere)},
        f"{PREFIX}/{place}/{{id}}/rotate": {"POST": _rotate(place, everywhere)},
    }


def _listing(place: str, everywhere: bool) -> Operation:
    @operation("access", role=Role.ADMIN, everywhere=everywhere, answers={200: ApiKeyPage}, query=(LIMIT, CURSOR))
    async def listing(call: Call) -> Response:
        """Keys, the oldest first; those that are good no more too."""
        call.query()
        limit, mark = call.limit(), call.cursor(place, KeyMark)
        after = (mark.created_at, mark.key_id) if mark else None
        found = await keys.listing(_store(call), _owner(call), after, limit + 1)
        now = await _store(call).now()
        following = None
        if len(found) > limit:
            last = found[limit - 1]
            following = call.cursor_to(place, KeyMark(last.created_at, last.key_id))
        return reply(ApiKeyPage(items=[_shown(key, now) for key in found[:limit]], next_cursor=following))

    return listing


def _create(place: str, everywhere: bool) -> Operation:
    @operation("access", role=Role.ADMIN, everywhere=everywhere, answers={201: NewApiKey}, body=KeyRequest, secret=True)
    async def create(call: Call) -> Response:
        """A new key. Its secret is in this answer alone, so an Idempotency-Key does not keep it."""
        request = await call.body(KeyRequest)
        now = await _store(call).now()
        name, scopes, expires_at = _read(request, now)
        _within(call, scopes)
        made = make_key()
        stored = await keys.add(
            _store(call),
            made,
            tenant_id=_owner(call),
            name=name,
            role=request.role,
            scopes=scopes,
            who=call.who,
            expires_at=expires_at,
        )
        return _told(place, stored, made, now)

    return create


def _get(everywhere: bool) -> Operation:
    @operation("access", role=Role.ADMIN, everywhere=everywhere, answers={200: ApiKey})
    async def get(call: Call) -> Response:
        """A key, all but its secret."""
        call.query()
        return reply(_shown(await _find(call), await _store(call).now()))

    return get


def _rotate(place: str, everywhere: bool) -> Operation:
    @operation(
        "access",
        role=Role.ADMIN,
        everywhere=everywhere,
        answers={201: NewApiKey},
        body=KeyRotation,
        optional=True,
        problems=(409,),
        secret=True,
    )
    async def rotate(call: Call) -> Response:
        """A new key like this one; the old one stays good for the grace."""
        request = await call.body(KeyRotation)
        now = await _store(call).now()
        g = Gathering()
        grace = g.take("/grace", lambda: _grace(request.grace), timedelta(0))
        expires_at = g.take("/expires", lambda: _expiry(request.expires, now), None)
        g.done()
        old = await _find(call)
        _within(call, old.scopes)
        made = make_key()
        stored = await keys.rotate(
            _store(call),
            old.key_id,
            made,
            tenant_id=_owner(call),
            grace=grace,
            who=call.who,
            expires_at=expires_at,
        )
        return _told(place, stored, made, now)

    return rotate


def _revoke(everywhere: bool) -> Operation:
    @operation("access", role=Role.ADMIN, everywhere=everywhere, answers={204: None})
    async def revoke(call: Call) -> Response:
        """End a key for good; within five seconds no server takes it any more. Repeating it changes nothing."""
        call.query()
        await keys.revoke(_store(call), (await _find(call)).key_id, _owner(call))
        return Response(status_code=204)

    return revoke


def _store(call: Call) -> Store:
    return call.service.store if call.operation.everywhere else call.store


def _owner(call: Call) -> int | None:
    return None if call.operation.everywhere else call.tenant_id


async def _find(call: Call) -> StoredKey:
    text = call.part("id")
    stored = await keys.get(_store(call), text, _owner(call)) if len(text) == 8 and text.isalnum() else None
    if stored is None:
        raise no_key()
    return stored


def _read(request: KeyRequest, now: datetime) -> tuple[str, tuple[str, ...], datetime | None]:
    g = Gathering()
    name = g.take("/name", lambda: check_name(request.name, what="name", pointer="/name"), "")
    if request.role not in ROLES:
        hint = f"use one of {', '.join(ROLES)}"
        g.add(InvalidInput(f"role {request.role[:40]!r} is not known", hint=hint, pointer="/role", code="choice"))
    for place, scope in enumerate(request.scopes):
        if scope not in TAGS:
            hint = f"use some of {', '.join(sorted(TAGS))}"
            fault = InvalidInput(f"scope {scope[:40]!r} is not known", hint=hint, code="choice")
            fault.pointer = f"/scopes/{place}"
            g.add(fault)
    expires_at = g.take("/expires", lambda: _expiry(request.expires, now), None)
    g.done()
    return name, tuple(dict.fromkeys(request.scopes)), expires_at


def _grace(value: str | float) -> timedelta:
    return duration(value, what="grace", least=timedelta(0), most=LONGEST_GRACE) or timedelta(0)


def _expiry(value: str | float | None, now: datetime) -> datetime | None:
    """An instant, or a length of time from now: what begins like a date is one."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        at = read_instant(value, what="expires")
        if not now < at <= now + LONGEST_LIFE:
            raise InvalidInput("expires is in the past, or more than ten years away", code="limit")
        return at
    length = duration(value, what="expires", least=_SECOND, most=LONGEST_LIFE)
    return None if length is None else now + length


def _within(call: Call, scopes: Sequence[str]) -> None:
    """Who may do only some things cannot make, or get by a rotation, a key that may do more."""
    mine = call.caller.scopes
    if mine and not (scopes and mine.issuperset(scopes)):
        hint = f"yours are {', '.join(sorted(mine))}"
        raise Refused(403, "forbidden", "the key would have more scopes than yours", hint=hint)


def _told(place: str, stored: StoredKey, made: Key, now: datetime) -> Response:
    shown = NewApiKey(**msgspec.structs.asdict(_shown(stored, now)), key=made.text)
    return reply(shown, 201, Location=f"{PREFIX}/{place}/{stored.key_id}", Cache_Control="no-store")


def _shown(key: StoredKey, now: datetime) -> ApiKey:
    is_over = key.expires_at is not None and key.expires_at <= now
    return ApiKey(
        key_id=key.key_id,
        name=key.name,
        role=key.role,
        scopes=list(key.scopes),
        state="revoked" if key.revoked_at else "expired" if is_over else "active",
        created_by=key.created_by,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        replaced_by=key.replaced_by,
    )
