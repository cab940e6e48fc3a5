"""Bad connections: slow, huge, lying and ambiguous requests get their exact answer, by a real server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bellringer.api.app import create_app
from bellringer.api.http import json_body
from bellringer.api.http.connection_limits import MAX_HEAD_BYTES, with_connection_limits
from bellringer.clock import SystemClock
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

HEAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
JOB = b'{"name": "a", "task": "demo"}'
Answers = list[tuple[int, dict[str, Any]]]
Talk = Callable[..., Awaitable[Answers]]


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol])
def kind(request: pytest.FixtureRequest) -> type[Any]:
    chosen: type[Any] = request.param
    return chosen


@asynccontextmanager
async def serving(app: Any, protocol: type[asyncio.Protocol]) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            http=protocol,
            h11_max_incomplete_event_size=2 * MAX_HEAD_BYTES,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await running


@pytest.fixture
async def talk(store: Store, catalog: Catalog, tenants: Store, kind: type[Any]) -> AsyncIterator[Talk]:
    """Send these pieces, one after the other, and read until the server closes; answers all that it said."""
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock())
    async with serving(app, with_connection_limits(kind, head_timeout=2.0, max_connections=5)) as port:

        async def said(*pieces: bytes, pause: float = 0.0) -> Answers:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            reading = asyncio.create_task(reader.read())
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause)
            except ConnectionError:
                pass  # it was cut off, and has said why
            async with asyncio.timeout(30):
                answers = read(await reading)
            writer.close()
            return answers

        yield said


def read(data: bytes) -> Answers:
    answers = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        line, *headers = head.decode("latin-1").split("\r\n")
        told = {name.lower(): value for name, _, value in (h.partition(": ") for h in headers)}
        size = int(told["content-length"]) if "content-length" in told else len(rest)
        answers.append((int(line.split()[1]), {**told, "body": json.loads(rest[:size] or b"{}")}))
        data = rest[size:]
    return answers


def refusals(answers: Answers) -> list[tuple[int, str]]:
    for _, told in answers:
        assert told["content-type"] == "application/problem+json"
        assert told["connection"] == "close"
        assert told["body"]["request_id"] == told["x-request-id"]
    return [(status, told["body"]["code"]) for status, told in answers]


async def test_a_good_request_is_answered(talk: Talk) -> None:
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(JOB)
    [(status, told)] = await talk(head[:20], head[20:], JOB[:5], JOB[5:])
    assert (status, told["body"]["name"]) == (202, "a")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n",
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: local host\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: user@localhost\r\n",
    ],
)
async def test_a_host_that_is_missing_doubled_or_malformed(talk: Talk, head: bytes) -> None:
    assert refusals(await talk(head + b"Connection: close\r\n\r\n")) == [(400, "request_invalid")]


async def test_http_1_0_needs_no_host(talk: Talk) -> None:
    """Health checks of load balancers send none."""
    [(status, _)] = await talk(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert status == 200


async def test_a_body_that_comes_too_slowly(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "BODY_TIMEOUT_SECONDS", 0.3)
    answers = await talk(HEAD + b"Content-Length: 100\r\n\r\n", b'{"name"')
    assert refusals(answers) == [(408, "body_timeout")]


async def test_a_body_that_came_in_time_may_be_read_slowly(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(data: bytes) -> Any:
        await asyncio.sleep(0.8)
        return json_body.parse(data)

    monkeypatch.setattr(json_body, "BODY_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(json_body, "parse_body", slowly)
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(JOB)
    [(status, told)] = await talk(head + JOB)
    assert (status, told["body"]["name"]) == (202, "a")


async def test_a_head_that_comes_byte_by_byte(talk: Talk) -> None:
    assert refusals(await talk(*[b"%c" % byte for byte in HEAD[:40]], pause=0.1)) == [(408, "head_timeout")]


async def test_no_one_waits_for_one_who_says_nothing(talk: Talk) -> None:
    assert await talk() == []


async def test_a_head_of_17_kib(talk: Talk) -> None:
    header = b"X-Filler: " + b"x" * 17_000 + b"\r\n"
    assert refusals(await talk(HEAD + header + b"Content-Length: 0\r\n\r\n")) == [(431, "headers_too_large")]


async def test_a_head_that_never_ends_is_cut_off(talk: Talk) -> None:
    """As soon as it is too large: it ends with the answer, though it would have gone on."""
    many = [b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(16)]
    assert refusals(await talk(HEAD, *many, b"X-Last: " + b"x" * 1000)) == [(431, "headers_too_large")]


async def test_a_body_that_is_declared_too_large_is_not_waited_for(talk: Talk) -> None:
    answers = await talk(HEAD + b"Content-Length: 10000000\r\n\r\n")
    assert refusals(answers) == [(413, "body_too_large")]


async def test_a_chunked_body_that_never_ends_is_cut_off(talk: Talk) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answers = await talk(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 16, b"1\r\n \r\n")
    assert refusals(answers) == [(413, "body_too_large")]


async def test_a_body_that_is_shorter_than_declared(talk: Talk, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "BODY_TIMEOUT_SECONDS", 0.3)
    answers = await talk(HEAD + b"Content-Length: %d\r\n\r\n" % (len(JOB) + 9) + JOB)
    assert refusals(answers) == [(408, "body_timeout")]
    assert await store.pool.fetchval("select count(*) from jobs") == 0


async def test_a_body_that_comes_after_its_answer_is_not_a_head(talk: Talk) -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    again = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = await talk(head, *[b"x" * 20_000] * 4, b"x" * 20_000 + again, pause=0.1)
    assert [status for status, _ in answers] in ([404, 200], [404]), answers
    assert answers[0][1]["body"]["code"] == "not_found"


async def test_what_follows_a_body_is_not_part_of_it(talk: Talk, store: Store) -> None:
    """A Content-Length that is too short: the rest is read as another request, and is none."""
    answers = await talk(HEAD + b"Content-Length: %d\r\n\r\n" % len(JOB) + JOB + b"GARBAGE\r\n\r\n")
    assert [status for status, _ in answers][-1] == 400
    assert await store.pool.fetchval("select count(*) from jobs") <= 1


PAIRS = {
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a list of lengths": b"Content-Length: 5, 6\r\n\r\nhello!",
    "a signed length": b"Content-Length: +5\r\n\r\nhello",
    "a length that is none": b"Content-Length: five\r\n\r\nhello",
    "a space before the colon": b"Content-Length : 5\r\n\r\nhello",
    "two encodings": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a bare newline in a chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
async def test_a_body_whose_end_two_readers_see_in_two_places(talk: Talk, store: Store, pair: bytes) -> None:
    smuggled = b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = await talk(HEAD + pair + smuggled)
    assert [code for status, code in refusals(answers) if status in {400, 501}], answers
    assert len(answers) == 1, "nothing that was hidden behind it is answered"


async def test_connections_have_a_bound(store: Store, catalog: Catalog, tenants: Store, kind: type[Any]) -> None:
    app = create_app(store, catalog, tenants, version="1", clock=SystemClock())
    async with serving(app, with_connection_limits(kind, max_connections=3)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        refused = await held[-1][0].read()
        assert refusals(read(refused)) == [(503, "unavailable")]
        for _, writer in held:
            writer.close()
