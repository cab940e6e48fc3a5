"""Measures the API: one server process and a load generator in another process on the same machine."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from uuid_utils.compat import uuid7

from bellringer.bench.cpu_steal import Calmest, calmest
from bellringer.bench.load_generator import LoadFigures, LoadPlan, Request
from bellringer.core.jobs import DEFAULT_POOL
from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load
from bellringer.wire.routes import PREFIX

_SQL = load("load", "bellringer.bench")
HOST: Final = "127.0.0.1"
RUNS: Final = 2_000  # runs to read, half of them ended
BULK: Final = 10_000  # jobs in one bulk request
BULK_TRIES: Final = 8  # fewer than for other requests: each try adds BULK jobs
BRIEF: Final = {"Prefer": "return=minimal"}
STEADY: Final = 2_000.0  # requests a second
SCHEDULES: Final = 60  # among the jobs that are created


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFigures:
    """The figures. `floor` is a request without a database call; rates are also given relative to its rate, which
    depends less on the machine. `stolen` is the share of CPU time that the host of this virtual machine took."""

    process: str
    python: str
    connections: int
    floor: dict[str, Any]
    create: dict[str, Any]
    read: dict[str, Any]
    read_job: dict[str, Any]
    bulk: dict[str, Any]


async def api(dsn: str, jobs: int, seconds: float, connections: int, bulks: int) -> ApiFigures:
    """Create jobs one by one, then read runs and jobs at the maximum rate and at lower rates, then create in bulk."""
    store = await Store.open(dsn, size=2)
    try:
        runs = await fill(store)
        with served(dsn) as (port, _):
            hammer = LoadGenerators(port, connections, seconds)
            await hammer.go(jobs_of("warm", 500))
            idle = await hammer.thrice([("GET", f"{PREFIX}/version", None)])
            made = await calmest(lambda n: hammer.go(jobs_of(f"job {n}", jobs), status="202"), _rate)
            await _prove(store, 500 + made.tries * jobs)
            await store.pool.execute("vacuum analyze")  # otherwise autovacuum starts during the reads
            read = await hammer.thrice([("GET", f"{PREFIX}/runs/{run_id}", None) for run_id in runs])
            ids = [row["job_id"] for row in await store.pool.fetch("select job_id from jobs limit $1", RUNS)]
            read_job = await hammer.thrice([("GET", f"{PREFIX}/jobs/{job_id}", None) for job_id in ids])
            many = await calmest(
                lambda n: hammer.go(_bulks(n, bulks), status="201", connections=1, headers=BRIEF), _rate, BULK_TRIES
            )
            await _prove(store, 500 + made.tries * jobs + many.tries * bulks * BULK)
    finally:
        await store.close()
    floor = idle.most.seen
    return ApiFigures(
        process="the API alone, one process",
        python=platform.python_version(),
        connections=connections,
        floor=_all(idle, floor),
        create=_figures(made, floor),
        read=_all(read, floor),
        read_job=_all(read_job, floor),
        bulk=_bulk_figures(many, made.seen),
    )


class RateFigures(NamedTuple):
    """Figures at the maximum rate, at half of it, and at a rate that is the same on every machine."""

    most: Calmest[LoadFigures]
    half: Calmest[LoadFigures]
    steady: Calmest[LoadFigures]


class LoadGenerators:
    """Starts a load generator for each measurement."""

    def __init__(self, port: int, connections: int, seconds: float) -> None:
        self._port = port
        self._connections = connections
        self._seconds = seconds

    async def go(self, requests: Sequence[Request], *, status: str | None = None, **terms: Any) -> LoadFigures:
        """Send the requests; with a status, every response must have it."""
        order = LoadPlan(
            host=HOST, port=self._port, requests=list(requests), **{"connections": self._connections, **terms}
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bellringer.bench.load_generator", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate(msgspec.json.encode(order))
        if process.returncode:
            raise RuntimeError("the load generator failed")
        seen = msgspec.json.decode(output, type=LoadFigures)
        if status is not None and set(seen.statuses) != {status}:
            raise AssertionError(f"answers {seen.statuses}, such as {seen.sample}")
        return seen

    async def thrice(self, requests: Sequence[Request]) -> RateFigures:
        async def at(rate: float | None, by: Callable[[LoadFigures], float]) -> Calmest[LoadFigures]:
            return await calmest(lambda _: self.go(requests, status="200", seconds=self._seconds, rate=rate), by)

        most = await at(None, _rate)
        return RateFigures(most, await at(most.seen.per_second / 2, _tail), await at(STEADY, _tail))


def _rate(seen: LoadFigures) -> float:
    return seen.per_second


def _tail(seen: LoadFigures) -> float:
    return seen.p99_ms


async def fill(store: Store) -> list[str]:
    """Insert runs to read: half of them are queued, half have ended."""
    catalog = Catalog(store)
    task_id = (await catalog.task_ids(["bench.noop"]))["bench.noop"]
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    at: datetime = await store.now()
    ids = [uuid7() for _ in range(RUNS)]
    await store.pool.execute(_SQL.ready, ids, at, task_id, pool_id)
    await store.pool.execute(_SQL.ready_queue)
    await store.pool.execute(_SQL.end_half)
    await store.pool.execute("vacuum analyze queue")
    return [RunKey(job_id, at, 0).id for job_id in ids]


def jobs_of(prefix: str, count: int) -> list[Request]:
    return [("POST", f"{PREFIX}/jobs", json.dumps(document(f"{prefix} {n}", n))) for n in range(count)]


def _bulks(number: int, count: int) -> list[Request]:
    items = [[document(f"bulk {number} {b} {n}", n) for n in range(BULK)] for b in range(count)]
    return [("POST", f"{PREFIX}/jobs/bulk", json.dumps({"items": those})) for those in items]


def _bulk_figures(many: Calmest[LoadFigures], single: LoadFigures) -> dict[str, Any]:
    rate = many.seen.requests * BULK / many.seen.seconds
    return {
        "jobs_per_second": round(rate, 1),
        "requests": many.seen.requests,
        "jobs_a_request": BULK,
        "p50_ms": many.seen.p50_ms,
        "ratio_to_single": round(rate / single.per_second, 1),
        "stolen": many.stolen,
        "tries": many.tries,
    }


def document(name: str, n: int) -> dict[str, Any]:
    """A typical job document."""
    return {
        "name": name,
        "task": "bench.noop",
        "schedule": {"cron": f"{n % SCHEDULES} 3 * * *", "tz": "Europe/Paris"},
        "kwargs": {"customer": n, "what": "the nightly report"},
        "retry": {"attempts": 5},
        "timeout": "10m",
        "tags": ["bench"],
    }


async def _prove(store: Store, jobs: int) -> None:
    row = await store.pool.fetchrow(
        "select count(*) as jobs, (select count(*) from members) as members,"
        " (select count(*) from audit where action = 'job.created') as audited from jobs"
    )
    if row is None or set(row.values()) != {jobs}:
        raise AssertionError(f"expected {jobs} rows in each table after creating {jobs} jobs, found {dict(row or {})}")


def _all(measured: RateFigures, floor: LoadFigures) -> dict[str, Any]:
    less = {"at_half_load": measured.half, f"at_{STEADY:.0f}": measured.steady}
    late = {name: {"generator_late_ms": shown.seen.late_ms} for name, shown in less.items()}
    return {**_figures(measured.most, floor), **{name: _figures(less[name], floor) | late[name] for name in less}}


def _figures(shown: Calmest[LoadFigures], floor: LoadFigures) -> dict[str, Any]:
    seen = shown.seen
    return {
        "per_second": seen.per_second,
        "p50_ms": seen.p50_ms,
        "p99_ms": seen.p99_ms,
        "max_ms": seen.max_ms,
        "requests": seen.requests,
        "ratio": round(seen.per_second / floor.per_second, 3),
        "stolen": shown.stolen,
        "tries": shown.tries,
    }


@contextmanager
def served(dsn: str) -> Iterator[tuple[int, int]]:
    """Start a server process; yields its port and its process."""
    listening = socket.create_server((HOST, 0), backlog=2048)
    port: int = listening.getsockname()[1]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "bellringer", "server", "--no-scheduler", "--listening-fd", str(listening.fileno())],
        env={**os.environ, "BELLRINGER_DSN": dsn, "BELLRINGER_AUTH": "none", "BELLRINGER_HTTP_SLOTS": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listening.fileno()],
    )
    listening.close()  # the server has a copy; connections wait in its backlog
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)
