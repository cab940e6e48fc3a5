"""HTTP servers on this machine that record requests and return the responses that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from bellringer.clock import SystemClock
from bellringer.core.jobs import HTTP_TASK
from bellringer.core.runs import FINAL_STATES, RunKey
from bellringer.egress.secret_box import generate_secret_key
from bellringer.egress.settings import Egress
from bellringer.engine import http_targets
from bellringer.engine.send import SendSpec, send
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.runs import RunRow
from bellringer.worker.built_in_tasks import http_registry
from bellringer.worker.service import Worker, WorkerSettings

LOOPBACK = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True)
class Received:
    """One recorded request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Returns `answers` one after the other and then repeats the last: raw bytes, or a status, headers and body."""

    answers: list[bytes | tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(200, {}, b"ok")])
    received: list[Received] = field(default_factory=list)
    port: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, target, _ = first.split(" ")
            self.received.append(Received(method, target, headers, body))
            self.came.set()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(answer if isinstance(answer, bytes) else _written(*answer))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a caller that hangs up is what some tests are about
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def _written(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = {"content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.attend, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@pytest.fixture
def egress() -> Egress:
    """Settings that allow calls to this machine and the storage of secrets."""
    return Egress.read(LOOPBACK, (generate_secret_key("k1"),))


@dataclass
class Shop:
    """A tenant with HTTP jobs, and a worker that executes them."""

    store: Store
    catalog: Catalog
    egress: Egress
    tenant_id: int

    async def send(self, target: dict[str, object], *, key: str | None = None, **more: object) -> RunKey:
        stored = await http_targets.prepare_target(self.store, self.egress, target, tenant_id=self.tenant_id)
        order = SendSpec(task=HTTP_TASK, pool=HTTP_TASK, kwargs=stored, key=key, **more)  # type: ignore[arg-type]
        return (await send(self.store, self.catalog, order, tenant_id=self.tenant_id)).key

    async def run(self, key: RunKey) -> RunRow:
        found = await runs.get(self.store, key, self.tenant_id)
        assert found is not None
        return found

    async def until(self, key: RunKey, is_so: Callable[[RunRow], bool]) -> RunRow:
        """Wait until the run is in this state; returns it."""
        async with asyncio.timeout(60):
            while not is_so(found := await self.run(key)):  # noqa: ASYNC110 - rows tell nobody
                await asyncio.sleep(0.02)
        return found

    async def ended(self, key: RunKey) -> RunRow:
        return await self.until(key, lambda run: run.state in FINAL_STATES)

    async def tries(self, key: RunKey) -> list[runs.AttemptRow]:
        return list(await runs.attempts(self.store, key, self.tenant_id))


@pytest.fixture
async def shop(store: Store, catalog: Catalog, egress: Egress) -> AsyncIterator[Shop]:
    clock, stop = SystemClock(), asyncio.Event()
    settings = WorkerSettings(pools={HTTP_TASK: 4}, name="http", grace=timedelta(seconds=1))
    worker = Worker(store, http_registry(store, egress, clock), clock, settings)
    working = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    yield Shop(store, catalog, egress, await catalog.tenant_id("default"))
    stop.set()
    await working
