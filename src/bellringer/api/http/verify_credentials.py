"""Checks API keys and JWTs, caches the result, and describes why a login failed."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import Any, Final, Generic, TypeVar

from bellringer.access import ROLES, Role
from bellringer.access.api_keys import parse_api_key
from bellringer.access.jwt_tokens import TokenVerifier
from bellringer.access.quotas import RateLimiter
from bellringer.api.http.error_responses import Refused
from bellringer.clock import Clock
from bellringer.store import api_keys, tenants
from bellringer.store.connection_pool import DATABASE_ERRORS, Store
from bellringer.store.tenants import TenantRow
from bellringer.telemetry import AUTH_FAILURES, log

LOG_LINES_PER_ADDRESS: Final = 2  # log lines per minute
LOG_LINES_PER_MINUTE: Final = 60
MAX_ADDRESSES: Final = 10_000


class AuthFailureReason(StrEnum):
    """Why a request was not authenticated. It is logged, not returned: the response is the same for all reasons."""

    MISSING = "missing"  # neither a key nor a token
    SCHEME = "scheme"  # an Authorization header of another scheme than Bearer
    QUERY = "query"  # a key in the URL, where proxies log it
    KEY = "key"  # unknown, malformed, expired or revoked
    TOKEN = "token"  # noqa: S105 - not a secret
    THROTTLED = "throttled"  # too many wrong keys from this address


class AuthenticationFailed(Refused):
    """A request without a valid credential; all reasons give the same response."""

    def __init__(self, reason: AuthFailureReason) -> None:
        super().__init__(
            401,
            "unauthenticated",
            "a valid key or token is required",
            hint="send it as `Authorization: Bearer …`; the command line takes it from BELLRINGER_KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )
        self.reason = reason


class Throttled(Refused):
    """Too many wrong keys were sent from the caller's address."""

    reason: Final = AuthFailureReason.THROTTLED

    def __init__(self, wait: int) -> None:
        super().__init__(
            429,
            "too_many_attempts",
            "too many wrong keys were sent from this address",
            hint="wait, then use a valid key",
            headers={"Retry-After": str(wait)},
        )


class AuthFailures:
    """Counts and logs the failures of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = RateLimiter(LOG_LINES_PER_MINUTE)
        self._lines: OrderedDict[str, RateLimiter] = OrderedDict()
        self._unlogged: dict[str, int] = {}

    def record(self, reason: AuthFailureReason, address: str | None, *, key_id: str | None = None) -> None:
        """Counts a failure, and logs it unless the limit of log lines per minute is reached."""
        AUTH_FAILURES.labels(reason.value).inc()
        where, now = address or "unknown", self._clock.monotonic()
        if where not in self._lines and len(self._lines) >= MAX_ADDRESSES:
            forgotten, _ = self._lines.popitem(last=False)
            self._unlogged.pop(forgotten, None)
        lines = self._lines.setdefault(where, RateLimiter(LOG_LINES_PER_ADDRESS))
        if not lines.look(now).allowed or not self._all.spend(now).allowed:
            self._unlogged[where] = self._unlogged.get(where, 0) + 1
            return
        lines.spend(now)
        more: dict[str, Any] = {"key_id": key_id} if key_id else {}
        if unlogged := self._unlogged.pop(where, 0):
            more["unlogged"] = unlogged
        log.warning("authentication failed", reason=reason.value, address=where, **more)


CREDENTIAL_TTL_SECONDS: Final = 5.0  # revoked keys and changed quotas take effect everywhere within this time
MAX_CACHED_CREDENTIALS: Final = 10_000
MAX_WRONG_KEYS_PER_MINUTE: Final = 10  # wrong keys per minute and address
_NO_HASH: Final = bytes(32)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The tenant, role and scopes of a credential; without a tenant it is valid for the whole installation."""

    who: str
    role: Role
    tenant_id: int | None = None
    scopes: frozenset[str] = frozenset()


LOCAL_PRINCIPAL: Final = Principal(who="local", role=Role.ADMIN)
ROOT_PRINCIPAL: Final = Principal(who="root", role=Role.ADMIN)


class ExpiringCache(Generic[T]):
    """A cache by key with an expiry time and a maximum size; the oldest entry is evicted first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object) -> T | None:
        """Returns the entry if it has not expired."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock.monotonic() < entry[0] else None

    def __contains__(self, key: object) -> bool:
        """Returns whether there is an entry, expired or not."""
        return key in self._entries

    def put(self, key: object, value: T) -> T:
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_CACHED_CREDENTIALS:
            self._entries.popitem(last=False)
        self._entries[key] = (self._clock.monotonic() + CREDENTIAL_TTL_SECONDS, value)
        return value

    def drop(self, key: object) -> None:
        self._entries.pop(key, None)

    def expire(self) -> None:
        """Expires all entries without removing them."""
        self._entries = OrderedDict((key, (-inf, value)) for key, (_, value) in self._entries.items())


