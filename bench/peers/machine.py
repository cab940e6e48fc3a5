"""Describes the machine: its limits without any job system, and the versions of everything."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import asyncpg
from tools.servers.ports_and_pids import HOST

from bench.peers.catalog import System
from bench.peers.install import NODE_FOLDER, PYTHON_FOLDER, find_node
from bench.peers.servers import OWNER, Postgres

ROWS: Final = 100_000
ROWS_PER_STATEMENT: Final = 1_000
PGBENCH_SECONDS: Final = 5
DATABASE: Final = "bench_machine"
TABLE: Final = "create table job (id bigint generated always as identity primary key, due timestamptz, payload jsonb)"
INSERT: Final = 'insert into job (due, payload) values (now(), \'{"batch": 1, "number": 1, "due_us": 0}\');\n'
INSERT_MANY: Final = (
    "insert into job (due, payload) select now(), jsonb_build_object('batch', 1, 'number', number, 'due_us', 0)"
    " from unnest($1::bigint[]) number"
)


def describe(postgres: Postgres) -> dict[str, Any]:
    """Returns the processor, and how fast the server inserts rows."""
    dsn = asyncio.run(postgres.create_database(DATABASE))
    try:
        bulk = asyncio.run(_insert(dsn))
        single = {f"commits_per_second_{clients}_clients": _pgbench(postgres, clients) for clients in (1, 8)}
    finally:
        asyncio.run(postgres.drop_database(DATABASE))
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": found[1] if found else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release().partition("-")[0],
        "inserted_rows_per_second": bulk,
        **single,
    }


async def _insert(dsn: str) -> float:
    """Insert rows with statements of 1,000 rows; each statement is a transaction."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(TABLE)
        numbers = list(range(ROWS_PER_STATEMENT))
        start = time.perf_counter()
        for _ in range(ROWS // ROWS_PER_STATEMENT):
            await connection.execute(INSERT_MANY, numbers)
        return round(ROWS / (time.perf_counter() - start))
    finally:
        await connection.close()


def _pgbench(postgres: Postgres, clients: int) -> float:
    """Returns the transactions per second of single-row inserts."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(INSERT)
        script.flush()
        where = ["-h", HOST, "-p", str(postgres.port), "-U", OWNER, DATABASE]
        how = ["-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", str(PGBENCH_SECONDS), "-f", script.name]
        done = subprocess.run(  # noqa: S603 - our own command
            [postgres.programs / "pgbench", *how, *where],
            env={**os.environ, "PGPASSWORD": postgres.password},
            capture_output=True,
            text=True,
            check=True,
        )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    return round(float(found[1]))


def versions(systems: Iterable[System], servers: dict[str, str]) -> dict[str, str]:
    """Returns the versions of the systems by name, and of what they run on."""
    known = {"PostgreSQL": servers["PostgreSQL"], "Valkey": servers["Valkey"], "Python": platform.python_version()}
    for system in systems:
        if system.runtime == "Bellringer":
            known[system.name] = version("bellringer")
        elif system.runtime == "Python":
            known[system.name] = _python_version(system.name)
        else:
            known["Node.js"] = _run([find_node(), "--version"]).lstrip("v")
            package = NODE_FOLDER / "node_modules" / system.name / "package.json"
            known[system.name] = json.loads(package.read_text())["version"]
    return known


def _python_version(package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return _run([str(PYTHON_FOLDER / "bin" / "python"), "-I", "-c", code])


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
