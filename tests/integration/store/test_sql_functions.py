"""Functions are code: `migrate` makes the functions of a database those of the program."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib import resources
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.core.run_blocked_flags import Blocked
from bellringer.errors import BellringerError, ConfigError, SchemaMismatch
from bellringer.store import sql_functions
from bellringer.store.migrate import Changes, SchemaStatus, load, migrate, require_current, status
from bellringer.store.sql_functions import Functions, load_functions
from bellringer.store.sql_names import NAMES, PLANNER_SETTINGS, expand
from bellringer.testing.postgres import TestServer

BELLS = """
set local search_path to bellringer;
create table bells (n integer);
create trigger counted after insert on bells for each statement execute function count_bells();
"""
COUNT = """
create or replace function count_bells() returns trigger language plpgsql as $$
begin
  raise notice '% bells', ring_count();
  return null;
end $$;
"""
RINGS = "create or replace function ring_count() returns bigint language sql as $$ select count(*) from bells $$;\n"
PITCH = "create or replace function pitch(p_n integer) returns integer language sql as $$ select p_n $$;\n"


@pytest.fixture
async def connections(bellringer_server: TestServer) -> AsyncIterator[list[asyncpg.Connection[Any]]]:
    """Two sessions in an empty database."""
    dsn = await bellringer_server.create_empty()
    async with AsyncExitStack() as stack:
        opened = [await asyncpg.connect(dsn) for _ in range(2)]
        for connection in opened:
            stack.push_async_callback(connection.close)
        yield opened
    await bellringer_server.drop(dsn)


class Source:
    """A program's folders of migrations and functions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "schema").mkdir()
        self.migration("001_bells.sql", BELLS)
        self.function("required_by_schema/trigger.sql", COUNT)
        self.function("bells/rings.sql", RINGS)
        self.function("bells/pitch.sql", PITCH)

    def migration(self, name: str, sql: str) -> None:
        (self._folder / "schema" / name).write_text(sql)

    def function(self, name: str, sql: str | None) -> None:
        file = self._folder / "functions" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True) if sql is None else file.write_text(sql)

    @property
    def functions(self) -> Functions:
        return load_functions(self._folder / "functions")

    async def migrate(self, connection: asyncpg.Connection[Any]) -> Changes:
        return await migrate(connection, load(self._folder / "schema"), self.functions)

    async def status(self, connection: asyncpg.Connection[Any]) -> SchemaStatus:
        return await status(connection, load(self._folder / "schema"), self.functions)

    async def require(self, connection: asyncpg.Connection[Any]) -> None:
        await require_current(connection, load(self._folder / "schema"), self.functions)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


async def names(connection: asyncpg.Connection[Any]) -> set[str]:
    rows = await connection.fetch(
        "select oid::regprocedure::text from pg_proc where pronamespace = 'bellringer'::regnamespace"
    )
    return {row[0].removeprefix("bellringer.") for row in rows}


