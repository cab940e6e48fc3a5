"""JSON Web Tokens of another issuer: whose word we take, for whom, and until when.

What kind of key is configured decides the algorithm, never the token: a token that could choose would choose `none`,
or pass off a public key as a shared secret.
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

from bellringer.access.callers import ROLES, Role
from bellringer.clock import Clock
from bellringer.errors import ConfigError
from bellringer.telemetry import log

LEEWAY: Final = timedelta(seconds=30)  # clocks differ
LONGEST: Final = 8192  # characters of a token
SHORTEST_SECRET: Final = 32  # bytes: shorter ones can be guessed from one token
LONGEST_NAME: Final = 200  # characters of a subject or a tenant: two that were cut would be taken for one
LATEST: Final = 253_402_300_800  # the year 10000
REFRESH: Final = 60.0  # seconds between two looks for the issuer's keys
FRESH: Final = 600.0  # seconds after which they are read again: so long one that was withdrawn is taken at most …
STALE: Final = 3600.0  # … or so long, if the issuer cannot be asked
PATIENCE: Final = 5.0  # seconds for the whole answer
MOST_BYTES: Final = 256 * 1024  # of it
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BY_TYPE: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a token must say to be taken, and where it says who it is for."""

    issuer: str
    audience: str
    tenant_claim: str = "tenant"
    role_claim: str = "role"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Whom a token speaks for."""

    subject: str
    tenant: str
    role: Role


class Ring(Protocol):
    """The keys that tokens may be signed with."""

    async def find(self, kid: str | None) -> tuple[Any, str] | None:
        """A key with the one algorithm that it is for."""


class SharedSecret:
    """One secret that the issuer has too: HS256."""

    def __init__(self, secret: str) -> None:
        if len(secret.encode()) < SHORTEST_SECRET:
            hint = "make one with `openssl rand -base64 48`"
            raise ConfigError(f"jwt_secret has fewer than {SHORTEST_SECRET} bytes", hint=hint)
        self._secret = secret.encode()

    async def find(self, kid: str | None) -> tuple[Any, str] | None:  # noqa: ARG002 - there is only one
        return self._secret, "HS256"


class PublicKeys:
    """The issuer's public keys (RS256, ES256), from a JWKS file or URL. They are read again now and then, because some
    may be withdrawn, and for one that is not known, which may have been added.
    """

    def __init__(self, where: str, clock: Clock, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        if where.startswith("http://") and urlsplit(where).hostname not in _HERE:
            hint = "use https, or a file: whoever is on the way could put in a key of their own"
            raise ConfigError("jwt_jwks is read over plain http", hint=hint)
        self._where = where
        self._clock = clock
        self._transport = transport
        self._keys: Mapping[str | None, tuple[Any, str]] = {}
        self._read_at = self._looked_at = -math.inf
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None) -> tuple[Any, str] | None:
        # Many tokens with a new key wait for one look; those with a known one do not wait for others' looks.
        if self._known(kid) is None or (self._is_old and not self._lock.locked()):
            async with self._lock:
                if (self._known(kid) is None or self._is_old) and self._since(self._looked_at) >= REFRESH:
                    await self._look()
        return self._known(kid)

    def _known(self, kid: str | None) -> tuple[Any, str] | None:
        if self._since(self._read_at) > STALE:
            return None
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    @property
    def _is_old(self) -> bool:
        return self._since(self._read_at) >= FRESH

    def _since(self, at: float) -> float:
        return self._clock.monotonic() - at

    async def _look(self) -> None:
        """Take the keys as they are now; where they cannot be had, those that are known hold for a while."""
        self._looked_at = self._clock.monotonic()
        try:
            self._keys = read_keys(await self._document())
            self._read_at = self._looked_at
        except (OSError, httpx2.HTTPError, ValueError) as error:
            log.warning("the issuer's keys cannot be read", error=type(error).__name__)

    async def _document(self) -> bytes:
        if not self._where.startswith(("http://", "https://")):
            return await asyncio.to_thread(Path(self._where).read_bytes)
        plain = {"Accept-Encoding": "identity"}  # what is packed may be small here and large there
        async with (
            asyncio.timeout(PATIENCE),
            httpx2.AsyncClient(timeout=PATIENCE, transport=self._transport, headers=plain) as client,
            client.stream("GET", self._where) as answer,
        ):
            if answer.raise_for_status().headers.get("content-encoding", "identity") != "identity":
                raise ValueError("packed")
            document = bytearray()
            async for part in answer.aiter_bytes():
                document += part
                if len(document) > MOST_BYTES:
                    raise ValueError("too large")
        return bytes(document)


def read_keys(document: bytes) -> Mapping[str | None, tuple[Any, str]]:
    """The keys of a JWKS document that we can use, by their ids; a shared secret in it is not for us."""
    keys: dict[str | None, tuple[Any, str]] = {}
    for entry in msgspec.json.decode(document, type=_Jwks).keys:
        try:
            algorithm = _BY_TYPE.get((entry["kty"], entry.get("crv")))
            if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
                continue
            keys[entry.get("kid")] = (jwt.PyJWK(entry, algorithm).key, algorithm)
        except (jwt.PyJWTError, AttributeError, LookupError, TypeError, ValueError):
            continue  # an odd one does not spoil the others
    return keys


class _Jwks(msgspec.Struct):
    keys: list[Any]


class Tokens:
    """Reads tokens of one issuer."""

    def __init__(self, rules: Rules, ring: Ring, clock: Clock) -> None:
        self._rules = rules
        self._ring = ring
        self._clock = clock

    async def read(self, text: str) -> Bearer | None:
        """Whom a token speaks for, or None: why it is not taken is nobody's business."""
        if len(text) > LONGEST:
            return None
        try:
            header = jwt.get_unverified_header(text)
            found = await self._ring.find(header.get("kid"))
            if found is None or "crit" in header or header.get("alg") != found[1]:
                return None
            claims = self._claims(text, *found)
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return bearer(claims, self._rules, self._clock.now())

    def _claims(self, text: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        """What it says, if it is signed for us; its times are judged by `bearer`."""
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


def tokens_by(rules: Rules, clock: Clock, *, secret: str | None, jwks: str | None) -> Tokens | None:
    """A reader by the key that is given; none without one."""
    if secret:
        return Tokens(rules, SharedSecret(secret), clock)
    return Tokens(rules, PublicKeys(jwks, clock), clock) if jwks else None


def bearer(claims: Mapping[str, Any], rules: Rules, now: datetime) -> Bearer | None:
    """Whom claims speak for, if they hold now and say all that they must."""
    moment, leeway = now.timestamp(), LEEWAY.total_seconds()
    ends, begins = claims["exp"], claims.get("nbf", 0)
    if not (_is_time(ends) and _is_time(begins) and begins - leeway <= moment < ends + leeway):
        return None
    subject, tenant, role = claims["sub"], claims.get(rules.tenant_claim), claims.get(rules.role_claim)
    if not (_is_name(subject) and _is_name(tenant) and isinstance(role, str) and role in ROLES):
        return None
    return Bearer(subject=subject, tenant=tenant, role=ROLES[role])


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LATEST


def _is_name(value: object) -> TypeGuard[str]:
    """Text that history can show as it is: nothing hidden in it, which the database might not even hold."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
