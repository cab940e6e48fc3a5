"""Verifies JSON Web Tokens of an external issuer.

The configured key decides the algorithm, never the token: a token that could choose would choose `none`, or use a
public key as a shared secret.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeGuard
from urllib.parse import urlsplit

import httpx2
import jwt
import msgspec

from bellringer.access.roles import ROLES, Role
from bellringer.clock import Clock
from bellringer.errors import ConfigError
from bellringer.telemetry import log

CLOCK_LEEWAY: Final = timedelta(seconds=30)  # tolerated clock difference
MAX_TOKEN_LENGTH: Final = 8192
MIN_JWT_SECRET_BYTES: Final = 32  # a shorter secret can be brute-forced from one token
MAX_CLAIM_LENGTH: Final = (
    200  # of a subject or a tenant; longer values are rejected, because truncated ones could collide
)
MAX_TIMESTAMP: Final = 253_402_300_800  # the year 10000
JWKS_MIN_REFRESH_SECONDS: Final = 60.0  # minimum time between two reads of the issuer's keys
JWKS_FRESH_SECONDS: Final = 600.0  # keys are read again after this time; a withdrawn key is accepted until then
JWKS_STALE_SECONDS: Final = 3600.0  # maximum age of the keys if the issuer cannot be reached
JWKS_TIMEOUT_SECONDS: Final = 5.0
MAX_JWKS_BYTES: Final = 256 * 1024
_LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_ALGORITHM_BY_KEY_TYPE: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The required issuer and audience of a token, and the claims that contain the tenant and the role."""

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    role_claim: str = "role"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The user that a token authenticates."""

    subject: str
    tenant: str
    role: Role


class KeyRing(Protocol):
    """The keys that verify tokens."""

    async def find(self, kid: str | None) -> tuple[Any, str] | None:
        """Returns the key with this id and its algorithm, or None."""


class SharedSecret:
    """One secret shared with the issuer (HS256)."""

    def __init__(self, secret: str) -> None:
        if len(secret.encode()) < MIN_JWT_SECRET_BYTES:
            hint = "generate one with `openssl rand -base64 48`"
            raise ConfigError(f"jwt_secret has fewer than {MIN_JWT_SECRET_BYTES} bytes", hint=hint)
        self._secret = secret.encode()

    async def find(self, kid: str | None) -> tuple[Any, str] | None:  # noqa: ARG002 - there is only one key
        return self._secret, "HS256"


class PublicKeys:
    """The issuer's public keys (RS256, ES256), from a JWKS file or URL. They are read again periodically, because
    keys may be withdrawn, and when a token names an unknown key, because keys may be added.
    """

    def __init__(self, where: str, clock: Clock, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        if where.startswith("http://") and urlsplit(where).hostname not in _LOOPBACK_HOSTS:
            hint = "use https or a file: over plain http an attacker could replace the keys"
            raise ConfigError("jwt_jwks is a plain http URL", hint=hint)
        self._where = where
        self._clock = clock
        self._transport = transport
        self._keys: Mapping[str | None, tuple[Any, str]] = {}
        self._read_at = self._looked_at = -math.inf
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None) -> tuple[Any, str] | None:
        # Tokens with an unknown key wait for one shared read; tokens with a known key do not wait.
        if self._known(kid) is None or (self._is_old and not self._lock.locked()):
            async with self._lock:
                if (self._known(kid) is None or self._is_old) and self._since(
                    self._looked_at
                ) >= JWKS_MIN_REFRESH_SECONDS:
                    await self._look()
        return self._known(kid)

    def _known(self, kid: str | None) -> tuple[Any, str] | None:
        if self._since(self._read_at) > JWKS_STALE_SECONDS:
            return None
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    @property
    def _is_old(self) -> bool:
        return self._since(self._read_at) >= JWKS_FRESH_SECONDS

    def _since(self, at: float) -> float:
        return self._clock.monotonic() - at

    async def _look(self) -> None:
        """Reads the keys. If that fails, the known keys stay valid for a while."""
        self._looked_at = self._clock.monotonic()
        try:
            self._keys = parse_jwks(await self._document())
            self._read_at = self._looked_at
        except (OSError, httpx2.HTTPError, ValueError) as error:
            log.warning("could not read the issuer's keys", error=type(error).__name__)

    async def _document(self) -> bytes:
        if not self._where.startswith(("http://", "https://")):
            return await asyncio.to_thread(Path(self._where).read_bytes)
        plain = {"Accept-Encoding": "identity"}  # a compressed response could expand beyond the limit
        async with (
            asyncio.timeout(JWKS_TIMEOUT_SECONDS),
            httpx2.AsyncClient(timeout=JWKS_TIMEOUT_SECONDS, transport=self._transport, headers=plain) as client,
            client.stream("GET", self._where) as answer,
        ):
            if answer.raise_for_status().headers.get("content-encoding", "identity") != "identity":
                raise ValueError("compressed")
            document = bytearray()
            async for part in answer.aiter_bytes():
                document += part
                if len(document) > MAX_JWKS_BYTES:
                    raise ValueError("too large")
        return bytes(document)


def parse_jwks(document: bytes) -> Mapping[str | None, tuple[Any, str]]:
    """Returns the usable keys of a JWKS document by their ids. Shared secrets in it are ignored."""
    keys: dict[str | None, tuple[Any, str]] = {}
    for entry in msgspec.json.decode(document, type=_Jwks).keys:
        try:
            algorithm = _ALGORITHM_BY_KEY_TYPE.get((entry["kty"], entry.get("crv")))
            if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
                continue
            keys[entry.get("kid")] = (jwt.PyJWK(entry, algorithm).key, algorithm)
        except (jwt.PyJWTError, AttributeError, LookupError, TypeError, ValueError):
            continue  # an invalid key does not affect the others
    return keys


class _Jwks(msgspec.Struct):
    keys: list[Any]


class TokenVerifier:
    """Verifies tokens of one issuer."""

    def __init__(self, rules: TokenRules, ring: KeyRing, clock: Clock) -> None:
        self._rules = rules
        self._ring = ring
        self._clock = clock

    async def read(self, text: str) -> Bearer | None:
        """Returns the user that the token authenticates, or None. The reason of a rejection is not disclosed."""
        if len(text) > MAX_TOKEN_LENGTH:
            return None
        try:
            header = jwt.get_unverified_header(text)
            found = await self._ring.find(header.get("kid"))
            if found is None or "crit" in header or header.get("alg") != found[1]:
                return None
            claims = self._claims(text, *found)
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return check_claims(claims, self._rules, self._clock.now())

    def _claims(self, text: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        """Returns the claims if the signature, issuer and audience are valid. `check_claims` checks the times."""
        claims: Mapping[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            issuer=self._rules.issuer,
            audience=self._rules.audience,
            options={
                "require": ["exp", "iss", "aud", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
        return claims


def make_token_verifier(
    rules: TokenRules, clock: Clock, *, secret: str | None, jwks: str | None
) -> TokenVerifier | None:
    """Returns a verifier for the configured key, or None without one."""
    if secret:
        return TokenVerifier(rules, SharedSecret(secret), clock)
    return TokenVerifier(rules, PublicKeys(jwks, clock), clock) if jwks else None


def check_claims(claims: Mapping[str, Any], rules: TokenRules, now: datetime) -> Bearer | None:
    """Returns the user of the claims if the token is valid now and all required claims are present."""
    moment, leeway = now.timestamp(), CLOCK_LEEWAY.total_seconds()
    ends, begins = claims["exp"], claims.get("nbf", 0)
    if not (_is_time(ends) and _is_time(begins) and begins - leeway <= moment < ends + leeway):
        return None
    subject, tenant, role = claims["sub"], claims.get(rules.tenant_claim), claims.get(rules.role_claim)
    if not (_is_name(subject) and _is_name(tenant) and isinstance(role, str) and role in ROLES):
        return None
    return Bearer(subject=subject, tenant=tenant, role=ROLES[role])


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_TIMESTAMP


def _is_name(value: object) -> TypeGuard[str]:
    """Whether the value is printable text of limited length, which can be stored and shown in the history."""
    return isinstance(value, str) and 0 < len(value) <= MAX_CLAIM_LENGTH and value.isprintable()
