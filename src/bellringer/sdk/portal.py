"""The way from plain code into async code: one background thread with an event loop, used by both colours.

Everything that waits happens on that one loop, whoever asks: plain threads wait for it, coroutines on other
loops await it. So a process has one set of connections, and no loop of a caller's is needed or blocked.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakSet

from bellringer.errors import Conflict

T = TypeVar("T")

JOIN: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Running:
    """The loop, what stops it, and the thread that it runs in."""

    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread


class Portal:
    """Starts its thread at the first call, and anew in a child process after a fork."""

    def __init__(self, name: str = "bellringer") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: _Running | None = None
        _PORTALS.add(self)

    def run(self, act: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
        """Do something async and wait for it; `instead` names what coroutines must use."""
        refuse_to_block(instead)
        future = asyncio.run_coroutine_threadsafe(act(), self._loop())
        try:
            return future.result()
        finally:
            future.cancel()  # whoever waited was interrupted; a finished one does not mind

    async def call(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do something async on the portal's loop, awaited from any loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(act(), self._loop()))

    def close(self) -> None:
        """End the thread; the next call starts another."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.stop.set)
            running.thread.join(JOIN)

    def leave_behind(self) -> None:
        """In a forked child: the thread stayed in the parent, and so must everything on its loop.

        Nothing of it is closed or collected here, because the parent still uses the same sockets.
        """
        _INHERITED.append(self._running)
        self._lock = threading.Lock()  # another thread may have held the old one when we forked
        self._running = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._running is None:
                ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
                thread = threading.Thread(target=_serve, args=(ready,), name=self._name, daemon=True)
                thread.start()
                self._running = _Running(*ready.result(), thread)
            return self._running.loop


def refuse_to_block(instead: str) -> None:
    """A plain call on a thread that runs an event loop would stop everything else on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Conflict("a plain call would block the running event loop", hint=f"use {instead}")


def _serve(ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    with asyncio.Runner() as runner:
        runner.run(serve())


_PORTALS: Final[WeakSet[Portal]] = WeakSet()
_INHERITED: Final[list[object]] = []


def _after_fork() -> None:
    for portal in list(_PORTALS):
        portal.leave_behind()


os.register_at_fork(after_in_child=_after_fork)
