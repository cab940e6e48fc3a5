"""An installation in which an incident is prepared: a database, an API server, and the commands of the runbook."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvicorn
from click.testing import CliRunner
from tests.contracts.runbook.document import Step
from tests.support.failover_pair import Pair

from bellringer.api.app import create_app
from bellringer.backends.embedded_postgres.programs import find_binaries
from bellringer.cli import cli
from bellringer.clock import SystemClock
from bellringer.config import describe_settings, load_config
from bellringer.core.jobs import Definition
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.register import create
from bellringer.engine.send import SendSpec, send
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases
from bellringer.store.tenant_scope import open_tenants
from bellringer.wire.overview import Setting
from bellringer.worker.service import Worker, WorkerSettings

CLOCK = SystemClock()
WAIT_SECONDS = 30.0
# These exit with 1 if they find something; everything else has to succeed.
FINDS = ("bellringer verify", "bellringer doctor", "bellringer audit verify", "bellringer migrate status")


class Bank:
    """The service that shop.charge needs."""

    is_up = False


async def charge() -> None:
    if not Bank.is_up:
        raise ConnectionError("bank.example: connection refused")


async def report() -> None:
    """Succeeds."""


async def export() -> None:
    await asyncio.sleep(3600)


TASKS = {"shop.charge": charge, "shop.report": report, "shop.export": export}


@dataclass
class Incident:
    """One installation. `names` replaces examples of the runbook by what exists here. Commands use `dsn`."""

    store: Store
    catalog: Catalog
    server: ApiServer
    dsn: str
    folder: Path
    stack: AsyncExitStack
    pair: Pair | None = None  # the primary and its standby, in the state of a failover
    names: dict[str, str] = field(default_factory=dict)
    actions: dict[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)

    async def sql(self, statement: str, *arguments: Any) -> list[Any]:
        return await self.store.pool.fetch(statement, *arguments)

    async def value(self, statement: str, *arguments: Any) -> Any:
        return await self.store.pool.fetchval(statement, *arguments)

    async def wait_for(self, statement: str, *arguments: Any) -> None:
        """Waits until the statement returns true."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not await self.value(statement, *arguments):  # noqa: ASYNC110 - the database sets no event
                await asyncio.sleep(0.05)

    async def create_job(self, name: str, *schedules: Any, task: str = "shop.report", **more: Any) -> None:
        await create(
            self.store,
            self.catalog,
            [Definition(name=name, task=task, schedules=schedules, **more)],
            tenant_id=1,
            who="ops",
        )

    async def send(self, task: str = "shop.report", **more: Any) -> None:
        await send(self.store, self.catalog, SendSpec(task=task, **more), tenant_id=1)

    async def start_scheduler(self, name: str = "node-1") -> None:
        settings = SchedulerSettings(name=name, version="0.2.0", silence=timedelta(seconds=15))
        scheduler = Scheduler(self.store, PostgresLeases(self.store), CLOCK, settings)
        await self._run(scheduler.run)
        await self.wait_for("select count(*) = 0 from leases where holder is null or expires_at < clock_timestamp()")

    async def start_worker(
        self, name: str = "worker-1", *, tasks: Mapping[str, Any] | None = None, **pools: int
    ) -> None:
        registry = Registry()
        for task, function in (TASKS if tasks is None else tasks).items():
            registry.add(make_task(function, name=task))
        settings = WorkerSettings(
            pools=pools or {"short": 20, "long": 4}, name=name, version="0.2.0", grace=timedelta(0)
        )
        worker = Worker(self.store, registry, CLOCK, settings)
        await self._run(worker.run)
        await self.wait_for("select exists (select from workers where name = $1 and state = 'live')", name)

    async def _run(self, process: Callable[[asyncio.Event], Awaitable[Any]]) -> None:
        """Runs a process until the incident ends."""
        stop = asyncio.Event()
        running = asyncio.ensure_future(process(stop))

        async def end() -> None:
            stop.set()
            await running

        self.stack.push_async_callback(end)

    async def execute(self, step: Step) -> str:
        """Executes a command as the runbook has it; returns what it prints. Raises AssertionError if it fails."""
        command = step.command
        if command in self.actions:
            await self.actions[command]()
            return ""
        for example, real in self.names.items():
            command = command.replace(example, real)
        environ = {
            "BELLRINGER_DSN": self.dsn,
            "BELLRINGER_URL": self.server.url,
            "TZ": "UTC",
            "NO_COLOR": "1",
            "COLUMNS": "120",
        }
        if re.match(r"bellringer [^|;&$>]*$", command):
            code, output = await asyncio.to_thread(self._call, command, environ)
        else:
            code, output = await self._shell(command, environ)
        allowed = {0, 1} if step.command.startswith(FINDS) else {0}
        assert code in allowed, f"`{command}` ended with {code}:\n{output}"
        return output

    def _call(self, command: str, environ: Mapping[str, str]) -> tuple[int, str]:
        """Calls a command in this process, which takes a tenth of the time of a new one."""
        done = CliRunner(env=dict(environ)).invoke(cli, shlex.split(command)[1:], prog_name="bellringer")
        return done.exit_code, done.output

    async def _shell(self, command: str, environ: Mapping[str, str]) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}:{find_binaries()}:{os.environ['PATH']}"
        address = self.server.url.removeprefix("http://")
        called = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command.replace("localhost:8700", address),
            cwd=self.folder,
            env={**os.environ, **environ, "PATH": path, "PAGER": "cat"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        output, _ = await called.communicate()
        return called.returncode or 0, output.decode()


class ApiServer:
    """An API server, which can be stopped and started again on its port."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._port = 0
        self._running: AsyncExitStack | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        async with AsyncExitStack() as opening:
            store = await Store.open(self._dsn)
            opening.push_async_callback(store.close)
            tenants = await open_tenants(self._dsn)
            opening.push_async_callback(tenants.close)
            described = describe_settings(load_config(environ={}), environ={})
            settings = [Setting(**setting._asdict()) for setting in described]
            app = create_app(store, Catalog(store), tenants, version="0.2.0", clock=CLOCK, settings=settings)
            listener = opening.enter_context(socket.create_server(("127.0.0.1", self._port)))
            self._port = listener.getsockname()[1]
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
            serving = asyncio.create_task(server.serve(sockets=[listener]))

            async def end() -> None:
                server.should_exit = True
                await serving

            opening.push_async_callback(end)
            self._running = opening.pop_all()

    async def stop(self) -> None:
        if self._running is not None:
            await self._running.aclose()
        self._running = None


@asynccontextmanager
async def installation(dsn: str, folder: Path) -> AsyncIterator[Incident]:
    """Yields an installation with an API server, and no scheduler or worker."""
    async with AsyncExitStack() as stack:
        store = await Store.open(dsn)
        stack.push_async_callback(store.close)
        server = ApiServer(dsn)
        stack.push_async_callback(server.stop)
        await server.start()
        yield Incident(store, Catalog(store), server, dsn, folder, stack)
