"""Bring a database to this program's schema: numbered SQL files, each applied once, in order.

A file `NNN_what.sql` is one script, run in one transaction together with the record that it was. If
its first line is `-- no transaction` (for CREATE INDEX CONCURRENTLY), the statements between lines
`-- next` run one by one; they must bear repetition, because a failure keeps those before it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

import asyncpg

from bellringer.errors import BellringerError, ConfigError, SchemaMismatch

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection | PoolConnectionProxy

OLDEST_SERVER: Final = 14
LOCK_POLL: Final = 0.1

TRY_LOCK: Final = "select pg_try_advisory_lock(75, 0)"
UNLOCK: Final = "select pg_advisory_unlock(75, 0)"
HAS_SCHEMA: Final = "select to_regnamespace('bellringer') is not null"
HAS_RECORD: Final = "select to_regclass('bellringer.migrations') is not null"
CREATE_RECORD: Final = """
create table bellringer.migrations (
  number     integer primary key,
  name       text not null,
  checksum   text not null,
  program    text not null,
  applied_at timestamptz not null default pg_catalog.now()
)
"""
READ_RECORD: Final = "select number, name, checksum, program, applied_at from bellringer.migrations order by number"
WRITE_RECORD: Final = "insert into bellringer.migrations (number, name, checksum, program) values ($1, $2, $3, $4)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema, as this program has it; `name` is its file's."""

    number: int
    name: str
    sql: str
    checksum: str

    @property
    def is_transaction(self) -> bool:
        return not self.sql.startswith("-- no transaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One step of the schema, as the database remembers it; `program` is the version that took it."""

    number: int
    name: str
    checksum: str
    program: str
    applied_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a database stands, and where this program wants it."""

    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    current: int
    wanted: int


def load(folder: Traversable | None = None) -> tuple[Migration, ...]:
    """This program's migrations, or those of another folder, numbered from 1 without a gap."""
    folder = folder or resources.files("bellringer.store") / "migrations"
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")] if folder.is_dir() else []
    migrations = tuple(sorted(map(_read, files), key=lambda migration: (migration.number, migration.name)))
    if not migrations:
        raise ConfigError(f"there are no migrations in {folder}", hint="install bellringer again")
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise ConfigError(f"expected migration {expected:03}, found {migration.name}")
    return migrations


async def migrate(connection: Connection, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply what is pending and return it; of two programs at once the second finds nothing to do.

    The connection must be a session of its own, not one shared by a pooler: it holds a session's lock.
    """
    migrations = load() if migrations is None else migrations
    _check_server(connection)
    async with _lock(connection):
        await _create_record(connection)
        applied = await _applied(connection)
        _check_history(applied, migrations)
        pending = _pending(applied, migrations)
        for migration in pending:
            await _apply(connection, migration)
    return list(pending)


async def status(connection: Connection, migrations: Sequence[Migration] | None = None) -> Status:
    """Compare the database, empty or not, with this program."""
    migrations = load() if migrations is None else migrations
    applied = await _applied(connection)
    return Status(
        applied=applied,
        pending=_pending(applied, migrations),
        current=applied[-1].number if applied else 0,
        wanted=migrations[-1].number if migrations else 0,
    )


async def require_current(connection: Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Refuse to work on a database whose schema this program was not written for."""
    migrations = load() if migrations is None else migrations
    _check_server(connection)
    found = await status(connection, migrations)
    _check_history(found.applied, migrations)
    if found.pending:
        raise SchemaMismatch(_versus(found.current, found.wanted), hint="run `bellringer migrate`")


def _read(file: Traversable) -> Migration:
    named = re.fullmatch(r"(\d{3})_\w+\.sql", file.name)
    if named is None:
        raise ConfigError(f"{file.name} is not named like a migration", hint="name it NNN_what.sql")
    sql = file.read_text(encoding="utf-8").replace("\r\n", "\n")  # a checkout may have changed line ends
    checksum = hashlib.sha256(sql.encode()).hexdigest()
    return Migration(number=int(named[1]), name=file.name, sql=sql, checksum=checksum)


def _pending(applied: Sequence[Applied], migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    return tuple(migration for migration in migrations if migration.number > len(applied))


def _versus(current: int, wanted: int) -> str:
    return f"the database is at schema {current}, this program needs {wanted}"


def _check_server(connection: Connection) -> None:
    major = connection.get_server_version().major
    if major < OLDEST_SERVER:
        raise ConfigError(
            f"the server is PostgreSQL {major}", hint=f"bellringer needs PostgreSQL {OLDEST_SERVER} or later"
        )


def _check_history(applied: Sequence[Applied], migrations: Sequence[Migration]) -> None:
    """The database's steps must be the first of ours, unchanged."""
    if len(applied) > len(migrations):
        raise SchemaMismatch(
            _versus(applied[-1].number, len(migrations)),
            hint=f"upgrade bellringer to {applied[-1].program} or later",
        )
    for step, migration in zip(applied, migrations, strict=False):
        if (step.number, step.checksum) != (migration.number, migration.checksum):
            raise SchemaMismatch(
                f"migration {migration.name} is not the one applied to the database as {step.name} "
                f"on {step.applied_at:%Y-%m-%d %H:%M}",
                hint="applied migrations never change; put the file back, or add a new one",
            )


@asynccontextmanager
async def _lock(connection: Connection) -> AsyncIterator[None]:
    """One migrator at a time.

    Asked for again and again rather than waited for: a waiting statement holds a snapshot, and CREATE
    INDEX CONCURRENTLY in the other migrator would wait for it in turn, which is a deadlock.
    """
    while not await connection.fetchval(TRY_LOCK):  # noqa: ASYNC110 no event crosses processes here
        await asyncio.sleep(LOCK_POLL)
    try:
        yield
    finally:
        if not connection.is_closed():  # otherwise the lock went with the session
            await connection.execute(UNLOCK)


async def _create_record(connection: Connection) -> None:
    # Looked for first: IF NOT EXISTS asks for the right to create even where there is nothing to create.
    if not await connection.fetchval(HAS_SCHEMA):
        await connection.execute("create schema bellringer")
    if not await connection.fetchval(HAS_RECORD):
        await connection.execute(CREATE_RECORD)


async def _applied(connection: Connection) -> tuple[Applied, ...]:
    if not await connection.fetchval(HAS_RECORD):
        return ()
    return tuple(Applied(**dict(row)) for row in await connection.fetch(READ_RECORD))


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        if migration.is_transaction:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await _record(connection, migration)
            return
        for statement in re.split(r"^-- next\s*$", migration.sql, flags=re.MULTILINE):
            await connection.execute(statement)
        await _record(connection, migration)
    except asyncpg.PostgresError as error:
        kept = "nothing of it was" if migration.is_transaction else "its statements before the failed one were"
        raise BellringerError(f"migration {migration.name} failed: {error}", hint=f"{kept} kept") from error


async def _record(connection: Connection, migration: Migration) -> None:
    program = metadata.version("bellringer")
    await connection.execute(WRITE_RECORD, migration.number, migration.name, migration.checksum, program)
