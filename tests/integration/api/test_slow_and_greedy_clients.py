"""Clients that read slowly, never read, or send much at once cannot block other clients."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from unittest.mock import AsyncMock, patch

import httpx2
import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellringer.api.app import create_app
from bellringer.api.http.connection_limits import limit_send_buffer, with_connection_limits
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.sse import OpenResponseLimit, OpenStreams
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

API: Final = "/api/v1"


@asynccontextmanager
async def serving(app: Any, protocol: type[asyncio.Protocol]) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limit_send_buffer(listener)
        config = uvicorn.Config(app, log_config=None, lifespan="off", http=protocol, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1], server
        app.streams.close()
        server.should_exit = True
        await running


async def until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Whether it became so within that time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)
    return is_so()


class Large:
    """Answers with more than any buffer of the network holds."""

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", self.after)]})
        for place in range(self.pieces):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": place + 1 < self.pieces})

    def __init__(self, pieces: int, after: bytes) -> None:
        self.pieces, self.after, self.streams = pieces, after, OpenStreams()


@asynccontextmanager
async def asking(port: int, data: bytes) -> AsyncIterator[socket.socket]:
    """Asks, and reads nothing by itself."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(0)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(slow, ("127.0.0.1", port))
    await loop.sock_sendall(slow, data)
    try:
        yield slow
    finally:
        slow.close()


GET_DOCS: Final = b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n"


KINDS: Final = pytest.mark.parametrize("kind", [HttpToolsProtocol, H11Protocol])


@KINDS
@pytest.mark.parametrize("pieces", [100, 3])
@pytest.mark.parametrize("after", [b"close", b"keep-alive"])
async def test_who_asks_and_never_reads_is_cut_off(kind: type[Any], pieces: int, after: bytes) -> None:
    """In the middle of an answer, and also where all of it waits to be taken before the connection can end."""
    app = Large(pieces, after)
    async with (
        serving(app, with_connection_limits(kind, head_timeout=60.0, slow_reader_check=0.3)) as (port, server),
        asking(port, GET_DOCS),
    ):
        assert await until(lambda: bool(server.server_state.connections), 10)
        assert await until(lambda: not server.server_state.connections, 20), "it is still held after 20 s"


async def test_who_reads_slowly_gets_all(caplog: pytest.LogCaptureFixture) -> None:
    app = Large(20, b"close")
    async with (
        serving(app, with_connection_limits(HttpToolsProtocol, slow_reader_check=1.0)) as (port, _),
        asking(port, GET_DOCS) as slow,
    ):
        loop, size = asyncio.get_running_loop(), 0
        while data := await loop.sock_recv(slow, 1 << 16):
            size += len(data)
            await asyncio.sleep(0.01)
        assert size > 20 << 16
    assert not caplog.records


async def test_who_asks_for_much_at_once_is_cut_off(
    store: Store, catalog: Catalog, tenants: Store, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a login: each `GET /docs` that is asked for before the answer of the last is one more to be kept."""
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock())
    async with serving(app, with_connection_limits(HttpToolsProtocol)) as (port, server):
        async with asking(port, GET_DOCS * 60):
            assert await until(lambda: bool(server.server_state.total_requests) or not server.server_state.tasks, 10)
            assert await until(lambda: not server.server_state.connections, 20), "it is still held"
            assert await until(lambda: not server.server_state.tasks, 20)
        async with asking(port, GET_DOCS + GET_DOCS) as two:
            seen, loop = b"", asyncio.get_running_loop()
            async with asyncio.timeout(20):
                while seen.count(b"200 OK") < 2:
                    seen += await loop.sock_recv(two, 1 << 16)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_a_caller_who_has_gone_is_not_an_error(
    store: Store, catalog: Catalog, tenants: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock())

    scope = {"type": "http", "method": "GET", "path": "/docs", "raw_path": b"/docs", "query_string": b""}
    scope["headers"] = [(b"host", b"localhost")]
    for trouble, is_ours in (("the handler is closed", False), ("something else", True)):
        gone = AsyncMock(side_effect=RuntimeError(f"unable to perform operation on <TCPTransport>; {trouble}"))
        await app(dict(scope), AsyncMock(), gone)
        assert ("request failed" in "".join(capfd.readouterr())) == is_ours


@pytest.mark.parametrize("path", ["/audit/export", "/runs/{run}/logs"])
async def test_what_is_reported_whole_takes_a_place(
    api: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    made = (await api.post(f"{API}/jobs/execute", json={"task": "demo"})).json()
    where, headers = API + path.format(run=made["run_id"]), {"Accept": "application/x-ndjson"}
    assert [(await api.get(where, headers=headers)).status_code for _ in range(2)] == [200, 200]
    with patch.object(OpenResponseLimit, "taken", autospec=True, side_effect=OpenResponseLimit.taken) as taken:
        await api.get(where, headers=headers)
    assert taken.call_count == 1
    monkeypatch.setattr(OpenResponseLimit, "check", _full)
    refused = await api.get(where, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")


def _full(_places: OpenResponseLimit, _tenant_id: int) -> None:
    raise Refused(429, "too_many_streams", "all are open already")


@pytest.mark.parametrize(("proxies", "taken"), [((), 3), (("127.0.0.0/8",), 5)], ids=["a client", "a proxy"])
async def test_one_address_has_only_so_many_connections(
    store: Store, catalog: Catalog, tenants: Store, proxies: tuple[str, ...], taken: int
) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock())
    protocol: Any = with_connection_limits(HttpToolsProtocol, proxies, max_per_address=3)
    async with serving(app, protocol) as (port, _):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for _, writer in held[:taken]:
            writer.write(b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        statuses = [(await reader.readline()).split()[1] for reader, _ in held]
        assert statuses == [b"200"] * taken + [b"503"] * (5 - taken)
        for _, writer in held:
            writer.close()
        assert await until(lambda: not protocol.by_address, 10), "who has gone is not counted"


async def longest_turn(work: Any) -> float:
    """The most seconds of this thread's own time that went by without a turn for anybody else, while it was done."""
    longest, is_over = 0.0, False

    async def beat() -> None:
        nonlocal longest
        last = time.thread_time()
        while not is_over:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    beating = asyncio.create_task(beat())
    await work
    is_over = True
    await beating
    return longest


@pytest.mark.parametrize("shape", ["nested", "fields"])
async def test_a_large_body_lets_others_have_their_turn(api: httpx2.AsyncClient, shape: str) -> None:
    """16 MiB for /jobs/bulk: parsing takes up to 5 s, one item of unknown fields 100 s. Schedulers share this loop."""
    if shape == "nested":
        body = b'{"items": [' + (b"[" * 28 + b"]" * 28 + b",") * (8 * 1024 * 1024 // 57) + b"0]}"
    else:
        body = json.dumps({"items": [{f"concurency_limt{n}": 1 for n in range(30_000)}]}).encode()
    headers = {"Content-Type": "application/json"}
    turn = await longest_turn(api.post(f"{API}/jobs/bulk", content=body, headers=headers))
    assert turn < 1.0, f"{turn:.1f} s without a turn for others"
