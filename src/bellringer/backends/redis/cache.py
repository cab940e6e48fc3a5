"""The shared cache of API processes in Redis: responses, rate limits and hints. PostgreSQL stays the source of truth.

Keys, all prefixed by `bellringer:<installation>:`

    generation            of all tenants; deleted on every connect, so that nothing cached before an outage is served
    generation:<tenant>   of one tenant; deleted by every change
    <tenant>:<key>        a response, preceded by a MAC over both generations, the key and the response
    rate:<tenant>:<what>  the time at which a rate limit has its full credit again, in µs of Redis' clock

Deleting a key also works in a Redis that is out of memory. Generations are random, so a lost one (flushed or evicted)
never comes back. Values that other programs wrote fail the MAC check and are ignored.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from bellringer.access.quotas import QuotaDecision
from bellringer.backends.redis.pipeline import (
    FAILURES,
    RETRY_DELAY_SECONDS,
    RedisPipeline,
    RedisUnavailable,
    make_connection,
    parse_settings,
)
from bellringer.clock import Clock
from bellringer.core.cache import CACHE_TTL_SECONDS, MAX_CACHED_RESPONSE_BYTES, Generation, RateLimits

_GENERATION_BYTES: Final = 16
_MAC_BYTES: Final = 16
_GENERATION_TTL_MS: Final = 3_600_000  # an unused generation can expire; a new one is made when needed
INVALIDATION_PAUSE_SECONDS: Final = 0.25  # one hint covers all changes of the next 100 ms, see store.wakeups
MAX_TRACKED_TENANTS: Final = 10_000
PING_SECONDS: Final = 2.5  # interval of pings on the subscription
SILENCE_SECONDS: Final = 6.0  # a subscription without any reply for this long is broken

# The arithmetic of access.quotas.Rate, in µs. A value that is not a number counts as full credit. A value beyond the
# burst counts as no credit and is corrected, because it would otherwise block the rate limit forever.
_SPEND: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, burst, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cached = redis.pcall('GET', KEYS[1])
local whole = type(cached) == 'string' and tonumber(cached) or now
local function keep(value)
  redis.call('SET', KEYS[1], string.format('%.0f', value), 'PX', string.format('%.0f', (value - now) / 1000 + 1000))
end
if whole ~= whole or whole < now then whole = now end
if whole > now + burst then
  whole = now + burst
  keep(whole)
end
whole = whole + cost * count
if whole - now > burst + 1 then return {0, 0, string.format('%.0f', whole - now - burst)} end
keep(whole)
return {1, math.floor((now + burst - whole) / cost + 0.000001), string.format('%.0f', whole - now)}
"""


