"""What the host of a virtual machine takes of its processors, by the kernel's own account.

Of a second of which the host took a part, latencies tell of the host: so what is short is measured some times, until
a try lost next to nothing; else the one that lost least is told. Either is told with what it lost, and is never chosen
by what it measured.
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
TRIES: Final = 12
_ACCOUNT: Final = Path("/proc/stat")
_PLACE: Final = 8  # of the stolen time in its first line


@dataclass(frozen=True, slots=True)
class Calmest(Generic[T]):
    """What was measured, which part of the processors' time was stolen meanwhile, and how often it was tried."""

    seen: T
    stolen: float
    tries: int


async def calmest(measure: Callable[[int], Awaitable[T]], tries: int = TRIES) -> Calmest[T]:
    """The try of which the host took least; one that was as good as calm is the last. `measure` is given its number."""
    clock, best = SystemClock(), None
    for number in range(1, tries + 1):
        began, before = clock.monotonic(), stolen()
        seen = await measure(number)
        part = (stolen() - before) / ((clock.monotonic() - began) * (os.cpu_count() or 1))
        if best is None or part < best.stolen:
            best = Calmest(seen, part, number)
        if part < CALM:
            break
    assert best is not None
    return Calmest(best.seen, round(best.stolen, 4), number)


def stolen() -> float:
    """Seconds of all processors so far; 0 where nobody counts them."""
    if not _ACCOUNT.exists():
        return 0.0
    counts = _ACCOUNT.read_text().split("\n", 1)[0].split()
    return int(counts[_PLACE]) / os.sysconf("SC_CLK_TCK") if len(counts) > _PLACE else 0.0
