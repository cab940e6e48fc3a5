"""The connection of an app to its database, for its blocking and asynchronous methods."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from bellringer.config import read_value_file
from bellringer.dev import state_dir
from bellringer.errors import ConfigError
from bellringer.sdk.sync_bridge import BlockingPortal, refuse_to_block

if TYPE_CHECKING:
    from bellringer.codecs import PayloadCodec
    from bellringer.sdk.service import Service

T = TypeVar("T")

ServiceCall = Callable[["Service"], Coroutine[Any, Any, T]]

DSN_VARIABLE: Final = "BELLRINGER_DSN"
DSN_FILE_VARIABLE: Final = "BELLRINGER_DSN_FILE"
CODEC_VARIABLE: Final = "BELLRINGER_PAYLOAD_CODEC"
CODEC_KEYS_VARIABLE: Final = "BELLRINGER_PAYLOAD_KEYS"
CLOSE_TIMEOUT_SECONDS: Final = 5.0


class ServiceConnection:
    """Runs operations on the service, which is opened at the first operation on an event loop.

    A coroutine uses a service of its own loop: handing the operation to another thread and back would take longer than
    a send. Blocking callers share the loop of a background thread.
    """

    def __init__(self, dsn: str | None, *, tenant: str, name: str, codec: PayloadCodec | None = None) -> None:
        self.tenant = tenant
        self.name = name
        self._dsn = dsn
        self._codec = codec
        self._portal = BlockingPortal()
        self._services: dict[asyncio.AbstractEventLoop, _LoopService] = {}
        self._inherited: list[object] = []
        _CONNECTIONS.add(self)

    @property
    def dsn(self) -> str:
        """The URL of the database: the given one, that of BELLRINGER_DSN or of the file that BELLRINGER_DSN_FILE names,
        or that of a nearby `bellringer dev`. Raises ConfigError if there is none, or if it is stopped.
        """
        if given := self._dsn or os.environ.get(DSN_VARIABLE):
            return given
        if path := os.environ.get(DSN_FILE_VARIABLE):
            return read_value_file(DSN_FILE_VARIABLE, path)
        dev = state_dir.find(Path.cwd(), instead=f"set {DSN_VARIABLE}")
        if dev is None:
            raise ConfigError("no database is configured", hint=f"run `bellringer dev`, or set {DSN_VARIABLE}")
        return dev.dsn

    @cached_property
    def codec(self) -> PayloadCodec | None:
        """The codec that encrypts payloads: the given one, or that of BELLRINGER_PAYLOAD_CODEC."""
        if self._codec is not None:
            return self._codec
        if not (setting := os.environ.get(CODEC_VARIABLE)):
            return None
        from bellringer.codecs import load_codec  # noqa: PLC0415 - only if it is needed

        keys = os.environ.get(CODEC_KEYS_VARIABLE, "")
        if not keys and (path := os.environ.get(f"{CODEC_KEYS_VARIABLE}_FILE")):
            keys = read_value_file(f"{CODEC_KEYS_VARIABLE}_FILE", path)
        return load_codec(setting, [part.strip() for part in keys.split(",") if part.strip()])

    def run(self, act: ServiceCall[T], *, instead: str) -> T:
        return self._portal.run(partial(self.call, act), instead=instead)

    async def call(self, act: ServiceCall[T]) -> T:
        from bellringer.store.connection_pool import RETRYABLE_ERRORS, unreachable  # noqa: PLC0415 - a slow import

        service = await self._open()
        try:
            return await act(service)
        except TimeoutError:
            raise  # the timeout of the caller
        except RETRYABLE_ERRORS as error:
            raise unreachable(service.dsn, error) from error

    def close(self) -> None:
        """Close the services of all loops. Raises Conflict on a thread with a running loop."""
        refuse_to_block("`await ….aclose()`")
        for closing in self._close_elsewhere(None):
            with suppress(TimeoutError):
                closing.result(CLOSE_TIMEOUT_SECONDS)
        self._portal.close()

    async def aclose(self) -> None:
        """Close the services of all loops."""
        loop = asyncio.get_running_loop()
        closings = self._close_elsewhere(loop)
        if (here := self._services.pop(loop, None)) is not None:
            await here.close()
        for closing in closings:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(closing), CLOSE_TIMEOUT_SECONDS)
        self._portal.close()

    async def move(self, dsn: str | None) -> str | None:
        """Switch to another database, for tests. Returns the URL given before."""
        await self.aclose()
        before, self._dsn = self._dsn, dsn
        return before

    def leave_behind(self) -> None:
        """Abandon the services in a forked child. The parent still uses their sockets, so nothing is closed here."""
        self._inherited.append(self._services)
        self._services = {}

    def _close_elsewhere(self, here: asyncio.AbstractEventLoop | None) -> list[Future[None]]:
        """Start to close the services of other loops. The connections of a loop that has stopped are dropped."""
        closings: list[Future[None]] = []
        for loop in [loop for loop in self._services if loop is not here]:
            service = self._services.pop(loop)
            if loop.is_running():
                closings.append(asyncio.run_coroutine_threadsafe(service.close(), loop))
            elif not loop.is_closed():
                loop.run_until_complete(service.close()) if here is None else service.terminate()
        return closings

    async def _open(self) -> Service:
        """Return the service of the running loop; concurrent callers share one opening."""
        loop = asyncio.get_running_loop()
        service = self._services.get(loop)
        if service is None:
            for other in [other for other in self._services if other.is_closed()]:
                del self._services[other]
            service = self._services[loop] = _LoopService(loop.create_task(self._connect()))
            service.opening.add_done_callback(partial(self._forget_failed, loop, service))
        if (opened := service.opened) is not None:
            return opened
        return await asyncio.shield(service.opening)

    def _forget_failed(self, loop: asyncio.AbstractEventLoop, service: _LoopService, _opening: object) -> None:
        """Make the next call try again."""
        if service.opened is None and self._services.get(loop) is service:
            del self._services[loop]

    async def _connect(self) -> Service:
        from bellringer.sdk.service import Service  # noqa: PLC0415 - a slow import

        loop = asyncio.get_running_loop()
        service = await Service.open(self.dsn, tenant=self.tenant, who=self.name, codec=self.codec)
        if (of_loop := self._services.get(loop)) is not None:
            of_loop.guard = self._close_with_loop(loop, service)
            await anext(of_loop.guard)
        return service

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop, service: Service) -> AsyncGenerator[None, None]:
        """`asyncio.run` and its equivalents close all asynchronous generators before they close their loop."""
        try:
            yield
        finally:
            self._services.pop(loop, None)
            await service.close()


class _LoopService:
    """The service of one event loop, opened or being opened."""

    def __init__(self, opening: asyncio.Task[Service]) -> None:
        self.opening = opening
        self.guard: AsyncGenerator[None, None] | None = None

    @property
    def opened(self) -> Service | None:
        task = self.opening
        return task.result() if task.done() and not task.cancelled() and task.exception() is None else None

    async def close(self) -> None:
        with suppress(Exception):  # an opening that failed needs no close
            await self.opening
            if self.guard is not None:
                await self.guard.aclose()

    def terminate(self) -> None:
        """Drop the connections of a loop that is not running."""
        if (service := self.opened) is not None:
            service.terminate()


_CONNECTIONS: Final[WeakSet[ServiceConnection]] = WeakSet()


def _after_fork() -> None:
    for connection in list(_CONNECTIONS):
        connection.leave_behind()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    for connection in list(_CONNECTIONS):
        with suppress(Exception):
            connection.close()
