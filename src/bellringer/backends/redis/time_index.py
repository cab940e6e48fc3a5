"""A time index in Redis: what is due in the next seconds, by shard. The holder of a shard fills it from the database.

    due:<shard>     a sorted set of c:<schedule> (a cohort) and t (the first timer), by due time in ms
    filled:<shard>  the holder's token, and when the index was filled, by the database's clock

A shard whose entry is missing, too old, of another token or malformed is read from the database and filled again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Final

from redis.exceptions import ResponseError

from bellringer.backends.redis.pipeline import RedisPipeline, RedisUnavailable
from bellringer.clock import Clock

_INDEX_TTL_MS: Final = 60_000  # removes the index of a shard that has lost its holder

# Returns the shards with something due by ARGV[1], and the shards filled before ARGV[2] or under another token.
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
    """Implements core.time_index.TimeIndex."""

    def __init__(self, url: str, secret: bytes, clock: Clock) -> None:
        name = blake2b(secret, digest_size=6, person=b"bellringer name").hexdigest()
        self._prefix = f"bellringer:{name}:"
        self._pipeline = RedisPipeline(url, clock)

    async def open(self) -> None:
        await self._pipeline.open()

    async def close(self) -> None:
        await self._pipeline.close()

    async def near(self, tokens: Mapping[int, int], since: datetime, until: datetime) -> frozenset[int]:
        shards = list(tokens)
        keys = [key for shard in shards for key in self._keys(shard)]
        terms = (_ms(until), _ms(since), *tokens.values())
        try:
            found = await self._pipeline.request("EVAL", _NEAR, len(keys), *keys, *terms)
            return frozenset(shards[number - 1] for number in found)
        except (RedisUnavailable, ResponseError):
            return frozenset(shards)

    async def fill(
        self, tokens: Mapping[int, int], at: datetime, due_times: Iterable[tuple[int, str, datetime]]
    ) -> None:
        found: defaultdict[int, list[str | int]] = defaultdict(list)
        for shard, what, instant in due_times:
            found[shard] += (what, _ms(instant))
        for shard, token in tokens.items():
            self._pipeline.send_and_forget(
                "EVAL", _FILL, 2, *self._keys(shard), f"{token}:{_ms(at)}", _INDEX_TTL_MS, *found[shard]
            )

    def _keys(self, shard: int) -> tuple[str, str]:
        return f"{self._prefix}due:{shard}", f"{self._prefix}filled:{shard}"


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
