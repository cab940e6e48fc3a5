"""Measures the pauses of the machine: a process that only sleeps records how late it wakes up.

If these pauses are as long as the latencies measured meanwhile, the latencies describe the machine, not the server.
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
SLEEP_SECONDS: Final = 0.001  # seconds of each sleep


class MachinePauses(msgspec.Struct, frozen=True, kw_only=True):
    """Wake-up delays of the process."""

    p50_ms: float
    p99_ms: float
    max_ms: float


async def measure_pauses_during(work: Coroutine[Any, Any, T]) -> tuple[T, MachinePauses]:
    """Returns the result of the work, and the pauses of the machine meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.machine_pauses", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()  # wait for its start, which would disturb the measurement
        done = await work
    finally:
        work.close()
        output, _ = await process.communicate(b"")  # closes its standard input
    return done, msgspec.json.decode(output, type=MachinePauses)


def main() -> None:
    """Print a line at the start, sleep until standard input closes, and print the figures."""
    clock, late = SystemClock(), [0.0]
    gc.disable()
    sys.stdout.write("\n")
    sys.stdout.flush()
    looked = clock.monotonic()
    while not select.select([sys.stdin], [], [], SLEEP_SECONDS)[0]:
        moment = clock.monotonic()
        late.append(max(0.0, moment - looked - SLEEP_SECONDS))
        looked = moment
    late.sort()
    p50, p99 = (late[int(len(late) * share)] for share in (0.5, 0.99))
    gaps = MachinePauses(p50_ms=round(p50 * 1000, 2), p99_ms=round(p99 * 1000, 2), max_ms=round(late[-1] * 1000, 2))
    sys.stdout.buffer.write(msgspec.json.encode(gaps))


if __name__ == "__main__":
    main()
