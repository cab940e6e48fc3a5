"""The state of the database server, for metrics: connections, sizes, free disk space, partitions."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from bellringer.store.connection_pool import Store
from bellringer.store.partitions import PARTITIONED_TABLES
from bellringer.store.queries import load

_SQL = load("server_stats")


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
