"""Limits that uvicorn does not have: the size of request heads, slow clients, and the number of connections.

The head is counted while it arrives, so that a large one is never buffered; `check_head` then checks the exact size of
the parsed head, and its contents.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import h11
from starlette.types import Scope
from uuid_utils.compat import uuid7

from bellringer.api.http import error_responses
from bellringer.api.http.error_responses import Refused

MAX_HEAD_BYTES: Final = 16 * 1024  # request line and headers
HEAD_TIMEOUT_SECONDS: Final = 10.0  # for a whole head to arrive
MAX_CONNECTIONS: Final = 4096
MAX_CONNECTIONS_PER_ADDRESS: Final = 512
SLOW_READER_CHECK_SECONDS: Final = 20.0  # between two checks of a slow reader
MIN_BYTES_READ: Final = 16 * 1024  # a slower reader is cut off
KERNEL_BUFFER_BYTES: Final = 128 * 1024  # unsent bytes that the kernel buffers
MAX_PIPELINED: Final = 1  # pipelined requests that may wait for the response of an earlier one
_CLOSE: Final = {"Connection": "close"}
_LENGTH_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")  # RFC 9110, 7.2


def check_head(scope: Scope) -> None:
    """Raises Refused for a head that is too large or ambiguous."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    lengths, hosts = 0, []
    for name, value in scope["headers"]:
        size += len(name) + len(value) + 4
        lengths += name in _LENGTH_HEADERS
        if name == b"host":
            hosts.append(value)
    if size > MAX_HEAD_BYTES:
        raise _too_large()
    if lengths > 1 and {name for name, _ in scope["headers"]} >= _LENGTH_HEADERS:
        message, hint = "the length of the body is given in two ways", "send either Content-Length or Transfer-Encoding"
        raise Refused(400, "request_invalid", message, hint=hint, headers=_CLOSE)
    # RFC 9112, 3.2: exactly one; HTTP/1.0, which health checks still send, may have none.
    needed = 0 if scope.get("http_version") == "1.0" else 1
    if not needed <= len(hosts) <= 1 or not all(_HOST.fullmatch(host) for host in hosts):
        message, hint = "a request needs exactly one valid Host header", "check the client and the proxies in between"
        raise Refused(400, "request_invalid", message, hint=hint, headers=_CLOSE)


