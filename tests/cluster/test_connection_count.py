"""A server with 20 connections, of which 3 are for its administrator, serves three of each role and an API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx2
import pytest

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.store.connection_pool import Store
from bellringer.store.migrate import migrate

from .conftest import until
from .roles import Roles

RESERVED = 3
_HELD = """
select application_name, count(*) as held from pg_stat_activity
where backend_type = 'client backend' and application_name like 'bellringer%' group by 1
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """The DSN of a server that has 20 connections."""
    with EmbeddedPostgres(tmp_path / "small", settings={"max_connections": "20", "fsync": "off"}) as server:
        yield server.dsn


@pytest.mark.cluster
async def test_three_schedulers_three_workers_and_an_api_fit_into_20_connections(small: str, tmp_path: Path) -> None:
    held = [await asyncpg.connect(small) for _ in range(RESERVED)]  # nobody else may use these
    await migrate(held[0])
    look = Store(held[1], small)  # type: ignore[arg-type] # it has what is asked of a pool here
    roles = Roles(tmp_path, small)
    try:
        for _ in range(3):
            roles.scheduler()
            roles.worker()
        roles.server(auth="none")

        async def all_are_there() -> bool:
            nodes = await look.pool.fetchval("select count(*) from bellringer.nodes")
            workers = await look.pool.fetchval("select count(*) from bellringer.workers")
            return bool(nodes == 3 and workers == 4)  # one runs in the server

        await until(all_are_there, 60, "all roles come up")

        async def works() -> bool:
            ended = "select count(distinct worker_id) from bellringer.attempts where ends_as = 'succeeded'"
            return bool(await look.pool.fetchval(ended))

        await until(works, 30, "runs are executed")
        async with httpx2.AsyncClient(base_url=roles.url, timeout=20) as client:
            for number in range(20):
                headers = {"Idempotency-Key": f"key-{number}"}
                sent = await client.post("/api/v1/jobs/execute", json={"task": "tick"}, headers=headers)
                assert sent.status_code < 300, sent.text
                found = await client.get(f"/api/v1/runs/{sent.json()['run_id']}")
                assert found.status_code == 200, found.text
        most = 0
        for _ in range(50):
            held_now = {row["application_name"]: row["held"] for row in await look.pool.fetch(_HELD)}
            most = max(most, sum(held_now.values()))
            await asyncio.sleep(0.1)
        assert most <= 20 - RESERVED, held_now
        assert all(process.poll() is None for process in roles.processes)
        assert not any("step failed" in roles.said(process) for process in roles.processes)
    finally:
        roles.end()
        for connection in held:
            await connection.close()
