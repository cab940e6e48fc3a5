"""API keys: of a tenant, and of the whole installation. A secret is returned once, when its key is created."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import ROLES, Role
from bellringer.access.api_keys import ApiKeyCredential, generate_api_key
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, TAGS, Endpoint, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import read_instant
from bellringer.store import api_keys
from bellringer.store.api_keys import StoredKey
from bellringer.store.connection_pool import Store
from bellringer.wire.access import ApiKey, ApiKeyPage, KeyRequest, KeyRotation, NewApiKey, no_key
from bellringer.wire.decode import Gathering, duration
from bellringer.wire.routes import PREFIX, Route, Routes

MAX_GRACE: Final = timedelta(days=30)
MAX_LIFETIME: Final = timedelta(days=3660)
_SECOND: Final = timedelta(seconds=1)


class KeyMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a key in a list."""

    created_at: datetime
    key_id: str


def endpoints() -> Sequence[Endpoint]:
    """Returns the endpoints for the keys of a tenant, or of the whole installation; both share their code."""
    return (
        _listing(Routes.api_keys, "api-keys", everywhere=False),
        _create(Routes.create_api_key, "api-keys", everywhere=False),
        _get(Routes.api_key, everywhere=False),
        _revoke(Routes.revoke_api_key, everywhere=False),
        _rotate(Routes.rotate_api_key, "api-keys", everywhere=False),
        _listing(Routes.installation_keys, "installation-keys", everywhere=True),
        _create(Routes.create_installation_key, "installation-keys", everywhere=True),
        _get(Routes.installation_key, everywhere=True),
        _revoke(Routes.revoke_installation_key, everywhere=True),
        _rotate(Routes.rotate_installation_key, "installation-keys", everywhere=True),
    )


