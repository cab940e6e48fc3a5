"""A load generator in a process of its own: keep-alive connections on bare protocols cost little beside a server.

Reads what to send as JSON from its standard input, and prints what it saw: `python -m bellringer.bench.hammer`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter, deque
from importlib import import_module
from itertools import cycle
from typing import Any, Final

import msgspec

from bellringer.clock import SystemClock

Request = tuple[str, str, str | None]  # method, path, body
PACE: Final = 0.001  # seconds between two looks at what is due; the loop counts milliseconds, and spins for less


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. Without a rate each connection sends its next request when it has its answer."""

    host: str
    port: int
    requests: list[Request]
    connections: int = 32
    rate: float | None = None  # requests a second, sent at their time whether or not earlier ones are answered
    seconds: float | None = None  # go round the requests for so long; None: each of them once
    headers: dict[str, str] = {}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; with a rate, latencies count from when a request was due."""

    requests: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    late_ms: float  # with a rate, the longest that the generator itself came late to look at what is due
    statuses: dict[str, int]
    sample: str  # one of the answers' bodies


class _Connection(asyncio.Protocol):
    """One request at a time; says when it is idle again."""

    def __init__(self, hammer: Hammer) -> None:
        self._hammer = hammer
        self._data = bytearray()
        self._due = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes, due: float) -> None:
        assert self._transport is not None
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._data[:end]).lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(self._data) < end + 4 + length:
            return
        body = bytes(self._data[end + 4 :])
        self._data.clear()
        self._hammer.answered(self, head[9:12].decode(), body, self._due)

    def connection_lost(self, _error: Exception | None) -> None:
        self._hammer.ended.set()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Hammer:
    """Keeps the connections busy, and takes the times."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._clock = SystemClock()
        written = [_written(order, request) for request in order.requests]
        self._feed = iter(written) if order.seconds is None else cycle(written)
        self._total = len(written) if order.seconds is None or order.rate is None else int(order.seconds * order.rate)
        self._statuses: Counter[str] = Counter()
        self._times: list[float] = []
        self._idle: deque[_Connection] = deque()
        self._sample = b""
        self._until = float("inf")
        self._under_way = 0
        self._late = 0.0
        self.ended = asyncio.Event()

    async def run(self) -> Seen:
        loop = asyncio.get_running_loop()
        for _ in range(self._order.connections):
            _, connection = await loop.create_connection(lambda: _Connection(self), self._order.host, self._order.port)
            self._idle.append(connection)
        connections = list(self._idle)
        started = self._clock.monotonic()
        if self._order.rate is None:
            self._until = started + (self._order.seconds or float("inf"))
            while self._idle:
                self._next(self._idle.popleft())
            await self.ended.wait()
        else:
            await self._paced(started, self._order.rate)
        seconds = self._clock.monotonic() - started
        for connection in connections:
            connection.close()
        return self._seen(seconds)

    async def _paced(self, started: float, rate: float) -> None:
        waiting: deque[float] = deque()
        sent, looked = 0, started
        while sent < self._total or waiting:
            moment = self._clock.monotonic()
            self._late, looked = max(self._late, moment - looked - PACE), moment
            due = min(self._total, int((moment - started) * rate) + 1)
            waiting.extend(started + n / rate for n in range(sent, due))
            sent = due
            while waiting and self._idle:
                self._idle.popleft().ask(next(self._feed), waiting.popleft())
                self._under_way += 1
            await asyncio.sleep(PACE)
        while self._under_way:
            await asyncio.sleep(PACE)

    def answered(self, connection: _Connection, status: str, body: bytes, due: float) -> None:
        moment = self._clock.monotonic()
        self._times.append(moment - due)
        self._statuses[status] += 1
        self._sample = body
        self._under_way -= 1
        if self._order.rate is None:
            self._next(connection)
        else:
            self._idle.append(connection)

    def _next(self, connection: _Connection) -> None:
        moment = self._clock.monotonic()
        request = next(self._feed, None) if moment < self._until else None
        if request is not None:
            connection.ask(request, moment)
            self._under_way += 1
        elif self._under_way == 0:
            self.ended.set()

    def _seen(self, seconds: float) -> Seen:
        ordered = sorted(self._times) or [0.0]
        p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        return Seen(
            requests=len(self._times),
            seconds=round(seconds, 3),
            per_second=round(len(self._times) / seconds, 1),
            p50_ms=round(p50 * 1000, 2),
            p99_ms=round(p99 * 1000, 2),
            max_ms=round(ordered[-1] * 1000, 2),
            late_ms=round(self._late * 1000, 2),
            statuses=dict(self._statuses),
            sample=self._sample[:2000].decode(errors="replace"),
        )


def _written(order: Order, request: Request) -> bytes:
    method, path, body = request
    content = (body or "").encode()
    headers = {"Host": f"{order.host}:{order.port}", **order.headers}
    if body is not None:
        headers = {"Content-Type": "application/json", **headers, "Content-Length": str(len(content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    gc.disable()  # its pauses would be taken for the server's
    try:
        run = import_module("uvloop").run
    except ImportError:
        run = asyncio.run
    seen = run(Hammer(order).run())
    sys.stdout.buffer.write(msgspec.json.encode(seen))


if __name__ == "__main__":
    main()
