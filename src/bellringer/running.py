"""A process from its start to its stop: the event loop, signals, and parts that end together."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from bellringer.telemetry import log

ORPHAN_GRACE: Final = 3.0
RARELY: Final = 20_000  # objects between two looks for garbage

Main = Callable[[asyncio.Event], Awaitable[None]]


async def meanwhile(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do something that has no end of its own until it is time to stop."""
    task = asyncio.create_task(work)
    await stop.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def once(event: asyncio.Event, stop: asyncio.Event, act: Callable[[], Awaitable[None]]) -> None:
    """Act when the event comes, then wait for the end with the others."""
    waits = [asyncio.create_task(event.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waits[0].cancel()
    if event.is_set():
        await act()
    await waits[1]


async def together(stop: asyncio.Event, parts: list[Coroutine[Any, Any, None]], *, patience: float) -> None:
    """Run until asked to stop. A part that ends early stops the others; one that cannot stop is cut off."""
    tasks = [asyncio.create_task(part) for part in parts]
    for task in tasks:
        task.add_done_callback(lambda _: stop.set())
    await stop.wait()
    _, late = await asyncio.wait(tasks, timeout=patience)
    for task in late:
        log.warning("cut off what did not stop in time", seconds=patience)
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


def run(main: Main, *, with_parent: bool) -> None:
    """Run until a signal asks to stop, on the faster event loop where it is installed.

    With `with_parent` the end of standard input asks too: a parent that dies closes the other end of it.
    """
    logging.basicConfig(handlers=[_Bridge(logging.WARNING)], force=True)
    try:
        uvloop: Any = import_module("uvloop")
    except ImportError:  # an extra that may be missing
        uvloop = asyncio
    gc.collect()
    gc.freeze()  # modules and classes never become garbage: each look through them would cost tens of milliseconds
    gc.set_threshold(RARELY)
    uvloop.run(_until_asked(main, with_parent=with_parent))


async def _until_asked(main: Main, *, with_parent: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C does not wait for the grace

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), _watch, sys.stdin.fileno(), stop)
    await main(stop)


def _watch(descriptor: int, stop: asyncio.Event) -> None:
    if not os.read(descriptor, 4096):
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        stop.set()
        # The parent's database went with it: nothing can be settled, and others will reap what we held.
        loop.call_later(ORPHAN_GRACE, os._exit, 1)


class _Bridge(logging.Handler):
    """Warnings of libraries, in the same form as our own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            error = record.exc_info[1] if record.exc_info else None
            more = {"error": f"{type(error).__name__}: {error}"} if error else {}
            log.log(record.levelno, record.getMessage(), logger=record.name, **more)
