"""Starts processes for measurements, and reads their CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bellringer.store.connection_pool import Store

_TICKS: Final = os.sysconf("SC_CLK_TCK")
WORK: Final = "bellringer.bench.noop_tasks:app"
STOP_TIMEOUT_SECONDS: Final = 30.0


@contextmanager
def running(dsn: str, *commands: Sequence[str], **settings: str) -> Iterator[list[int]]:
    """Run several `bellringer` commands at once; yields their process ids."""
    environment = {**os.environ, "BELLRINGER_DSN": dsn, "BELLRINGER_GRACE": "5s", **settings}
    started = [
        subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "bellringer", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(STOP_TIMEOUT_SECONDS)


def cpu(pid: int) -> float:
    """Returns the CPU seconds of a process; 0 if they cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def server_cpu(store: Store) -> Mapping[str, float]:
    """Returns the CPU seconds of the database's processes by application name, or by kind for background processes."""
    rows = await store.pool.fetch(
        "select pid, coalesce(nullif(application_name, ''), backend_type) as whom from pg_stat_activity"
    )
    used: dict[str, float] = {}
    for row in rows:
        used[row["whom"]] = used.get(row["whom"], 0.0) + cpu(row["pid"])
    return used
