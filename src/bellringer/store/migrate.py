"""Brings a database to this program's schema: numbered migrations for tables, and functions that are replaced.

`store/schema/NNN_what.sql` changes tables, types, indexes, policies and triggers. Each migration is applied once, in
order, and never edited after a release. Functions live in `store/functions/` and are applied again whenever one of
them has changed (`sql_functions.py`).

Pending migrations and changed functions are applied in one transaction. A migration whose first line is
`-- no transaction` (for CREATE INDEX CONCURRENTLY) commits everything before it; its statements, separated by lines
`-- next`, run one by one and must be repeatable, because a failure keeps the statements before the failed one.

A migration with the line `-- compatible from NNN` declares that programs which need schema NNN or later
still work once it is applied. Such programs keep serving, and may be restarted, while a newer release is
rolled out. Without that line a migration is incompatible with every older program. See docs/decisions/026.

A migration that waits for the lock of a table makes the statements of other programs wait behind it. So it waits
briefly (`LockRetries`), gives up, and repeats its transaction after a pause.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

import asyncpg

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.errors import BellringerError, ConfigError, SchemaMismatch, Unavailable
from bellringer.store.sql_functions import (
    Functions,
    apply_functions,
    apply_required,
    load_functions,
    newer_functions,
)
from bellringer.store.sql_functions import (
    is_current as functions_are_current,
)
from bellringer.store.sql_names import expand

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection | PoolConnectionProxy

OLDEST_SERVER: Final = 14
LOCK_POLL: Final = 0.1
LOCK_ERRORS: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
MIN_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 15.0

TRY_LOCK: Final = f"select pg_try_advisory_lock({AdvisoryLock.MIGRATION.value}, 0)"
UNLOCK: Final = f"select pg_advisory_unlock({AdvisoryLock.MIGRATION.value}, 0)"
HAS_SCHEMA: Final = "select to_regnamespace('bellringer') is not null"
HAS_RECORD: Final = "select to_regclass('bellringer.migrations') is not null"
CREATE_RECORD: Final = """
create table bellringer.migrations (
  number     integer primary key,
  name       text not null,
  checksum   text not null,
  program    text not null,
  applied_at timestamptz not null default pg_catalog.now(),
  compatible_from integer
)
"""
# By to_jsonb, so that a record table without the column can be read too.
READ_RECORD: Final = """
select number, name, checksum, program, applied_at, (to_jsonb(m) ->> 'compatible_from')::integer as compatible_from
from bellringer.migrations m order by number
"""
WRITE_RECORD: Final = """
insert into bellringer.migrations (number, name, checksum, program, compatible_from) values ($1, $2, $3, $4, $5)
"""
HAS_COMPATIBLE_FROM: Final = """
select exists (
  select from pg_attribute where attrelid = 'bellringer.migrations'::regclass and attname = 'compatible_from')
"""
ADD_COMPATIBLE_FROM: Final = "alter table bellringer.migrations add column compatible_from integer"
SET_SHARD_COUNT: Final = "select bellringer.set_shard_count($1)"
POSITIONS_ARE_AHEAD: Final = "select bellringer.positions_are_ahead()"
HAS_UPGRADES: Final = "select to_regclass('bellringer.upgrades') is not null"
READ_UPGRADES: Final = "select program, migrations, functions, at from bellringer.upgrades order by upgrade_id"
WRITE_UPGRADE: Final = "insert into bellringer.upgrades (program, migrations, functions) values ($1, $2, $3)"
# Transactions that hold locks of our tables, the oldest first. The server hides the names of other roles' sessions.
LOCK_HOLDERS: Final = """
select lock.pid, coalesce(nullif(activity.application_name, ''), activity.usename, 'unknown') as name,
       extract(epoch from clock_timestamp() - activity.xact_start)::float8 as seconds
from pg_locks lock
join pg_class class on class.oid = lock.relation and class.relnamespace = 'bellringer'::regnamespace
join pg_stat_activity activity on activity.pid = lock.pid
where lock.database = (select oid from pg_database where datname = current_database())
  and lock.granted and lock.pid <> pg_backend_pid()
