"""`bellringer migrate plan`: its locks are those that PostgreSQL takes, and nothing is locked by asking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from bellringer.cli import cli
from bellringer.errors import SchemaMismatch, Unavailable
from bellringer.store import migrate as migrations_store
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import LockRetries, load, migrate, status, upgrades
from bellringer.store.migration_plan import plan
from bellringer.store.migration_statements import Effort, LockMode, classify, contractions
from bellringer.store.sql_functions import load_functions
from bellringer.testing.postgres import TestServer

BELLS = """
create table bellringer.towers (id integer primary key, height integer);
create table bellringer.bells (id integer primary key, tower integer not null, tone text default 'c', weight integer);
create index bells_tone on bellringer.bells (tone);
create table bellringer.ropes (id integer primary key) partition by range (id);
create table bellringer.ropes_1 partition of bellringer.ropes for values from (0) to (100);
"""
LOCKED = """
select relation as table, max(array_position($1::text[], mode)) as strength from pg_locks
where pid = pg_backend_pid() and relation = any ($2::oid[]) group by 1
"""
TABLES = "select oid, relname as name from pg_class where relname in ('bells', 'towers', 'ropes')"
MODES = [
    "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock",
    "AccessExclusiveLock",
]  # fmt: skip
NAMES = {
    LockMode.ROW_EXCLUSIVE: 1, LockMode.SHARE_UPDATE_EXCLUSIVE: 2, LockMode.SHARE: 3, LockMode.SHARE_ROW_EXCLUSIVE: 4,
    LockMode.ACCESS_EXCLUSIVE: 6,
}  # fmt: skip
METADATA, SCAN, REWRITE, INDEX = Effort.METADATA, Effort.SCAN, Effort.REWRITE, Effort.INDEX
STATEMENTS = [
    ("alter table bells add column rope text", METADATA, ""),
    ("alter table bells add column rope text not null default 'hemp'", METADATA, ""),
    ("alter table bells add column made_at timestamptz default clock_timestamp()", REWRITE, ""),
    ("alter table bells add rope integer not null", SCAN, "adds a column that inserts must name"),
    ("alter table bells add rope integer references towers", METADATA, ""),
    ("alter table bells add constraint heavy check (weight > 0)", SCAN, "adds a constraint"),
    ("alter table bells add constraint heavy check (weight > 0) not valid", METADATA, "adds a constraint"),
    ("alter table bells add constraint one unique (tone)", INDEX, "adds a constraint"),
    ("alter table bells add foreign key (tower) references towers", SCAN, "adds a constraint"),
    ("alter table bells alter column weight type bigint", REWRITE, "changes a type"),
    ("alter table bells alter weight set not null", SCAN, "forbids nulls"),
    ("alter table bells alter tower drop not null", METADATA, ""),
    ("alter table bells alter tone drop default", METADATA, "drops a default"),
    ("alter table bells alter tone set default 'd'", METADATA, ""),
    ("alter table bells alter tone set statistics 500", METADATA, ""),
    ("alter table bells set (fillfactor = 70)", METADATA, ""),
    ("alter table bells rename column tone to note", METADATA, "renames"),
    ("alter table bells drop column weight, add column size numeric(6, 2)", METADATA, "drops a column"),
    ("alter table ropes add column length integer", METADATA, ""),
    ("alter table bells enable row level security", METADATA, ""),
    ("create policy p on bells using (tower = 1)", METADATA, ""),
    ("create index bells_weight on bells (weight)", INDEX, ""),
    ("create unique index bells_weight on bells (weight)", INDEX, "forbids equal values"),
    ("create trigger t before update on bells for each row execute function suppress_redundant_updates_trigger()",
     METADATA, ""),
    ("create table clappers (id integer references bells)", METADATA, ""),
    ("insert into bells values (1, 1)", Effort.ROWS, ""),
    ("update bells set weight = 1", Effort.ROWS, ""),
    ("delete from bells", Effort.ROWS, ""),
    ("truncate bells", METADATA, "deletes all rows"),
    ("drop table bells", METADATA, "drops a table"),
    ("create type pitch as (low integer, high integer)", METADATA, ""),
    ("comment on table bells is 'they ring'", METADATA, ""),
]  # fmt: skip


@pytest.fixture
async def empty(bellringer_server: TestServer) -> AsyncIterator[str]:
    dsn = await bellringer_server.create_empty()
    yield dsn
    await bellringer_server.drop(dsn)


@pytest.fixture
async def connection(empty: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await connect(empty)
    yield opened
    await opened.close()


async def test_the_predicted_locks_are_those_that_the_server_takes(connection: asyncpg.Connection) -> None:
    """A prediction may be stronger than the lock, for tables that the statement names; never weaker."""
    await connection.execute(f"create schema bellringer; {BELLS}")
    tables = {row["oid"]: row["name"] for row in await connection.fetch(TABLES)}
    for sql, work, contracts in STATEMENTS:
        (effect,) = classify(sql)
        assert (effect.work, effect.contracts) == (work, contracts), sql
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(sql)
            rows = await connection.fetch(LOCKED, MODES, list(tables))
        finally:
            await transaction.rollback()
        taken = {tables[row["table"]]: row["strength"] for row in rows if row["strength"]}
        predicted = {lock.table: NAMES[lock.mode] for lock in effect.locks}
        if sql.startswith("comment"):  # the one that vacuum takes; no program waits for it
            taken = {}
        assert taken.keys() <= predicted.keys(), f"{sql}: takes {taken}, predicted {predicted}"
        assert all(predicted[table] >= taken[table] for table in taken), f"{sql}: {taken}, predicted {predicted}"
        assert predicted.keys() <= taken.keys(), f"{sql}: takes only {taken}, predicted {predicted}"


def test_a_contraction_needs_a_mark_above_its_own_statement() -> None:
    script = """
    alter table bells add column rope text; -- drop nothing
    -- contract: nobody reads it since 0.3.0
    alter table bells drop column tone;
    alter table bells drop column weight;
    do $$ begin execute 'alter table bells rename to gongs; --'; end $$;
    select 'drop table; bells';
    """
    assert [effect.sql for effect in contractions(script)] == [
        "alter table bells drop column weight",
        "do $$ begin execute 'alter table bells rename to gongs; --'; end $$",
        "select 'drop table; bells'",  # not understood, so its author has to say that it is harmless
    ]


def test_tables_of_the_same_migration_are_not_locked_for_others() -> None:
    script = "create table ropes (id integer); alter table ropes add unique (id); create index on ropes (id);"
    assert [(effect.locks, effect.contracts) for effect in classify(script)] == [((), "")] * 3


def written(folder: Path, *scripts: str) -> tuple[migrations_store.Migration, ...]:
    for number, script in enumerate(scripts, start=1):
        (folder / f"{number:03}_step.sql").write_text(script)
    return load(folder)


async def test_a_plan_has_the_sizes_and_durations_of_existing_tables(
    tmp_path: Path, connection: asyncpg.Connection
) -> None:
    steps = written(
        tmp_path,
        BELLS,
        "-- compatible from 1\nset local search_path to bellringer;\nalter table bells add column rope text;\n"
        "create table hammers (id integer);\ncreate index on hammers (id);",
        "-- compatible from 1\n-- no transaction\ncreate index concurrently on bellringer.ropes (id);",
        "alter table bellringer.bells alter column id type bigint;",
    )
    await migrate(connection, steps[:1])
    await connection.execute("insert into bellringer.ropes select generate_series(0, 99)")
    found = await plan(connection, steps)
    assert (found.current, found.wanted, found.compatible_from) == (1, 4, 4)
    added, created, index = found.migrations[0].statements
    assert [(lock.table, lock.mode) for lock in added.locks] == [("bells", LockMode.ACCESS_EXCLUSIVE)]
    assert (created.locks, index.locks, index.work) == ((), (), Effort.METADATA)
    (concurrent,) = found.migrations[1].statements
    assert [(lock.table, lock.mode, lock.bytes) for lock in concurrent.locks] == [
        ("ropes", LockMode.SHARE_UPDATE_EXCLUSIVE, 8192)
    ]
    tables = found.locked_tables()
    assert [(lock.table, lock.mode) for lock, _ in tables] == [
        ("bells", LockMode.ACCESS_EXCLUSIVE),
        ("ropes", LockMode.SHARE_UPDATE_EXCLUSIVE),
    ]
    assert all(seconds is not None and seconds > 0 for _, seconds in tables)
    assert (await plan(connection, steps[:3])).compatible_from == 1
    with pytest.raises(SchemaMismatch):
        await plan(connection, written(tmp_path, "select 1"))


async def test_a_plan_waits_for_no_lock(dsn: str) -> None:
    holder, asker = await connect(dsn), await connect(dsn)
    try:
        await holder.execute("update applied_functions set checksum = 'x', program = '0.0.1'")
        async with holder.transaction():
            await holder.execute("lock table migrations, jobs, queue in share row exclusive mode")
            async with asyncio.timeout(5):
                assert (await plan(asker)).functions_pending
    finally:
        await holder.close()
        await asker.close()


async def test_a_plan_names_the_functions_that_change(dsn: str) -> None:
    connection = await connect(dsn)
    try:
        assert (await plan(connection)).is_empty
        await connection.execute(
            "create or replace function day_of(p_at timestamptz) returns date language sql immutable as"
            " 'select null::date'; create function surplus() returns integer language sql as 'select 1';"
            " drop function events_of_job; update applied_functions set checksum = 'x'"
        )
        changes = (await plan(connection)).functions
        assert (changes.created, changes.replaced, changes.dropped) == (("events_of_job",), ("day_of",), ("surplus",))
    finally:
        await connection.close()


async def test_a_plan_tells_which_running_programs_stop_working(tmp_path: Path, dsn: str) -> None:
    connection = await connect(dsn)
    try:
        await connection.execute(
            "insert into workers (name, host, pid, version, pools, task_ids, started_at, seen_at)"
            " select n, 'h', 1, n, '{}', '{}', clock_timestamp(), clock_timestamp()"
            " from unnest(array['0.0.1', '0.5.0', 'unknown']) n"
        )
        await connection.execute("update migrations set program = '0.5.0' where number > 3")
        await connection.execute("update migrations set program = '0.0.1' where number <= 3")
        steps, number = load(), len(load()) + 1
        for since, works in ((3, (True, True, None)), (4, (False, True, None)), (number, (False, False, None))):
            (tmp_path / f"{number:03}_next.sql").write_text(f"-- compatible from {since}\nselect 1;")
            following = migrations_store.Migration(
                number=number, name="next", sql=(tmp_path / f"{number:03}_next.sql").read_text(), checksum="c"
            )
            found = await plan(connection, [*steps, following], load_functions())
            assert tuple(program.keeps_working for program in found.running) == works
            assert len(found.stops) == works.count(False)
    finally:
        await connection.close()


class TestLocks:
    """A migration does not make other programs queue behind it."""

    async def test_a_migration_gives_up_a_lock_and_tries_again(self, tmp_path: Path, empty: str) -> None:
        holder, migrator, reader = await connect(empty), await connect(empty), await connect(empty)
        told: list[str] = []
        steps = written(tmp_path, BELLS, "alter table bellringer.bells add rope text;")
        try:
            await migrate(migrator, steps[:1])
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("select * from bellringer.bells")
            waits = LockRetries(timeout=timedelta(milliseconds=100), on_retry=told.append)
            migrating = asyncio.create_task(migrate(migrator, steps, waits=waits))
            while not told:
                async with asyncio.timeout(1):  # no longer than the lock timeout, with room for a busy machine
                    await reader.execute("select * from bellringer.bells")
                await asyncio.sleep(0.01)
            assert (await status(reader, steps)).current == 1
            await transaction.rollback()
            assert [m.number for m in (await migrating).migrations] == [2]
            assert "a table is locked by bellringer (pid " in told[0]
            assert await migrator.fetchval("show lock_timeout") == "0"
            assert await migrator.fetchval("show statement_timeout") == "30s"
        finally:
            for connection in (holder, migrator, reader):
                await connection.close()

    async def test_a_migration_that_gets_no_lock_fails_and_changes_nothing(self, tmp_path: Path, empty: str) -> None:
        holder, migrator = await connect(empty), await connect(empty)
        steps = written(tmp_path, BELLS, "alter table bellringer.bells add rope text;")
        try:
            await migrate(migrator, steps[:1])
            async with holder.transaction():
                await holder.execute("select * from bellringer.bells")
                waits = LockRetries(timeout=timedelta(milliseconds=50), give_up_after=timedelta(milliseconds=700))
                with pytest.raises(Unavailable, match=r"locked by other transactions \(bellringer \(pid"):
                    await migrate(migrator, steps, waits=waits)
            assert (await status(migrator, steps)).current == 1
            assert [m.number for m in (await migrate(migrator, steps)).migrations] == [2]
        finally:
            await holder.close()
            await migrator.close()

    async def test_an_index_that_was_left_invalid_is_built_again(
        self, tmp_path: Path, connection: asyncpg.Connection
    ) -> None:
        build = "-- no transaction\ncreate unique index concurrently if not exists one on bellringer.bells (tower);"
        steps = written(tmp_path, BELLS + "insert into bellringer.bells values (1, 1), (2, 1);", build)
        with pytest.raises(Exception, match="duplicate"):
            await migrate(connection, steps)
        valid = "select indisvalid from pg_index where indexrelid = 'bellringer.one'::regclass"
        assert await connection.fetchval(valid) is False
        await connection.execute("delete from bellringer.bells where id = 2")
        assert [m.number for m in (await migrate(connection, steps)).migrations] == [2]
        assert await connection.fetchval(valid) is True


async def test_upgrades_are_recorded(dsn: str) -> None:
    connection = await connect(dsn)
    try:
        await connection.execute("update applied_functions set checksum = 'x'")
        await migrate(connection)
        await migrate(connection)
        history = await upgrades(connection)
        assert [bool(upgrade.migrations) for upgrade in history] == [True, False]
        assert all(upgrade.functions for upgrade in history)
    finally:
        await connection.close()


def test_the_commands_print_text_and_json(dsn: str) -> None:
    runner, environ = CliRunner(), {"BELLRINGER_DSN": dsn}

    def call(*arguments: str) -> str:
        done = runner.invoke(cli, ["migrate", *arguments], env=environ)
        assert done.exit_code == 0, done.output
        return done.output

    assert "nothing is pending: schema" in call("plan")
    document = json.loads(call("plan", "-o", "json"))
    assert (document["migrations"], document["functions_pending"]) == ([], False)
    assert json.loads(call("status", "-o", "json"))["usable"] is True
    assert json.loads(call("-o", "json")) == {"applied": [], "functions": False, "newer_program": None}
    asyncio.run(_execute(dsn, "update bellringer.applied_functions set checksum = 'x', program = '99.0.0'"))
    assert "nothing changed: release 99.0.0 has migrated this database, and this program (" in call()
    asyncio.run(_execute(dsn, "update bellringer.applied_functions set program = '0.0.1'"))
    assert "schema" in call("plan")
    assert call("--lock-timeout", "500ms").splitlines()[0] == "updated the functions"
    done = runner.invoke(cli, ["migrate", "--lock-timeout", "soon"], env=environ)
    assert done.exit_code == 2
    assert "soon" in done.output


async def _execute(dsn: str, statement: str) -> None:
    connection = await connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