class RedisCache:
    """See core.cache: it neither raises nor waits long. While Redis is away nothing is cached, and each process
    counts rates for itself; it has counted all along what it let in, so an outage gives no fresh credit."""

    source = "redis"
    is_shared = True

    def __init__(self, url: str, secret: bytes, clock: Clock) -> None:
        self._clock = clock
        self._secret = blake2b(secret, person=b"bellringer cache").digest()
        name = blake2b(secret, digest_size=6, person=b"bellringer name").hexdigest()
        self._prefix = f"bellringer:{name}:"
        self._settings = parse_settings(url)
        # The pipeline proves that Redis accepts writes: a read-only one could not be invalidated, so it is not read.
        self._pipeline = RedisPipeline(
            url, clock, [("DEL", f"{self._prefix}generation")], [("DEL", f"{self._prefix}proof")]
        )
        self._rates = RateLimits(clock)
        self._generations: dict[int, bytes] = {}  # last seen generation of each tenant
        self._paused_until: dict[int | None, float] = {}
        self._invalidations: set[asyncio.Task[bool]] = set()

    async def open(self) -> None:
        await self._pipeline.open()

    async def close(self) -> None:
        for task in list(self._invalidations):
            task.cancel()
        await self._pipeline.close()

    # Responses

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        keys = (f"{self._prefix}generation", f"{self._prefix}generation:{tenant_id}")
        try:
            *generations, cached = await self._pipeline.request("MGET", *keys, self._key_of(tenant_id, key))
            if any(not _is_generation(generation) for generation in generations):
                cached = None
                generations = [
                    m if _is_generation(m) else await self._new_generation(p)
                    for p, m in zip(keys, generations, strict=True)
                ]
        except (RedisUnavailable, ResponseError):  # a Redis out of memory cannot store a new generation
            self._generations.pop(tenant_id, None)
            return None
        generation = b"".join(generations)
        self._remember(tenant_id, generation)
        if cached is None or self._is_paused(tenant_id):
            return None
        seal, data = cached[:_MAC_BYTES], cached[_MAC_BYTES:]
        return data if secrets.compare_digest(seal, self._mac(tenant_id, generation, key, data)) else None

    def generation(self, tenant_id: int) -> bytes | None:
        return None if self._is_paused(tenant_id) else self._generations.get(tenant_id)

    async def put(self, tenant_id: int, generation: Generation, responses: Mapping[str, bytes], since: float) -> None:
        lives = int((since + CACHE_TTL_SECONDS - self._clock.monotonic()) * 1000)
        if lives <= 0 or not isinstance(generation, bytes):
            return
        for key, data in responses.items():
            if len(data) <= MAX_CACHED_RESPONSE_BYTES:
                value = self._mac(tenant_id, generation, key, data) + data
                self._pipeline.send_and_forget("SET", self._key_of(tenant_id, key), value, "PX", lives)

    async def invalidate(self, tenant_id: int | None) -> bool:
        key_name = f"{self._prefix}generation" if tenant_id is None else f"{self._prefix}generation:{tenant_id}"
        try:
            await self._pipeline.request("DEL", key_name)
        except (RedisUnavailable, ResponseError):
            return False
        return True

    def invalidate_local(self, tenant_id: int | None) -> None:
        """Also invalidates in Redis, because the sender of the hint may not have reached it."""
        if len(self._paused_until) >= MAX_TRACKED_TENANTS:
            self._paused_until.clear()
            tenant_id = None
        self._paused_until[tenant_id] = self._clock.monotonic() + INVALIDATION_PAUSE_SECONDS
        task = asyncio.ensure_future(self.invalidate(tenant_id))
        self._invalidations.add(task)
        task.add_done_callback(self._invalidations.discard)

    def _remember(self, tenant_id: int, generation: bytes) -> None:
        if len(self._generations) >= MAX_TRACKED_TENANTS:
            self._generations.clear()
        self._generations[tenant_id] = generation

    def _is_paused(self, tenant_id: int) -> bool:
        now = self._clock.monotonic()
        return now < max(self._paused_until.get(tenant_id, now), self._paused_until.get(None, now))

    async def _new_generation(self, key_name: str) -> bytes:
        """Store and return a new generation. If two processes do so at once, the last one wins."""
        generation = secrets.token_bytes(_GENERATION_BYTES)
        await self._pipeline.request("SET", key_name, generation, "PX", _GENERATION_TTL_MS)
        return generation

    def _key_of(self, tenant_id: int, key: str) -> str:
        return f"{self._prefix}{tenant_id}:{key}"

    def _mac(self, tenant_id: int, generation: bytes, key: str, data: bytes) -> bytes:
        key_name = f"{tenant_id}:{key}\0".encode()
        return blake2b(generation + key_name + data, key=self._secret, digest_size=_MAC_BYTES).digest()

    # Rates

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> QuotaDecision:
        if per_minute <= 0:
            return self._rates.spend(tenant_id, what, per_minute, count)
        cost = 60e6 / per_minute
        burst = max(60e6, cost)  # a rate below one per minute still allows one request
        key_name = f"{self._prefix}rate:{tenant_id}:{what}"
        try:
            allowed, left, reset = await self._pipeline.request(
                "EVAL", _SPEND, 1, key_name, repr(cost), repr(burst), count
            )
        except (RedisUnavailable, ResponseError):
            return self._rates.spend(tenant_id, what, per_minute, count)
        if allowed:
            self._rates.spend(tenant_id, what, per_minute, count)
        return QuotaDecision(allowed=bool(allowed), left=int(left), reset=int(reset) / 1e6)

    # Hints

    async def publish(self, text: str) -> None:
        self._pipeline.send_and_forget("PUBLISH", f"{self._prefix}hints", text)

    async def subscribe(self, heard: Callable[[str], None]) -> None:
        while True:
            connection = make_connection(self._settings)
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await connection.connect()  # type: ignore[no-untyped-call]
                    await connection.send_command("SUBSCRIBE", f"{self._prefix}hints")
                await _receive(connection, heard)
            except FAILURES:
                await self._clock.sleep(RETRY_DELAY_SECONDS)
            finally:
                with suppress(*FAILURES):
                    await connection.disconnect(nowait=True)


async def _receive(connection: AbstractConnection, heard: Callable[[str], None]) -> None:
    """Forward messages until the connection breaks or does not reply to pings."""
    asking = asyncio.create_task(_ping(connection))
    try:
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await connection.read_response(timeout=float("inf"))
            _forward(message, heard)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _ping(connection: AbstractConnection) -> None:
    while True:
        await asyncio.sleep(PING_SECONDS)
        await connection.send_command("PING", check_health=False)


def _is_generation(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == _GENERATION_BYTES


def _forward(message: Any, heard: Callable[[str], None]) -> None:
    """Call `heard` with a message; ignore messages that are not UTF-8."""
    if isinstance(message, list) and message[0] == b"message":
        with suppress(UnicodeDecodeError):
            heard(message[2].decode())