class CredentialReader:
    """Reads credentials, and the tenants that they belong to."""

    def __init__(self, store: Store, clock: Clock, *, root_key: str | None, tokens: TokenVerifier | None) -> None:
        self._store = store
        self._clock = clock
        self._root = _digest(root_key) if root_key else None
        self._tokens = tokens
        self._passes: ExpiringCache[Principal] = ExpiringCache(clock)
        self._tenants: ExpiringCache[TenantRow] = ExpiringCache(clock)
        self._guesses: OrderedDict[str, RateLimiter] = OrderedDict()
        self._changes = 0

    async def login(self, credential: str, origin: str | None) -> Principal:
        """Returns the principal of a credential. Entries are cached by hash, so that no secret stays in memory and the
        time of a lookup reveals nothing.
        """
        guesses = self._guesses.get(_network(origin))
        # A credential that was valid a moment ago does not count as a guess, so that wrong keys from the same address
        # do not lock its holder out.
        if guesses is not None and _digest(credential) not in self._passes:
            self._check(guesses)
        found = await self.again(credential)
        if found is None:
            self._count(origin)
            raise AuthenticationFailed(AuthFailureReason.TOKEN if _is_token(credential) else AuthFailureReason.KEY)
        return found

    async def again(self, credential: str) -> Principal | None:
        """Checks a credential again that was valid before; if it was revoked, that does not count as a failed login."""
        digest = _digest(credential)
        found = self._passes.get(digest)
        if found is not None:
            return found
        changes = self._changes
        found = await self._read(credential, digest)
        if found is None:
            self._passes.drop(digest)
            return None
        return self._passes.put(digest, found) if changes == self._changes else found

    def forget(self) -> None:
        """Invalidates all cached keys and tenants, including those being read at this moment."""
        self._changes += 1
        self._passes.expire()
        self._tenants.expire()

    async def tenant(self, which: int | str) -> TenantRow | None:
        """Returns a tenant by id or name, at most seconds old."""
        found, changes = self._tenants.get(which), self._changes
        if found is None:
            if isinstance(which, int):
                found = await tenants.get_by_id(self._store, which)
            elif "\0" not in which:  # no tenant name can contain this character
                found = await tenants.get_by_name(self._store, which)
            if found is not None and changes == self._changes:
                self._tenants.put(which, found)
        return found

    async def _read(self, credential: str, digest: bytes) -> Principal | None:
        if self._root is not None and hmac.compare_digest(digest, self._root):
            return ROOT_PRINCIPAL
        if _is_token(credential):
            return await self._by_token(credential)
        return await self._by_key(credential)

    async def _by_key(self, credential: str) -> Principal | None:
        key = parse_api_key(credential)
        if key is None:
            return None
        lock = await api_keys.find(self._store, key.key_id)
        if not key.fits(lock.hash if lock else _NO_HASH) or lock is None:
            return None
        if lock.is_use_stale:
            with suppress(*DATABASE_ERRORS):  # the use of a key is recorded on a best-effort basis
                await api_keys.touch(self._store, key.key_id)
        # Each tenant chooses the names of its keys: a key of the whole installation must not be mistaken for one of
        # them.
        kind = "key" if lock.tenant_id is not None else "installation-key"
        return Principal(who=f"{kind}:{lock.name}", role=ROLES[lock.role], tenant_id=lock.tenant_id, scopes=lock.scopes)

    async def _by_token(self, credential: str) -> Principal | None:
        bearer = await self._tokens.read(credential) if self._tokens else None
        tenant = await self.tenant(bearer.tenant) if bearer else None
        if bearer is None or tenant is None:
            return None
        return Principal(who=f"user:{bearer.subject}", role=bearer.role, tenant_id=tenant.tenant_id)

    def _check(self, guesses: RateLimiter) -> None:
        verdict = guesses.look(self._clock.monotonic())
        if not verdict.allowed:
            raise Throttled(int(verdict.reset) + 1)

    def _count(self, origin: str | None) -> None:
        """Counts a wrong key of an address. The table has a fixed size: many addresses evict the oldest entries."""
        network = _network(origin)
        if network not in self._guesses and len(self._guesses) >= MAX_CACHED_CREDENTIALS:
            self._guesses.popitem(last=False)
        self._guesses.setdefault(network, RateLimiter(MAX_WRONG_KEYS_PER_MINUTE)).spend(self._clock.monotonic())


def _is_token(credential: str) -> bool:
    return credential.count(".") == 2


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def _network(origin: str | None) -> str:
    """Returns the network that wrong keys are counted for: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ip_address(origin or "")
    except ValueError:
        return origin or ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)
