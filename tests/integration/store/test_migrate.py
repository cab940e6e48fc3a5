"""The migration runner, on a real server: each test has an empty database of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.errors import BellringerError, ConfigError, SchemaMismatch
from bellringer.store.migrate import UNLOCK, Changes, Migration, load, migrate, require_current, status
from bellringer.testing.postgres import TestServer

BELLS = "create table bellringer.bells (n integer);\ninsert into bellringer.bells values (1);\n"
ROPES = "set local search_path to bellringer;\nalter table bells add rope text;\n"
INDEXES = """-- no transaction
create index concurrently if not exists bells_n on bellringer.bells (n);
-- next
create index concurrently if not exists bells_rope on bellringer.bells (rope);
"""


class Database:
    """Opens connections to one database; all are closed at the end."""

    def __init__(self, dsn: str, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._stack = stack

    async def connect(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(self._dsn)
        self._stack.push_async_callback(connection.close)
        return connection


@pytest.fixture
async def database(bellringer_server: TestServer) -> AsyncIterator[Database]:
    dsn = await bellringer_server.create_empty()
    async with AsyncExitStack() as stack:
        yield Database(dsn, stack)
    await bellringer_server.drop(dsn)


def written(folder: Path, *scripts: str) -> tuple[Migration, ...]:
    """Migrations 001, 002, … made of these scripts."""
    for number, script in enumerate(scripts, start=1):
        (folder / f"{number:03}_step.sql").write_text(script)
    return load(folder)


def numbers(changes: Changes) -> list[int]:
    return [migration.number for migration in changes.migrations]


async def test_pending_migrations_are_applied_in_order_and_only_once(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    assert numbers(await migrate(connection, written(tmp_path, BELLS))) == [1]
    assert numbers(await migrate(connection, written(tmp_path, BELLS, ROPES))) == [2]
    assert not await migrate(connection, load(tmp_path))
    assert await connection.fetchval("select count(*) from bellringer.bells where rope is null") == 1


async def test_the_status_of_an_empty_database_is_that_everything_is_pending(
    tmp_path: Path, database: Database
) -> None:
    migrations = written(tmp_path, BELLS, ROPES)
    found = await status(await database.connect(), migrations)
    assert (found.applied, found.pending, found.current, found.wanted) == ((), migrations, 0, 2)


async def test_the_status_shows_what_was_applied_and_what_is_pending(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES)
    await migrate(connection, migrations[:1])
    found = await status(connection, migrations)
    assert [(step.number, step.name, step.checksum) for step in found.applied] == [
        (1, "001_step.sql", migrations[0].checksum)
    ]
    assert (found.pending, found.current, found.wanted) == (migrations[1:], 1, 2)


async def test_a_failed_migration_is_named_and_leaves_nothing_behind(tmp_path: Path, database: Database) -> None:
    """Not even the migrations before it, so that a release is applied as a whole or not at all."""
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, "create table bellringer.half (n int); select nonsense;")
    with pytest.raises(BellringerError, match=r"002_step\.sql failed: .*nonsense.*nothing of it was kept"):
        await migrate(connection, migrations)
    assert await connection.fetchval("select to_regclass('bellringer.half')") is None
    assert await connection.fetchval("select to_regclass('bellringer.bells')") is None
    assert (await status(connection, migrations)).current == 0


async def test_the_lock_is_released_after_success_and_after_failure(tmp_path: Path, database: Database) -> None:
    first, second = await database.connect(), await database.connect()
    await migrate(first, written(tmp_path, BELLS))
    with pytest.raises(BellringerError, match="failed"):
        await migrate(first, written(tmp_path, BELLS, "select nonsense"))
    assert numbers(await migrate(second, written(tmp_path, BELLS, ROPES))) == [2]


async def test_of_several_migrators_at_once_one_applies_and_the_others_find_nothing_to_do(
    tmp_path: Path, database: Database
) -> None:
    migrations = written(tmp_path, BELLS, ROPES, INDEXES)  # a waiter with a snapshot would deadlock the third
    connections = [await database.connect() for _ in range(4)]
    applied = await asyncio.gather(*(migrate(connection, migrations) for connection in connections))
    assert sorted(map(numbers, applied)) == [[], [], [], [1, 2, 3]]


async def test_a_migrator_waits_while_another_holds_the_lock(tmp_path: Path, database: Database) -> None:
    holder, waiter = await database.connect(), await database.connect()
    await holder.execute("select pg_advisory_lock($1, 0)", AdvisoryLock.MIGRATION)
    tried = asyncio.Event()
    waiter.add_query_logger(lambda record: tried.set())
    waiting = asyncio.create_task(migrate(waiter, written(tmp_path, BELLS)))
    await tried.wait()
    assert await holder.fetchval("select to_regnamespace('bellringer')") is None
    await holder.execute(UNLOCK)
    assert numbers(await waiting) == [1]


async def test_statements_without_a_transaction_run_one_by_one_and_can_be_repeated(
    tmp_path: Path, database: Database
) -> None:
    connection = await database.connect()
    broken = INDEXES.replace("(rope)", "(no_such_column)")
    with pytest.raises(BellringerError, match=r"003_step\.sql .* before the failed one were kept"):
        await migrate(connection, written(tmp_path, BELLS, ROPES, broken))
    assert await connection.fetchval("select to_regclass('bellringer.bells_n')") is not None
    assert numbers(await migrate(connection, written(tmp_path, BELLS, ROPES, INDEXES))) == [3]


async def test_a_changed_file_is_refused_by_name(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    await migrate(connection, written(tmp_path, BELLS))
    changed = written(tmp_path, BELLS + "-- an afterthought\n")
    for refuse in (migrate, require_current):
        with pytest.raises(SchemaMismatch, match=r"001_step\.sql"):
            await refuse(connection, changed)


async def test_a_program_that_needs_more_is_asked_to_migrate(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES)
    with pytest.raises(SchemaMismatch, match="at schema 0, this program needs 2; run `bellringer migrate`"):
        await require_current(connection, migrations)
    await migrate(connection, migrations)
    await require_current(connection, migrations)


async def test_a_program_older_than_the_database_is_asked_to_upgrade(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES)
    await migrate(connection, migrations)
    for refuse in (migrate, require_current):
        with pytest.raises(SchemaMismatch, match=r"at schema 2, .* needs 1, .*; upgrade bellringer to \d+\.\d+"):
            await refuse(connection, migrations[:1])


async def test_a_newer_schema_that_declares_itself_compatible_is_accepted(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES, "-- compatible from 2\nalter table bellringer.bells add tone text;\n")
    await migrate(connection, migrations)
    await require_current(connection, migrations[:2])
    assert not await migrate(connection, migrations[:2])
    assert (await status(connection, migrations[:2])).usable
    for refuse in (migrate, require_current):
        with pytest.raises(SchemaMismatch, match=r"at schema 3, .* needs 1, and 002_step\.sql is not compatible"):
            await refuse(connection, migrations[:1])
    assert not (await status(connection, migrations[:1])).usable


async def test_a_compatible_schema_does_not_excuse_an_incompatible_one_before_it(
    tmp_path: Path, database: Database
) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES, "-- compatible from 1\nselect 1;\n")
    await migrate(connection, migrations)
    with pytest.raises(SchemaMismatch, match=r"002_step\.sql is not compatible"):
        await require_current(connection, migrations[:1])


async def test_a_record_from_before_compatibility_was_recorded_is_read_and_completed(
    tmp_path: Path, database: Database
) -> None:
    connection = await database.connect()
    await migrate(connection, written(tmp_path, BELLS))
    await connection.execute("alter table bellringer.migrations drop column compatible_from")
    migrations = written(tmp_path, BELLS, f"-- compatible from 1\n{ROPES}")
    assert [step.compatible_from for step in (await status(connection, migrations)).applied] == [None]
    assert numbers(await migrate(connection, migrations)) == [2]
    await require_current(connection, migrations[:1])


async def test_a_missing_step_in_the_record_is_refused(tmp_path: Path, database: Database) -> None:
    connection = await database.connect()
    migrations = written(tmp_path, BELLS, ROPES)
    await migrate(connection, migrations)
    await connection.execute("delete from bellringer.migrations where number = 1")
    with pytest.raises(SchemaMismatch, match=r"001_step\.sql is not the one applied"):
        await migrate(connection, migrations)


async def test_a_server_before_postgresql_14_is_refused(tmp_path: Path) -> None:
    old: Any = SimpleNamespace(get_server_version=lambda: SimpleNamespace(major=13))
    with pytest.raises(ConfigError, match="PostgreSQL 13; bellringer needs PostgreSQL 14"):
        await migrate(cast("asyncpg.Connection", old), written(tmp_path, BELLS))


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([], "no migrations"),
        (["002_late.sql"], "expected migration 001, found 002_late.sql"),
        (["001_a.sql", "003_c.sql"], "expected migration 002, found 003_c.sql"),
        (["001_a.sql", "001_b.sql"], "expected migration 002, found 001_b.sql"),
        (["001_a.sql", "2-b.sql"], "2-b.sql is not named like a migration"),
    ],
)
def test_files_must_be_numbered_from_one_without_gap_or_double(
    tmp_path: Path, names: list[str], complaint: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=complaint):
        load(tmp_path)


def test_the_checksum_does_not_depend_on_line_ends(tmp_path: Path) -> None:
    (tmp_path / "001_a.sql").write_bytes(b"select 1;\nselect 2;\n")
    (one,) = load(tmp_path)
    (tmp_path / "001_a.sql").write_bytes(b"select 1;\r\nselect 2;\r\n")
    assert load(tmp_path) == (one,)


def test_the_programs_own_migrations_can_be_loaded() -> None:
    assert load()[0].number == 1
