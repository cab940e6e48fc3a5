"""The state of the database server: connections, sizes, free disk space, partitions, transactions, round trips."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from bellringer.clock import Clock
from bellringer.store.connection_pool import Store
from bellringer.store.partitions import PARTITIONED_TABLES
from bellringer.store.queries import load

_SQL = load("server_stats")
LONG_TRANSACTION: Final = timedelta(minutes=1)
MAX_LONG_TRANSACTIONS: Final = 10  # in one list
ROUND_TRIPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnections:
    """Connections of all clients of the server, and the maximum without reserved ones."""

    used: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSizes:
    """Sizes in bytes; None if the role may not read them, or if the data directory is on another machine."""

    database: int
    wal: int | None = None
    disk: int | None = None
    disk_free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongTransactionRow:
    """A session with an old transaction."""

    pid: int
    application: str
    state: str
    seconds: float


async def count_connections(store: Store) -> ServerConnections:
    row = await store.pool.fetchrow(_SQL.connections)
    assert row is not None
    return ServerConnections(used=row["used"], max=row["max"])


async def read_sizes(store: Store) -> DatabaseSizes:
    """Reads the sizes of the database and its WAL, and the free space of its disk if that is visible from here."""
    row = await store.pool.fetchrow(_SQL.sizes)
    assert row is not None
    wal = await store.pool.fetchval(_SQL.wal_bytes) if row["may_list_wal"] else None
    folder = row["data_directory"]
    if folder is None or not _is_served_from(Path(folder), row["started_at"]):
        return DatabaseSizes(database=row["database"], wal=wal)
    disk = shutil.disk_usage(folder)
    return DatabaseSizes(database=row["database"], wal=wal, disk=disk.total, disk_free=disk.free)


def _is_served_from(folder: Path, started_at: int) -> bool:
    """Whether this folder of this machine belongs to the server that was started at this time. The same path may
    exist on the machine of the API, with the data of another server.
    """
    try:
        lines = (folder / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        return os.path.samefile(folder, lines[1]) and abs(int(lines[2]) - started_at) <= 1
    except (OSError, ValueError, IndexError):
        return False


async def count_missing_partitions(store: Store, now: datetime) -> int:
    """Returns how many partitions of today and tomorrow do not exist."""
    days = [now, now + timedelta(days=1)]
    names = [f"{table}_{day:%Y%m%d}" for table in PARTITIONED_TABLES for day in days]
    count: int = await store.pool.fetchval(_SQL.missing_partitions, names)
    return count


async def read_version(store: Store) -> str:
    version: str = await store.pool.fetchval(_SQL.version)
    return version.split(maxsplit=1)[0]


async def measure_round_trip(store: Store, clock: Clock) -> float:
    """Returns the shortest of a few round trips on one connection, in seconds."""
    async with store.pool.acquire() as connection:
        durations = []
        for _ in range(ROUND_TRIPS):
            started = clock.monotonic()
            await connection.fetchval(_SQL.round_trip)
            durations.append(clock.monotonic() - started)
    return min(durations)


async def list_long_transactions(store: Store) -> list[LongTransactionRow]:
    """Returns sessions whose transaction is older than LONG_TRANSACTION, the oldest first."""
    rows = await store.pool.fetch(_SQL.long_transactions, LONG_TRANSACTION.total_seconds(), MAX_LONG_TRANSACTIONS)
    return [LongTransactionRow(**dict(row)) for row in rows]


async def count_hidden_sessions(store: Store) -> int:
    """Returns how many sessions of other roles hide their state from this role."""
    count: int = await store.pool.fetchval(_SQL.hidden_sessions)
    return count
