"""Measures what `bellringer dev` costs while nothing is due: CPU of all its processes and of its PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bellringer.client import Client
from bellringer.clock import SystemClock
from bellringer.dev.state_dir import DevState, read
from bellringer.errors import BellringerError
from bellringer.store.connection_pool import connect
from bench.peers.cpu import cpu_seconds, stat_fields

JOBS_PER_REQUEST: Final = 10_000
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0


def idle(jobs: int, settle: float, seconds: float) -> dict[str, Any]:
    """Creates jobs that are due in half a year, waits until everything is idle, and returns the share of a core."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bellringer", "dev", "--folder", f"{folder}/state", "--port", "0"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as dev:  # noqa: S603
            try:
                return asyncio.run(_measure(_wait_for_state(Path(folder, "state")), dev.pid, jobs, settle, seconds))
            finally:
                dev.send_signal(signal.SIGINT)
                dev.wait(STOP_SECONDS)


def _wait_for_state(folder: Path) -> DevState:
    clock = SystemClock()
    deadline = clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline:
        if (state := read(folder)) is not None:
            return state
        asyncio.run(clock.sleep(0.1))
    raise BellringerError(f"bellringer dev has not started within {START_SECONDS:g} s")


async def _measure(state: DevState, pid: int, jobs: int, settle: float, seconds: float) -> dict[str, Any]:
    clock = SystemClock()
    far_month = (clock.now().month + 5) % 12 + 1
    with Client(state.url, timeout=120) as client:
        for start in range(0, jobs, JOBS_PER_REQUEST):
            numbers = range(start, min(start + JOBS_PER_REQUEST, jobs))
            client.create_jobs([_sleeping_job(number, far_month) for number in numbers])
    await clock.sleep(settle)
    groups = {"bellringer": [pid], "postgres": [await _find_postmaster(state.dsn)]}
    before, began = cpu_seconds(groups), clock.monotonic()
    await clock.sleep(seconds)
    after, length = cpu_seconds(groups), clock.monotonic() - began
    shares = {name: 100 * (after[name] - before[name]) / length for name in groups}
    return {
        "jobs": jobs,
        "seconds": round(length),
        **{f"{name}_percent_of_a_core": round(share, 2) for name, share in shares.items()},
        "percent_of_a_core": round(sum(shares.values()), 2),
    }


def _sleeping_job(number: int, month: int) -> dict[str, Any]:
    minute, hour, day = number % 60, number // 60 % 24, number // 1440 % 28 + 1
    schedule = {"cron": f"{minute} {hour} {day} {month} *"}
    return {"name": f"sleeping-{number}", "task": "bench.nothing", "schedule": schedule}


async def _find_postmaster(dsn: str) -> int:
    """Returns the pid of the server, which may be no child of `bellringer dev`: it adopts one that still runs."""
    connection = await connect(dsn, name="bellringer bench")
    try:
        backend = await connection.fetchval("select pg_backend_pid()")
        return int(stat_fields(backend)[1])
    finally:
        await connection.close()