group by 1, 2, 3 order by 3 desc nulls last limit 3
"""
# An index whose concurrent build failed stays behind as invalid, and IF NOT EXISTS would keep it.
INVALID_INDEX: Final = """
select format('bellringer.%I', class.relname) from pg_index index join pg_class class on class.oid = index.indexrelid
where class.relnamespace = 'bellringer'::regnamespace and class.relname = $1 and not index.indisvalid
"""
_CONCURRENT_INDEX: Final = re.compile(
    r"^\s*create\s+(?:unique\s+)?index\s+concurrently\s+(?:if\s+not\s+exists\s+)?(\w+)", re.IGNORECASE | re.MULTILINE
)
_COMPATIBLE: Final = re.compile(r"^-- compatible from (\d+)\s*$", re.MULTILINE)


# Only the owner of the schema can set it up; other roles may migrate a database in which nothing is pending.
SET_UP_ROW_SECURITY: Final = """
select case when pg_has_role(current_user, nspowner, 'USAGE') then bellringer.set_up_row_security() end
from pg_namespace where nspname = 'bellringer'
"""
# Repeated by every migration: an administrator may create the roles at any time. It takes a lock only for new tables.
SET_UP_SERVICE_ROLES: Final = """
select case when pg_has_role(current_user, nspowner, 'USAGE') then bellringer.set_up_service_roles() end
from pg_namespace where nspname = 'bellringer'
"""
HAS_SERVICE_ROLES: Final = "select to_regprocedure('bellringer.set_up_service_roles()') is not null"
HAS_ROW_SECURITY: Final = "select to_regprocedure('bellringer.row_security_is_on()') is not null"
ROW_SECURITY: Final = """
select bellringer.row_security_is_on() as is_on, bellringer.tenant_role() as role, current_user::text as owner
"""


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

    @property
    def compatible_from(self) -> int | None:
        """The oldest schema whose programs still work after this migration; None: only those that have it."""
        declared = _COMPATIBLE.search(self.sql)
        return None if declared is None else int(declared[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    """One step of the schema, as the database remembers it; `program` is the version that took it."""

    number: int
    name: str
    checksum: str
    program: str
    applied_at: datetime
    compatible_from: int | None = None

    def allows(self, schema: int) -> bool:
        """Whether a program that needs this schema works after this migration."""
        return schema >= (self.number if self.compatible_from is None else self.compatible_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """One call of `migrate` that changed something."""

    program: str
    migrations: Sequence[str]
    functions: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """Where a database stands, and where this program wants it."""

    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]
    current: int
    wanted: int
    functions_pending: bool = False

    @property
    def usable(self) -> bool:
        """Whether this program works on the database as it is."""
        is_complete = not self.pending and not self.functions_pending
        return is_complete and all(step.allows(self.wanted) for step in self.applied[self.wanted :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes that `migrate` made."""

    migrations: tuple[Migration, ...] = ()
    functions: bool = False  # functions were created, replaced or dropped
    newer_program: str | None = None  # the newer release whose schema or functions the database has

    def __bool__(self) -> bool:
        return bool(self.migrations) or self.functions


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRetries:
    """How long a migration waits for a lock, and how long it tries; `on_retry` gets a text before each pause."""

    timeout: timedelta = timedelta(seconds=1)
    give_up_after: timedelta = timedelta(minutes=5)
    on_retry: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSecurity:
    """Whether row-level security separates the tenants, and what turns it on."""

    is_on: bool
    role: str
    owner: str

    @property
    def remedy(self) -> str:
        return f"create role {self.role} nologin; grant {self.role} to {_quoted(self.owner)};"


def load(folder: Traversable | None = None) -> tuple[Migration, ...]:
    """This program's migrations, or those of another folder, numbered from 1 without a gap."""
    folder = folder or resources.files("bellringer.store") / "schema"
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")] if folder.is_dir() else []
    migrations = tuple(sorted(map(_read, files), key=lambda migration: (migration.number, migration.name)))
    if not migrations:
        raise ConfigError(f"there are no migrations in {folder}", hint="install bellringer again")
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise ConfigError(f"expected migration {expected:03}, found {migration.name}")
    return migrations