class ConnectionLimits(asyncio.Protocol):
    """A mixin for uvicorn's protocols: limits the time and the size of a request's head, and the time for which an
    unread response is kept.
    """

    head_timeout = HEAD_TIMEOUT_SECONDS
    max_head_bytes = MAX_HEAD_BYTES
    max_connections = MAX_CONNECTIONS
    max_per_address = MAX_CONNECTIONS_PER_ADDRESS
    slow_reader_check = SLOW_READER_CHECK_SECONDS
    by_address: Counter[str]  # open connections by address; each server has its own counter
    proxies: Sequence[IPv4Network | IPv6Network]  # their connections are not counted, because each serves many clients
    # Attributes that uvicorn's protocols share.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any

    _read = 0  # bytes of an incomplete head
    _in_body = False  # set for httptools; h11 has its own state
    _timer: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _is_paused = False  # the write buffer is full
    _left = 0  # bytes in the write buffer at the last check
    _answering: Any = None  # the response in progress; uvicorn drops its reference when another request arrives
    _address: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._look = self.loop.call_later(self.slow_reader_check, self._look_again)
        self._address = _counted_address(transport.get_extra_info("peername"), self.proxies)
        if self._address is not None:
            self.by_address[self._address] += 1
        if len(self.connections) > self.max_connections:
            self._refuse(Refused(503, "unavailable", "there are too many connections", hint="try again in a moment"))
        elif self._address is not None and self.by_address[self._address] > self.max_per_address:
            hint = "close some connections; add a proxy that serves many clients to trusted_proxies"
            self._refuse(Refused(503, "unavailable", "there are too many connections from this address", hint=hint))
        else:
            self._timer = self.loop.call_later(self.head_timeout, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_in_body = self._reads_body()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the head is complete
            self._read = 0
            self._calm()
            return
        # The rest of a body whose request was answered early is not a head; it has the same time limit.
        self._read = 0 if was_in_body or self._reads_body() else self._read + len(data)
        if self._read > self.max_head_bytes:
            self._refuse(_too_large())
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout, self._give_up)

    def on_headers_complete(self) -> None:
        """Called by httptools only; h11 reads no further until the response is sent."""
        self._in_body = True
        if self._answering is None or self._answering.response_complete:
            self._answering = self.cycle
        super().on_headers_complete()  # type: ignore[misc]
        if len(self.pipeline) > MAX_PIPELINED:  # type: ignore[attr-defined]
            self.transport.abort()  # an error response would end up inside the response in progress

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()  # type: ignore[misc]

    def _reads_body(self) -> bool:
        connection: h11.Connection | None = getattr(self, "conn", None)
        return self._in_body if connection is None else connection.their_state is h11.SEND_BODY

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        if self._look is not None:
            self._look.cancel()
        if self._address is not None:
            self.by_address[self._address] -= 1
            if not self.by_address[self._address]:
                del self.by_address[self._address]
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_paused, self._left = False, 0
        super().resume_writing()

    def _look_again(self) -> None:
        """Aborts the connection if the client has read nothing, or next to nothing, of a full write buffer since the
        last check.
        """
        is_held_up = self._is_paused or self.transport.is_closing()
        left = self.transport.get_write_buffer_size() if is_held_up else 0
        if left and self._left and left > self._left - MIN_BYTES_READ:
            self.transport.abort()
            return
        self._left = left
        self._look = self.loop.call_later(self.slow_reader_check, self._look_again)

    def send_400_response(self, _message: str) -> None:
        """Replaces uvicorn's plain-text response to malformed requests."""
        hint = "check that the client speaks HTTP/1.1 without TLS to this port"
        self._refuse(Refused(400, "request_invalid", "the request is not valid HTTP", hint=hint))

    def _give_up(self) -> None:
        self._timer = None
        if self._read:
            hint = "send the whole head at once; retry if the network was slow"
            self._refuse(Refused(408, "head_timeout", "the request head did not arrive in time", hint=hint))
        else:
            self.transport.close()

    def _refuse(self, error: Refused) -> None:
        self._calm()
        if not self.transport.is_closing():
            self.transport.write(_render_raw(error))
            self.transport.close()

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limit_send_buffer(listening: socket.socket) -> None:
    """Limits the kernel's send buffer. By default it holds megabytes and accepts no more until a third of them is sent,
    so a slow reader would look like one that has stopped reading.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and listening.family in (socket.AF_INET, socket.AF_INET6):
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_BUFFER_BYTES
        )  # accepted connections inherit it


def with_connection_limits(
    base: type[asyncio.Protocol], proxies: Sequence[str] = (), **bounds: float
) -> type[asyncio.Protocol]:
    """Returns a uvicorn protocol class with these limits; `bounds` override the class attributes. Proxies are addresses
    or networks, or * for all.
    """
    if unknown := [name for name in bounds if not hasattr(ConnectionLimits, name)]:
        raise TypeError(f"there is no connection limit {unknown[0]!r}")
    texts = ("0.0.0.0/0", "::/0") if "*" in proxies else proxies
    nets = [ip_network(text) for text in texts]
    return type("Guarded", (ConnectionLimits, base), {**bounds, "by_address": Counter(), "proxies": nets})


def _counted_address(peer: Any, proxies: Sequence[IPv4Network | IPv6Network]) -> str | None:
    """Returns the address that a connection is counted under, or None if it is not counted. An IPv6 client counts by
    its /64 network.
    """
    if not isinstance(peer, tuple):  # a UNIX socket
        return None
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if any(address in net for net in proxies):
        return None
    return str(IPv6Address(int(address) >> 64 << 64) if isinstance(address, IPv6Address) else address)


def _too_large() -> Refused:
    return Refused(
        431,
        "headers_too_large",
        f"the request head is larger than {MAX_HEAD_BYTES:,} bytes",
        hint="send fewer or shorter headers; large filters fit in a body",
        headers=_CLOSE,
    )


def _render_raw(error: Refused) -> bytes:
    """Renders a refusal as raw HTTP, for connections without a request."""
    request_id = uuid7().hex
    answer = error_responses.render_error(error, request_id)
    lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()]
    headers = {**dict(answer.headers), "x-request-id": request_id, "connection": "close"}
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
