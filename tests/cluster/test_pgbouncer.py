"""Processes behind PgBouncer in transaction mode: they fire, send and cancel, tenants stay apart, and
a restart of the pooler loses nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import httpx2
import pytest
from tests.cluster.roles import Roles
from tests.conftest import PGBOUNCER_FOLDER
from tests.support.pooled_server import POOLER_VARIABLE, TOLERATED, PooledTestServer, documented_settings, pooled

from bellringer.config import Config
from bellringer.core.leases import LEASE_DURATION
from bellringer.errors import ConfigError
from bellringer.store.connection_pool import Store, connect
from bellringer.store.leader import LeaderLeases
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer

TIMEOUT_SECONDS = 60.0
ROOT_KEY = "root-key-of-the-installation-for-the-first-login"
APP = """
import asyncio

from bellringer import App, every

app = App()


@app.task
async def remind(number: int) -> int:
    return number


@app.task
async def wait() -> None:
    await asyncio.sleep(300)


@app.schedule(every("1s"), overlap="allow")
@app.task
async def tick() -> None: ...
"""


@pytest.fixture
async def pooled_dsn(pooled_server: PooledTestServer) -> AsyncIterator[str]:
    async with pooled_server.database() as made:
        yield made


@pytest.fixture
def roles(tmp_path: Path, pooled_dsn: str) -> Iterator[Roles]:
    running = Roles(tmp_path, pooled_dsn)
    (tmp_path / "app.py").write_text(APP)
    yield running
    running.end()


def test_the_documented_configuration_is_in_transaction_mode_and_tolerates_nothing() -> None:
    """The fixture `pooled_server` uses it."""
    settings = documented_settings()
    assert settings["pool_mode"] == "transaction"
    assert "ignore_startup_parameters" not in settings


async def test_processes_work_through_a_pooler_and_its_restart(
    roles: Roles, pooled_server: PooledTestServer, pooled_dsn: str
) -> None:
    pooler = pooled_server.pooler
    assert pooler is not None
    roles.scheduler()
    roles.worker()
    roles.server(root_key=ROOT_KEY)
    direct = await asyncpg.connect(pooled_server.direct(pooled_dsn))
    headers = {"Authorization": f"Bearer {ROOT_KEY}"}
    async with httpx2.AsyncClient(base_url=roles.url, headers=headers, timeout=TIMEOUT_SECONDS) as api:
        await until(lambda: is_ready(api))
        first = await send(api, 1)
        waiting = await send(api, None)
        await until(lambda: has_state(api, waiting, "running"))
        assert (await api.post(f"/api/v1/runs/{waiting}/cancel")).status_code < 300
        await until(lambda: has_state(api, waiting, "cancelled"))
        pooler.stop()
        pooler.start()
        second = await send(api, 2)
        for run in (first, second):
            await until(lambda run=run: has_state(api, run, "succeeded"))
    ticks = "select count(*) from bellringer.attempts join bellringer.jobs using (job_id) where ends_as = 'succeeded'"
    before = await direct.fetchval(ticks)
    await until(lambda: is_more(direct, ticks, before + 2))
    doubled = await direct.fetchval(
        "select count(*) from (select 1 from bellringer.attempts group by job_id, scheduled_for, slot, attempt"
        " having count(*) > 1) twice"
    )
    await direct.close()
    assert doubled == 0
    said = "".join(roles.said(process) for process in roles.processes)
    assert "row-level security between tenants is off" not in said
    assert "prepared statement" not in said


async def test_no_scope_of_a_tenant_outlasts_its_transaction(pooled_server: PooledTestServer, pooled_dsn: str) -> None:
    """All statements share few server sessions. After each of them the session must have no tenant and no role."""
    tenants = await open_tenants(pooled_dsn)
    system = await Store.open(pooled_dsn)
    try:
        assert tenants.role is not None
        others = await system.pool.fetch(
            "insert into tenants (name) select 'tenant-' || n from generate_series(1, 5) n returning tenant_id"
        )
        ids = [1, *(row["tenant_id"] for row in others)]

        async def look(tenant_id: int) -> None:
            scoped = ScopedStore(tenants, tenant_id, f"actor-{tenant_id}")
            for _ in range(15):
                seen = await scoped.pool.fetch("select tenant_id, pg_backend_pid() as pid from tenants")
                assert {row["tenant_id"] for row in seen} == {tenant_id}
                pids.update(row["pid"] for row in seen)
                with suppress(asyncpg.DivisionByZeroError):
                    await scoped.pool.fetchval("select 1 / 0")

        async def look_without_scope() -> None:
            for _ in range(60):
                row = await system.pool.fetchrow(
                    "select current_setting('bellringer.tenant', true) as tenant, current_user::text as role,"
                    " current_setting('bellringer.actor', true) as actor, pg_backend_pid() as pid"
                )
                assert row is not None
                assert (row["tenant"] or "", row["actor"] or "", row["role"]) == ("", "", "bellringer")
                pids_without_scope.add(row["pid"])

        pids: set[int] = set()
        pids_without_scope: set[int] = set()
        await asyncio.gather(*(look(tenant_id) for tenant_id in ids), look_without_scope())
        assert pids & pids_without_scope, "no server session was shared, so nothing was shown"
    finally:
        await tenants.close()
        await system.close()


@pytest.fixture
def tolerant_server(
    pooled_server: PooledTestServer, tmp_path: Path, pytestconfig: pytest.Config
) -> Iterator[PooledTestServer]:
    """The same server behind a pooler that drops unknown parameters."""
    downloads = pytestconfig.rootpath / PGBOUNCER_FOLDER
    server = TestServer(pooled_server.dsn, pooled_server.template, pooled_server.copying, pooled_server.owner)
    with pooled(server, tmp_path / "pgbouncer", downloads, TOLERATED) as through:
        yield through


async def test_an_undeclared_pooler_is_detected(tolerant_server: PooledTestServer) -> None:
    """Without `pgbouncer=true`, and with a pooler that drops unknown parameters, no scope may be left in a session."""
    async with tolerant_server.database() as made:
        store = await Store.open(made.replace("pgbouncer=true&", ""), size=1)
        try:
            assert store.is_pooled
        finally:
            await store.close()


async def test_an_undeclared_pooler_with_the_documented_settings_is_refused(
    pooled_server: PooledTestServer, pooled_dsn: str
) -> None:
    if POOLER_VARIABLE in os.environ:
        pytest.skip("the pooler of the core suite drops unknown parameters")
    with pytest.raises(ConfigError, match="add pgbouncer=true to the DSN"):
        await Store.open(pooled_dsn.replace("pgbouncer=true&", ""), size=1)


async def test_what_needs_a_session_asks_for_one(pooled_server: PooledTestServer, pooled_dsn: str) -> None:
    store = await Store.open(pooled_dsn, size=1)
    try:
        assert store.session_dsn is None
        with pytest.raises(ConfigError, match="direct_dsn"):
            LeaderLeases(store, LEASE_DURATION)
    finally:
        await store.close()
    with pytest.raises(ConfigError, match="BELLRINGER_DIRECT_DSN"):
        Config(dsn=pooled_dsn).require_session_dsn()
    direct = pooled_server.direct(pooled_dsn)
    assert Config(dsn=pooled_dsn, direct_dsn=direct).require_session_dsn() == direct
    assert Config(dsn="postgresql://one/db", direct_dsn=direct).require_session_dsn() == "postgresql://one/db"


async def test_sessions_without_the_settings_are_refused(pooled_server: PooledTestServer, pooled_dsn: str) -> None:
    name = pooled_dsn.rpartition("/")[2].partition("?")[0]
    direct = await connect(pooled_server.direct(pooled_dsn))
    try:
        await direct.execute(f"alter role bellringer in database {name} set search_path = public")
        with pytest.raises(ConfigError, match=r"search_path = public.*bellringer roles settings bellringer"):
            await Store.open(pooled_dsn)
    finally:
        await direct.close()


async def send(api: httpx2.AsyncClient, number: int | None) -> str:
    work = {"task": "app.wait"} if number is None else {"task": "app.remind", "kwargs": {"number": number}}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (answer := await api.post("/api/v1/jobs/execute", json=work)).status_code >= 500:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def is_ready(api: httpx2.AsyncClient) -> bool:
    with suppress(httpx2.HTTPError):
        return (await api.get("/readyz")).status_code == 200
    return False


async def has_state(api: httpx2.AsyncClient, run: str, state: str) -> bool:
    answer = await api.get(f"/api/v1/runs/{run}")
    return answer.status_code == 200 and answer.json()["state"] == state


async def is_more(connection: asyncpg.Connection[asyncpg.Record], question: str, least: int) -> bool:
    return bool(await connection.fetchval(question) >= least)


async def until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