async def migrate(
    connection: Connection,
    migrations: Sequence[Migration] | None = None,
    functions: Functions | None = None,
    waits: LockRetries | None = None,
) -> Changes:
    """Apply pending migrations and changed functions. Of two programs at once the second finds nothing to do.

    Given migrations come without functions, unless these are given too. The functions of a newer program stay.
    The connection must be a session of its own, not one shared by a pooler: it holds a session's lock.
    """
    migrations, functions = _defaults(migrations, functions)
    _check_server(connection)
    async with _lock(connection), _settings(connection, waits := waits or LockRetries()):
        await _create_record(connection)
        applied = await _applied(connection)
        check_history(applied, migrations)
        pending = _pending(applied, migrations)
        updates = bool(functions.files) and (
            bool(pending) or not await _has_functions(connection, applied, migrations, functions)
        )
        if pending or updates:
            await _apply(connection, pending, functions if updates else Functions(), waits)
        await _set_up_row_security(connection, waits, again=bool(pending))
        newer = None if pending or updates else await _newer_program(connection, applied, migrations, functions)
    return Changes(migrations=pending, functions=updates, newer_program=newer)


async def status(
    connection: Connection, migrations: Sequence[Migration] | None = None, functions: Functions | None = None
) -> SchemaStatus:
    """Compare the database, empty or not, with this program."""
    migrations, functions = _defaults(migrations, functions)
    applied = await _applied(connection)
    return SchemaStatus(
        applied=applied,
        pending=_pending(applied, migrations),
        current=applied[-1].number if applied else 0,
        wanted=migrations[-1].number if migrations else 0,
        functions_pending=not await _has_functions(connection, applied, migrations, functions),
    )


async def upgrades(connection: Connection) -> list[Upgrade]:
    """The history of upgrades, oldest first."""
    if not await connection.fetchval(HAS_UPGRADES):
        return []
    return [Upgrade(**dict(row)) for row in await connection.fetch(READ_UPGRADES)]


async def set_shard_count(connection: Connection, shards: int) -> None:
    """Sets the number of shards. Raises ConfigError unless the installation is new and nothing runs."""
    if (problem := await connection.fetchval(SET_SHARD_COUNT, shards)) is not None:
        raise ConfigError(problem, hint="choose the number of shards before the first process starts")


async def row_security(connection: Connection) -> RowSecurity | None:
    """Whether row-level security is on for this role; None: the schema does not have it yet."""
    if not await connection.fetchval(HAS_ROW_SECURITY):
        return None
    found = await connection.fetchrow(ROW_SECURITY)
    assert found is not None
    return RowSecurity(**dict(found))


async def require_current(
    connection: Connection, migrations: Sequence[Migration] | None = None, functions: Functions | None = None
) -> None:
    """Refuse to work on a database whose schema is older than this program, or newer and not compatible with it."""
    migrations, functions = _defaults(migrations, functions)
    _check_server(connection)
    found = await status(connection, migrations, functions)
    check_history(found.applied, migrations)
    if found.pending:
        raise SchemaMismatch(_versus(found.current, found.wanted), hint="run `bellringer migrate`")
    if found.functions_pending:
        raise SchemaMismatch("the database has other functions than this program", hint="run `bellringer migrate`")
    if functions.files and await _positions_are_ahead(connection):
        raise SchemaMismatch(
            "the database was restored from a dump: its stored commit positions are ahead of this server",
            hint="run `bellringer restore finish`; docs/backup.md describes it",
        )


async def _positions_are_ahead(connection: Connection) -> bool:
    """Whether stored commit positions are ahead of the server's. Roles that may not read them are not refused."""
    try:
        return bool(await connection.fetchval(POSITIONS_ARE_AHEAD))
    except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError):
        return False


