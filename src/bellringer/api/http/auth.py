"""Authenticates callers, checks role, scope and tenant, and enforces rate limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bellringer.access import Caller, Role
from bellringer.access.api_keys import parse_api_key
from bellringer.access.jwt_tokens import TokenVerifier
from bellringer.access.quotas import QuotaDecision, seconds_to_full
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import Endpoint
from bellringer.api.http.verify_credentials import (
    LOCAL_PRINCIPAL,
    AuthenticationFailed,
    AuthFailureReason,
    AuthFailures,
    CredentialReader,
    Principal,
    Throttled,
)
from bellringer.clock import Clock, SystemClock
from bellringer.core.cache import Cache, ProcessCache
from bellringer.errors import NotFound, QuotaExceeded
from bellringer.store.connection_pool import RETRYABLE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.tenants import TenantRow

DEFAULT_TENANT: Final = "default"
NO_TENANT_ID: Final = 0  # the tenant id of callers that belong to no tenant
RESPONSE_HEADERS_KEY: Final = "bellringer.headers"  # in the ASGI scope: headers that are added to every response
CHANGING_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
UNSCOPED_TAG: Final = "service"  # the tag of operations that keys of every scope may call, such as the version
_LOCAL_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")
_LOOPBACK: Final = re.compile(r"(::ffff:)?127(\.[0-9]{1,3}){3}|::1")
_FORWARDED_HEADERS: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})
_IDENTITY_HEADERS: Final = frozenset({b"authorization", b"host", b"origin", b"x-tenant"})
_KEY_IN_QUERY: Final = re.compile(rb"(^|&)(access_token|api_key)=|br_[a-z0-9]{8}_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Which callers need credentials, and of which kind. `open_to="here"`: not those on this machine; `anyone`: no
    caller does.
    """

    open_to: Literal["nobody", "here", "anyone"] = "nobody"
    root_key: str | None = field(default=None, repr=False)
    tokens: TokenVerifier | None = None


class _RequestIdentity(NamedTuple):
    """The parts of a request that identify its caller."""

    host: str
    origin: str | None  # the page whose script sent the request
    credential: str | None
    tenant: str | None
    is_forwarded: bool


class Authenticator:
    """Admits callers. Every request is decided on its own; only keys and tenants are cached, for seconds."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        settings: AuthSettings | None = None,
        clock: Clock | None = None,
        cache: Cache | None = None,
    ) -> None:
        settings = settings or AuthSettings()
        self._catalog = catalog
        self._clock = clock or SystemClock()
        self._open_to = settings.open_to
        self._logins = CredentialReader(store, self._clock, root_key=settings.root_key, tokens=settings.tokens)
        self._cache = cache or ProcessCache(self._clock)
        self._failures = AuthFailures(self._clock)

    async def admit(self, request: Request, operation: Endpoint) -> Caller:
        """Returns the caller; raises if it may not call this operation."""
        # Behind a proxy this is the forwarded address if trusted_proxies names the proxy; otherwise the proxy's own.
        origin = request.client.host if request.client else None
        if operation.role is None:  # these operations work without a database
            return Caller(tenant_id=NO_TENANT_ID, tenant="", role=Role.VIEWER, who="anyone", origin=origin)
        is_change = request.method in CHANGING_METHODS
        try:
            shown = _read_identity(request)
            held = await self._authenticate(request, shown, origin, is_change=is_change)
        except (AuthenticationFailed, Throttled) as failure:
            self._failures.record(failure.reason, origin, key_id=_key_id(request))
            raise
        if operation.everywhere:
            return _check_installation(held, operation, origin)
        tenant = await self._tenant(held, shown.tenant)
        await self._count(request, operation, tenant)
        _check_role(held, operation)
        if is_change and tenant.suspended_at is not None:
            message = "the tenant is suspended, so it cannot be changed"
            raise Refused(
                403, "tenant_suspended", message, hint="an administrator of the installation can unsuspend it"
            )
        return Caller(
            tenant_id=tenant.tenant_id,
            tenant=tenant.name,
            role=held.role,
            who=held.who,
            everywhere=held.tenant_id is None,
            scopes=held.scopes,
            origin=origin,
        )

    async def _authenticate(
        self, request: Request, shown: _RequestIdentity, origin: str | None, *, is_change: bool
    ) -> Principal:
        asked: bytes = request.scope["query_string"]
        if asked and _KEY_IN_QUERY.search(asked):
            raise AuthenticationFailed(
                AuthFailureReason.QUERY
            )  # URLs are logged on their way, so a key in a URL is no longer secret
        if shown.credential is not None:
            return await self._logins.login(shown.credential, origin)
        if self._is_open(shown, origin, is_change=is_change):
            return LOCAL_PRINCIPAL
        raise AuthenticationFailed(AuthFailureReason.MISSING)

    async def is_still_admitted(self, request: Request, caller: Caller) -> bool:
        """Returns whether a caller that was admitted would be admitted again, as the same caller. Streams ask
        repeatedly.

        If the database is not reachable, the answer is yes: there is nothing to stream either.
        """
        shown = _read_identity(request)
        if shown.credential is None:
            return True
        try:
            held = await self._logins.again(shown.credential)
            if held is None or (held.who, held.role, held.scopes) != (caller.who, caller.role, caller.scopes):
                return False
            if caller.tenant_id == NO_TENANT_ID:
                return held.tenant_id is None
            return (await self._tenant(held, shown.tenant)).tenant_id == caller.tenant_id
        except NotFound:
            return False
        except RETRYABLE_ERRORS:
            return True

    def forget(self) -> None:
        """Invalidates cached keys and tenants, after this process has changed them."""
        self._logins.forget()

    async def seal(self) -> bytes:
        """Returns the key that signs cursors."""
        return await self._catalog.signing_secret()

    def _is_open(self, shown: _RequestIdentity, origin: str | None, *, is_change: bool) -> bool:
        """Returns whether this caller needs no credentials.

        A foreign web page in a browser on this machine does need them: its requests are local, but they name another
        host (DNS rebinding) or carry an Origin.
        """
        if is_change and shown.origin is not None and urlsplit(shown.origin).netloc != shown.host:
            return False
        if self._open_to == "anyone":
            return True
        is_here = origin is not None and _LOOPBACK.fullmatch(origin) and _LOCAL_HOST.fullmatch(shown.host)
        return self._open_to == "here" and bool(is_here) and not shown.is_forwarded

    async def _tenant(self, held: Principal, named: str | None) -> TenantRow:
        """Returns the requested tenant; another caller's tenant is reported like a missing one."""
        if held.tenant_id is None:
            found = await self._logins.tenant(named if named is not None else DEFAULT_TENANT)
        else:
            found = await self._logins.tenant(held.tenant_id)
            if found is not None and named not in (None, found.name):
                found = None
        if found is None:
            raise NotFound("there is no such tenant")
        return found

    async def _count(self, request: Request, operation: Endpoint, tenant: TenantRow) -> None:
        """Counts the request against the tenant's rate limits, in this process or in the shared cache."""
        quotas = tenant.quotas
        if quotas.api_per_minute is not None:
            verdict = await self._cache.spend(tenant.tenant_id, "api", quotas.api_per_minute)
            request.scope[RESPONSE_HEADERS_KEY] = _rate_headers(quotas.api_per_minute, verdict)
            if not verdict.allowed:
                wait = str(int(verdict.reset) + 1)
                detail = f"the tenant may make {quotas.api_per_minute:,} requests a minute"
                raise Refused(429, "rate_limited", detail, hint=f"wait {wait} s", headers={"Retry-After": wait})
        if operation.fires:
            await self._count_sends(tenant, 1)

    async def count_sends(self, caller: Caller, count: int) -> None:
        """Counts the sends of a bulk, all or none, against the tenant's rate limit. Raises QuotaExceeded."""
        tenant = await self._logins.tenant(caller.tenant_id)
        if tenant is not None:
            await self._count_sends(tenant, count)

    async def _count_sends(self, tenant: TenantRow, count: int) -> None:
        most = tenant.quotas.fires_per_minute
        if most is None:
            return
        verdict = await self._cache.spend(tenant.tenant_id, "fires", most, count)
        if not verdict.allowed:
            message = f"the tenant may send {most:,g} runs a minute"
            if count > max(most, 1):  # waiting does not help
                raise QuotaExceeded(f"{message}, and the request has {count:,}", hint="send fewer items at once")
            raise QuotaExceeded(message, retry_after=verdict.reset)


