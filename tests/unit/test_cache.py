"""What one process keeps of its answers: the oldest go first, however many they are."""

from __future__ import annotations

import time

from bellringer.cache import KEPT, MOST_KEPT, ProcessCache
from bellringer.clock import SystemClock


async def filled(count: int) -> ProcessCache:
    cache = ProcessCache(SystemClock())
    await cache.put(1, cache.mark(1), {f"run:{n}": b"{}" for n in range(count)}, 0.0)
    return cache


async def seconds_to_forget(count: int) -> float:
    """Of this thread alone: the machine may be busy."""
    cache = await filled(count)
    began = time.thread_time()
    await cache.put(1, cache.mark(1), {"run:new": b"{}"}, KEPT)
    return time.thread_time() - began


async def test_many_that_are_over_at_once_hold_nobody_up() -> None:
    few = min([await seconds_to_forget(MOST_KEPT // 10) for _ in range(5)])
    many = min([await seconds_to_forget(MOST_KEPT - 1) for _ in range(5)])
    assert many < 40 * few  # ten times as many; what looks at each again and again takes a hundred times as long


async def test_no_more_are_kept_than_may_be() -> None:
    cache = await filled(MOST_KEPT + 5)
    now = SystemClock().monotonic()
    await cache.put(1, cache.mark(1), {"run:new": b"new"}, now)
    assert await cache.get(1, "run:new") == b"new"
    assert await cache.get(1, "run:0") is None
