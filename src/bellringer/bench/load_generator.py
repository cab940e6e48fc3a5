"""A load generator in its own process, on plain sockets, because it shares the CPU with the server that it measures.

With a rate it polls its connections once a millisecond instead of waking for each response, so that it takes little
CPU time from the server. Requests that are due at a poll are sent together, and their latency counts from the time
of the poll. The kernel's timestamp says when a response arrived; without one, the next poll does, up to a millisecond
late.
It reads a LoadPlan as JSON from standard input and prints LoadFigures: `python -m bellringer.bench.load_generator`.
"""

from __future__ import annotations

import gc
import selectors
import socket
import struct
import sys
import time
from collections import Counter, deque
from contextlib import ExitStack
from itertools import cycle
from typing import Final

import msgspec

from bellringer.clock import SystemClock

Request = tuple[str, str, str | None]  # method, path, body
PACE: Final = 0.001  # seconds between two polls
PATIENCE: Final = 60.0  # seconds to wait for a response
PART: Final = 256 * 1024  # bytes per read
_STAMPS: Final = 35  # SO_TIMESTAMPNS of Linux: when received data arrived
_STAMP: Final = struct.Struct("@ll")  # seconds and nanoseconds
_BESIDE: Final = socket.CMSG_SPACE(_STAMP.size)


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The requests. Without a rate, each connection sends its next request when it has received a response."""

    host: str
    port: int
    requests: list[Request]
    connections: int = 32
    rate: float | None = None  # requests per second, sent whether or not earlier ones have a response
    seconds: float | None = None  # repeat the requests for this long; None: send each of them once
    headers: dict[str, str] = {}


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The measured responses; with a rate, latencies count from when a request was due."""

    requests: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    late_ms: float  # with a rate, the maximum delay of a poll
    statuses: dict[str, int]
    sample: str  # the body of one response


class _Connection:
    """One request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            self.socket.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
        self._data = bytearray()
        self.due = 0.0
        self.came: float | None = None  # wall-clock time at which the last part arrived

    def ask(self, request: bytes, due: float) -> None:
        self.due = due
        self.socket.sendall(request)

    def answer(self) -> tuple[str, bytes] | None:
        """Returns the status and the body once the response is complete."""
        part, beside, *_ = self.socket.recvmsg(PART, _BESIDE)
        if not part:
            raise ConnectionError("the server has closed a connection")
        for level, kind, shown in beside:
            if (level, kind) == (socket.SOL_SOCKET, _STAMPS):
                seconds, nanoseconds = _STAMP.unpack(shown)
                self.came = seconds + nanoseconds / 1e9
        self._data += part
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self._data[:end]).lower()
        place = head.find(b"content-length:")
        length = int(head[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
        if len(self._data) < end + 4 + length:
            return None
        body = bytes(self._data[end + 4 :])
        self._data.clear()
        return head[9:12].decode(), body


class LoadGenerator:
    """Keeps the connections busy and measures the latencies."""

    def __init__(self, order: LoadPlan) -> None:
        self._order = order
        self._clock = SystemClock()
        written = [_written(order, request) for request in order.requests]
        self._feed = iter(written) if order.seconds is None else cycle(written)
        self._total = len(written) if order.seconds is None or order.rate is None else int(order.seconds * order.rate)
        self._statuses: Counter[str] = Counter()
        self._times: list[float] = []
        self._idle: deque[_Connection] = deque()
        self._selector = selectors.DefaultSelector()
        self._sample = b""
        self._late = 0.0
        self._answered = self._clock.monotonic()

    def run(self) -> LoadFigures:
        order = self._order
        with ExitStack() as opened:
            opened.enter_context(self._selector)
            for _ in range(order.connections):
                connection = _Connection(order.host, order.port)
                opened.enter_context(connection.socket)
                self._selector.register(connection.socket, selectors.EVENT_READ, connection)
                self._idle.append(connection)
            started = self._clock.monotonic()
            if order.rate is None:
                self._at_most(started + (order.seconds or float("inf")))
            else:
                self._at(order.rate, started)
            return self._seen(self._clock.monotonic() - started)

    def _at_most(self, until: float) -> None:
        """Each connection sends its next request when it has received a response."""
        while True:
            moment = self._clock.monotonic()
            while self._idle and moment < until and (request := next(self._feed, None)) is not None:
                self._idle.popleft().ask(request, moment)
            if len(self._idle) == self._order.connections:
                return
            self._take(PATIENCE)

    def _at(self, rate: float, started: float) -> None:
        """Send each request at the first poll after its time, or as soon as a connection is free."""
        waiting: deque[float] = deque()
        sent, looks = 0, 0
        while sent < self._total or waiting or len(self._idle) < self._order.connections:
            moment = self._clock.monotonic()
            while (look := started + looks * PACE) <= moment:
                due = min(self._total, int(looks * PACE * rate) + 1)
                waiting.extend(look for _ in range(sent, due))
                self._late = max(self._late, moment - look)
                sent, looks = due, looks + 1
            while waiting and self._idle:
                self._idle.popleft().ask(next(self._feed), waiting.popleft())
            time.sleep(max(0.0, look - self._clock.monotonic()))
            self._take(0)
            if moment - self._answered > PATIENCE and len(self._idle) < self._order.connections:
                raise TimeoutError(f"no answer within {PATIENCE:.0f} s")

    def _take(self, patience: float) -> None:
        """Read the responses that have arrived, or wait for one."""
        ready = self._selector.select(patience)
        if not ready and patience:
            raise TimeoutError(f"no answer within {patience:.0f} s")
        moment, wall = self._clock.monotonic(), self._clock.now().timestamp()
        self._answered = moment if ready else self._answered
        for key, _ in ready:
            connection: _Connection = key.data
            if (answer := connection.answer()) is not None:
                status, self._sample = answer
                since = 0.0 if connection.came is None else max(0.0, wall - connection.came)
                self._times.append(moment - since - connection.due)
                self._statuses[status] += 1
                self._idle.append(connection)

    def _seen(self, seconds: float) -> LoadFigures:
        ordered = sorted(self._times) or [0.0]
        p50, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
        return LoadFigures(
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


def _written(order: LoadPlan, request: Request) -> bytes:
    method, path, body = request
    content = (body or "").encode()
    headers = {"Host": f"{order.host}:{order.port}", **order.headers}
    if body is not None:
        headers = {"Content-Type": "application/json", **headers, "Content-Length": str(len(content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadPlan)
    gc.disable()  # its pauses would count as latency
    sys.stdout.buffer.write(msgspec.json.encode(LoadGenerator(order).run()))


if __name__ == "__main__":
    main()
