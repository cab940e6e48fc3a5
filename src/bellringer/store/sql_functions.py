"""The functions of the database: code, not history. `migrate` applies all of them again whenever a file has changed.

`store/functions/` holds one function or one family of functions per file, in folders by subject. Two folders are
special. `required_by_schema/` is applied before pending schema migrations, because triggers, policies and the first
partitions need these functions; they take no table as an argument. `applied_last/` is applied after all other files.

Files are applied in one transaction. Each statement is `create or replace function` or a `do` block. A function whose
result or argument names have changed is dropped and created again; a function that no file defines any more is dropped.
Bodies are checked once all functions exist, so files may call each other in any order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

import asyncpg

from bellringer.errors import BellringerError
from bellringer.store.sql_names import expand

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection | PoolConnectionProxy

REQUIRED_BY_SCHEMA: Final = "required_by_schema"
APPLIED_LAST: Final = "applied_last"
_STATEMENT: Final = re.compile(r"^(?=create or replace function |do \$\$)", re.MULTILINE)
_DEFINES: Final = re.compile(r"^create or replace function (?:bellringer\.)?(\w+)")

HAS_RECORD: Final = "select to_regclass('bellringer.applied_functions') is not null"
CREATE_RECORD: Final = """
create table bellringer.applied_functions (
  only_row   boolean primary key default true check (only_row),
  checksum   text not null,
  program    text not null,
  applied_at timestamptz not null default pg_catalog.now()
)
"""
READ_RECORD: Final = "select checksum, program from bellringer.applied_functions"
WRITE_RECORD: Final = """
insert into bellringer.applied_functions (checksum, program) values ($1, $2)
on conflict (only_row) do update
set checksum = excluded.checksum, program = excluded.program, applied_at = pg_catalog.now()
"""
# A definition that was replaced has another xmin than before; this holds for subtransactions too.
DEFINITIONS: Final = """
select p.oid, p.xmin::text as version from pg_proc p
where p.pronamespace = 'bellringer'::regnamespace
  and not exists (
    select 1 from pg_depend d where d.objid = p.oid and d.classid = 'pg_proc'::regclass and d.deptype = 'e')
"""
OLD_OVERLOADS: Final = """
select oid::regprocedure::text as signature from pg_proc
where oid = any ($1::oid[]) and ($2::text is null or proname = $2)
"""
CHECK_BODIES: Final = """
do $$
declare f record;
begin
  set local check_function_bodies = on;
  for f in
    select p.oid, l.lanname from pg_proc p join pg_language l on l.oid = p.prolang
    where p.pronamespace = 'bellringer'::regnamespace and l.lanname in ('sql', 'plpgsql')
  loop
    begin
      if f.lanname = 'sql' then perform fmgr_sql_validator(f.oid); else perform plpgsql_validator(f.oid); end if;
    exception when others then
      raise exception '%: %', f.oid::regprocedure, sqlerrm using errcode = sqlstate;
    end;
  end loop;
end $$
"""


@dataclass(frozen=True, slots=True)
class FunctionFile:
    name: str
    sql: str

    @property
    def statements(self) -> list[str]:
        return [statement for statement in _STATEMENT.split(self.sql) if _STATEMENT.match(statement)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """All functions of this program, in the order in which they are applied."""

    files: tuple[FunctionFile, ...] = ()

    @property
    def required_by_schema(self) -> tuple[FunctionFile, ...]:
        return tuple(file for file in self.files if file.name.startswith(REQUIRED_BY_SCHEMA))

    @property
    def checksum(self) -> str:
        """A digest of the texts that the database gets, with the values of all names in them."""
        return hashlib.sha256(
            "\0".join(part for file in self.files for part in (file.name, file.sql)).encode()
        ).hexdigest()


def load_functions(folder: Traversable | None = None) -> Functions:
    """This program's functions, or those of another folder."""
    found = sorted(_read(folder or resources.files("bellringer.store") / "functions"), key=_order)
    return Functions(files=tuple(found))


