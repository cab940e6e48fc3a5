"""An app's way to its database: opened at the first use, and shared by both colours of every call."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from bellringer.dev import place
from bellringer.errors import ConfigError
from bellringer.sdk.portal import Portal

if TYPE_CHECKING:
    from bellringer.sdk.desk import Desk

T = TypeVar("T")

Act = Callable[["Desk"], Coroutine[Any, Any, T]]

DSN: Final = "BELLRINGER_DSN"


class Connection:
    """Does things at the desk, which is opened when there is something to do and never before."""

    def __init__(self, dsn: str | None, *, tenant: str, name: str) -> None:
        self.tenant = tenant
        self.name = name
        self._dsn = dsn
        self._portal = Portal()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[Desk] | None = None
        self._inherited: list[object] = []
        _CONNECTIONS.add(self)

    @property
    def dsn(self) -> str:
        """Where the database is: as given, or from the environment, or as `bellringer dev` has left it."""
        if given := self._dsn or os.environ.get(DSN):
            return given
        dev = place.find(Path.cwd())
        if dev is None:
            raise ConfigError("no database", hint=f"run `bellringer dev`, or set {DSN}")
        return dev.dsn

    def run(self, act: Act[T], *, instead: str) -> T:
        return self._portal.run(partial(self._at_desk, act), instead=instead)

    async def call(self, act: Act[T]) -> T:
        return await self._portal.call(partial(self._at_desk, act))

    def close(self) -> None:
        if self._opening is not None:
            self._portal.run(self._shut, instead="`await ….aclose()`")
        self._portal.close()

    async def aclose(self) -> None:
        if self._opening is not None:
            await self._portal.call(self._shut)
        self._portal.close()

    async def move(self, dsn: str | None) -> str | None:
        """Go to another database, as tests do; answers where this one was given to be."""
        await self.aclose()
        before, self._dsn = self._dsn, dsn
        return before

    async def _at_desk(self, act: Act[T]) -> T:
        from bellringer.store.pool import RETRYABLE, unreachable  # noqa: PLC0415 - what talks to the database is heavy

        desk = await self._open()
        try:
            return await act(desk)
        except TimeoutError:
            raise  # somebody's patience, not the server's absence
        except RETRYABLE as error:
            raise unreachable(desk.dsn, error) from error

    async def _open(self) -> Desk:
        """The desk; whoever comes while it is being opened waits for the same one."""
        loop = asyncio.get_running_loop()
        if self._opening is None or self._loop is not loop:
            if self._opening is not None:
                # It is the parent process's, which still uses it: neither closed here nor collected.
                self._inherited.append(self._opening)
            self._loop, self._opening = loop, loop.create_task(self._connect())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None  # it failed; the next one may have more luck
            raise

    async def _connect(self) -> Desk:
        from bellringer.sdk.desk import Desk  # noqa: PLC0415 - as above

        return await Desk.open(self.dsn, tenant=self.tenant, who=self.name)

    async def _shut(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and self._loop is asyncio.get_running_loop():
            with suppress(Exception):  # an opening that failed has nothing to shut
                await (await opening).close()


_CONNECTIONS: Final[WeakSet[Connection]] = WeakSet()


@atexit.register
def _close_all() -> None:
    for connection in list(_CONNECTIONS):
        with suppress(Exception):
            connection.close()
