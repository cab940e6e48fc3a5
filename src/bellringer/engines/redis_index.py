"""A time index in Redis: by shard, what strikes in the next seconds. Written by the shard's holder, from the database.

    due:<shard>     a sorted set of c:<schedule> (a hand) and t (the first timer), by their instants in ms
    filled:<shard>  the holder's token, and when it was filled, by the database's clock

What is missing, of another token, too old, or not ours counts as not known: the database is asked, and it is filled
anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Final

from redis.exceptions import ResponseError

from bellringer.clock import Clock
from bellringer.engines.redis_line import Away, Line

_LIVES: Final = 60_000  # ms of an index whose holder is gone

# In which shards something may strike until ARGV[1]; those filled before ARGV[2], or by another token, are among them.
_NEAR: Final = """
local near = {}
for i = 1, #KEYS, 2 do
  local filled = redis.pcall('GET', KEYS[i + 1])
  local token, at = string.match(type(filled) == 'string' and filled or '', '^(%d+):(%d+)$')
  local found = token == ARGV[2 + (i + 1) / 2] and tonumber(at) >= tonumber(ARGV[2])
    and redis.pcall('ZRANGEBYSCORE', KEYS[i], '-inf', ARGV[1], 'LIMIT', 0, 1)
  if not found or found.err or #found > 0 then near[#near + 1] = (i + 1) / 2 end
end
return near
"""

_FILL: Final = """
redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
"""


class RedisIndex:
    """See scheduler.wheel.TimeIndex."""

    def __init__(self, url: str, secret: bytes, clock: Clock) -> None:
        name = blake2b(secret, digest_size=6, person=b"bellringer name").hexdigest()
        self._prefix = f"bellringer:{name}:"
        self._line = Line(url, clock)

    async def open(self) -> None:
        await self._line.open()

    async def close(self) -> None:
        await self._line.close()

    async def near(self, tokens: Mapping[int, int], since: datetime, until: datetime) -> frozenset[int]:
        shards = list(tokens)
        keys = [place for shard in shards for place in self._places(shard)]
        terms = (_ms(until), _ms(since), *tokens.values())
        try:
            found = await self._line.ask("EVAL", _NEAR, len(keys), *keys, *terms)
            return frozenset(shards[number - 1] for number in found)
        except (Away, ResponseError):
            return frozenset(shards)

    async def fill(self, tokens: Mapping[int, int], at: datetime, strikes: Iterable[tuple[int, str, datetime]]) -> None:
        found: defaultdict[int, list[str | int]] = defaultdict(list)
        for shard, what, instant in strikes:
            found[shard] += (what, _ms(instant))
        for shard, token in tokens.items():
            self._line.post("EVAL", _FILL, 2, *self._places(shard), f"{token}:{_ms(at)}", _LIVES, *found[shard])

    def _places(self, shard: int) -> tuple[str, str]:
        return f"{self._prefix}due:{shard}", f"{self._prefix}filled:{shard}"


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
