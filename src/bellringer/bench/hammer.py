"""A load generator in a process of its own, on plain sockets: what it costs is taken from the server beside it.

With a rate it looks at its connections once a millisecond instead of being woken by each answer: on a machine of its
own it would not be woken on the server's account either. All that is due at a look is sent together, and counts from
when the look was due; when an answer came the kernel says. Where it does not, an answer counts from the look that found
it, up to a millisecond too late.
Reads what to send as JSON from its standard input, and prints what it saw: `python -m bellringer.bench.hammer`.
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
PACE: Final = 0.001  # seconds between two looks at what is due and what was answered
PATIENCE: Final = 60.0  # seconds for an answer
PART: Final = 256 * 1024  # bytes of an answer that are read at a time
_STAMPS: Final = 35  # SO_TIMESTAMPNS of Linux: tell when what is read came in
_STAMP: Final = struct.Struct("@ll")  # seconds and nanoseconds
_BESIDE: Final = socket.CMSG_SPACE(_STAMP.size)


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
    """What came back; with a rate, latencies count from when a request was due to be sent."""

    requests: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    late_ms: float  # with a rate, the longest that the generator itself came late to look at what is due
    statuses: dict[str, int]
    sample: str  # one of the answers' bodies


class _Connection:
    """One request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            self.socket.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
        self._data = bytearray()
        self.due = 0.0
        self.came: float | None = None  # when the last of it came, by the wall's clock

    def ask(self, request: bytes, due: float) -> None:
        self.due = due
        self.socket.sendall(request)

    def answer(self) -> tuple[str, bytes] | None:
        """The status and the body, when all of it is here."""
        part, beside, *_ = self.socket.recvmsg(PART, _BESIDE)
        if not part:
            raise ConnectionError("the server has closed a connection")
        for level, kind, told in beside:
            if (level, kind) == (socket.SOL_SOCKET, _STAMPS):
                seconds, nanoseconds = _STAMP.unpack(told)
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
        self._selector = selectors.DefaultSelector()
        self._sample = b""
        self._late = 0.0
        self._answered = self._clock.monotonic()

    def run(self) -> Seen:
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
        """Each connection sends its next request when it has its answer."""
        while True:
            moment = self._clock.monotonic()
            while self._idle and moment < until and (request := next(self._feed, None)) is not None:
                self._idle.popleft().ask(request, moment)
            if len(self._idle) == self._order.connections:
                return
            self._take(PATIENCE)

    def _at(self, rate: float, started: float) -> None:
        """Each request is sent at the first look after its time, or as soon as there is a connection for it."""
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
        """Take the answers that are there, or wait for one."""
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
    sys.stdout.buffer.write(msgspec.json.encode(Hammer(order).run()))


if __name__ == "__main__":
    main()
