"""What the machine itself adds to a latency: a process that only sleeps and reads the clock tells how late it woke.

Where its gaps are as long as the latencies that were measured meanwhile, those tell of the machine, not of the server.
"""

from __future__ import annotations

import asyncio
import gc
import select
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec

from bellringer.clock import SystemClock

T = TypeVar("T")
PACE: Final = 0.001  # seconds between two looks at the clock


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """How late the process woke."""

    p50_ms: float
    p99_ms: float
    max_ms: float


async def beside(work: Coroutine[Any, Any, T]) -> tuple[T, Gaps]:
    """What the work answers, and the machine's gaps meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bellringer.bench.gaps", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()  # it has started, which is work for the machine too
        done = await work
    finally:
        work.close()
        output, _ = await process.communicate(b"")  # and the end of its standard input
    return done, msgspec.json.decode(output, type=Gaps)


def main() -> None:
    """Say that it begins, look until the standard input ends, and print what was seen."""
    clock, late = SystemClock(), [0.0]
    gc.disable()
    sys.stdout.write("\n")
    sys.stdout.flush()
    looked = clock.monotonic()
    while not select.select([sys.stdin], [], [], PACE)[0]:
        moment = clock.monotonic()
        late.append(max(0.0, moment - looked - PACE))
        looked = moment
    late.sort()
    p50, p99 = (late[int(len(late) * share)] for share in (0.5, 0.99))
    gaps = Gaps(p50_ms=round(p50 * 1000, 2), p99_ms=round(p99 * 1000, 2), max_ms=round(late[-1] * 1000, 2))
    sys.stdout.buffer.write(msgspec.json.encode(gaps))


if __name__ == "__main__":
    main()
