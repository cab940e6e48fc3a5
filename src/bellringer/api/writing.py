"""A transport that writes an answer's head and its body together, and at once.

Uvicorn writes them apart; each write is a call of the kernel that wakes the client. What no second write follows goes
out at the end of this turn of the event loop. Uvloop keeps what is written until it has looked for new requests, unless
more is written than may wait: here nothing may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

ENOUGH: Final = 64 * 1024  # bytes that go out at once, so that who writes on and on is told when to pause


class OneWrite:
    """What protocols use of a transport; all but writing is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        transport.set_write_buffer_limits(high=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held or len(data) >= ENOUGH:
            self._flush(data)
        else:
            self._held = data
            self._loop.call_soon(self._flush)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def get_write_buffer_size(self) -> int:
        return len(self._held) + self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:  # asked with each request, so not by way of __getattr__
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._held = b""
        self._transport.abort()

    def _flush(self, more: bytes = b"") -> None:
        data, self._held = self._held + more, b""
        if data and not self._transport.is_closing():  # the client may have gone meanwhile
            self._transport.write(data)