def _defaults(
    migrations: Sequence[Migration] | None, functions: Functions | None
) -> tuple[Sequence[Migration], Functions]:
    if migrations is None:
        return load(), functions or load_functions()
    return migrations, functions or Functions()


async def _has_functions(
    connection: Connection, applied: Sequence[AppliedMigration], migrations: Sequence[Migration], functions: Functions
) -> bool:
    """A schema that is newer than this program, and compatible with it, comes with its own functions."""
    return len(applied) > len(migrations) or await functions_are_current(connection, functions)


async def _newer_program(
    connection: Connection, applied: Sequence[AppliedMigration], migrations: Sequence[Migration], functions: Functions
) -> str | None:
    """The newer release that has migrated the database, if this program works with it as an older one."""
    if len(applied) > len(migrations):
        return applied[-1].program
    return await newer_functions(connection, functions)


def _read(file: Traversable) -> Migration:
    named = re.fullmatch(r"(\d{3})_\w+\.sql", file.name)
    if named is None:
        raise ConfigError(f"{file.name} is not named like a migration", hint="name it NNN_what.sql")
    sql = file.read_text(encoding="utf-8").replace("\r\n", "\n")  # a checkout may have changed line ends
    checksum = hashlib.sha256(sql.encode()).hexdigest()
    return Migration(number=int(named[1]), name=file.name, sql=sql, checksum=checksum)


