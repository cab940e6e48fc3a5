"""Repeats measurements until the host of this virtual machine leaves them undisturbed.

CPU time that the host takes (steal time in /proc/stat) distorts latencies. A measurement is repeated until three tries
had almost no steal time, or up to a maximum; then the three tries with the least count. The reported figure is the
median of the three, so neither a pause that /proc/stat does not show nor a lucky try decides.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from bellringer.clock import SystemClock

T = TypeVar("T")
CALM: Final = 0.002  # share of CPU time that does not affect even a p99
COUNTED: Final = 3
TRIES: Final = 12
_ACCOUNT: Final = Path("/proc/stat")
_PLACE: Final = 8  # index of the steal time in the first line


@dataclass(frozen=True, slots=True)
class Calmest(Generic[T]):
    """The measured value, the share of CPU time stolen meanwhile, and the number of tries."""

    seen: T
    stolen: float
    tries: int


async def calmest(measure: Callable[[int], Awaitable[T]], by: Callable[[T], float], tries: int = TRIES) -> Calmest[T]:
    """Returns the median, by figure, of the tries with the least steal time. `measure` receives the try's number."""
    clock = SystemClock()
    seen: list[tuple[float, T]] = []
    while len(seen) < tries and sum(part < CALM for part, _ in seen) < COUNTED:
        began, before = clock.monotonic(), stolen()
        measured = await measure(len(seen) + 1)
        seen.append(((stolen() - before) / ((clock.monotonic() - began) * (os.cpu_count() or 1)), measured))
    counted = sorted(sorted(seen, key=lambda tried: tried[0])[:COUNTED], key=lambda tried: by(tried[1]))
    part, measured = counted[len(counted) // 2]
    return Calmest(measured, round(part, 4), len(seen))


def stolen() -> float:
    """Returns the steal time of all CPUs since boot, in seconds; 0 if the system does not report it."""
    if not _ACCOUNT.exists():
        return 0.0
    counts = _ACCOUNT.read_text().split("\n", 1)[0].split()
    return int(counts[_PLACE]) / os.sysconf("SC_CLK_TCK") if len(counts) > _PLACE else 0.0
