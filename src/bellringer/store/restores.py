"""Restores of the database from a backup: recorded once the database is ready for its processes again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bellringer.schedule.instants import write_instant
from bellringer.store.queries import load

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[Any]

_SQL = load("restores")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRow:
    """One restore. Executions between `recovered_to` and `finished_at` are not recorded."""

    restore_id: int
    recovered_to: datetime
    finished_at: datetime
    unfinished: int  # queue rows at that time
    held: int  # those that a worker held or a broker had
    positions_were_ahead: bool
    who: str
    note: str

    def document(self) -> dict[str, Any]:
        times = {"recovered_to": write_instant(self.recovered_to), "finished_at": write_instant(self.finished_at)}
        return {**asdict(self), **times}


async def finish(connection: Connection, recovered_to: datetime | None, *, who: str, note: str) -> RestoreRow:
    """Prepares a restored database for its processes; returns the restore that is recorded for it."""
    row = await connection.fetchrow(_SQL.finish, recovered_to, who, note)
    assert row is not None
    return RestoreRow(**dict(row))


async def newest(connection: Connection, limit: int) -> list[RestoreRow]:
    """Returns the newest restores."""
    return [RestoreRow(**dict(row)) for row in await connection.fetch(_SQL.list, limit)]


async def find_sessions(connection: Connection) -> list[str]:
    """Returns sessions of programs that should not run during a restore."""
    return [f"{row['name']} (pid {row['pid']})" for row in await connection.fetch(_SQL.sessions)]
