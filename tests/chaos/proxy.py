"""A proxy between one process and PostgreSQL that can cut, silence, stall and lose responses."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

Mode = Literal["pass", "refuse", "silent", "stall"]
READY_FOR_QUERY: Final = b"Z"
DATA_ROW: Final = b"D"
KEEPALIVE_SECONDS: Final = 12.0  # after which the server gives up a silent client


class Messages:
    """Divides a stream of the PostgreSQL protocol into messages; the first of a client have no type."""

    def __init__(self, *, typed: bool) -> None:
        self._typed = typed
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._rest += data
        while True:
            head = 1 if self._typed else 0
            if len(self._rest) < head + 4:
                return
            (length,) = struct.unpack_from("!i", self._rest, head)
            if len(self._rest) < head + length:
                return
            kind, body = self._rest[:head], self._rest[head + 4 : head + length]
            self._rest = self._rest[head + length :]
            # Requests for encryption come before the startup message, whose first number is the protocol 3.x.
            self._typed = self._typed or body[:2] == b"\x00\x03"
            yield kind, body


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.silent = False
        self._awaited = ""  # the text of a statement whose response may be lost
        self._requests = Messages(typed=False)
        self._responses = Messages(typed=True)
        self._statements: dict[bytes, bytes] = {}

    def silence(self) -> None:
        """Lose all bytes from now on. Keepalives close the server's end after a while; the client's stays open."""
        if not self.silent:
            self.silent = True
            asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._close_server)

    def _close_server(self) -> None:
        if self.server is not None:
            self.server.transport.abort()

    def close(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the client sends, and watch for statements whose response is to be lost."""
        while data := await self._read(reader):
            for kind, body in self._requests.feed(data):
                self._look(kind, body)
            writer.write(data)
            await writer.drain()

    async def back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what the server responds. A response that may be lost is read to its end first: its statement has
        committed then."""
        response, rows = b"", 0
        while data := await self._read(reader):
            if self._awaited:
                response += data
                kinds = [kind for kind, _ in self._responses.feed(data)]
                rows += kinds.count(DATA_ROW)
                if READY_FOR_QUERY not in kinds:
                    continue
                if self.proxy.takes_drop(self._awaited, rows):
                    return
                data, response, rows, self._awaited = response, b"", 0, ""
            writer.write(data)
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        while True:
            data = await reader.read(65536)
            while self.proxy.mode == "stall" and data:
                await self.proxy.changed.wait()
            if not self.silent:
                return data
            if not data:
                await asyncio.Event().wait()  # the other end does not learn that this one has gone

    def _look(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":  # Parse: name, statement
            name, statement, *_ = body.split(b"\0", 2)
            self._statements[name] = statement
        elif kind == b"B":  # Bind: portal, name of the statement
            _, name, *_ = body.split(b"\0", 2)
            statement = self._statements.get(name, b"")
            self._awaited = self._awaited or self.proxy.wants_drop(statement.decode(errors="replace"))


class Proxy:
    """Listens on a port of this machine and connects to PostgreSQL's Unix socket."""

    def __init__(self, dsn: str) -> None:
        query = parse_qs(urlsplit(dsn).query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: dict[str, tuple[int, int]] = {}
        self.mode: Mode = "pass"
        self.changed = asyncio.Event()
        self.dropped: list[str] = []
        self.port = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://bellringer@127.0.0.1:{self.port}/bellringer?sslmode=disable"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close all connections."""
        for link in list(self._links):
            link.close()

    def set(self, mode: Mode) -> None:
        """`refuse` closes new connections; `silent` loses all bytes, of open connections for good; `stall` holds bytes
        back until the mode changes."""
        self.mode = mode
        if mode == "silent":
            for link in self._links:
                link.silence()
        self.changed.set()
        self.changed = asyncio.Event()

    def drop(self, part: str, count: int, least_rows: int = 0) -> None:
        """Lose the next responses to statements that contain a text, and close their connections. Responses with fewer
        rows are passed on."""
        self._drops[part] = count, least_rows

    def heal(self) -> None:
        self._drops.clear()
        self.set("pass")

    def wants_drop(self, statement: str) -> str:
        """The text by which the response to a statement is to be lost; empty if it is not."""
        return next((part for part in self._drops if part in statement), "")

    def takes_drop(self, part: str, rows: int) -> bool:
        """Whether a response of so many rows is lost; counts it if so."""
        left, least_rows = self._drops.get(part, (0, 0))
        if not left or rows < least_rows:
            return False
        self._drops[part] = left - 1, least_rows
        self.dropped.append(part)
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, writer)
        if self.mode == "silent":
            link.silence()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(link)
        try:
            if self.mode != "refuse":
                with suppress(OSError):
                    await self._join(link, reader)
        except asyncio.CancelledError:
            pass
        finally:
            link.close()
            self._links.discard(link)
            self._tasks.discard(task)

    async def _join(self, link: Link, reader: asyncio.StreamReader) -> None:
        back, link.server = await asyncio.open_unix_connection(self._socket)
        pumps = [
            asyncio.create_task(link.forward(reader, link.server)),
            asyncio.create_task(link.back(back, link.client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
