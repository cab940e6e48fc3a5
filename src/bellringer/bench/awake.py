"""Keeps the processors from sleeping: to wake one of a virtual machine may take longer than what is measured.

One process a processor spins at the lowest priority that there is, and gives way to everything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def awake() -> Iterator[None]:
    """While it lasts, no processor sleeps."""
    spinning = [
        subprocess.Popen([sys.executable, "-m", "bellringer.bench.awake"], stdin=subprocess.DEVNULL)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def main() -> None:
    """Spin until killed, or until whoever started it is gone."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(10_000))


if __name__ == "__main__":
    main()