def _read_identity(request: Request) -> _RequestIdentity:
    found: dict[bytes, str] = {}
    is_forwarded = False
    for name, value in request.scope["headers"]:
        if name in _IDENTITY_HEADERS:
            found.setdefault(name, value.decode("latin-1"))
        elif name in _FORWARDED_HEADERS:
            is_forwarded = True
    scheme, _, credential = found.get(b"authorization", "").partition(" ")
    if scheme and scheme.lower() != "bearer":
        raise AuthenticationFailed(AuthFailureReason.SCHEME)
    return _RequestIdentity(
        host=found.get(b"host", ""),
        origin=found.get(b"origin"),
        credential=credential.strip() if scheme else None,
        tenant=found.get(b"x-tenant"),
        is_forwarded=is_forwarded,
    )


def _key_id(request: Request) -> str | None:
    """Returns the public part of the key in a request."""
    key = parse_api_key(request.headers.get("authorization", "").rpartition(" ")[2])
    return key.key_id if key else None


def _check_installation(held: Principal, operation: Endpoint, origin: str | None) -> Caller:
    """Returns a caller of the whole installation; for callers of a tenant the operation does not exist."""
    if held.tenant_id is not None:
        raise HTTPException(404)
    _check_role(held, operation)
    return Caller(
        tenant_id=NO_TENANT_ID,
        tenant="",
        role=held.role,
        who=held.who,
        everywhere=True,
        scopes=held.scopes,
        origin=origin,
    )


def _check_role(held: Principal, operation: Endpoint) -> None:
    assert operation.role is not None
    if held.role < operation.role:
        raise Refused(403, "forbidden", f"this needs the role {operation.role.word}", hint=f"yours is {held.role.word}")
    if operation.tag != UNSCOPED_TAG:
        check_scope(held.scopes, operation.tag)


def check_scope(scopes: frozenset[str], tag: str) -> None:
    """Raises if a key with these scopes may not call operations with this tag."""
    if scopes and tag not in scopes:
        hint = f"its scopes are {', '.join(sorted(scopes))}"
        raise Refused(403, "forbidden", f"the scopes of this key do not include {tag}", hint=hint)


def _rate_headers(per_minute: int, verdict: QuotaDecision) -> list[tuple[bytes, bytes]]:
    """Returns the RateLimit headers of the IETF draft: the policy, the remaining quota, and the seconds until it is
    full.
    """
    state = f'"api";r={verdict.left};t={int(seconds_to_full(per_minute, verdict) + 0.999)}'
    return [(b"ratelimit-policy", f'"api";q={per_minute};w=60'.encode()), (b"ratelimit", state.encode())]