def _listing(route: Route[Any], place: str, everywhere: bool) -> Endpoint:
    @operation(route, role=Role.ADMIN, everywhere=everywhere, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
    async def listing(call: RequestContext) -> Response:
        """Lists keys, the oldest first, including expired and revoked ones."""
        call.query()
        limit, mark = call.limit(), call.cursor(place, KeyMark)
        after = (mark.created_at, mark.key_id) if mark else None
        found = await api_keys.list_page(_store(call), _owner(call), after, limit + 1)
        now = await _store(call).now()
        following = None
        if len(found) > limit:
            last = found[limit - 1]
            following = call.cursor_to(place, KeyMark(last.created_at, last.key_id))
        return reply(ApiKeyPage(items=[_render_key(key, now) for key in found[:limit]], next_cursor=following))

    return listing


def _create(route: Route[Any], place: str, everywhere: bool) -> Endpoint:
    @operation(route, role=Role.ADMIN, everywhere=everywhere, secret=True)
    async def create(call: RequestContext) -> Response:
        """Creates a key. Only this response contains the secret; with an Idempotency-Key it is not replayed."""
        request = await call.body(KeyRequest)
        now = await _store(call).now()
        name, scopes, expires_at = _read(request, now)
        _check_rights(call, scopes)
        made = generate_api_key()
        stored = await api_keys.add(
            _store(call),
            made,
            tenant_id=_owner(call),
            name=name,
            role=request.role,
            scopes=scopes,
            who=call.who,
            expires_at=expires_at,
        )
        return _render_new_key(place, stored, made, now)

    return create


def _get(route: Route[Any], everywhere: bool) -> Endpoint:
    @operation(route, role=Role.ADMIN, everywhere=everywhere)
    async def get(call: RequestContext) -> Response:
        """Returns a key without its secret."""
        call.query()
        return reply(_render_key(await _find(call), await _store(call).now()))

    return get


def _rotate(route: Route[Any], place: str, everywhere: bool) -> Endpoint:
    @operation(route, role=Role.ADMIN, everywhere=everywhere, problems=(409,), secret=True)
    async def rotate(call: RequestContext) -> Response:
        """Creates a new key like this one; the old key stays valid for the grace period."""
        request = await call.body(KeyRotation)
        now = await _store(call).now()
        g = Gathering()
        grace = g.take("/grace", lambda: _grace(request.grace), timedelta(0))
        expires_at = g.take("/expires", lambda: _expiry(request.expires, now), None)
        g.done()
        old = await _find(call)
        _check_rights(call, old.scopes)
        made = generate_api_key()
        stored = await api_keys.rotate(
            _store(call),
            old.key_id,
            made,
            tenant_id=_owner(call),
            grace=grace,
            who=call.who,
            expires_at=expires_at,
        )
        return _render_new_key(place, stored, made, now)

    return rotate


def _revoke(route: Route[Any], everywhere: bool) -> Endpoint:
    @operation(route, role=Role.ADMIN, everywhere=everywhere)
    async def revoke(call: RequestContext) -> Response:
        """Revokes a key for good; all servers refuse it within five seconds. Repeating the request changes nothing."""
        call.query()
        await api_keys.revoke(_store(call), (await _find(call)).key_id, _owner(call))
        return Response(status_code=204)

    return revoke


def _store(call: RequestContext) -> Store:
    return call.service.store if call.operation.everywhere else call.store


def _owner(call: RequestContext) -> int | None:
    return None if call.operation.everywhere else call.tenant_id


async def _find(call: RequestContext) -> StoredKey:
    text = call.part("id")
    stored = await api_keys.get(_store(call), text, _owner(call)) if len(text) == 8 and text.isalnum() else None
    if stored is None:
        raise no_key()
    return stored


def _read(request: KeyRequest, now: datetime) -> tuple[str, tuple[str, ...], datetime | None]:
    g = Gathering()
    name = g.take("/name", lambda: check_name(request.name, what="name", pointer="/name"), "")
    if request.role not in ROLES:
        hint = f"use one of {', '.join(ROLES)}"
        g.add(InvalidInput(f"unknown role {request.role[:40]!r}", hint=hint, pointer="/role", code="choice"))
    for place, scope in enumerate(request.scopes):
        if scope not in TAGS:
            hint = f"use some of {', '.join(sorted(TAGS))}"
            fault = InvalidInput(f"unknown scope {scope[:40]!r}", hint=hint, code="choice")
            fault.pointer = f"/scopes/{place}"
            g.add(fault)
    expires_at = g.take("/expires", lambda: _expiry(request.expires, now), None)
    g.done()
    return name, tuple(dict.fromkeys(request.scopes)), expires_at


def _grace(value: str | float) -> timedelta:
    return duration(value, what="grace", least=timedelta(0), most=MAX_GRACE) or timedelta(0)


def _expiry(value: str | float | None, now: datetime) -> datetime | None:
    """Parses an instant, or a duration from now; text that begins like a date is an instant."""
    if isinstance(value, str) and value[:4].isdecimal() and value[4:5] == "-":
        at = read_instant(value, what="expires")
        if not now < at <= now + MAX_LIFETIME:
            raise InvalidInput("expires is in the past, or more than ten years away", code="limit")
        return at
    length = duration(value, what="expires", least=_SECOND, most=MAX_LIFETIME)
    return None if length is None else now + length


def _check_rights(call: RequestContext, scopes: Sequence[str]) -> None:
    """Raises if a key would have more rights than the caller that creates or rotates it."""
    mine = call.caller.scopes
    if mine and not (scopes and mine.issuperset(scopes)):
        hint = f"yours are {', '.join(sorted(mine))}"
        raise Refused(403, "forbidden", "the key would have scopes that yours does not have", hint=hint)


def _render_new_key(place: str, stored: StoredKey, made: ApiKeyCredential, now: datetime) -> Response:
    shown = NewApiKey(**msgspec.structs.asdict(_render_key(stored, now)), key=made.text)
    return reply(shown, 201, Location=f"{PREFIX}/{place}/{stored.key_id}", Cache_Control="no-store")


def _render_key(key: StoredKey, now: datetime) -> ApiKey:
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
