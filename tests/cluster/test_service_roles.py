"""Database roles with least privilege: each process does its work with its own role, and is refused everything else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest
from tests.cluster.roles import Roles

from bellringer.backends.object_store import ObstoreObjects
from bellringer.clock import SystemClock
from bellringer.egress.secret_box import generate_secret_key
from bellringer.engine.archive import archive_slice
from bellringer.engine.prune import Retention, prune
from bellringer.engine.read_archive import list_manifests
from bellringer.engine.retain import trim_slice
from bellringer.store.archive import backlog
from bellringer.store.connection_pool import Store, connect
from bellringer.store.migrate import migrate, row_security
from bellringer.store.service_roles import SERVICES, read_role_target, roles_sql
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer, at_database

TIMEOUT_SECONDS = 30.0
ROOT_KEY = "root-key-of-the-installation-for-the-first-login"
APP = """
from bellringer import App, Retry, Workflow, every

app = App()


@app.task
async def remind(name: str) -> str:
    return f"hello {name}"


@app.task
async def spend(token: str) -> int:
    return len(token)


@app.task(retry=Retry(1))
async def fail() -> None:
    raise RuntimeError("no")


@app.schedule(every("2s"), overlap="skip")
@app.workflow
def flow(wf: Workflow):
    return wf.add(remind, wf.add(remind, "a workflow"))


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


async def test_optional_features_work_with_the_roles(roles: Roles, roles_dsn: dict[str, str], tmp_path: Path) -> None:
    """Named secrets, notifications, check-ins and workflows, then the archive and the prune of the scheduler."""
    key = generate_secret_key("k1")
    with MessageReceiver() as receiver:
        roles.scheduler(dsn=roles_dsn["scheduler"])
        roles.worker(secret_keys=key)
        settings: dict[str, Any] = {
            "root_key": ROOT_KEY,
            "secret_keys": key,
            "egress_allow": "127.0.0.0/8",
            "public_url": "http://here",
        }
        roles.server(dsn=roles_dsn["api"], **settings)
        async with client(roles.url) as api, session(roles_dsn["admin"]) as admin:
            await until_ready(api)
            secret = {"value": "0123456789", "tasks": ["app.spend"]}
            assert (await api.put("/api/v1/secrets/token", json=secret)).status_code == 200
            channel = {"kind": "webhook", "url": receiver.url}
            made = await api.put("/api/v1/notifications/channels/ops", json=channel)
            assert made.status_code == 201, made.text
            route = {"channel": "ops", "wait": "0s", "kinds": ["dead", "checkin_missed"]}
            made = await api.put("/api/v1/notifications/routes/all", json=route)
            assert made.status_code == 201, made.text
            made = await api.put("/api/v1/checkins/backup", json={"schedule": {"every": "1h"}})
            assert made.status_code == 201, made.text
            ping = urlsplit(made.json()["ping_url"]).path
            assert (await api.get(ping)).status_code == 200
            spent = await execute(api, "app.spend", {"token": {"$secret": "token"}})
            await execute(api, "app.fail", {})
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (found := (await api.get(f"/api/v1/runs/{spent}")).json())["state"] != "succeeded":
                    assert found["state"] != "dead", found
                    await asyncio.sleep(0.1)
            assert found["result"] == 10
            await until(admin, "select count(*) = 1 from bellringer.checkins where state = 'up' and pings = 1")
            await admin.execute("update bellringer.checkins set deadline_at = now() - interval '1 minute'")
            await until(admin, "select count(*) = 1 from bellringer.checkins where state = 'down'")
            await until(admin, "select count(*) > 0 from bellringer.flows where finished_at is not null")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while len(receiver.received) < 2:  # noqa: ASYNC110 - another thread receives
                    await asyncio.sleep(0.1)
    assert {"app.fail", "backup"} <= {word for text in receiver.received for word in re.findall(r"[\w.]+", text)}
    said = "".join(roles.said(process) for process in roles.processes)
    assert "permission denied" not in said
    assert "step failed" not in said
    roles.end()
    async with session(roles_dsn["admin"]) as admin:
        for table in ("queue", "timers", "dead_letters", "flows"):  # a day with unfinished runs is kept
            await admin.execute(f"delete from bellringer.{table}")
    await archive_and_prune(roles_dsn["scheduler"], tmp_path)


async def archive_and_prune(dsn: str, folder: Path) -> None:
    """Does what the scheduler does with days past retention, with its role."""
    clock, day = SystemClock(), timedelta(days=1)
    keep = Retention(runs=5 * day, dead_letters=5 * day, jobs=5 * day)
    target = ObstoreObjects(f"file://{folder / 'archive'}")
    store = await Store.open(dsn)
    try:
        later = await store.now() + 40 * day
        assert await store.pool.fetchval("select count(*) from runs") > 3
        assert await prune(store, later, keep, archives=True) > 0
        while (await backlog(store)).batches:
            assert await archive_slice(store, target, clock) > 0
        assert await store.pool.fetchval("select count(*) from runs") == 0
        assert [manifest.rows for manifest in await list_manifests(target)] != []
        await trim_slice(store, clock, later, keep.runs, archives=True)
    finally:
        await store.close()


class MessageReceiver:
    """Keeps the bodies that are posted to its URL."""

    def __init__(self) -> None:
        received = self.received = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/messages"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


REFUSED = [
    ("worker", "select hash from bellringer.api_keys"),
    ("worker", "select * from bellringer.secrets"),
    ("worker", "select * from bellringer.audit"),
    ("worker", "delete from bellringer.audit"),
    ("worker", "select secret from bellringer.cluster"),
    ("worker", "select * from bellringer.webhook_endpoints"),
    ("worker", "update bellringer.named_secrets set tasks = '{}'"),
    ("worker", "insert into bellringer.named_secrets (tenant_id, name) values (1, 'x')"),
    ("worker", "delete from bellringer.named_secrets"),
    ("worker", "select * from bellringer.notification_channels"),
    ("worker", "select * from bellringer.notification_routes"),
    ("worker", "select * from bellringer.notifications"),
    ("worker", "select * from bellringer.checkins"),
    ("worker", "update bellringer.tenants set quotas = '{}'"),
    ("worker", "insert into bellringer.tenants (name) values ('mine')"),
    ("worker", "delete from bellringer.tenants"),
    ("worker", "select bellringer.drop_day(current_date)"),
    ("scheduler", "select sealed from bellringer.secrets"),
    ("scheduler", "update bellringer.secrets set sealed = ''"),
    ("scheduler", "select * from bellringer.named_secrets"),
    ("scheduler", "update bellringer.named_secrets set tasks = '{}'"),
    ("scheduler", "delete from bellringer.named_secrets"),
    ("scheduler", "update bellringer.notification_channels set settings = '{}'"),
    ("scheduler", "delete from bellringer.notification_channels"),
    ("scheduler", "update bellringer.notification_routes set enabled = false"),
    ("scheduler", "update bellringer.tenants set quotas = '{}'"),
    ("scheduler", "insert into bellringer.tenants (name) values ('mine')"),
    ("scheduler", "delete from bellringer.tenants"),
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
        await until_ready(api)
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
        return await execute(api, "app.remind", {"name": "the API"})


async def until_ready(api: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            with suppress(httpx2.HTTPError):
                if (await api.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.1)


async def execute(api: httpx2.AsyncClient, task: str, kwargs: dict[str, Any]) -> str:
    """Sends a run; returns its id."""
    sent = await api.post("/api/v1/jobs/execute", json={"task": task, "kwargs": kwargs})
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
