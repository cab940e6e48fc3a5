"""The only wiring: a Config in, running processes out. Nothing below knows where its parts come from."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module, metadata
from typing import Any, Final, Protocol

import msgspec

from bellringer import telemetry
from bellringer.clock import SystemClock
from bellringer.config import Config, load
from bellringer.errors import Unavailable
from bellringer.lifecycle.prune import Retention
from bellringer.lifecycle.tick import Pace
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.leases import PostgresLeases
from bellringer.store.migrate import require_current
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.scope import open_tenants
from bellringer.store.wakeups import Wakeups
from bellringer.telemetry import log
from bellringer.worker.service import Observer, Worker, WorkerSettings
from bellringer.worker.target import Target

PATIENCE: Final = 10.0  # seconds beyond its grace that a process may take to stop
ORPHAN_GRACE: Final = 3.0
CONNECTIONS_END: Final = 5  # seconds that open requests get when the server stops
DEFAULT_POOLS: Final = ("short", "long")
DEFAULT_SLOTS: Final = 50

Main = Callable[[asyncio.Event], Awaitable[None]]


class Application(Target, Protocol):
    """What a worker process needs of an app."""

    @property
    def dsn(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    async def adeclare(self) -> int: ...

    async def aclose(self) -> None: ...


def version() -> str:
    return metadata.version("bellringer")


# Processes


def run_server(
    config: Config, listening: socket.socket, *, with_scheduler: bool = True, with_parent: bool = False
) -> None:
    """The API, and a scheduler in the same process unless it runs elsewhere."""

    from bellringer.api.app import create_app  # noqa: PLC0415 - workers and schedulers do without

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer server") as store:
            tenants = await open_tenants(config.require_dsn(), size=config.pool_size, name="bellringer api")
            try:
                clock = SystemClock()
                wakeups = Wakeups(store, clock)
                api = create_app(store, Names(store), tenants, version=version(), clock=clock, wakeups=wakeups)
                parts = [_serve(api, listening, stop)]
                if with_scheduler:
                    parts.append(_scheduler(config, store).run(stop))
                await _together(stop, parts, patience=CONNECTIONS_END + PATIENCE)
            finally:
                await tenants.close()

    _run(config, main, with_parent=with_parent)


def run_scheduler(config: Config, *, with_parent: bool = False) -> None:
    """A scheduler alone: one more node that shares the shards."""

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer scheduler") as store:
            await _together(stop, [_scheduler(config, store).run(stop)], patience=PATIENCE)

    _run(config, main, with_parent=with_parent)


def run_worker(
    app: Application,
    *,
    pools: Mapping[str, int] | None = None,
    slots: int | None = None,
    config: Config | None = None,
    target: str | None = None,
    observer: Observer | None = None,
    joined: Callable[[Store], Awaitable[None]] | None = None,
    with_parent: bool = False,
) -> None:
    """Declare the app's schedules, then work. `target` is where processes of their own find the app again."""
    config = config or load(environ=os.environ)
    # Its handlers send to the database that the app names, so that is the one to work on.
    config = msgspec.structs.replace(config, dsn=app.dsn)
    served = pools_of(app, pools or {}, slots)

    async def main(stop: asyncio.Event) -> None:
        async with _opened(config, "bellringer worker") as store:
            await app.adeclare()
            names = Names(store)
            settings = WorkerSettings(
                pools=served,
                version=version(),
                grace=config.grace,
                target=target,
                observer=observer,
                tenants=await names.tenant_names([await names.tenant_id(app.tenant)]),
            )
            worker = Worker(store, app.registry, SystemClock(), settings)
            parts = [worker.run(stop)]
            if joined:
                parts.append(_once(worker.started, stop, lambda: joined(store)))
            await _together(stop, parts, patience=config.grace.total_seconds() + PATIENCE)
        await app.aclose()

    _run(config, main, with_parent=with_parent)


def pools_of(app: Target, given: Mapping[str, int], slots: int | None) -> dict[str, int]:
    """The pools that a worker serves: those that were named, or the usual ones and those of its tasks."""
    if given:
        return dict(given)
    tasks = [app.registry.get(name) for name in app.registry.names()]
    named = sorted({task.pool for task in tasks if task is not None and task.pool})
    return dict.fromkeys((*DEFAULT_POOLS, *named), slots or DEFAULT_SLOTS)


# Parts


@asynccontextmanager
async def _opened(config: Config, name: str) -> AsyncIterator[Store]:
    """The database, if its schema is this program's."""
    store = await Store.open(config.require_dsn(), size=config.pool_size, name=name)
    try:
        async with store.pool.acquire() as connection:
            await require_current(connection)
        yield store
    finally:
        await store.close()


def _scheduler(config: Config, store: Store) -> Scheduler:
    settings = SchedulerSettings(
        version=version(),
        pace=Pace(lead=config.lead, grace=config.misfire_grace),
        retention=Retention(runs=config.retention, dead_letters=config.dead_retention),
        lease=config.lease,
    )
    return Scheduler(store, PostgresLeases(store, config.lease), SystemClock(), settings)


async def _serve(api: Any, listening: socket.socket, stop: asyncio.Event) -> None:
    import uvicorn  # noqa: PLC0415 - workers and schedulers do without

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # signals are ours

    settings = uvicorn.Config(
        api,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CONNECTIONS_END,
    )
    server = Server(settings)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    try:
        await server.serve(sockets=[listening])
    except SystemExit:  # uvicorn's way to say that it could not start
        raise Unavailable("the API did not start", hint="the lines above say why") from None
    finally:
        ending.cancel()
    if not server.started:
        raise Unavailable("the API did not start", hint="the lines above say why")


async def _once(event: asyncio.Event, stop: asyncio.Event, act: Callable[[], Awaitable[None]]) -> None:
    """Act when the event comes, then wait for the end with the others."""
    waits = [asyncio.create_task(event.wait()), asyncio.create_task(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waits[0].cancel()
    if event.is_set():
        await act()
    await waits[1]


async def _together(stop: asyncio.Event, parts: list[Coroutine[Any, Any, None]], *, patience: float) -> None:
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


# Signals


def _run(config: Config, main: Main, *, with_parent: bool) -> None:
    """Run until a signal asks to stop, on the faster event loop where it is installed.

    With `with_parent` the end of standard input asks too: a parent that dies closes the other end of it.
    """
    telemetry.configure(config.log, config.log_level)
    logging.basicConfig(handlers=[_Bridge(logging.WARNING)], force=True)
    try:
        uvloop: Any = import_module("uvloop")
    except ImportError:  # an extra that may be missing
        uvloop = asyncio
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
