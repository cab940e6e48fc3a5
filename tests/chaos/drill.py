"""The drill of a worker that is stopped for longer than its lease, and continued, again and again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

from .app import app
from .cluster import Cluster
from .faults import Fault
from .history import SHORT, History, joined, judge, memory
from .load import WEIGHTS, Load

STOP_SECONDS: Final = 13.0
CALM_SECONDS: Final = 4.0
FIRST_SECONDS: Final = 1.0


async def drill(stops: int, *, short: bool = False) -> History:
    """Stop one of two workers so often: no run may end as cancelled or dead, and attempt numbers increase."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-drill-", dir=memory()))
    began = time.monotonic()
    # A run that is delivered at most once and lost in a stop dies by design.
    kinds, ahead = SHORT if short else (WEIGHTS, 20.0)
    load = Load(0, {kind: weight for kind, weight in kinds.items() if kind != "once"}, ahead)
    seconds = FIRST_SECONDS + stops * (STOP_SECONDS + CALM_SECONDS) - CALM_SECONDS
    async with Cluster(folder, schedulers=1, workers=2) as cluster:
        await app.connection.move(cluster.database.dsn)
        try:
            await load.declare()
            await joined(cluster)
            async with asyncio.TaskGroup() as both:
                both.create_task(load.run(seconds))
                both.create_task(_stop_and_continue(cluster, stops))
            verdict = await judge(cluster, load, short=short)
            verdict.violations.extend(cluster.exits())
            verdict.violations.extend(f"dead: {count} × {reason}" for reason, count in verdict.dead.items())
        finally:
            await app.aclose()
    faults = [Fault(0.0, "stop", "worker-1", STOP_SECONDS)] * stops
    history = History(f"drill of {stops} stops", faults, load, verdict, time.monotonic() - began, folder)
    (folder / "report").write_text(f"{history.report()}\n")
    if not verdict.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return history


async def _stop_and_continue(cluster: Cluster, stops: int) -> None:
    worker = cluster.members["worker-1"]
    await asyncio.sleep(FIRST_SECONDS)
    for number in range(stops):
        if number:
            await asyncio.sleep(CALM_SECONDS)
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(STOP_SECONDS)
        worker.signal(signal.SIGCONT)
