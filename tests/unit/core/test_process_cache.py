"""What one process keeps of its answers: the oldest go first, however many they are."""

from __future__ import annotations

import time

from bellringer.clock import SystemClock
from bellringer.core.cache import CACHE_TTL_SECONDS, MAX_CACHED_RESPONSES, ProcessCache


async def filled(count: int) -> ProcessCache:
    cache = ProcessCache(SystemClock())
    await cache.put(1, cache.generation(1), {f"run:{n}": b"{}" for n in range(count)}, 0.0)
    return cache


async def seconds_to_forget(count: int) -> float:
    """Of this thread alone: the machine may be busy."""
    cache = await filled(count)
    began = time.thread_time()
    await cache.put(1, cache.generation(1), {"run:new": b"{}"}, CACHE_TTL_SECONDS)
    return time.thread_time() - began


async def test_many_that_are_over_at_once_hold_no_one_up() -> None:
    few = min([await seconds_to_forget(MAX_CACHED_RESPONSES // 10) for _ in range(5)])
    many = min([await seconds_to_forget(MAX_CACHED_RESPONSES - 1) for _ in range(5)])
    assert many < 40 * few  # ten times as many; what looks at each again and again takes a hundred times as long


async def test_no_more_are_kept_than_may_be() -> None:
    cache = await filled(MAX_CACHED_RESPONSES + 5)
    now = SystemClock().monotonic()
    await cache.put(1, cache.generation(1), {"run:new": b"new"}, now)
    assert await cache.get(1, "run:new") == b"new"
    assert await cache.get(1, "run:0") is None
