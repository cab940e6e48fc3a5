"""Connection pools and single connections to PostgreSQL, their session settings, and the classes of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import asyncpg

from bellringer.errors import BellringerError, ConfigError, NoFreeConnection, Unavailable
from bellringer.store.dead_connections import CONNECT_SECONDS, USER_TIMEOUT_MS, GuardedConnection, StatementMonitor
from bellringer.telemetry import DB_CONNECTIONS

# Errors of a connection: the server may have committed the statement.
CONNECTION_ERRORS: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised when a connection breaks during a response
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    OSError,
    TimeoutError,
)
# Errors after which the same call may succeed: a lost connection, a restarting server, a conflict of two writers, or a
# migration that changed the result of a prepared statement (the driver repeats it, except in a transaction).
RETRYABLE_ERRORS: Final = (
    *CONNECTION_ERRORS,
    asyncpg.InvalidCachedStatementError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
)

DATABASE_ERRORS: Final = (*RETRYABLE_ERRORS, asyncpg.PostgresError)  # all errors of a statement
# Retryable errors that are not caused by the statement: a slow statement may time out every time.
UNREACHABLE_ERRORS: Final = tuple(kind for kind in RETRYABLE_ERRORS if kind is not asyncpg.QueryCanceledError)
INVALID_VALUE_ERRORS: Final = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
)  # caused by the values, so a retry is useless

# Sent at the start of a session, these take precedence over the defaults of the server, the database and the role.
# The values are those of the embedded server, on which plans and times are tested.
SETTINGS: Final = {
    "search_path": "bellringer",
    # Formats of values.
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # Isolation: the SQL functions rely on a new snapshot for each of their statements.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "row_security": "on",
    # A generic plan made for an empty table would be kept when the table is large; see docs/decisions/007.
    "plan_cache_mode": "force_custom_plan",
    # Compiling takes seconds, statements take milliseconds: many partitions make every plan look expensive.
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "work_mem": "4MB",
    "hash_mem_multiplier": "2",
    "effective_cache_size": "4GB",
    "random_page_cost": "1.1",
    "seq_page_cost": "1",
    "cpu_tuple_cost": "0.01",
    "cpu_index_tuple_cost": "0.005",
    "cpu_operator_cost": "0.0025",
    "from_collapse_limit": "8",
    "join_collapse_limit": "8",
    "geqo": "on",
    "geqo_threshold": "12",
    "constraint_exclusion": "partition",
    **dict.fromkeys(
        (
            "enable_bitmapscan",
            "enable_hashagg",
            "enable_hashjoin",
            "enable_indexonlyscan",
            "enable_indexscan",
            "enable_material",
            "enable_memoize",
            "enable_mergejoin",
            "enable_nestloop",
            "enable_partition_pruning",
            "enable_seqscan",
            "enable_sort",
        ),
        "on",
    ),
    "lock_timeout": "0",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "idle_session_timeout": "0",
    # Keepalives of the server; those of the client are set by store.dead_connections.
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": str(USER_TIMEOUT_MS),
}
MAX_QUERIES: Final = 50_000  # of one connection, which is then replaced
IDLE_SECONDS: Final = 60.0  # idle connections are closed after this time
FULL_SECONDS: Final = 1.0  # how long a pool does not grow after the server refused a connection
COMMAND_SECONDS: Final = 35.0  # longer than statement_timeout, so that the server gives up first


async def _skip_reset(_connection: object) -> None:
    """Replaces the pool's reset on release: pooled connections carry no session state."""


class _Pool(asyncpg.Pool):
    """A pool that uses its existing connections while the server has none left."""

    _holders: list[Any]
    _queue: asyncio.LifoQueue[Any]

    async def _acquire(self, timeout: float | None) -> Any:
        while True:
            try:
                return await super()._acquire(timeout)  # type: ignore[misc]
            except asyncpg.TooManyConnectionsError:
                if not any(holder.is_connected() for holder in self._holders):
                    raise
                self._rest_unconnected()

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        """Returns a connection. One that is ready for its next user is returned without the task by which the driver
        shields a release that must wait; that task takes a quarter of the time of a short statement.
        """
        con = connection._con  # noqa: SLF001 - as in the driver
        is_ready = (
            con is not None
            and connection._holder._pool is self  # noqa: SLF001
            and not (con.is_closed() or con.is_in_transaction() or con._protocol._is_cancelling())  # noqa: SLF001
            and con._protocol.queries_count < MAX_QUERIES  # noqa: SLF001
        )
        if is_ready:
            con._on_release()  # noqa: SLF001
            await connection._holder.release(None)  # noqa: SLF001 - it has nothing to wait for
        else:
            await super().release(connection, timeout=timeout)

    def _rest_unconnected(self) -> None:
        """Takes unconnected holders out of the queue for a moment, so that a waiter gets one with a connection.

        The queue is last in, first out: without this, the holder that just failed would be tried again.
        """
        places = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for place in reversed(places):
            if place.is_connected():
                self._queue.put_nowait(place)
        resting = [place for place in places if not place.is_connected()]
        asyncio.get_running_loop().call_later(FULL_SECONDS, self._return, resting)

    def _return(self, places: list[Any]) -> None:
        for place in places:
            self._queue.put_nowait(place)


