"""Connection pools and single connections to PostgreSQL, their session settings, and the classes of errors.

Through a pooler in transaction mode (`pgbouncer=true` in the DSN), consecutive transactions of one connection may use
different sessions of the server. Then nothing is prepared, no setting is sent at the start of a session, and the role's
defaults must be those of SETTINGS (`bellringer roles settings`). See docs/decisions/032.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final
from weakref import WeakSet

import asyncpg

from bellringer.errors import BellringerError, ConfigError, NoFreeConnection, Unavailable
from bellringer.store.dead_connections import CONNECT_SECONDS, USER_TIMEOUT_MS, GuardedConnection, StatementMonitor
from bellringer.store.dsn import describe_endpoints, driver_dsn, is_pooled
from bellringer.telemetry import DB_CONNECTIONS, log

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
# PgBouncer keeps these for each of its clients, so they can be sent to it.
POOLED_SETTINGS: Final = {name: SETTINGS[name] for name in ("timezone", "datestyle", "standard_conforming_strings")}
# Statements and functions rely on these. Through a pooler they must be defaults of the role.
REQUIRED_SETTINGS: Final = (
    "search_path",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "row_security",
    "plan_cache_mode",
    "jit",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
_READ_SETTINGS: Final = "select name, current_setting(name) as value from unnest($1::text[]) name"
MAX_QUERIES: Final = 50_000  # of one connection, which is then replaced
IDLE_SECONDS: Final = 60.0  # idle connections are closed after this time
POOLER_HINT: Final = "pgbouncer=true to the DSN if it pools by transaction; see docs/database.md"
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
        *,
        session_dsn: str | None = None,
        is_pooled: bool = False,
    ) -> None:
        self.pool = pool
        self.dsn = dsn
        self.name = name
        self.session_dsn = session_dsn  # for connections that keep session state; None: only a pooler can be reached
        self.is_pooled = is_pooled  # whether another client may use the same server session between transactions
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
        direct_dsn: str | None = None,
    ) -> Store:
        """Opens a pool. `direct_dsn` leads to the server itself if `dsn` leads to a pooler."""
        monitor = StatementMonitor(dsn)
        try:
            pool = await _Pool(
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
                **driver_options(dsn, name, settings),
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
            raise unreachable(dsn, error, needs=size) from error
        assert pool is not None
        pooled = is_pooled(dsn)
        opened = cls(pool, dsn, monitor, name, session_dsn=direct_dsn if pooled else dsn, is_pooled=pooled)
        try:
            await opened._check_sessions()
        except BaseException:
            await opened.close()
            raise
        _open_stores.add(opened)
        return opened

    async def _check_sessions(self) -> None:
        """Raises ConfigError if sessions behind a pooler lack the settings. Also detects a pooler that the DSN does not
        name: its sessions may be shared, so no scope of a tenant may outlast a transaction.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS), self.pool.acquire() as connection:
                if self.is_pooled:
                    await require_session_settings(connection, self.dsn)
                elif await connection.fetchval("select pg_backend_pid()") != connection.get_server_pid():
                    self.is_pooled = True
                    log.warning(
                        "a connection pooler is in front of PostgreSQL, but the DSN does not say so",
                        server=describe_endpoints(self.dsn),
                        hint=f"add {POOLER_HINT}",
                    )
        except RETRYABLE_ERRORS as error:
            raise unreachable(self.dsn, error) from error

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


def driver_options(dsn: str, name: str, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the arguments with which the driver opens connections to this address."""
    if is_pooled(dsn):
        return {
            "dsn": driver_dsn(dsn),
            "server_settings": {**POOLED_SETTINGS, "application_name": name},
            "statement_cache_size": 0,
        }
    return {"dsn": driver_dsn(dsn), "server_settings": {**SETTINGS, **(settings or {}), "application_name": name}}


async def require_session_settings(connection: Any, dsn: str) -> None:
    """Raises ConfigError if the defaults of the role are not the settings that Bellringer needs."""
    rows = await connection.fetch(_READ_SETTINGS, list(REQUIRED_SETTINGS))
    if wrong := [row for row in rows if row["value"] != SETTINGS[row["name"]]]:
        role = await connection.fetchval("select session_user::text")
        found = ", ".join(f"{row['name']} = {row['value']}" for row in wrong)
        raise ConfigError(
            f"the sessions behind the pooler at {describe_endpoints(dsn)} have {found}",
            hint=f"run the statements that `bellringer roles settings {role}` prints, then RECONNECT in PgBouncer",
        )


async def connect(dsn: str, *, name: str = "bellringer") -> asyncpg.Connection[Any]:
    """Opens one dedicated connection."""
    try:
        return await asyncpg.connect(
            connection_class=GuardedConnection, timeout=CONNECT_SECONDS, **driver_options(dsn, name)
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
        raise unreachable(dsn, error) from error


def unreachable(dsn: str, error: BaseException, *, needs: int = 1) -> BellringerError:
    """Returns the error for a failed connection, without the password; `needs` is the number of wanted connections."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(
            f"the DSN cannot be used: {error}", hint="it looks like postgresql://user@host:5432/database"
        )
    where = describe_endpoints(dsn)
    if isinstance(error, asyncpg.TooManyConnectionsError):
        wanted = "1 more" if needs == 1 else f"1 to {needs} more"
        return NoFreeConnection(
            f"PostgreSQL at {where} has no connection left, and this process needs {wanted}: {error}",
            hint="raise max_connections of the server, or lower BELLRINGER_POOL_SIZE of the processes that use it; "
            "docs/deployment.md lists the connections of each process",
        )
    if isinstance(error, ssl.SSLError):
        return ConfigError(
            f"the TLS connection to PostgreSQL at {where} failed: {describe_tls_error(error)}",
            hint="check sslmode, sslrootcert, sslcert and sslkey in BELLRINGER_DSN; see docs/database.md",
        )
    if isinstance(error, asyncpg.PostgresError) and "unsupported startup parameter" in str(error):
        return ConfigError(f"there is a pooler at {where}: {error}", hint=f"add {POOLER_HINT}")
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, RETRYABLE_ERRORS):
        return ConfigError(f"PostgreSQL at {where} refuses the connection: {error}", hint=_refusal_hint(error))
    return Unavailable(
        f"PostgreSQL at {where} does not answer: {error or type(error).__name__}",
        hint="start it, or set BELLRINGER_DSN to one that runs",
    )


def _refusal_hint(error: asyncpg.PostgresError) -> str:
    if isinstance(error, asyncpg.InvalidPasswordError):
        return "check the password in BELLRINGER_DSN or PGPASSFILE"
    if "no pg_hba.conf entry" in str(error) and "no encryption" in str(error):
        return "the server may require TLS: add sslmode=verify-full to BELLRINGER_DSN"
    return "create that database and role, or set BELLRINGER_DSN to one that exists"


def describe_tls_error(error: ssl.SSLError) -> str:
    """Returns the reason of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted: {error.verify_message}"
    return str(error.reason or error).replace("_", " ").lower()