def _pending(applied: Sequence[AppliedMigration], migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    return tuple(migration for migration in migrations if migration.number > len(applied))


def _versus(current: int, wanted: int) -> str:
    return f"the database is at schema {current}, this program needs {wanted}"


def _check_server(connection: Connection) -> None:
    major = connection.get_server_version().major
    if major < OLDEST_SERVER:
        raise ConfigError(
            f"the server is PostgreSQL {major}", hint=f"bellringer needs PostgreSQL {OLDEST_SERVER} or later"
        )


def check_history(applied: Sequence[AppliedMigration], migrations: Sequence[Migration]) -> None:
    """The database's steps must begin with ours, unchanged; steps that follow must be compatible with this program."""
    ours = len(migrations)
    for step in applied[ours:]:
        if not step.allows(ours):
            raise SchemaMismatch(
                f"{_versus(applied[-1].number, ours)}, and {step.name} is not compatible with it",
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
    elif not await connection.fetchval(HAS_COMPATIBLE_FROM):
        await connection.execute(ADD_COMPATIBLE_FROM)


async def _applied(connection: Connection) -> tuple[AppliedMigration, ...]:
    if not await connection.fetchval(HAS_RECORD):
        return ()
    return tuple(AppliedMigration(**dict(row)) for row in await connection.fetch(READ_RECORD))


@asynccontextmanager
async def _settings(connection: Connection, waits: LockRetries) -> AsyncIterator[None]:
    """Waits briefly for locks; the statements themselves may take long."""
    await connection.execute(f"set lock_timeout = {_milliseconds(waits.timeout)}; set statement_timeout = 0")
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("reset lock_timeout; reset statement_timeout")


def _milliseconds(wait: timedelta) -> int:
    return round(wait.total_seconds() * 1000)


async def _apply(
    connection: Connection, pending: Sequence[Migration], functions: Functions, waits: LockRetries
) -> None:
    together: list[Migration] = []
    for migration in pending:
        if migration.is_transaction:
            together.append(migration)
            continue
        if together:
            await _apply_together(connection, together, functions, waits)
            together = []
        await _apply_one_by_one(connection, migration, waits)
    await _apply_together(connection, together, functions, waits, upgrade=pending)


async def _apply_together(
    connection: Connection,
    migrations: Sequence[Migration],
    functions: Functions,
    waits: LockRetries,
    *,
    upgrade: Sequence[Migration] | None = None,
) -> None:
    """Applies the migrations in one transaction. The last transaction of an upgrade also replaces the functions and
    records the upgrade, with all of its migrations.
    """

    async def apply() -> None:
        async with connection.transaction():
            await apply_required(connection, functions)
            for migration in migrations:
                await _execute(connection, migration, expand(migration.sql), "nothing of it was kept")
                await _record(connection, migration)
            if upgrade is not None:
                await apply_functions(connection, functions)
                await _record_upgrade(connection, upgrade, functions=bool(functions.files))

    await _retry_locks(connection, waits, apply)


async def _apply_one_by_one(connection: Connection, migration: Migration, waits: LockRetries) -> None:
    hint = "its statements before the failed one were kept"
    for statement in re.split(r"^-- next\s*$", expand(migration.sql), flags=re.MULTILINE):
        if index := _CONCURRENT_INDEX.search(statement):
            await _build_index(connection, migration, statement, index[1], hint)
        else:
            await _retry_locks(connection, waits, partial(_execute, connection, migration, statement, hint))
    await _record(connection, migration)


async def _build_index(connection: Connection, migration: Migration, statement: str, name: str, hint: str) -> None:
    """Builds an index concurrently. Nothing queues behind it, so it may wait for old transactions."""
    lock_timeout = await connection.fetchval("select current_setting('lock_timeout')")
    await connection.execute("set lock_timeout = 0")
    try:
        if (invalid := await connection.fetchval(INVALID_INDEX, name)) is not None:
            await connection.execute(f"drop index concurrently {invalid}")
        await _execute(connection, migration, statement, hint)
    finally:
        if not connection.is_closed():
            await connection.execute(f"set lock_timeout = '{lock_timeout}'")


async def _execute(connection: Connection, migration: Migration, sql: str, hint: str) -> None:
    try:
        await connection.execute(sql)
    except LOCK_ERRORS:
        raise
    except asyncpg.PostgresError as error:
        raise BellringerError(f"migration {migration.name} failed: {error}", hint=hint) from error


async def _retry_locks(connection: Connection, waits: LockRetries, step: Callable[[], Awaitable[object]]) -> None:
    """Repeats a step, which had no effect, while other transactions hold the locks that it needs."""
    loop = asyncio.get_running_loop()
    ends, pause = loop.time() + waits.give_up_after.total_seconds(), MIN_RETRY_SECONDS
    while True:
        try:
            await step()
            return
        except LOCK_ERRORS as error:
            holders = await _lock_holders(connection)
            if loop.time() + pause > ends:
                raise Unavailable(
                    f"a table is locked by other transactions ({holders}): {error}",
                    hint="end these transactions, or migrate while fewer of them run; `bellringer doctor` lists them",
                ) from error
            waits.on_retry(f"a table is locked by {holders}; trying again in {pause:g} s")
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - keeps out of step with periodic work
        pause = min(pause * 2, MAX_RETRY_SECONDS)


async def _lock_holders(connection: Connection) -> str:
    rows = await connection.fetch(LOCK_HOLDERS)
    return ", ".join(f"{row['name']} (pid {row['pid']}, {row['seconds'] or 0:.0f} s)" for row in rows) or "nobody now"


async def _set_up_row_security(connection: Connection, waits: LockRetries, *, again: bool) -> None:
    """Repeated by each migration until it is on, because an administrator may create the role at any time; and after
    migrations, because the role needs privileges on new tables.
    """
    found = await row_security(connection)
    if found is not None and (again or not found.is_on):
        await _retry_locks(connection, waits, partial(connection.execute, SET_UP_ROW_SECURITY))
    if await connection.fetchval(HAS_SERVICE_ROLES):
        await _retry_locks(connection, waits, partial(connection.execute, SET_UP_SERVICE_ROLES))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


async def _record(connection: Connection, migration: Migration) -> None:
    program = metadata.version("bellringer")
    values = (migration.number, migration.name, migration.checksum, program, migration.compatible_from)
    await connection.execute(WRITE_RECORD, *values)


async def _record_upgrade(connection: Connection, migrations: Sequence[Migration], *, functions: bool) -> None:
    if await connection.fetchval(HAS_UPGRADES):
        names = [migration.name for migration in migrations]
        await connection.execute(WRITE_UPGRADE, metadata.version("bellringer"), names, functions)