class Store:
    """A pool of connections. Every statement is its own transaction unless the caller opens one."""

    def __init__(
        self,
        pool: asyncpg.Pool[asyncpg.Record],
        dsn: str,
        monitor: StatementMonitor | None = None,
        name: str = "",
    ) -> None:
        self.pool = pool
        self.dsn = dsn
        self.name = name
        self._monitor = monitor
        self.listener: Any = None  # the listening connection; see store.wakeups
        self.days: set[date] = set()  # days whose partitions this process has created or seen
        self.role: str | None = None  # the database role that sees one tenant's rows; see store.tenant_scope

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        size: int = 8,
        name: str = "bellringer",
        kind: type[GuardedConnection] = GuardedConnection,
        settings: Mapping[str, str] | None = None,
    ) -> Store:
        monitor = StatementMonitor(dsn)
        try:
            pool = await _Pool(
                dsn,
                min_size=1,
                max_size=size,
                max_queries=MAX_QUERIES,
                loop=None,
                record_class=asyncpg.Record,
                init=monitor.add,
                reset=_skip_reset,
                max_inactive_connection_lifetime=IDLE_SECONDS,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                connection_class=kind,
                server_settings={**SETTINGS, **(settings or {}), "application_name": name},
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
            raise unreachable(dsn, error, needs=size) from error
        assert pool is not None
        opened = cls(pool, dsn, monitor, name)
        _open_stores.add(opened)
        return opened

    async def close(self) -> None:
        _open_stores.discard(self)
        if self._monitor is not None:
            self._monitor.close()
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()

    async def now(self) -> datetime:
        """Returns the schedule time by the database's clock."""
        moment: datetime = await self.pool.fetchval("select bellringer.now()")
        return moment


_open_stores: WeakSet[Store] = WeakSet()
_measured: set[str] = set()
_NAME_PREFIX: Final = "bellringer "
_APP_PURPOSE: Final = "app"  # pools of apps, whatever their name, so that the label is bounded


def measure_pools() -> None:
    """Sets the gauges of the connection pools of this process."""
    sums: dict[str, list[int]] = {purpose: [0, 0, 0] for purpose in _measured}
    for store in list(_open_stores):
        is_ours = store.name.startswith(_NAME_PREFIX)
        purpose = store.name.removeprefix(_NAME_PREFIX) if is_ours else _APP_PURPOSE
        total = sums.setdefault(purpose, [0, 0, 0])
        pool = store.pool
        for at, value in enumerate((pool.get_size(), pool.get_idle_size(), pool.get_max_size())):
            total[at] += value
    _measured.update(sums)
    for purpose, values in sums.items():
        for state, value in zip(("open", "idle", "max"), values, strict=True):
            DB_CONNECTIONS.labels(purpose, state).set(value)


async def connect(dsn: str, *, name: str = "bellringer") -> asyncpg.Connection[Any]:
    """Opens one dedicated connection."""
    try:
        return await asyncpg.connect(
            dsn,
            connection_class=GuardedConnection,
            timeout=CONNECT_SECONDS,
            server_settings={**SETTINGS, "application_name": name},
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
        raise unreachable(dsn, error) from error


def unreachable(dsn: str, error: BaseException, *, needs: int = 1) -> BellringerError:
    """Returns the error for a failed connection, without the password; `needs` is the number of wanted connections."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(
            f"the DSN cannot be used: {error}", hint="it looks like postgresql://user@host:5432/database"
        )
    parts = urlsplit(dsn)
    where = f"{parts.hostname}:{parts.port or 5432}" if parts.hostname else "its socket"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        wanted = "1 more" if needs == 1 else f"1 to {needs} more"
        return NoFreeConnection(
            f"PostgreSQL at {where} has no connection left, and this process needs {wanted}: {error}",
            hint="raise max_connections of the server, or lower BELLRINGER_POOL_SIZE of the processes that use it; "
            "docs/deployment.md lists the connections of each process",
        )
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, RETRYABLE_ERRORS):
        return ConfigError(
            f"PostgreSQL at {where} refuses the connection: {error}",
            hint="create that database and role, or set BELLRINGER_DSN to one that exists",
        )
    return Unavailable(
        f"PostgreSQL at {where} does not answer: {error or type(error).__name__}",
        hint="start it, or set BELLRINGER_DSN to one that runs",
    )
