"""The systems under test: what they can do, and the commands of their processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bellringer.sdk.task_handle import TaskHandle
from bench.peers.install import NODE_FOLDER, PYTHON_FOLDER, find_node

HERE: Final = Path(__file__).parent
ADAPTERS: Final = "bench.peers.python"

_PYTHON: Final = str(PYTHON_FOLDER / "bin" / "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system. `commands` are its processes by role.

    `prepare` and `client` are described in `python/driver.py`. `worker` and `scheduler` run in S1, S2, S4 and S5;
    `beat` runs only in S2.
    """

    name: str
    title: str
    runtime: Literal["Bellringer", "Python", "Node.js"]
    store: Literal["PostgreSQL", "Redis"]
    commands: Mapping[str, list[str]]
    settings: str  # the settings that differ from its defaults, for the report
    recurring: bool = False  # whether it takes part in S2
    max_workers: int = 2
    sends_in_worker: bool = False  # only the process that executes jobs may add them
    counts: Mapping[str, int] = field(default_factory=dict)  # smaller scenarios, for systems that need minutes
    timed_per_second: float = 1_000.0  # a lower estimate of the jobs that it can be sent for a later time
    register_seconds: float = 15.0  # an upper estimate for 10,000 recurring jobs


def _python(module: str) -> dict[str, list[str]]:
    return {role: [_PYTHON, "-m", f"{ADAPTERS}.{module}", role] for role in ("prepare", "client", "worker")}


def _node(script: str) -> dict[str, list[str]]:
    return {role: [find_node(), str(HERE / "node" / script), role] for role in ("prepare", "client", "worker")}


def _celery() -> dict[str, list[str]]:
    celery = [_PYTHON, "-m", "celery", "-A", f"{ADAPTERS}.celery_peer"]
    quiet = ["--loglevel", "ERROR"]
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return {
        "client": [_PYTHON, "-m", f"{ADAPTERS}.celery_peer"],
        "worker": [*celery, "worker", "--pool", "threads", "--concurrency", "4", *alone, *quiet],
        "beat": [*celery, "beat", "--scheduler", "redbeat.RedBeatScheduler", *quiet],
    }


_BULK_CALL: Final = "`asend_many`" if hasattr(TaskHandle, "asend_many") else "1,000 gathered `asend`"
_BELLRINGER: Final = [sys.executable, "-m", "bellringer"]


def systems() -> dict[str, System]:
    """Returns all systems by name; Bellringer is the first."""
    found = (
        System(
            name="bellringer",
            title="Bellringer",
            runtime="Bellringer",
            store="PostgreSQL",
            commands={
                "prepare": [*_BELLRINGER, "migrate"],
                "client": [sys.executable, "-m", f"{ADAPTERS}.bellringer_client"],
                "worker": [*_BELLRINGER, "worker", f"{ADAPTERS}.bellringer_app:app", "--slots", "200"],
                "scheduler": [*_BELLRINGER, "scheduler"],
            },
            settings=f"200 slots per worker; bulk sends with {_BULK_CALL}",
            recurring=True,
        ),
        System(
            name="graphile-worker",
            title="Graphile Worker",
            runtime="Node.js",
            store="PostgreSQL",
            commands=_node("graphile_worker.js"),
            settings="24 concurrent jobs, local queue of 500, batched completion, polls every 50 ms",
            recurring=True,
        ),
        System(
            name="pg-boss",
            title="pg-boss",
            runtime="Node.js",
            store="PostgreSQL",
            commands=_node("pg_boss.js"),
            settings="batches of 1,000, burst polling, LISTEN/NOTIFY, polls every 500 ms (its minimum), own partition",
            recurring=True,
            counts={"S2": 1_000},
        ),
        System(
            name="pgqueuer",
            title="PgQueuer",
            runtime="Python",
            store="PostgreSQL",
            commands=_python("pgqueuer_peer"),
            settings="asyncpg pool, uvloop, batches of 1,000, polls every 50 ms",
        ),
        System(
            name="apscheduler",
            title="APScheduler 3",
            runtime="Python",
            store="PostgreSQL",
            commands=_python("apscheduler_peer"),
            settings="AsyncIOScheduler with SQLAlchemyJobStore, no misfire limit",
            recurring=True,
            max_workers=1,
            sends_in_worker=True,
            counts={"S1": 2_000, "S2": 2_000, "S3-bulk": 4_000},
            timed_per_second=250.0,
            register_seconds=10.0,
        ),
        System(
            name="bullmq",
            title="BullMQ",
            runtime="Node.js",
            store="Redis",
            commands=_node("bullmq.js"),
            settings="concurrency 100, completed jobs removed",
            recurring=True,
        ),
        System(
            name="procrastinate",
            title="procrastinate",
            runtime="Python",
            store="PostgreSQL",
            commands=_python("procrastinate_peer"),
            settings="psycopg pool, uvloop, concurrency 30, finished jobs deleted, polls every 50 ms",
            recurring=True,
            counts={"S1": 2_000, "S2": 2_000, "S3-bulk": 2_000},
            timed_per_second=200.0,
        ),
        System(
            name="celery",
            title="Celery",
            runtime="Python",
            store="Redis",
            commands=_celery(),
            settings="Redis broker, 4 threads per worker, unlimited prefetch, no results, no events; RedBeat for S2",
            recurring=True,
            counts={"S3-bulk": 5_000},
            timed_per_second=400.0,
        ),
        System(
            name="dramatiq",
            title="Dramatiq",
            runtime="Python",
            store="Redis",
            commands={
                "client": [_PYTHON, "-m", f"{ADAPTERS}.dramatiq_peer"],
                "worker": [
                    _PYTHON,
                    "-m",
                    "dramatiq",
                    f"{ADAPTERS}.dramatiq_peer",
                    "--processes",
                    "1",
                    "--threads",
                    "8",
                ],
            },
            settings="Redis broker, 8 threads per worker",
            counts={"S3-bulk": 10_000},
        ),
        System(
            name="dbos",
            title="DBOS",
            runtime="Python",
            store="PostgreSQL",
            commands=_python("dbos_peer"),
            settings="one queue, polled every 10 ms",
            counts={"S1": 1_000, "S3-single": 500, "S3-bulk": 2_000},
            timed_per_second=80.0,
        ),
    )
    return {system.name: system for system in found}


def environment() -> dict[str, str]:
    """Returns the variables that the processes of all systems need besides their settings."""
    root = str(HERE.parents[1])
    return {"PYTHONPATH": root, "NODE_PATH": str(NODE_FOLDER / "node_modules"), "NODE_ENV": "production"}
