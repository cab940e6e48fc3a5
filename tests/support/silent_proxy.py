"""A TCP proxy whose connections can go silent without being closed, as behind a firewall that drops all packets, or
become slow.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qs, urlsplit, urlunsplit


class SilentProxy:
    """Forwards to the server of an address, by TCP or Unix socket, until a test silences or cuts them."""

    def __init__(self, url: str = "") -> None:
        self._url = url
        self.silent_to_new = False
        self.refuses_new = False
        self.delay_seconds = 0.0  # before data of the server is passed on
        self.accepted = 0
        self.messages = 0  # that clients have sent, about
        self.cut_at = -1  # the number of the message at which all connections end, and none comes about until told so
        self._silent: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.refuses_new = True  # connections that were accepted and are not served yet
        for _turn in range(3):
            self.cut()
            await asyncio.gather(*self._open, return_exceptions=True)
            await asyncio.sleep(0)

    def silence(self) -> int:
        """Silence all open connections for good; returns how many there are."""
        self._silent |= self._open
        return len(self._open)

    def lead_to(self, url: str) -> None:
        """Forward new connections to this address."""
        self._url = url

    def cut(self) -> None:
        """Close all connections."""
        for task in list(self._open):
            task.cancel()

    @property
    def address(self) -> str:
        """The server's address, through this proxy."""
        parts = urlsplit(self._url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}", query=""))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "host" in query:
            return await asyncio.open_unix_connection(f"{query['host']}/.s.PGSQL.{query['port']}")
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.accepted += 1
        if self.silent_to_new:
            self._silent.add(task)
        writers = [writer]
        try:
            if self.refuses_new:
                return
            with suppress(OSError):
                back, forth = await self._connect()
                writers.append(forth)
                pumps = [
                    asyncio.create_task(self._pump(task, reader, forth, from_client=True)),
                    asyncio.create_task(self._pump(task, back, writer, from_client=False)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                    if task in self._silent:
                        await asyncio.Event().wait()  # an end that closes is not told to the other either
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        except asyncio.CancelledError:
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self._open.discard(task)
            self._silent.discard(task)

    async def _pump(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_client: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if from_client:
                    self.messages += 1
                    if self.messages == self.cut_at:
                        self.refuses_new = True
                        self.cut()
                        return
                elif self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if task not in self._silent:
                    writer.write(data)
                    await writer.drain()
