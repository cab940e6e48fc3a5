"""Connections to the one truth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from bellringer.errors import BellringerError, ConfigError, Unavailable

# Errors after which the same call may succeed: the connection or the server went away, or two writers collided.
RETRYABLE: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the driver's word for a connection that broke off in the middle
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.QueryCanceledError,
    OSError,
    TimeoutError,
)

FAILURES: Final = (*RETRYABLE, asyncpg.PostgresError)  # whatever a statement may fail with
# Of what may succeed later, that which does not speak of the statement: one that took too long may do so for ever.
AWAY: Final = tuple(kind for kind in RETRYABLE if kind is not asyncpg.QueryCanceledError)
REFUSED: Final = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)  # the values are to blame, and always will be

SETTINGS: Final = {
    "search_path": "bellringer",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    # A plan that was made while a table was empty would be kept when it is large; see docs/decisions/007.
    "plan_cache_mode": "force_custom_plan",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}


async def _keep(_connection: object) -> None:
    """No reset on release: pooled connections carry no session state."""


class Store:
    """A pool of connections; every statement is its own transaction unless it says otherwise."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], dsn: str) -> None:
        self.pool = pool
        self.dsn = dsn
        self.days: set[date] = set()  # those whose partitions this process has seen made
        self.role: str | None = None  # of connections that see the rows of one tenant only; see store.scope

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        size: int = 8,
        name: str = "bellringer",
        kind: type[asyncpg.Connection[Any]] = asyncpg.Connection,
        settings: Mapping[str, str] | None = None,
    ) -> Store:
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=size,
                reset=_keep,
                max_inactive_connection_lifetime=300,
                command_timeout=60,
                connection_class=kind,
                server_settings={**SETTINGS, **(settings or {}), "application_name": name},
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
            raise unreachable(dsn, error) from error
        assert pool is not None
        return cls(pool, dsn)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()

    async def now(self) -> datetime:
        """Schedule time, by the database's clock."""
        moment: datetime = await self.pool.fetchval("select bellringer.now()")
        return moment


async def connect(dsn: str, *, name: str = "bellringer") -> asyncpg.Connection[Any]:
    """One dedicated connection."""
    try:
        return await asyncpg.connect(dsn, server_settings={**SETTINGS, "application_name": name})
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.ClientConfigurationError) as error:
        raise unreachable(dsn, error) from error


def unreachable(dsn: str, error: BaseException) -> BellringerError:
    """Say which server does not answer, without its password."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigError(
            f"the DSN cannot be used: {error}", hint="it looks like postgresql://user@host:5432/database"
        )
    parts = urlsplit(dsn)
    where = f"{parts.hostname}:{parts.port or 5432}" if parts.hostname else "its socket"
    if isinstance(error, asyncpg.InvalidCatalogNameError | asyncpg.InvalidAuthorizationSpecificationError):
        return ConfigError(
            f"PostgreSQL at {where} refuses the connection: {error}",
            hint="create that database and role, or set BELLRINGER_DSN to one that exists",
        )
    return Unavailable(
        f"PostgreSQL at {where} does not answer: {error or type(error).__name__}",
        hint="start it, or set BELLRINGER_DSN to one that runs",
    )
