"""Redis as what API processes share: answers, rates and hints. PostgreSQL stays the only truth.

Under `bellringer:<installation>:` there are

    mark          of all tenants; whoever connects takes it away, so nothing that an outage has left behind is believed
    mark:<tenant> of one; whoever changes something takes it away
    <tenant>:<key> an answer, sealed by a hash with the installation's secret over the marks, its place and itself
    rate:<tenant>:<what> when a rate's credit is whole again, in µs of Redis' own clock

To take a mark away is to delete it: a Redis that is full does that too. Marks are random, so one that was lost (flushed
or evicted) never comes again. What is under a key and is not ours fails the seal, and is as nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from redis.exceptions import ResponseError

from bellringer.access.quotas import Verdict
from bellringer.cache import KEPT, LONGEST, Mark, Rates
from bellringer.clock import Clock
from bellringer.engines.redis_line import FAILURES, REST, Away, Line, connection_of, settings_of

_MARK: Final = 16  # bytes
_SEAL: Final = 16
_LIVES: Final = 3_600_000  # ms of a mark that nobody takes away: whether it is there matters to nobody
SHY: Final = 0.25  # seconds: a hint stands for all changes of the next 100 ms, see store.wakeups
MOST_TENANTS: Final = 10_000

# The arithmetic of access.quotas.Rate, in µs. What is not a number counts as nothing; what is beyond the burst, as all
# of it, and is written down, or it would shut the rate for ever.
_SPEND: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, burst, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.pcall('GET', KEYS[1])
local whole = type(kept) == 'string' and tonumber(kept) or now
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
    """See bellringer.cache: it neither raises nor waits long. While Redis is away nothing is kept, and each process
    counts rates for itself; it has counted all along what it let in, so an outage gives no fresh credit."""

    source = "redis"
    is_shared = True

    def __init__(self, url: str, secret: bytes, clock: Clock) -> None:
        self._clock = clock
        self._secret = blake2b(secret, person=b"bellringer cache").digest()
        name = blake2b(secret, digest_size=6, person=b"bellringer name").hexdigest()
        self._prefix = f"bellringer:{name}:"
        self._settings = settings_of(url)
        # One that takes no writes is not read either: nobody could take back what it gives out.
        self._line = Line(url, clock, [("DEL", f"{self._prefix}mark")], [("DEL", f"{self._prefix}proof")])
        self._rates = Rates(clock)
        self._seen: dict[int, bytes] = {}  # the marks that a tenant had when it was last asked for
        self._shy_until: dict[int | None, float] = {}
        self._forgetting: set[asyncio.Task[bool]] = set()

    async def open(self) -> None:
        await self._line.open()

    async def close(self) -> None:
        for task in list(self._forgetting):
            task.cancel()
        await self._line.close()

    # Answers

    async def get(self, tenant_id: int, key: str) -> bytes | None:
        places = (f"{self._prefix}mark", f"{self._prefix}mark:{tenant_id}")
        try:
            *marks, kept = await self._line.ask("MGET", *places, self._place(tenant_id, key))
            if any(not _is_mark(mark) for mark in marks):
                kept = None
                marks = [m if _is_mark(m) else await self._made(p) for p, m in zip(places, marks, strict=True)]
        except (Away, ResponseError):  # a Redis that is full cannot make marks
            self._seen.pop(tenant_id, None)
            return None
        mark = b"".join(marks)
        self._saw(tenant_id, mark)
        if kept is None or self._is_shy(tenant_id):
            return None
        seal, data = kept[:_SEAL], kept[_SEAL:]
        return data if secrets.compare_digest(seal, self._sealed(tenant_id, mark, key, data)) else None

    def mark(self, tenant_id: int) -> bytes | None:
        return None if self._is_shy(tenant_id) else self._seen.get(tenant_id)

    async def put(self, tenant_id: int, mark: Mark, answers: Mapping[str, bytes], since: float) -> None:
        lives = int((since + KEPT - self._clock.monotonic()) * 1000)
        if lives <= 0 or not isinstance(mark, bytes):
            return
        for key, data in answers.items():
            if len(data) <= LONGEST:
                value = self._sealed(tenant_id, mark, key, data) + data
                self._line.post("SET", self._place(tenant_id, key), value, "PX", lives)

    async def forget(self, tenant_id: int | None) -> bool:
        place = f"{self._prefix}mark" if tenant_id is None else f"{self._prefix}mark:{tenant_id}"
        try:
            await self._line.ask("DEL", place)
        except (Away, ResponseError):
            return False
        return True

    def heard(self, tenant_id: int | None) -> None:
        """Who sent the hint may not reach Redis; then nobody has taken the mark away."""
        if len(self._shy_until) >= MOST_TENANTS:
            self._shy_until.clear()
            tenant_id = None
        self._shy_until[tenant_id] = self._clock.monotonic() + SHY
        task = asyncio.ensure_future(self.forget(tenant_id))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    def _saw(self, tenant_id: int, mark: bytes) -> None:
        if len(self._seen) >= MOST_TENANTS:
            self._seen.clear()
        self._seen[tenant_id] = mark

    def _is_shy(self, tenant_id: int) -> bool:
        now = self._clock.monotonic()
        return now < max(self._shy_until.get(tenant_id, now), self._shy_until.get(None, now))

    async def _made(self, place: str) -> bytes:
        """A new mark, over whatever is there. Of two who make one at once, the last one's holds."""
        mark = secrets.token_bytes(_MARK)
        await self._line.ask("SET", place, mark, "PX", _LIVES)
        return mark

    def _place(self, tenant_id: int, key: str) -> str:
        return f"{self._prefix}{tenant_id}:{key}"

    def _sealed(self, tenant_id: int, mark: bytes, key: str, data: bytes) -> bytes:
        place = f"{tenant_id}:{key}\0".encode()
        return blake2b(mark + place + data, key=self._secret, digest_size=_SEAL).digest()

    # Rates

    async def spend(self, tenant_id: int, what: str, per_minute: float, count: int = 1) -> Verdict:
        if per_minute <= 0:
            return self._rates.spend(tenant_id, what, per_minute, count)
        cost = 60e6 / per_minute
        burst = max(60e6, cost)  # less than one a minute is still one
        place = f"{self._prefix}rate:{tenant_id}:{what}"
        try:
            allowed, left, reset = await self._line.ask("EVAL", _SPEND, 1, place, repr(cost), repr(burst), count)
        except (Away, ResponseError):
            return self._rates.spend(tenant_id, what, per_minute, count)
        if allowed:
            self._rates.spend(tenant_id, what, per_minute, count)
        return Verdict(allowed=bool(allowed), left=int(left), reset=int(reset) / 1e6)

    # Hints

    async def tell(self, text: str) -> None:
        self._line.post("PUBLISH", f"{self._prefix}hints", text)

    async def listen(self, heard: Callable[[str], None]) -> None:
        while True:
            connection = connection_of(self._settings)
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("SUBSCRIBE", f"{self._prefix}hints")
                while True:
                    _pass_on(await connection.read_response(timeout=float("inf")), heard)
            except FAILURES:
                await self._clock.sleep(REST)
            finally:
                with suppress(*FAILURES):
                    await connection.disconnect(nowait=True)


def _is_mark(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == _MARK


def _pass_on(message: Any, heard: Callable[[str], None]) -> None:
    """What is no text of ours is passed over."""
    if isinstance(message, list) and message[0] == b"message":
        with suppress(UnicodeDecodeError):
            heard(message[2].decode())
