"""Real HTTP servers on this machine, which answer as a test wants and remember what they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from bellringer.clock import SystemClock
from bellringer.egress.secrets import make_key
from bellringer.egress.settings import Egress
from bellringer.jobs import HTTP
from bellringer.lifecycle import targets
from bellringer.lifecycle.send import Order, send
from bellringer.runs import FINAL, RunKey
from bellringer.store import runs
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.runs import Run
from bellringer.worker.http import registry
from bellringer.worker.service import Worker, WorkerSettings

LOOPBACK = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers with `answers` one after the other, the last for ever; raw bytes, or a status with headers."""

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
    """What an operator has set: this machine may be called, and secrets can be kept."""
    return Egress.read(LOOPBACK, (make_key("k1"),))


@dataclass
class Shop:
    """A tenant who calls, and a worker that does it: the real one."""

    store: Store
    names: Names
    egress: Egress
    tenant_id: int

    async def send(self, target: dict[str, object], *, key: str | None = None, **more: object) -> RunKey:
        stored = await targets.prepare(self.store, self.egress, target, tenant_id=self.tenant_id)
        order = Order(task=HTTP, pool=HTTP, kwargs=stored, key=key, **more)  # type: ignore[arg-type]
        return (await send(self.store, self.names, order, tenant_id=self.tenant_id)).key

    async def run(self, key: RunKey) -> Run:
        found = await runs.get(self.store, key, self.tenant_id)
        assert found is not None
        return found

    async def until(self, key: RunKey, is_so: Callable[[Run], bool]) -> Run:
        """The run, once it is so."""
        async with asyncio.timeout(60):
            while not is_so(found := await self.run(key)):  # noqa: ASYNC110 - rows tell nobody
                await asyncio.sleep(0.02)
        return found

    async def ended(self, key: RunKey) -> Run:
        return await self.until(key, lambda run: run.state in FINAL)

    async def tries(self, key: RunKey) -> list[runs.AttemptRow]:
        return list(await runs.attempts(self.store, key))


@pytest.fixture
async def shop(store: Store, names: Names, egress: Egress) -> AsyncIterator[Shop]:
    clock, stop = SystemClock(), asyncio.Event()
    settings = WorkerSettings(pools={HTTP: 4}, name="http", grace=timedelta(seconds=1))
    worker = Worker(store, registry(store, egress, clock), clock, settings)
    working = asyncio.create_task(worker.run(stop))
    await worker.started.wait()
    yield Shop(store, names, egress, await names.tenant_id("default"))
    stop.set()
    await working
