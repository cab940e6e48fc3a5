"""The door: who calls, whether they may ask for this, and whether they ask too often."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bellringer.access import Caller, Role
from bellringer.access.quotas import Verdict
from bellringer.access.tokens import Tokens
from bellringer.api.logins import LOCAL, Logins, Pass, unauthenticated
from bellringer.api.operations import Operation
from bellringer.api.problems import Refused
from bellringer.cache import Cache, ProcessCache
from bellringer.clock import Clock, SystemClock
from bellringer.errors import NotFound, QuotaExceeded
from bellringer.store.names import Names
from bellringer.store.pool import RETRYABLE, Store
from bellringer.store.tenants import Tenant

DEFAULT_TENANT: Final = "default"
NOBODY: Final = 0  # no tenant has this number
HEADERS: Final = "bellringer.headers"  # in a request's scope: what its answer, whichever it is, tells beside
CHANGES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
ALWAYS: Final = "service"  # the tag of what keys of all scopes may ask: who am I, which version is this
_HERE: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_LOOPBACK: Final = re.compile(r"(::ffff:)?127(\.[0-9]{1,3}){3}|::1")
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
_READ: Final = frozenset({b"authorization", b"host", b"origin", b"x-tenant"})
_KEY_IN_QUERY: Final = re.compile(rb"(^|&)(access_token|api_key)=|br_[a-z0-9]{8}_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Who has to log in, and by what. `here`: not the person at this machine; `anyone`: nobody has to."""

    open_to: Literal["nobody", "here", "anyone"] = "nobody"
    root_key: str | None = field(default=None, repr=False)
    tokens: Tokens | None = None


class _Shown(NamedTuple):
    """What a request shows of itself."""

    host: str
    origin: str | None  # the page that made a browser send it
    credential: str | None
    tenant: str | None
    is_forwarded: bool


class Door:
    """Admits callers. Each decision is made anew; only what credentials and tenants are is kept, for seconds."""

    def __init__(
        self,
        store: Store,
        names: Names,
        settings: Settings | None = None,
        clock: Clock | None = None,
        cache: Cache | None = None,
    ) -> None:
        settings = settings or Settings()
        self._names = names
        self._clock = clock or SystemClock()
        self._open_to = settings.open_to
        self._logins = Logins(store, self._clock, root_key=settings.root_key, tokens=settings.tokens)
        self._cache = cache or ProcessCache(self._clock)

    async def admit(self, request: Request, operation: Operation) -> Caller:
        """The caller, if it may ask for this operation."""
        origin = request.client.host if request.client else None
        if operation.role is None:  # these must answer without a database too
            return Caller(tenant_id=NOBODY, tenant="", role=Role.VIEWER, who="anyone", origin=origin)
        shown = _shown(request)
        asked: bytes = request.scope["query_string"]
        if asked and _KEY_IN_QUERY.search(asked):
            raise unauthenticated()  # addresses are logged on their way: a key in one is no secret any more
        is_change = request.method in CHANGES
        if shown.credential is not None:
            held = await self._logins.login(shown.credential, origin)
        elif self._is_open(shown, origin, is_change=is_change):
            held = LOCAL
        else:
            raise unauthenticated()
        if operation.everywhere:
            return _installation(held, operation, origin)
        tenant = await self._tenant(held, shown.tenant)
        await self._count(request, operation, tenant)
        _check_role(held, operation)
        if is_change and tenant.suspended_at is not None:
            raise Refused(403, "tenant_suspended", "the tenant is suspended, so nothing of it can be changed")
        return Caller(
            tenant_id=tenant.tenant_id,
            tenant=tenant.name,
            role=held.role,
            who=held.who,
            everywhere=held.tenant_id is None,
            scopes=held.scopes,
            origin=origin,
        )

    async def still(self, request: Request, caller: Caller) -> bool:
        """Whether who was let in would be again, as the same; asked, again and again, by answers that go on.

        While the database does not answer it is taken for so: meanwhile there is nothing to tell either.
        """
        shown = _shown(request)
        if shown.credential is None:
            return True
        try:
            held = await self._logins.again(shown.credential)
            if held is None or (held.who, held.role, held.scopes) != (caller.who, caller.role, caller.scopes):
                return False
            if caller.tenant_id == NOBODY:
                return held.tenant_id is None
            return (await self._tenant(held, shown.tenant)).tenant_id == caller.tenant_id
        except NotFound:
            return False
        except RETRYABLE:
            return True

    async def seal(self) -> bytes:
        """What cursors are signed with."""
        return await self._names.secret()

    def _is_open(self, shown: _Shown, origin: str | None, *, is_change: bool) -> bool:
        """Whether this is somebody who need not log in.

        A page of elsewhere in a browser of this machine is not: its requests come from here, but they name another host
        (a name that was bound anew), or tell which page made them.
        """
        if is_change and shown.origin is not None and urlsplit(shown.origin).netloc != shown.host:
            return False
        if self._open_to == "anyone":
            return True
        is_here = origin is not None and _LOOPBACK.fullmatch(origin) and _HERE.fullmatch(shown.host)
        return self._open_to == "here" and bool(is_here) and not shown.is_forwarded

    async def _tenant(self, held: Pass, named: str | None) -> Tenant:
        """The tenant that is meant; one that is another's is as one that is not there."""
        if held.tenant_id is None:
            found = await self._logins.tenant(named if named is not None else DEFAULT_TENANT)
        else:
            found = await self._logins.tenant(held.tenant_id)
            if found is not None and named not in (None, found.name):
                found = None
        if found is None:
            raise NotFound("there is no such tenant")
        return found

    async def _count(self, request: Request, operation: Operation, tenant: Tenant) -> None:
        """Count it against the tenant's rates, as this process sees them, or all that share a cache."""
        quotas = tenant.quotas
        if quotas.api_per_minute is not None:
            verdict = await self._cache.spend(tenant.tenant_id, "api", quotas.api_per_minute)
            request.scope[HEADERS] = _rate_headers(quotas.api_per_minute, verdict)
            if not verdict.allowed:
                wait = str(int(verdict.reset) + 1)
                detail = f"the tenant may make {quotas.api_per_minute:,} requests a minute"
                raise Refused(429, "rate_limited", detail, hint=f"wait {wait} s", headers={"Retry-After": wait})
        if operation.fires and quotas.fires_per_minute is not None:
            verdict = await self._cache.spend(tenant.tenant_id, "fires", quotas.fires_per_minute)
            if not verdict.allowed:
                message = f"the tenant may send {quotas.fires_per_minute:,g} runs a minute"
                raise QuotaExceeded(message, retry_after=verdict.reset)


