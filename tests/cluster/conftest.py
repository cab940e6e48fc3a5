"""Processes that a test may stop, continue and kill; all are killed at its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bellringer.bench.herd import register
from bellringer.store.connection_pool import Store

NODE = Path(__file__).with_name("node.py")


class Processes:
    """Starts nodes against one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, name: str, *, fault: str = "", most: int = 8_000) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(NODE), kind, self._dsn, name, str(most)],
            env={**os.environ, "BELLRINGER_FAULT": fault},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    def scheduler(self, name: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start `bellringer scheduler` with these settings."""
        return self._command(name, "scheduler", **{f"BELLRINGER_{key.upper()}": settings[key] for key in settings})

    def worker(self, name: str, app: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Start `bellringer worker` with the app in this file and these environment variables."""
        return self._command(name, "worker", f"{app}:app", **variables)

    def _command(self, name: str, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "bellringer", *command],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("BELLRINGER_")},
                **variables,
                "BELLRINGER_DSN": self._dsn,
                "BELLRINGER_NAME": name,
                "BELLRINGER_POOL_SIZE": "4",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def processes(dsn: str) -> Iterator[Processes]:
    running = Processes(dsn)
    yield running
    running.end()


async def held_by(store: Store, *names: str) -> set[int]:
    """Returns the shards for which these nodes hold a valid lease."""
    rows = await store.pool.fetch(
        "select l.shard from leases l join nodes n on n.node_id = l.holder"
        " where n.name = any ($1) and l.expires_at > clock_timestamp()",
        list(names),
    )
    return {row["shard"] for row in rows}


async def every_second(store: Store, jobs: int) -> datetime:
    """Register jobs in all shards that are due every second; returns the first due time."""
    await register(store, jobs, 1, await store.now() + timedelta(days=1))
    await store.pool.execute("update schedules set kind = 'every', expression = '1s', anchor = ''")
    await store.pool.execute("update cohorts set next_at = date_trunc('second', now()) + interval '3 s'")
    began: datetime = await store.pool.fetchval("select min(next_at) from cohorts")
    return began


async def fired_once_each(store: Store, jobs: int, began: datetime, until: datetime) -> None:
    """Assert that every job has exactly one run for every second up to `until`, and no gap."""
    counts = await store.pool.fetch(
        "select scheduled_for, count(*) as runs, count(distinct job_id) as jobs from runs"
        " where scheduled_for between $1 and $2 group by 1 order by 1",
        began,
        until,
    )
    seconds = int((until - began).total_seconds()) + 1
    assert [row["scheduled_for"] for row in counts] == [began + timedelta(seconds=n) for n in range(seconds)]
    assert {(row["runs"], row["jobs"]) for row in counts} == {(jobs, jobs)}
    assert await store.pool.fetchval("select count(*) from gaps") == 0


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Wait until the condition holds; returns how long it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not await holds():
        if loop.time() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        await asyncio.sleep(0.05)
    return loop.time() - started


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process was stopped by SIGSTOP."""
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
