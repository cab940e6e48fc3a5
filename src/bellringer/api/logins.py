"""Who a key or a token speaks for. What was right a moment ago is not asked for again."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeVar

from bellringer.access import ROLES, Role
from bellringer.access.keys import read_key
from bellringer.access.quotas import Rate
from bellringer.access.tokens import Tokens
from bellringer.api.problems import Refused
from bellringer.clock import Clock
from bellringer.store import keys, tenants
from bellringer.store.pool import FAILURES, Store
from bellringer.store.tenants import Tenant

FRESH: Final = 5.0  # seconds: a key that is revoked, or a quota that is changed, counts everywhere within these
MOST_KEPT: Final = 10_000
GUESSES: Final = 10  # wrong keys a minute from one address
_NO_HASH: Final = bytes(32)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Whom a credential speaks for; without a tenant, for the whole installation."""

    who: str
    role: Role
    tenant_id: int | None = None
    scopes: frozenset[str] = frozenset()


LOCAL: Final = Pass(who="local", role=Role.ADMIN)
ROOT: Final = Pass(who="root", role=Role.ADMIN)


class Kept(Generic[T]):
    """What was read lately, by its key; the oldest goes first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[object, tuple[float, T]] = OrderedDict()

    def get(self, key: object) -> T | None:
        """What is kept and still fresh."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock.monotonic() < entry[0] else None

    def __contains__(self, key: object) -> bool:
        """Whether it is kept, fresh or not."""
        return key in self._entries

    def put(self, key: object, value: T) -> T:
        self._entries.pop(key, None)
        if len(self._entries) >= MOST_KEPT:
            self._entries.popitem(last=False)
        self._entries[key] = (self._clock.monotonic() + FRESH, value)
        return value

    def drop(self, key: object) -> None:
        self._entries.pop(key, None)


class Logins:
    """Reads credentials, and the tenants that they are for."""

    def __init__(self, store: Store, clock: Clock, *, root_key: str | None, tokens: Tokens | None) -> None:
        self._store = store
        self._clock = clock
        self._root = _digest(root_key) if root_key else None
        self._tokens = tokens
        self._passes: Kept[Pass] = Kept(clock)
        self._tenants: Kept[Tenant] = Kept(clock)
        self._guesses: OrderedDict[str, Rate] = OrderedDict()

    async def login(self, credential: str, origin: str | None) -> Pass:
        """Whom it speaks for. Kept by its hash: no secret stays in memory, and a look-up tells nothing by its time."""
        guesses = self._guesses.get(_network(origin))
        # One that was right a moment ago is no guess: a neighbour who guesses does not lock its holder out.
        if guesses is not None and _digest(credential) not in self._passes:
            self._check(guesses)
        found = await self.again(credential)
        if found is None:
            self._count(origin)
            raise unauthenticated()
        return found

    async def again(self, credential: str) -> Pass | None:
        """The same of one that was right before: if it is so no more, that was no guess."""
        digest = _digest(credential)
        found = self._passes.get(digest)
        if found is not None:
            return found
        found = await self._read(credential, digest)
        if found is None:
            self._passes.drop(digest)
            return None
        return self._passes.put(digest, found)

    async def tenant(self, which: int | str) -> Tenant | None:
        """A tenant by its number or name, as it was a moment ago."""
        found = self._tenants.get(which)
        if found is None:
            if isinstance(which, int):
                found = await tenants.by_id(self._store, which)
            elif "\0" not in which:  # which no name can hold
                found = await tenants.by_name(self._store, which)
            if found is not None:
                self._tenants.put(which, found)
        return found

    async def _read(self, credential: str, digest: bytes) -> Pass | None:
        if self._root is not None and hmac.compare_digest(digest, self._root):
            return ROOT
        if credential.count(".") == 2:
            return await self._by_token(credential)
        return await self._by_key(credential)

    async def _by_key(self, credential: str) -> Pass | None:
        key = read_key(credential)
        if key is None:
            return None
        lock = await keys.find(self._store, key.key_id)
        if not key.fits(lock.hash if lock else _NO_HASH) or lock is None:
            return None
        if lock.is_rusty:
            with suppress(*FAILURES):  # a note, not a condition
                await keys.touch(self._store, key.key_id)
        # Each tenant gives names of its own: a key of the whole installation must not be taken for one of them.
        kind = "key" if lock.tenant_id is not None else "installation-key"
        return Pass(who=f"{kind}:{lock.name}", role=ROLES[lock.role], tenant_id=lock.tenant_id, scopes=lock.scopes)

    async def _by_token(self, credential: str) -> Pass | None:
        bearer = await self._tokens.read(credential) if self._tokens else None
        tenant = await self.tenant(bearer.tenant) if bearer else None
        if bearer is None or tenant is None:
            return None
        return Pass(who=f"user:{bearer.subject}", role=bearer.role, tenant_id=tenant.tenant_id)

    def _check(self, guesses: Rate) -> None:
        verdict = guesses.look(self._clock.monotonic())
        if not verdict.allowed:
            raise Refused(
                429,
                "too_many_attempts",
                "too many wrong keys came from this address",
                hint="wait, then use a good one",
                headers={"Retry-After": str(int(verdict.reset) + 1)},
            )

    def _count(self, origin: str | None) -> None:
        """One wrong key more from there. Who guesses from many addresses pushes out the oldest, not the memory."""
        network = _network(origin)
        if network not in self._guesses and len(self._guesses) >= MOST_KEPT:
            self._guesses.popitem(last=False)
        self._guesses.setdefault(network, Rate(GUESSES)).spend(self._clock.monotonic())


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def unauthenticated() -> Refused:
    """One answer for all that is wrong with a credential."""
    return Refused(
        401,
        "unauthenticated",
        "a valid key or token is needed",
        hint="send it as `Authorization: Bearer …`; the command line takes it from BELLRINGER_KEY",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _network(origin: str | None) -> str:
    """Where guesses are counted: an address, or the network that one caller has of IPv6."""
    try:
        address = ip_address(origin or "")
    except ValueError:
        return origin or ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)
