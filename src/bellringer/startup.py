"""Starts and stops long-running processes, retries while the database is unavailable, and sizes connection pools."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from typing import Any, Final, TypeVar

from bellringer.clock import Clock, SystemClock
from bellringer.errors import NoFreeConnection, Unavailable
from bellringer.store.connection_pool import RETRYABLE_ERRORS, connect, unreachable
from bellringer.telemetry import log

T = TypeVar("T")
Main = Callable[[asyncio.Event], Awaitable[None]]

MIN_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 2.0
LOG_INTERVAL_SECONDS: Final = 5.0  # minimum time between two log lines about the same wait
# A connection slot may become free within this time, because other processes may be stopping.
NO_FREE_CONNECTION_TIMEOUT_SECONDS: Final = 15.0

ORPHAN_GRACE_SECONDS: Final = 3.0
GC_THRESHOLD_OBJECTS: Final = 20_000  # new objects between two collections

# A pool gets at most 1/12 of the server's connections, so that several processes can run.
POOL_SHARE_DIVISOR: Final = 12
_CAPACITY_SQL: Final = """
select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
     - coalesce(current_setting('reserved_connections', true)::int, 0)
"""


async def retry_until_available(
    stop: asyncio.Event, step: Callable[[], Awaitable[T]], what: str, clock: Clock | None = None
) -> T | None:
    """Repeats the step while the database is unavailable. Returns its result, or None if `stop` was set before."""
    clock = clock or SystemClock()
    first_attempt_at, logged_at, wait_seconds = clock.monotonic(), float("-inf"), MIN_RETRY_SECONDS
    while True:
        try:
            return await step()
        except (*RETRYABLE_ERRORS, Unavailable) as error:
            waited = clock.monotonic() - first_attempt_at
            if isinstance(error, NoFreeConnection) and waited > NO_FREE_CONNECTION_TIMEOUT_SECONDS:
                raise
            if clock.monotonic() - logged_at >= LOG_INTERVAL_SECONDS:
                logged_at = clock.monotonic()
                log.warning("waiting for the database", what=what, waited_s=round(waited), error=_describe_error(error))
        if await _stops_within(stop, wait_seconds):
            return None
        wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)


def _describe_error(error: BaseException) -> str:
    return error.message if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"


async def _stops_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def build_with_retries(
    stop: asyncio.Event, build: Callable[[AsyncExitStack], Awaitable[T]], what: str
) -> AsyncIterator[T | None]:
    """Yields the result of `build`, and closes the resources that `build` put on the stack afterwards.

    While the database is unavailable, closes the resources and repeats `build`. Yields None if `stop` is set first.
    """

    async def attempt() -> tuple[AsyncExitStack, T | None]:
        stack = AsyncExitStack()
        try:
            return stack, await _unless_stopped(stop, build(stack))
        except BaseException:
            await stack.aclose()
            raise

    made = await retry_until_available(stop, attempt, what)
    if made is None:
        yield None
        return
    async with made[0]:
        yield made[1]


async def _unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    task, stopped = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()


async def read_connection_capacity(dsn: str, name: str) -> int:
    """Returns the number of connections that the server allows to roles without reserved connections."""
    connection = await connect(dsn, name=name)
    try:
        found: int = await connection.fetchval(_CAPACITY_SQL, timeout=5)
    except RETRYABLE_ERRORS as error:
        raise unreachable(dsn, error) from error
    finally:
        connection.terminate()
    return found


def compute_pool_size(capacity: int, *, most: int, least: int = 1) -> int:
    """Returns the maximum number of connections of a pool if the setting `pool_size` is not given."""
    return max(least, min(most, capacity // POOL_SHARE_DIVISOR))


async def run_until_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs an endless coroutine, and cancels it when `stop` is set."""
    task = asyncio.create_task(work)
    await stop.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def run_after(event: asyncio.Event, stop: asyncio.Event, act: Callable[[], Awaitable[None]]) -> None:
    """Waits for the event, calls `act`, and returns when `stop` is set."""
    waits = [asyncio.create_task(event.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waits[0].cancel()
    if event.is_set():
        await act()
    await waits[1]


async def run_together(stop: asyncio.Event, parts: list[Coroutine[Any, Any, None]], *, timeout_seconds: float) -> None:
    """Runs the parts until `stop` is set. A part that ends early stops the others. A part that does not stop within the
    timeout is cancelled.
    """
    tasks = [asyncio.create_task(part) for part in parts]
    for task in tasks:
        task.add_done_callback(lambda _: stop.set())
    await stop.wait()
    _, late = await asyncio.wait(tasks, timeout=timeout_seconds)
    for task in late:
        log.warning("cancelled a task that did not stop in time", seconds=timeout_seconds)
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


def run_process(main: Main, *, with_parent: bool, on_orphaned: Callable[[], float] | None = None) -> None:
    """Runs `main` until a signal stops it; uses uvloop if it is installed.

    With `with_parent`, the end of standard input stops it too: it means that the parent process has ended. Then
    `on_orphaned` is called, which returns the seconds after which the process exits even if `main` still runs.
    """
    logging.basicConfig(handlers=[_LibraryLogHandler(logging.WARNING)])  # unless the app has configured logging
    try:
        uvloop: Any = import_module("uvloop")
    except ImportError:  # an optional dependency
        uvloop = asyncio
    gc.collect()
    gc.freeze()  # modules and classes are never garbage; scanning them takes tens of milliseconds
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
    uvloop.run(_run_until_signal(main, with_parent=with_parent, on_orphaned=on_orphaned or _stop_without_database))


async def _run_until_signal(main: Main, *, with_parent: bool, on_orphaned: Callable[[], float]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends the process at once

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores the signal; keep it ignored
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    if with_parent:
        loop.add_reader(sys.stdin.fileno(), _watch_parent, sys.stdin.fileno(), stop, on_orphaned)
    await main(stop)


def _stop_without_database() -> float:
    """The parent's database has stopped too, so runs cannot be settled. Other processes will reap them."""
    return ORPHAN_GRACE_SECONDS


def _watch_parent(descriptor: int, stop: asyncio.Event, on_orphaned: Callable[[], float]) -> None:
    if not os.read(descriptor, 4096):
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        seconds = on_orphaned()
        stop.set()
        loop.call_later(seconds, os._exit, 1)


class _LibraryLogHandler(logging.Handler):
    """Logs the warnings of libraries in the format of this program."""

    writes_worker_log = True  # not a handler of the app: records of an attempt are echoed instead

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            error = record.exc_info[1] if record.exc_info else None
            more = {"error": f"{type(error).__name__}: {error}"} if error else {}
            log.log(record.levelno, record.getMessage(), logger=record.name, **more)
