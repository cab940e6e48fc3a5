"""What the host of a virtual machine takes of its processors, by the kernel's own account.

Of a second of which the host took a part, latencies tell of the host: so what is short is measured some times, until
three tries lost next to nothing; else the three that lost least count. Of the three the middle one is told, with what
it lost: one pause, which no account may show, decides over no figure, and neither does luck.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from bellringer.clock import SystemClock

T = TypeVar("T")
CALM: Final = 0.002  # a part of the processors' time that is as good as none, also beside the slowest hundredth
COUNTED: Final = 3
TRIES: Final = 12
_ACCOUNT: Final = Path("/proc/stat")
_PLACE: Final = 8  # of the stolen time in its first line


@dataclass(frozen=True, slots=True)
class Calmest(Generic[T]):
    """What was measured, which part of the processors' time was stolen meanwhile, and how often it was tried."""

    seen: T
    stolen: float
    tries: int


async def calmest(measure: Callable[[int], Awaitable[T]], by: Callable[[T], float], tries: int = TRIES) -> Calmest[T]:
    """The middle one, by its figure, of the tries of which the host took least. `measure` is given a try's number."""
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
    """Seconds of all processors so far; 0 where nobody counts them."""
    if not _ACCOUNT.exists():
        return 0.0
    counts = _ACCOUNT.read_text().split("\n", 1)[0].split()
    return int(counts[_PLACE]) / os.sysconf("SC_CLK_TCK") if len(counts) > _PLACE else 0.0
