"""Database roles with least privilege: each process does its work with its own role, and is refused everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from tests.cluster.roles import Roles

from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate, row_security
from bellringer.store.service_roles import SERVICES, read_role_target, roles_sql
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer, at_database

TIMEOUT_SECONDS = 30.0
ROOT_KEY = "root-key-of-the-installation-for-the-first-login"
APP = """
from bellringer import App, every

app = App()


@app.task
async def remind(name: str) -> str:
    return f"hello {name}"


@app.schedule(every("1s"), overlap="allow")
@app.task
async def tick() -> None:
    await remind.asend("a handler")
"""


@pytest.fixture
async def roles_dsn(stock_server: TestServer, request: pytest.FixtureRequest) -> AsyncIterator[dict[str, str]]:
    """A database of the distribution's server, with the roles of `bellringer roles sql`; the address of each role."""
    prefix = "least"
    made = await stock_server.create_empty()
    name = made.partition("/")[2].rpartition("/")[2].partition("?")[0]
    admin_dsn = at_database(stock_server.dsn, name)
    admin = await asyncpg.connect(admin_dsn)
    target = await read_role_target(admin)
    statements = roles_sql(target, prefix)
    await admin.execute(statements)
    await admin.execute(statements)  # it can be repeated
    addresses = {kind: at_database(stock_server.dsn, name, user=f"{prefix}_{kind}") for kind in ("owner", *SERVICES)}
    owner = await connect(addresses["owner"])
    await migrate(owner)
    assert (found := await row_security(owner)) is not None
    assert found.is_on
    await owner.close()
    yield {**addresses, "admin": admin_dsn}
    await admin.close()
    await stock_server.drop(made)
    server = await asyncpg.connect(stock_server.dsn)
    groups = [target.group(kind) for kind in SERVICES]
    for role in (*groups, *(f"{prefix}_{kind}" for kind in ("owner", *SERVICES)), target.tenant_role):
        await server.execute(f"drop role if exists {role}")
    await server.close()


@pytest.fixture
def roles(tmp_path: Path, roles_dsn: dict[str, str]) -> Iterator[Roles]:
    running = Roles(tmp_path, roles_dsn["worker"])
    (tmp_path / "app.py").write_text(APP)
    yield running
    running.end()


async def test_each_role_does_its_work(roles: Roles, roles_dsn: dict[str, str]) -> None:
    roles.scheduler(dsn=roles_dsn["scheduler"])
    roles.worker()
    server = roles.server(dsn=roles_dsn["api"], root_key=ROOT_KEY)
    run_id = await use_api(roles.url)
    async with session(roles_dsn["admin"]) as admin:
        await until(admin, "select count(*) >= 2 from bellringer.attempts join bellringer.jobs using (job_id)")
        await until(admin, "select count(*) > 0 from bellringer.audit_seals")
    async with client(roles.url) as api, asyncio.timeout(TIMEOUT_SECONDS):
        while (await api.get(f"/api/v1/runs/{run_id}")).json()["state"] != "succeeded":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    said = "".join(roles.said(process) for process in roles.processes)
    assert "permission denied" not in said
    assert "row-level security" not in said  # the API acts as the role of tenants
    assert server.poll() is None


REFUSED = [
    ("worker", "select hash from bellringer.api_keys"),
    ("worker", "select * from bellringer.secrets"),
    ("worker", "select * from bellringer.audit"),
    ("worker", "delete from bellringer.audit"),
    ("worker", "select secret from bellringer.cluster"),
    ("worker", "select * from bellringer.webhook_endpoints"),
    ("worker", "select bellringer.drop_day(current_date)"),
    ("scheduler", "select hash from bellringer.api_keys"),
    ("scheduler", "select * from bellringer.secrets"),
    ("api", "update bellringer.audit set who = null"),
    ("api", "delete from bellringer.audit"),
    ("api", "select bellringer.drop_day(current_date)"),
    *(
        (kind, statement)
        for kind in SERVICES
        for statement in (
            "alter table bellringer.jobs add x integer",
            "drop table bellringer.queue",
            "truncate bellringer.queue",
            "create table bellringer.mine (x integer)",
            "create or replace function bellringer.now() returns timestamptz language sql as 'select null'",
            "delete from bellringer.migrations",
            "create policy mine on bellringer.jobs using (true)",
            "set role least_owner",
        )
    ),
]


async def test_refused_statements(roles_dsn: dict[str, str]) -> None:
    allowed = []
    for kind, statement in REFUSED:
        async with session(roles_dsn[kind]) as connection:
            try:
                await connection.execute(statement)
            except asyncpg.InsufficientPrivilegeError:
                continue
            allowed.append((kind, statement))
    assert allowed == []


async def test_rows_of_another_tenant_stay_hidden_from_the_api(roles_dsn: dict[str, str]) -> None:
    tenants = await open_tenants(roles_dsn["api"])
    try:
        async with session(roles_dsn["admin"]) as admin:
            other = await admin.fetchval("insert into bellringer.tenants (name) values ('other') returning tenant_id")
        count = "select array_agg(tenant_id order by tenant_id) from tenants"
        assert await ScopedStore(tenants, 1, None).pool.fetchval(count) == [1]
        assert await ScopedStore(tenants, other, None).pool.fetchval(count) == [other]
    finally:
        await tenants.close()


async def use_api(url: str) -> str:
    """Creates, changes and deletes things through the API; returns the id of a run that it sent."""
    async with client(url) as api:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                with suppress(httpx2.HTTPError):
                    if (await api.get("/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        job = {"name": "daily", "task": "app.remind", "kwargs": {"name": "cron"}, "schedule": {"cron": "0 3 * * *"}}
        made = await api.post("/api/v1/jobs", json=job, headers={"Idempotency-Key": "once"})
        assert made.status_code == 202, made.text
        path = f"/api/v1/jobs/{made.json()['job_id']}"
        for step in (
            api.get(path),
            api.post(f"{path}/pause"),
            api.post(f"{path}/resume", json={}),
            api.post(f"{path}/run"),
            api.delete(path),
            api.post("/api/v1/api-keys", json={"name": "deploy", "role": "editor"}),
            api.post("/api/v1/tenants", json={"name": "globex"}),
            api.get("/api/v1/runs"),
            api.get("/api/v1/audit"),
            api.get("/api/v1/overview"),
            api.get("/api/v1/cluster"),
            api.get("/metrics"),
        ):
            answer = await step
            assert answer.status_code < 300, (answer.url, answer.text)
        sent = await api.post("/api/v1/jobs/execute", json={"task": "app.remind", "kwargs": {"name": "the API"}})
        assert sent.status_code == 202, sent.text
        return str(sent.json()["run_id"])


def client(url: str) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {ROOT_KEY}"}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def until(connection: asyncpg.Connection[Any], question: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await connection.fetchval(question):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
