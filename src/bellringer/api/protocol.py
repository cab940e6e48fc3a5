"""What the server's HTTP protocol leaves open: how large a request's head may be, how slowly it may come, how slowly
its answer may be taken, and how many there may be.

The head is counted while it arrives, so that none is kept that nobody will read; what has passed is looked at once more
by `check_head`, which knows its exact size and what it says.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, cast

import h11
from starlette.types import Scope
from uuid_utils.compat import uuid7

from bellringer.api import problems
from bellringer.api.problems import Refused
from bellringer.api.writing import OneWrite

HEAD_LIMIT: Final = 16 * 1024  # bytes of a request's line and headers
PATIENCE: Final = 10.0  # seconds for a whole head to arrive
MOST: Final = 4096  # connections at a time
MOST_OF_ONE: Final = 512  # … of one address
UNREAD: Final = 20.0  # seconds between two looks at what a client has not taken
LEAST: Final = 16 * 1024  # bytes that it takes meanwhile, if it takes any
KEPT: Final = 128 * 1024  # bytes that the kernel keeps of what is not sent yet
AHEAD: Final = 1  # requests that wait for the answer of the one before
_CLOSE: Final = {"Connection": "close"}
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


def check_head(scope: Scope) -> None:
    """Refuse a head that is too large, or that two readers may understand in two ways."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    lengths = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value) + 4
        lengths += name in _LENGTHS
    if size > HEAD_LIMIT:
        raise _too_large()
    if lengths > 1 and {name for name, _ in scope["headers"]} >= _LENGTHS:
        raise Refused(400, "request_invalid", "the body's length is told in two ways", headers=_CLOSE)


class Guard(asyncio.Protocol):
    """Goes before a protocol of uvicorn's: waits for a head only so long, reads only so much of one, and keeps an
    answer only for who takes it.
    """

    patience = PATIENCE
    limit = HEAD_LIMIT
    most = MOST
    most_of_one = MOST_OF_ONE
    unread = UNREAD
    by_address: Counter[str]  # open connections; each server has its own
    proxies: Sequence[IPv4Network | IPv6Network]  # who speaks for many, and is not counted
    # What uvicorn's protocols have in common.
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any

    _read = 0  # bytes of a head that is not complete
    _in_body = False  # told by httptools; h11 knows it by itself
    _timer: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _is_paused = False  # there is more to write than the client takes
    _left = 0  # bytes that were not taken at the last look
    _answering: Any = None  # the cycle under way; uvicorn forgets it when another request comes
    _address: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(Any, OneWrite(cast(Any, transport), self.loop)))
        self._look = self.loop.call_later(self.unread, self._look_again)
        self._address = _address(transport.get_extra_info("peername"), self.proxies)
        if self._address is not None:
            self.by_address[self._address] += 1
        if len(self.connections) > self.most:
            self._refuse(Refused(503, "unavailable", "there are too many connections", hint="try again in a moment"))
        elif self._address is not None and self.by_address[self._address] > self.most_of_one:
            hint = "close some; a proxy that speaks for many belongs in trusted_proxies"
            self._refuse(Refused(503, "unavailable", "there are too many connections of this address", hint=hint))
        else:
            self._timer = self.loop.call_later(self.patience, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_in_body = self._reads_body()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # a head is complete
            self._read = 0
            self._calm()
            return
        # The body of what was answered before it was read is no head; it has no more time than one.
        self._read = 0 if was_in_body or self._reads_body() else self._read + len(data)
        if self._read > self.limit:
            self._refuse(_too_large())
        elif self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._give_up)

    def on_headers_complete(self) -> None:
        """Of httptools alone; h11 reads no further before it has answered."""
        self._in_body = True
        if self._answering is None or self._answering.response_complete:
            self._answering = self.cycle
        super().on_headers_complete()  # type: ignore[misc]
        if len(self.pipeline) > AHEAD:  # type: ignore[attr-defined]
            self.transport.abort()  # a refusal would end up in the middle of an answer

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
        """Cut off who takes nothing, or next to nothing, of what there is for it. While it holds up the answer, or the
        end of the connection, nothing is added to that.
        """
        is_held_up = self._is_paused or self.transport.is_closing()
        left = self.transport.get_write_buffer_size() if is_held_up else 0
        if left and self._left and left > self._left - LEAST:
            self.transport.abort()
            return
        self._left = left
        self._look = self.loop.call_later(self.unread, self._look_again)

    def send_400_response(self, _message: str) -> None:
        """Uvicorn's word for what it cannot read, in our form."""
        self._refuse(Refused(400, "request_invalid", "this is no HTTP request"))

    def _give_up(self) -> None:
        self._timer = None
        if self._read:
            self._refuse(Refused(408, "head_timeout", "the request did not arrive in time"))
        else:
            self.transport.close()

    def _refuse(self, error: Refused) -> None:
        self._calm()
        if not self.transport.is_closing():
            self.transport.write(_written(error))
            self.transport.close()

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def be_sparing(listening: socket.socket) -> None:
    """Have the kernel keep little for who does not read. It would keep megabytes, take no more before a third of them
    is gone, and so make who reads slowly look like one who does not.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and listening.family in (socket.AF_INET, socket.AF_INET6):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KEPT)  # connections inherit it


def guarded(base: type[asyncio.Protocol], proxies: Sequence[str] = (), **bounds: float) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's behind the guard; bounds are patience, limit, most, most_of_one and unread, where they
    shall be others. Proxies are addresses or networks, or * for all.
    """
    texts = ("0.0.0.0/0", "::/0") if "*" in proxies else proxies
    nets = [ip_network(text) for text in texts]
    return type("Guarded", (Guard, base), {**bounds, "by_address": Counter(), "proxies": nets})


def _address(peer: Any, proxies: Sequence[IPv4Network | IPv6Network]) -> str | None:
    """Whose a connection is; None: of somebody who is not counted. Who has one IPv6 address has all of its /64."""
    if not isinstance(peer, tuple):  # a socket of this machine's
        return None
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if any(address in net for net in proxies):
        return None
    return str(IPv6Address(int(address) >> 64 << 64) if isinstance(address, IPv6Address) else address)


def _too_large() -> Refused:
    return Refused(431, "headers_too_large", f"the request's head is larger than {HEAD_LIMIT:,} bytes", headers=_CLOSE)


def _written(error: Refused) -> bytes:
    """A refusal as it goes over the wire, where there is no request to answer."""
    request_id = uuid7().hex
    answer = problems.answer(error, request_id)
    lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()]
    headers = {**dict(answer.headers), "x-request-id": request_id, "connection": "close"}
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
