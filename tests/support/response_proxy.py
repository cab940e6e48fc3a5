"""A proxy in front of PostgreSQL that drops responses: a statement commits, and then its connection breaks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

READY = ord("Z")  # the server's message that ends its response
ROW = ord("D")


class ResponseProxy:
    """Forwards everything, except the response to the next statement that contains the armed text, and returns enough
    rows."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._armed: str | None = None
        self._least_rows = 0
        self._open: set[asyncio.Task[None]] = set()
        self.dropped: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(self._dsn)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        self.dsn = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}", query=""))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def drop_response_of(self, text: str, *, least_rows: int = 0) -> None:
        """Drop the response to the next statement that contains this text and returns so many rows."""
        self._armed, self._least_rows = text, least_rows

    async def has_dropped(self) -> bool:
        """Whether the response was dropped that `drop_response_of` named last."""
        return self._armed is None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._dsn)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "host" in query:
            return await asyncio.open_unix_connection(f"{query['host']}/.s.PGSQL.{query['port']}")
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        back, forth = await self._connect()
        connection = _Connection(self)
        pumps = [
            asyncio.create_task(connection.forward(reader, forth)),
            asyncio.create_task(connection.respond(back, writer)),
        ]
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in (writer, forth):
                each.transport.abort()
            self._open.discard(task)

    def is_meant(self, statement: str) -> bool:
        """Whether the response to this statement may be dropped, depending on its rows."""
        return self._armed is not None and self._armed in statement

    def take(self, statement: str, rows: int) -> bool:
        """Returns whether to drop the response to this statement; each call of drop_response_of applies once."""
        if self._armed is None or self._armed not in statement or rows < self._least_rows:
            return False
        self.dropped.append(self._armed)
        self._armed = None
        return True


class _Connection:
    """Reads the messages of one connection as far as it needs to know which statement is executed."""

    def __init__(self, proxy: ResponseProxy) -> None:
        self._proxy = proxy
        self._statements: dict[bytes, str] = {}
        self._meant: str | None = None  # the statement whose response is held back until all of it is known

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:  # messages without a type: requests for encryption, then the start-up
            length = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(length) - 4)
            if body[:4] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):
                writer.write(length + body)
                continue
            writer.write(length + body)
            break
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            self._look(head[0], body)
            writer.write(head + body)
            await writer.drain()

    def _look(self, kind: int, body: bytes) -> None:
        if kind == ord("P"):
            name, statement, _ = body.split(b"\0", 2)
            self._statements[name] = statement.decode()
        elif kind == ord("B"):
            _, name, _ = body.split(b"\0", 2)
            self._note(self._statements.get(name, ""))
        elif kind == ord("Q"):
            self._note(body[:-1].decode())

    def _note(self, statement: str) -> None:
        if self._meant is None and self._proxy.is_meant(statement):
            self._meant = statement

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first in (b"N", b"S"):  # the response to a request for encryption is one byte
            writer.write(first)
            first = b""
        held, rows = b"", 0
        while True:
            head = first + await reader.readexactly(5 - len(first))
            first = b""
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            if self._meant is not None:
                held += head + body
                rows += head[0] == ROW
                if head[0] != READY:
                    continue
                if self._proxy.take(self._meant, rows):
                    return  # the statement has committed; the connection ends without its response
                self._meant = None
                writer.write(held)
                held, rows = b"", 0
            else:
                writer.write(head + body)
            await writer.drain()