async def test_schema_and_functions_are_applied_together_and_once(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    connection = connections[0]
    changes = await source.migrate(connection)
    assert ([m.number for m in changes.migrations], changes.functions) == ([1], True)
    assert await names(connection) == {"count_bells()", "ring_count()", "pitch(integer)"}
    await connection.execute("set search_path to bellringer; insert into bells values (1)")
    assert not await source.migrate(connection)
    await source.require(connection)


async def test_an_edited_function_is_applied_again_and_nothing_else_runs(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    source.function("bells/pitch.sql", PITCH.replace("select p_n", "select p_n + 1"))
    with pytest.raises(SchemaMismatch, match="other functions than this program; run `bellringer migrate`"):
        await source.require(connection)
    changes = await source.migrate(connection)
    assert (changes.migrations, changes.functions) == ((), True)
    assert await connection.fetchval("select bellringer.pitch(1)") == 2
    assert await connection.fetchval("select count(*) from bellringer.migrations") == 1
    await source.require(connection)


async def test_a_removed_function_disappears(source: Source, connections: list[asyncpg.Connection[Any]]) -> None:
    connection = connections[0]
    await source.migrate(connection)
    source.function("bells/pitch.sql", None)
    assert (await source.migrate(connection)).functions
    assert await names(connection) == {"count_bells()", "ring_count()"}


@pytest.mark.parametrize(
    ("changed", "signature"),
    [
        (PITCH.replace("returns integer", "returns bigint"), "pitch(integer)"),
        (PITCH.replace("p_n", "p_number"), "pitch(integer)"),
        (PITCH.replace("p_n integer", "p_n bigint").replace("returns integer", "returns bigint"), "pitch(bigint)"),
        (PITCH + PITCH.replace("p_n integer", "p_n text").replace("returns integer", "returns text"), "pitch(text)"),
    ],
)
async def test_a_changed_signature_replaces_the_function(
    source: Source, connections: list[asyncpg.Connection[Any]], changed: str, signature: str
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    source.function("bells/pitch.sql", changed)
    await source.migrate(connection)
    found = {name for name in await names(connection) if name.startswith("pitch")}
    assert found == ({signature, "pitch(integer)"} if signature == "pitch(text)" else {signature})


async def test_an_overload_with_another_result_does_not_take_its_sibling_along(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    connection = connections[0]
    by_text = PITCH.replace("p_n integer", "p_n text").replace("returns integer", "returns text")
    source.function("bells/pitch.sql", PITCH + by_text)
    await source.migrate(connection)
    source.function("bells/pitch.sql", PITCH + by_text.replace("p_n", "p_name"))
    await source.migrate(connection)
    assert {"pitch(integer)", "pitch(text)"} <= await names(connection)


async def test_a_running_program_calls_a_function_that_got_a_parameter_and_result_columns(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    """Its statements are prepared: one with fewer arguments, one that names its columns, and one with a star."""
    migrator, program = connections
    tones = "create or replace function tones() returns table (n integer) language sql as $$ select 1 $$;\n"
    source.function("bells/tones.sql", tones)
    await source.migrate(migrator)
    calls = ("select bellringer.pitch(1)", "select n from bellringer.tones()", "select * from bellringer.tones()")
    assert [tuple(row) for call in calls for row in await program.fetch(call)] == [(1,), (1,), (1,)]
    source.function("bells/pitch.sql", PITCH.replace("p_n integer", "p_n integer, p_more integer default 5"))
    source.function("bells/tones.sql", tones.replace("n integer", "n integer, name text").replace("1 $", "1, 'c' $"))
    await source.migrate(migrator)
    assert {"pitch(integer,integer)", "tones()"} <= await names(migrator)
    assert "pitch(integer)" not in await names(migrator)
    assert [tuple(row) for call in calls for row in await program.fetch(call)] == [(1,), (1,), (1, "c")]


async def test_of_two_migrators_at_once_one_updates_the_functions(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    changes = await asyncio.gather(*(source.migrate(connection) for connection in connections))
    assert sorted(bool(change) for change in changes) == [False, True]
    source.function("bells/pitch.sql", PITCH.replace("select p_n", "select -p_n"))
    changes = await asyncio.gather(*(source.migrate(connection) for connection in connections))
    assert sorted(change.functions for change in changes) == [False, True]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (
            PITCH.replace("select p_n", "select n from nowhere"),
            r"pitch\(integer\): relation \"nowhere\" does not exist",
        ),
        (PITCH.replace("returns integer", "returns nothing"), r"bells/pitch\.sql failed: type \"nothing\""),
        (
            "create or replace function pitch(p_n integer) returns void language plpgsql as $$ begin bug end $$;\n",
            r"pitch\(integer\): ",
        ),
    ],
)
async def test_a_failure_leaves_the_database_as_it_was(
    source: Source, connections: list[asyncpg.Connection[Any]], broken: str, says: str
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    source.migration("002_ropes.sql", "create table bellringer.ropes (n integer);")
    source.function("bells/rings.sql", RINGS.replace("count(*)", "2 * count(*)"))
    source.function("bells/pitch.sql", broken)
    with pytest.raises(BellringerError, match=says):
        await source.migrate(connection)
    assert await connection.fetchval("select to_regclass('bellringer.ropes')") is None
    assert await connection.fetchval("select bellringer.pitch(1)") == 1
    body = await connection.fetchval("select prosrc from pg_proc where proname = 'ring_count'")
    assert "2 *" not in body
    source.function("bells/rings.sql", RINGS)
    source.function("bells/pitch.sql", PITCH)
    assert [m.number for m in (await source.migrate(connection)).migrations] == [2]


async def test_a_function_that_a_trigger_needs_is_not_dropped(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    source.function("required_by_schema/trigger.sql", None)
    with pytest.raises(
        BellringerError, match=r"cannot drop function count_bells\(\) because other objects depend on it"
    ):
        await source.migrate(connection)
    assert "count_bells()" in await names(connection)


async def test_the_functions_of_a_newer_program_are_accepted_and_stay(
    source: Source, connections: list[asyncpg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    await connection.execute("update bellringer.applied_functions set checksum = 'x', program = '99.0'")
    await source.require(connection)
    assert not await source.migrate(connection)
    monkeypatch.setattr(sql_functions, "_program", lambda: "100.0")
    with pytest.raises(SchemaMismatch, match="other functions"):
        await source.require(connection)
    assert (await source.migrate(connection)).functions


async def test_the_functions_of_a_newer_compatible_schema_stay(
    source: Source, connections: list[asyncpg.Connection[Any]], tmp_path: Path
) -> None:
    connection = connections[0]
    source.migration("002_ropes.sql", "-- compatible from 1\ncreate table bellringer.ropes (n integer);")
    await source.migrate(connection)
    source.function("bells/pitch.sql", None)
    (tmp_path / "schema" / "002_ropes.sql").unlink()
    assert not await source.migrate(connection)
    await source.require(connection)
    assert "pitch(integer)" in await names(connection)


async def test_functions_of_an_extension_are_left_alone(
    source: Source, connections: list[asyncpg.Connection[Any]]
) -> None:
    connection = connections[0]
    await source.migrate(connection)
    await connection.execute("create function bellringer.peal() returns integer language sql as 'select 1'")
    await connection.execute("alter extension plpgsql add function bellringer.peal()")
    source.function("bells/pitch.sql", None)
    await source.migrate(connection)
    assert await names(connection) == {"count_bells()", "ring_count()", "peal()"}


async def test_the_status_names_pending_functions(source: Source, connections: list[asyncpg.Connection[Any]]) -> None:
    connection = connections[0]
    await source.migrate(connection)
    assert (await source.status(connection)).usable
    source.function("bells/pitch.sql", None)
    found = await source.status(connection)
    assert (found.pending, found.functions_pending, found.usable) == ((), True, False)


def test_files_are_applied_in_the_order_of_their_needs() -> None:
    files = [file.name for file in load_functions().files]
    assert files == sorted(
        files, key=lambda n: (n.startswith("applied_last"), not n.startswith("required_by_schema"), n)
    )
    assert files[0].startswith("required_by_schema/")
    assert files[-1].startswith("applied_last/")


def test_each_function_is_defined_once() -> None:
    """Overloads of one name stand in one file."""
    where: dict[str, set[str]] = {}
    for file in load_functions().files:
        for statement in file.statements:
            if statement.startswith("create"):
                where.setdefault(statement.split("(")[0].split()[-1], set()).add(file.name)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_sql_names_have_the_values_of_their_enumerations() -> None:
    assert expand("blocked & SENT = SENT") == "blocked & 64/*SENT*/ = 64/*SENT*/"
    assert expand("lock(LOCK_SHARD, s)") == "lock(77/*LOCK_SHARD*/, s)"
    for name, bits in Blocked.__members__.items():
        assert NAMES[name].startswith(f"{int(bits)}/*")
    for space in AdvisoryLock:
        assert NAMES[f"LOCK_{space.name}"].startswith(f"{int(space)}/*")
    with pytest.raises(ConfigError, match="LOCK_NOTHING is not a name"):
        expand("lock(LOCK_NOTHING, 1)")


BARE = re.compile(
    r"blocked\b[^,;]{0,12}[&|] ?~?\(?\d"  # a bit
    r"|blocked (?:\+ 0 )?= (?!0\b)\d"
    r"|advisory_\w*lock\w*\(\d"
    r"|set enable_\w+ = off set enable_\w+ = off set enable_\w+ = off"
)


def test_no_file_uses_a_bare_bit_or_lock_number_or_repeats_the_planner_settings() -> None:
    files = [file for file in Path(str(resources.files("bellringer"))).rglob("*.sql") if "harness" not in file.parts]
    assert len(files) > 100
    found = [f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if BARE.search(line)]
    assert found == []


def pinned_functions() -> dict[str, str]:
    """The planner profile that each function names in its file."""
    folder = Path(str(resources.files("bellringer.store") / "functions"))
    return {
        statement.split("(")[0]: profile
        for file in folder.rglob("*.sql")
        for statement in file.read_text().split("create or replace function ")[1:]
        for profile in PLANNER_SETTINGS
        if re.search(rf"\b{profile}\b", statement.partition("$$")[0])
    }


async def test_every_function_with_pinned_plans_has_all_settings_of_its_profile(bellringer_server: TestServer) -> None:
    wanted = pinned_functions()
    assert {"tick", "claim", "settle", "list_runs"} <= wanted.keys()
    async with bellringer_server.database() as dsn:
        connection = await asyncpg.connect(dsn)
        rows = await connection.fetch(
            "select proname, proconfig from pg_proc where proname = any ($1) and proconfig::text like '%enable%'",
            list(wanted),
        )
        await connection.close()
    assert {row["proname"] for row in rows} == wanted.keys()
    for row in rows:
        settings = dict(item.split("=", 1) for item in row["proconfig"])
        for setting in PLANNER_SETTINGS[wanted[row["proname"]]].removeprefix("set ").split(" set "):
            name, value = setting.split(" = ")
            assert settings.get(name) == value, row["proname"]
