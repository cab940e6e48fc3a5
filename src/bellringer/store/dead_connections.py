"""Detects connections to PostgreSQL whose peer disappeared without closing them.

A cable, a NAT table or a proxy may drop all packets of a connection without closing it. Keepalives and user
timeouts on the socket detect a peer whose kernel does not respond. A proxy that still acknowledges at the TCP level
is detected by asking the server, over a new connection, whether it executes the statement that this process waits
for.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import asyncpg

from bellringer.store.dsn import driver_dsn
from bellringer.telemetry import log

CONNECT_SECONDS: Final = 5.0  # asyncpg's default is 60
CANCEL_SECONDS: Final = 3.0  # for the server to acknowledge a cancel
USER_TIMEOUT_MS: Final = 8_000  # for the peer's kernel to acknowledge sent data
KEEPALIVE: Final = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 2}  # an idle connection is dead after 8 s
LOOK_SECONDS: Final = 1.0
SUSPECT_SECONDS: Final = 3.0  # the server is asked about statements that take longer
PROBE_SECONDS: Final = 5.0  # for the server's reply
CONFIRM_SECONDS: Final = 1.0  # for a response that was in flight during the probe

# pg_stat_activity shows all sessions of the own role. A backend in ClientWrite has finished its statement.
_BUSY: Final = """
select pid from pg_stat_activity
where pid = any ($1) and coalesce(state, '') not like 'idle%' and wait_event is distinct from 'ClientWrite'
"""


def set_keepalive(transport: asyncio.BaseTransport) -> None:
    """Makes the kernel end a TCP connection whose peer was silent for about 8 s."""
    end = transport.get_extra_info("socket")
    if end is None or end.family not in (socket.AF_INET, socket.AF_INET6):
        return
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*KEEPALIVE.items(), ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
        if option := getattr(socket, name, None):  # not every system has all options
            end.setsockopt(socket.IPPROTO_TCP, option, value)


class GuardedConnection(asyncpg.Connection):
    """A connection that records since when it waits for the server, and limits how long a cancel may take.

    It overrides private methods of the driver, because there are no public ones; the tests detect when those
    change.
    """

    monitor: StatementMonitor | None = None
    pending_since: float | None = None

    def __init__(self, protocol: Any, transport: asyncio.Transport, *more: Any) -> None:
        super().__init__(protocol, transport, *more)
        set_keepalive(transport)

    @property
    def is_idle(self) -> bool:
        """Whether the connection is in a pool and unused."""
        return self.pending_since is None and getattr(self, "_proxy", None) is None

    async def _execute(self, *args: Any, **options: Any) -> Any:
        if self.monitor is None or self.pending_since is not None:
            return await super()._execute(*args, **options)  # type: ignore[misc]
        self.pending_since = self.monitor.begin()
        try:
            return await super()._execute(*args, **options)  # type: ignore[misc]
        finally:
            self.pending_since = None

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        if self.monitor is None or self.pending_since is not None:
            return await super().execute(query, *args, timeout=timeout)
        self.pending_since = self.monitor.begin()
        try:
            return await super().execute(query, *args, timeout=timeout)
        finally:
            self.pending_since = None

    async def _cancel(self, *waiters: Any) -> None:
        """Limits the wait for a cancel. The driver would wait as long as a statement may take, and block the
        release.
        """
        async with asyncio.timeout(CANCEL_SECONDS) as limit:
            await super()._cancel(*waiters)  # type: ignore[misc] # it swallows the cancellation by which the limit ends it
        if limit.expired():
            self.terminate()


class StatementMonitor:
    """Watches the running statements of one pool and ends connections that the server no longer knows."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connections: WeakSet[GuardedConnection] = WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop in which the next check is scheduled
        self._probe: asyncio.Task[None] | None = None

    async def add(self, connection: asyncpg.Connection[Any]) -> None:
        """Registers a connection; used as the pool's `init`."""
        assert isinstance(connection, GuardedConnection)
        connection.monitor = self
        self._connections.add(connection)

    def begin(self) -> float:
        """Schedules a check while statements run; returns the time."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(LOOK_SECONDS, self._look)
        return loop.time()

    def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        pending = {c: c.pending_since for c in self._connections if c.pending_since is not None}
        self._loop = loop if pending else None
        if not pending:
            return
        loop.call_later(LOOK_SECONDS, self._look)
        suspects = {c: since for c, since in pending.items() if loop.time() - since >= SUSPECT_SECONDS}
        if suspects and (self._probe is None or self._probe.done()):
            self._probe = loop.create_task(self._ask(suspects))

    async def _ask(self, suspects: dict[GuardedConnection, float]) -> None:
        """Asks the server what it executes, and ends the suspects that it does not know."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                busy = await self._busy([c.get_server_pid() for c in suspects if not c.is_closed()])
        except asyncpg.TooManyConnectionsError:
            return  # unknown; the statement timeouts still apply
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self._end(suspects, f"the server does not answer: {error or type(error).__name__}")
            return
        if busy is None:
            return
        forgotten = {c: since for c, since in suspects.items() if not c.is_closed() and c.get_server_pid() not in busy}
        if forgotten:
            await asyncio.sleep(CONFIRM_SECONDS)
            self._end(forgotten, "the server executes nothing for it")

    async def _busy(self, pids: list[int]) -> frozenset[int] | None:
        """Returns the backends that execute a statement; None if a pooler hides them."""
        probe = await asyncpg.connect(
            driver_dsn(self._dsn),
            timeout=PROBE_SECONDS,
            server_settings={"application_name": "bellringer probe"},
            statement_cache_size=0,  # the address may be that of a pooler
        )
        try:
            if await probe.fetchval("select pg_backend_pid()") != probe.get_server_pid():
                return None
            return frozenset(row["pid"] for row in await probe.fetch(_BUSY, pids))
        finally:
            with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await probe.close(timeout=CANCEL_SECONDS)

    def _end(self, suspects: dict[GuardedConnection, float], reason: str) -> None:
        """Ends suspects that still wait for the same statement, and the idle connections, which may be broken too."""
        dead = [c for c, since in suspects.items() if c.pending_since == since and not c.is_closed()]
        if not dead:
            return
        idle = [c for c in self._connections if c.is_idle and not c.is_closed()]
        for connection in (*dead, *idle):
            connection.terminate()
        log.warning("dead database connections replaced", dead=len(dead), idle=len(idle), error=reason)
