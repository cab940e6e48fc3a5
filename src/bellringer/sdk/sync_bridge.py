"""Runs coroutines on an event loop in a background thread, for blocking callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar
from weakref import WeakSet

from bellringer.errors import Conflict

T = TypeVar("T")

JOIN_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Running:
    """The loop, the event that stops it, and its thread."""

    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    thread: threading.Thread


class BlockingPortal:
    """Starts its thread at the first call, and again in a child process after a fork."""

    def __init__(self, name: str = "bellringer") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running: _Running | None = None
        _PORTALS.add(self)

    def run(self, act: Callable[[], Coroutine[Any, Any, T]], *, instead: str) -> T:
        """Run a coroutine and block until it is done. `instead` names the method that coroutines must use."""
        refuse_to_block(instead)
        future = asyncio.run_coroutine_threadsafe(act(), self._loop())
        try:
            return future.result()
        finally:
            future.cancel()  # in case the caller was interrupted; has no effect on a finished future

    def close(self) -> None:
        """Stop the thread. The next call starts a new one."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.stop.set)
            running.thread.join(JOIN_TIMEOUT_SECONDS)

    def leave_behind(self) -> None:
        """Abandon the thread and its loop in a forked child; both exist only in the parent.

        Nothing is closed or collected, because the parent still uses the same sockets.
        """
        _INHERITED.append(self._running)
        self._lock = threading.Lock()  # another thread may have held the lock during the fork
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
    """Raise Conflict on a thread with a running event loop, which a blocking call would stop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Conflict("a blocking call would stop the running event loop", hint=f"use {instead}")


def _serve(ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Use uvloop if it is installed: a send then takes a fifth less time."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


_PORTALS: Final[WeakSet[BlockingPortal]] = WeakSet()
_INHERITED: Final[list[object]] = []


def _after_fork() -> None:
    for portal in list(_PORTALS):
        portal.leave_behind()


os.register_at_fork(after_in_child=_after_fork)
