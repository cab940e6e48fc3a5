"""The contract of the API's cache: responses for a few seconds, rate limits, and hints between processes.

Each tenant has a cache **generation**. A reader notes the generation before it reads the database and stores the
response under it. A writer invalidates the generation after its commit and before it responds. A response that was read
before a change is therefore never served after the change was confirmed.

        reader  ── generation a ── reads the database ────────────────── stores under a ──► no reader looks up a
        writer  ────────────────────────── commits ── invalidates: generation b ── responds

The cache can be lost at any time: responses come from the database again, and rate limits start with full credit.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

from bellringer.access.quotas import QuotaDecision, RateLimiter
from bellringer.clock import Clock

CACHE_TTL_SECONDS: Final = 5.0  # the maximum age of a cached response if an invalidation hint is lost
MAX_CACHED_RESPONSES: Final = 20_000  # per process
MAX_CACHED_RESPONSE_BYTES: Final = 16 * 1024
MAX_RATE_LIMITS: Final = 10_000

Generation: TypeAlias = int | bytes


class Cache(Protocol):
    """Methods never raise and never wait long. If the backend is unavailable, nothing is cached."""

    source: str  # label of the cache metrics
    is_shared: bool  # an invalidation takes effect in all API processes

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        """Return the cached response, if it was stored under the current generation."""
        ...

    def generation(self, tenant_id: int) -> Generation | None:
        """Return the tenant's current generation, to be noted before reading the database. None: caching is off."""
        ...

    async def put(self, tenant_id: int, generation: Generation, responses: Mapping[str, bytes], since: float) -> None:
        """Store responses that were read under this generation. `since` is the monotonic time of the read."""
        ...

    async def invalidate(self, tenant_id: int | None) -> bool:
        """Start a new generation for a tenant, or for all tenants (None). Returns False if other processes may still
        use the old one."""
        ...

    def invalidate_local(self, tenant_id: int | None) -> None:
        """Invalidate because of a hint from another process."""
        ...

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> QuotaDecision:
        """Take `count` units from a tenant's rate limit."""
        ...

    async def publish(self, text: str) -> None:
        """Send a hint to all subscribers. Hints can be lost."""
        ...

    async def subscribe(self, heard: Callable[[str], None]) -> None:
        """Call `heard` with each hint of other processes, forever."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class RateLimits:
    """RateLimiter limits of a single process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates: OrderedDict[tuple[int, str], RateLimiter] = OrderedDict()  # oldest first

    def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> QuotaDecision:
        rate = self._rates.get((tenant_id, what))
        if rate is None or rate.per_minute != per_minute:
            if len(self._rates) >= MAX_RATE_LIMITS:
                self._rates.popitem(last=False)
            rate = self._rates[tenant_id, what] = RateLimiter(per_minute)
        return rate.spend(self._clock.monotonic(), count=count)


class ProcessCache:
    """A cache in the memory of one process. Invalidations by other processes arrive as hints, which can be lost."""

    source = "process"
    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rates = RateLimits(clock)
        self._all = 0
        self._changes: defaultdict[int, int] = defaultdict(int)  # tenant -> number of invalidations
        # Oldest first. Not a plain dict: deleting thousands of entries from its front takes quadratic time.
        self._entries: OrderedDict[tuple[int, Generation, str], tuple[float, bytes]] = OrderedDict()

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        entry = self._entries.get((tenant_id, self.generation(tenant_id), key))
        return entry[1] if entry is not None and self._clock.monotonic() - entry[0] < CACHE_TTL_SECONDS else None

    def generation(self, tenant_id: int) -> int:
        return self._all + self._changes[tenant_id]  # both only grow

    async def put(self, tenant_id: int, generation: Generation, responses: Mapping[str, bytes], since: float) -> None:
        for key, data in responses.items():
            if len(data) <= MAX_CACHED_RESPONSE_BYTES:
                self._entries.pop((tenant_id, generation, key), None)
                self._entries[tenant_id, generation, key] = (since, data)
        while len(self._entries) > MAX_CACHED_RESPONSES or (
            self._entries and since - next(iter(self._entries.values()))[0] >= CACHE_TTL_SECONDS
        ):
            self._entries.popitem(last=False)

    async def invalidate(self, tenant_id: int | None) -> bool:
        self.invalidate_local(tenant_id)
        return False

    def invalidate_local(self, tenant_id: int | None) -> None:
        if tenant_id is None:
            self._all += 1
        else:
            self._changes[tenant_id] += 1

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> QuotaDecision:
        return self._rates.spend(tenant_id, what, per_minute, count)

    async def publish(self, text: str) -> None:
        """Do nothing: there are no subscribers."""

    async def subscribe(self, heard: Callable[[str], None]) -> None:
        """Do nothing: there are no publishers."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...
