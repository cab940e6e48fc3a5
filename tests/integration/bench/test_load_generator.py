"""The load generator tells what was answered and how long it took, whichever way the answers come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest

from bellringer.bench.load_generator import LoadFigures, LoadGenerator, LoadPlan, Request

HOST = "127.0.0.1"
Answer = Callable[[asyncio.StreamWriter, int], Coroutine[Any, Any, None]]


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answers each request by its number; tells its port and the requests."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            place = head.lower().find(b"content-length:")
            length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            asked.append(head + await reader.readexactly(length))
            await answer(writer, len(asked))

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            await serve(reader, writer)

    serving = await asyncio.start_server(quietly, HOST, 0)
    async with serving:
        yield serving.sockets[0].getsockname()[1], asked


async def hammered(order: LoadPlan) -> LoadFigures:
    async with asyncio.timeout(20):
        return await asyncio.to_thread(LoadGenerator(order).run)


async def at_once(writer: asyncio.StreamWriter, _number: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_each_request_is_sent_once_with_its_body_and_headers() -> None:
    requests: list[Request] = [("POST", f"/{n}", "x" * n) for n in range(40)]
    async with server(at_once) as (port, asked):
        seen = await hammered(
            LoadPlan(host=HOST, port=port, requests=requests, connections=4, headers={"Prefer": "return=minimal"})
        )
    assert (seen.requests, seen.statuses, seen.sample) == (40, {"200": 40}, "ok")
    assert sorted(len(request.rpartition(b"\r\n\r\n")[2]) for request in asked) == list(range(40))
    assert all(b"Prefer: return=minimal\r\n" in request for request in asked)


async def test_an_answer_may_come_in_parts() -> None:
    async def in_parts(writer: asyncio.StreamWriter, _number: int) -> None:
        for part in (b"HTTP/1.1 20", b"2 Accepted\r\ncontent-len", b"gth: 4\r\n\r\nbo", b"dy"):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)

    async with server(in_parts) as (port, _):
        seen = await hammered(LoadPlan(host=HOST, port=port, requests=[("GET", "/", None)] * 3, connections=1))
    assert (seen.statuses, seen.sample) == ({"202": 3}, "body")


async def test_a_rate_is_kept_and_times_count_from_when_a_request_was_due() -> None:
    async def one_late(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 50:
            await asyncio.sleep(0.2)  # on the only connection: all that are due meanwhile wait for it
        await at_once(writer, number)

    async with server(one_late) as (port, asked):
        order = LoadPlan(host=HOST, port=port, requests=[("GET", "/", None)], connections=1, rate=200, seconds=1)
        seen = await hammered(order)
    assert seen.requests == len(asked) == 200
    assert 0.9 < seen.seconds < 3
    assert seen.max_ms >= 200
    assert seen.p99_ms > 100
    assert seen.p50_ms < 100


async def test_without_a_rate_it_goes_round_the_requests_until_the_time_is_over() -> None:
    async with server(at_once) as (port, asked):
        seen = await hammered(
            LoadPlan(
                host=HOST, port=port, requests=[("GET", "/a", None), ("GET", "/b", None)], connections=2, seconds=0.3
            )
        )
    assert seen.requests == len(asked) > 2
    assert 0.3 <= seen.seconds < 2
    assert {request.split()[1] for request in asked} == {b"/a", b"/b"}


async def test_a_server_that_goes_away_is_not_a_result() -> None:
    async def gone(writer: asyncio.StreamWriter, _number: int) -> None:
        writer.close()

    async with server(gone) as (port, _):
        with pytest.raises(ConnectionError):
            await hammered(LoadPlan(host=HOST, port=port, requests=[("GET", "/", None)], connections=1))