async def is_current(connection: Connection, functions: Functions) -> bool:
    """Whether the database has these functions, or those of a newer program."""
    if not functions.files:
        return True
    found = await _recorded(connection)
    return found is not None and (found["checksum"] == functions.checksum or _is_newer(found["program"]))


async def newer_functions(connection: Connection, functions: Functions) -> str | None:
    """The newer release whose functions the database has."""
    found = await _recorded(connection)
    if found is None or found["checksum"] == functions.checksum or not _is_newer(found["program"]):
        return None
    return str(found["program"])


async def apply_required(connection: Connection, functions: Functions) -> None:
    """Create or replace the functions that schema migrations need. To be called in a transaction."""
    if functions.files:
        await _prepare(connection)
        for file in functions.required_by_schema:
            await _apply(connection, file, await _definitions(connection))


async def apply_functions(connection: Connection, functions: Functions) -> None:
    """Make the functions of the database those of this program. To be called in a transaction."""
    if not functions.files:
        return
    await _prepare(connection)
    before = await _definitions(connection)
    for file in functions.files:
        await _apply(connection, file, before)
    try:
        await _drop(connection, await _untouched(connection, before))
        await connection.execute(CHECK_BODIES)
    except asyncpg.PostgresError as error:
        raise BellringerError(f"the functions could not be applied: {error}", hint="nothing was changed") from error
    if not await connection.fetchval(HAS_RECORD):
        await connection.execute(CREATE_RECORD)
    await connection.execute(WRITE_RECORD, functions.checksum, _program())


def _read(folder: Traversable, prefix: str = "") -> list[FunctionFile]:
    if not folder.is_dir():
        return []
    found: list[FunctionFile] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".sql"):
            text = entry.read_text(encoding="utf-8").replace("\r\n", "\n")  # a checkout may have changed line ends
            found.append(FunctionFile(prefix + entry.name, expand(text)))
    return found


def _order(file: FunctionFile) -> tuple[bool, bool, str]:
    folder = file.name.partition("/")[0]
    return folder == APPLIED_LAST, folder != REQUIRED_BY_SCHEMA, file.name


async def _prepare(connection: Connection) -> None:
    await connection.execute("set local search_path to bellringer; set local check_function_bodies = off")


async def _definitions(connection: Connection) -> dict[int, str]:
    return {row["oid"]: row["version"] for row in await connection.fetch(DEFINITIONS)}


async def _untouched(connection: Connection, before: Mapping[int, str]) -> list[int]:
    now = await _definitions(connection)
    return [oid for oid, version in before.items() if now.get(oid) == version]


async def _apply(connection: Connection, file: FunctionFile, before: Mapping[int, str]) -> None:
    """Applies a file with one request, which matters while the transaction holds locks of migrations; if a function has
    another interface than before, statement by statement.
    """
    try:
        try:
            async with connection.transaction():
                await connection.execute("".join(file.statements))
        except asyncpg.InvalidFunctionDefinitionError:
            for statement in file.statements:
                await _replace(connection, statement, before)
    except asyncpg.PostgresError as error:
        raise BellringerError(f"{file.name} failed: {error}", hint="nothing was changed") from error


async def _replace(connection: Connection, statement: str, before: Mapping[int, str]) -> None:
    try:
        async with connection.transaction():
            await connection.execute(statement)
    except asyncpg.InvalidFunctionDefinitionError:  # another result or other argument names than before
        defines = _DEFINES.match(statement)
        if defines is None:
            raise
        await _drop(connection, await _untouched(connection, before), defines[1])
        await connection.execute(statement)


async def _drop(connection: Connection, oids: list[int], name: str | None = None) -> None:
    for row in await connection.fetch(OLD_OVERLOADS, oids, name):
        await connection.execute(f"drop function {row['signature']}")


async def _recorded(connection: Connection) -> asyncpg.Record | None:
    return await connection.fetchrow(READ_RECORD) if await connection.fetchval(HAS_RECORD) else None


def _is_newer(program: str) -> bool:
    return parse_release(program) > parse_release(_program())


def _program() -> str:
    return metadata.version("bellringer")


def parse_release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare two of them."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version, maxsplit=1)[0])))