def _shown(request: Request) -> _Shown:
    found: dict[bytes, str] = {}
    is_forwarded = False
    for name, value in request.scope["headers"]:
        if name in _READ:
            found.setdefault(name, value.decode("latin-1"))
        elif name in _FORWARDED:
            is_forwarded = True
    scheme, _, credential = found.get(b"authorization", "").partition(" ")
    if scheme and scheme.lower() != "bearer":
        raise unauthenticated()
    return _Shown(
        host=found.get(b"host", ""),
        origin=found.get(b"origin"),
        credential=credential.strip() if scheme else None,
        tenant=found.get(b"x-tenant"),
        is_forwarded=is_forwarded,
    )


def _installation(held: Pass, operation: Operation, origin: str | None) -> Caller:
    """A caller of what belongs to no tenant; to those of a tenant it is not there."""
    if held.tenant_id is not None:
        raise HTTPException(404)
    _check_role(held, operation)
    return Caller(
        tenant_id=NOBODY,
        tenant="",
        role=held.role,
        who=held.who,
        everywhere=True,
        scopes=held.scopes,
        origin=origin,
    )


def _check_role(held: Pass, operation: Operation) -> None:
    assert operation.role is not None
    if held.role < operation.role:
        raise Refused(403, "forbidden", f"this needs the role {operation.role.word}", hint=f"yours is {held.role.word}")
    if operation.tag != ALWAYS:
        check_scope(held.scopes, operation.tag)


def check_scope(scopes: frozenset[str], tag: str) -> None:
    """Whether a key of these scopes is for what has this tag."""
    if scopes and tag not in scopes:
        hint = f"it is for {', '.join(sorted(scopes))}"
        raise Refused(403, "forbidden", f"this key is not for {tag}", hint=hint)


def _rate_headers(per_minute: int, verdict: Verdict) -> list[tuple[bytes, bytes]]:
    """As the IETF's draft of RateLimit fields has them: the policy, what is left of it, and for how long."""
    state = f'"api";r={verdict.left};t={int(verdict.reset + 0.999)}'
    return [(b"ratelimit-policy", f'"api";q={per_minute};w=60'.encode()), (b"ratelimit", state.encode())]
