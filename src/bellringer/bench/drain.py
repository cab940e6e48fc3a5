"""Measures how fast one worker process executes ready runs next to one scheduler process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.core.tasks import Registry, make_task
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load
from bellringer.worker.output.echo import CaptureSettings
from bellringer.worker.service import Worker, WorkerSettings

_SQL = load("load", "bellringer.bench")
BATCH = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The figures. Lateness is the time from when a run could have started to its start."""

    runs: int
    seconds: float
    runs_per_second: float
    lateness_ms: dict[str, float]
    python_us_per_run: float


async def noop() -> None:
    """The measured task."""


async def drain(dsn: str, runs: int, slots: int) -> Drain:
    store = await Store.open(dsn, size=6)
    try:
        catalog = Catalog(store)
        task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
        pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
        await fill(store, runs, task_id, pool_id, await store.now())
        await store.pool.execute("vacuum analyze queue")
        await store.pool.execute("checkpoint")
        with _scheduler(dsn):
            seconds, cpu = await work(store, slots)
        lateness = await _lateness(store)
        ended = await store.pool.fetchval("select count(*) from attempts where ends_as = 'succeeded'")
        if ended != runs:
            raise AssertionError(f"{runs} runs, {ended} succeeded")
    finally:
        await store.close()
    return Drain(
        runs=runs,
        seconds=round(seconds, 3),
        runs_per_second=round(runs / seconds, 1),
        lateness_ms=lateness,
        python_us_per_run=round(cpu / runs * 1e6, 1),
    )


async def fill(store: Store, runs: int, task_id: int, pool_id: int, at: datetime) -> None:
    for start in range(0, runs, BATCH):
        ids = [uuid7() for _ in range(min(BATCH, runs - start))]
        await store.pool.execute(_SQL.ready, ids, at, task_id, pool_id)
    await store.pool.execute(_SQL.ready_queue)


async def work(store: Store, slots: int) -> tuple[float, float]:
    """Execute all ready runs; returns the elapsed seconds and the CPU seconds of this process."""
    registry = Registry()
    registry.add(make_task(noop, name="bench.noop"))
    clock = SystemClock()
    worker = Worker(
        store, registry, clock, WorkerSettings(pools={DEFAULT_POOL: slots}, name="bench", capture=CaptureSettings())
    )
    stop = asyncio.Event()
    started, cpu = clock.monotonic(), os.times()
    running = asyncio.create_task(worker.run(stop))
    while await store.pool.fetchval("select exists (select 1 from queue)") and not running.done():
        await asyncio.sleep(0.05)
    seconds, after = clock.monotonic() - started, os.times()
    stop.set()
    await running
    return seconds, after.user + after.system - cpu.user - cpu.system


async def _lateness(store: Store) -> dict[str, float]:
    row: Any = await store.pool.fetchrow(
        "select percentile_disc(array[0.5, 0.99, 1.0]) within group"
        " (order by extract(epoch from started_at - scheduled_for)) as p from attempts"
    )
    return {name: round(float(value) * 1000, 1) for name, value in zip(("p50", "p99", "max"), row["p"], strict=True)}


@contextmanager
def _scheduler(dsn: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bellringer", "scheduler"],
        env={**os.environ, "BELLRINGER_DSN": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)
