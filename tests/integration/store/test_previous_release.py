"""Programs of the previous release work on the schema and the functions of this one; see docs/decisions/026."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest
from tests.support.previous_release import PreviousRelease

from bellringer.store.connection_pool import connect
from bellringer.store.migrate import Changes, Migration, load, migrate, require_current, status
from bellringer.store.migration_statements import contractions
from bellringer.store.sql_functions import load_functions
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.store.wakeups import parse_work_hint
from bellringer.testing.postgres import TestServer

# Prints every text of the program that may be a statement: those of its .sql files, module constants, and literals.
COLLECT = r"""
import ast, importlib, json, pkgutil, re
from pathlib import Path
import bellringer
from bellringer.store.queries import _NAME
from bellringer.store.sql_names import expand

root = Path(bellringer.__file__).parent
found = {}
is_sql = re.compile(r"\s*(?:--[^\n]*\s+)*(?:select|insert|update|delete|with)\b", re.IGNORECASE)

def add(where, text):
    if is_sql.match(text):
        found.setdefault(text.strip(), where)

for file in sorted(root.rglob("*.sql")):
    where = str(file.relative_to(root))
    if not where.startswith(("store/schema", "store/functions")):
        parts = _NAME.split(expand(file.read_text()))[1:]
        for name, body in zip(parts[::2], parts[1::2]):
            add(f"{where}: {name}", body)
for file in sorted(root.rglob("*.py")):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            add(f"{file.relative_to(root)}:{node.lineno}", node.value)
for module in pkgutil.walk_packages(bellringer.__path__, "bellringer."):
    if module.name.endswith("__main__"):
        continue
    try:
        loaded = importlib.import_module(module.name)
    except ImportError:
        continue
    for name, value in vars(loaded).items():
        if isinstance(value, str):
            add(f"{module.name}.{name}", value)
print(json.dumps(found))
"""
# Statements whose rows Python reads by column name, so further columns do no harm.
READ_BY_NAME = {"store/jobs.sql: get", "store/revisions.sql: one"}
LEAST_STATEMENTS = 400  # of the previous release; fewer would mean that they were not found

INTERNAL_TYPES = {"job_terms"}  # only functions use it, and they are replaced together with it
COMPOSITE_TYPES = """
select type.typname as name, array_agg(format('%s %s', attribute.attname, format_type(atttypid, atttypmod))
                                       order by attnum) as columns
from pg_type type join pg_class class on class.oid = type.typrelid and class.relkind = 'c'
join pg_attribute attribute on attribute.attrelid = class.oid and attnum > 0 and not attisdropped
where type.typnamespace = 'bellringer'::regnamespace group by 1
"""
ENUMS = """
select typname as name, array_agg(enumlabel::text order by enumsortorder) as labels
from pg_type join pg_enum on enumtypid = pg_type.oid where typnamespace = 'bellringer'::regnamespace group by 1
"""


@dataclass(frozen=True)
class StatementInterface:
    """The interface of a statement."""

    parameters: list[str]
    columns: list[tuple[str, str]]


@pytest.fixture
async def old(bellringer_server: TestServer, previous_release: PreviousRelease) -> AsyncIterator[str]:
    """A database of the previous release."""
    dsn = await bellringer_server.create_empty()
    done = previous_release.run("migrate", dsn=dsn)
    assert done.returncode == 0, done.stderr
    yield dsn
    await bellringer_server.drop(dsn)


@pytest.fixture
async def connection(old: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await connect(old)
    yield opened
    await opened.close()


def statements(release: PreviousRelease) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT], env=release.environ, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


async def prepare(connection: asyncpg.Connection, sql: str) -> StatementInterface:
    statement = await connection.prepare(sql)
    return StatementInterface(
        [f"{type_.schema}.{type_.name}" for type_ in statement.get_parameters()],
        [(column.name, column.type.name) for column in statement.get_attributes()],
    )


def difference(where: str, before: StatementInterface, after: StatementInterface) -> str:
    if before.parameters != after.parameters:
        return f"{where}: parameters {before.parameters} became {after.parameters}"
    if where in READ_BY_NAME:
        gone = [column for column in before.columns if column not in after.columns]
        return f"{where}: lost the columns {gone}" if gone else ""
    return "" if before.columns == after.columns else f"{where}: columns {before.columns} became {after.columns}"


async def test_every_statement_of_the_previous_release_keeps_its_interface(
    old: str, connection: asyncpg.Connection, previous_release: PreviousRelease
) -> None:
    before: dict[str, StatementInterface] = {}
    for sql in (found := statements(previous_release)):
        try:
            before[sql] = await prepare(connection, sql)
        except asyncpg.PostgresError:  # not a statement, or a part of one
            continue
    assert len(before) >= LEAST_STATEMENTS
    assert {where for where in found.values() if where in READ_BY_NAME} == READ_BY_NAME
    assert await migrate(connection)

    fresh = await connect(old)
    differences = []
    try:
        for sql, was in before.items():
            try:
                differences.append(difference(found[sql], was, await prepare(fresh, sql)))
            except asyncpg.PostgresError as error:
                differences.append(f"{found[sql]}: {error}")
    finally:
        await fresh.close()
    assert [told for told in differences if told] == []


async def test_types_that_the_previous_release_encodes_and_decodes_are_unchanged(
    connection: asyncpg.Connection,
) -> None:
    """A composite value is encoded by the number of its attributes; an enum may only get further labels."""
    composites = {row["name"]: row["columns"] for row in await connection.fetch(COMPOSITE_TYPES)}
    enums = {row["name"]: row["labels"] for row in await connection.fetch(ENUMS)}
    await migrate(connection)
    after = {row["name"]: row["columns"] for row in await connection.fetch(COMPOSITE_TYPES)}
    passed = composites.keys() - INTERNAL_TYPES
    assert {name: after.get(name) for name in passed} == {name: composites[name] for name in passed}
    labels = {row["name"]: set(row["labels"]) for row in await connection.fetch(ENUMS)}
    assert {name for name in enums if not set(enums[name]) <= labels.get(name, set())} == set()


async def test_a_database_of_the_previous_release_becomes_the_same_as_a_new_one(
    connection: asyncpg.Connection, dsn: str
) -> None:
    """The privileges of the role that serves tenants are part of it: it needs those on new tables."""
    await migrate(connection)
    new = await connect(dsn)
    try:
        for query in (TABLES, FUNCTIONS, GRANTS):
            found = [tuple(row) for row in await connection.fetch(query)]
            assert found == [tuple(row) for row in await new.fetch(query)]
    finally:
        await new.close()


TABLES = """
select class.relname, attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
from pg_attribute join pg_class class on class.oid = attrelid
left join pg_attrdef on adrelid = attrelid and adnum = attnum
where class.relnamespace = 'bellringer'::regnamespace and class.relkind in ('r', 'p') and not class.relispartition
  and attnum > 0 and not attisdropped
order by 1, attnum
"""
FUNCTIONS = """
select oid::regprocedure::text, prosrc, proconfig, prosecdef, pg_get_function_result(oid) from pg_proc
where pronamespace = 'bellringer'::regnamespace and proname <> 'tenant_role' order by 1
"""
GRANTS = """
select class.relname, has_table_privilege(bellringer.tenant_role(), class.oid, 'select'),
       has_table_privilege(bellringer.tenant_role(), class.oid, 'insert')
from pg_class class
where class.relnamespace = 'bellringer'::regnamespace and class.relkind in ('r', 'p') and not class.relispartition
order by 1
"""


async def test_the_previous_release_accepts_the_new_schema_and_its_migrate_changes_nothing(
    old: str, connection: asyncpg.Connection, previous_release: PreviousRelease
) -> None:
    changes: Changes = await migrate(connection)
    assert changes.migrations
    assert changes.functions
    before = [tuple(row) for row in await connection.fetch("select * from bellringer.applied_functions")]
    done = previous_release.run("migrate", dsn=old)
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "nothing changed")
    assert [tuple(row) for row in await connection.fetch("select * from bellringer.applied_functions")] == before
    for command in ("migrate status", "verify"):
        done = previous_release.run(*command.split(), dsn=old)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert "ok       schema and functions are current" in previous_release.run("doctor", dsn=old).stdout
    await require_current(connection)


async def test_newer_functions_on_the_same_schema_are_neither_refused_nor_replaced(
    connection: asyncpg.Connection,
) -> None:
    """A release may change functions only. This program is the older one here."""
    await migrate(connection)
    newer = "update bellringer.applied_functions set program = '99.0.0', checksum = 'other'"
    await connection.execute(newer)
    await connection.execute(
        "create or replace function bellringer.day_of(p_at timestamptz) returns date language sql immutable"
        " parallel safe as $$ select (p_at at time zone 'UTC')::date /* of a newer release */ $$"
    )
    await require_current(connection)
    changes = await migrate(connection)
    assert (changes.migrations, changes.functions, changes.newer_program) == ((), False, "99.0.0")
    assert (await status(connection)).usable
    assert "newer release" in await connection.fetchval(
        "select prosrc from pg_proc where proname = 'day_of' and pronamespace = 'bellringer'::regnamespace"
    )


@pytest.mark.parametrize("migration", [m for m in load() if m.compatible_from is not None], ids=lambda m: m.name)
def test_a_compatible_migration_only_expands(migration: Migration) -> None:
    assert [(effect.sql, effect.contracts) for effect in contractions(migration.sql)] == []


def test_each_later_migration_is_compatible_with_the_previous_release(previous_release: PreviousRelease) -> None:
    released = len(list((previous_release.source / "bellringer/store/schema").glob("*.sql")))
    later = load()[released:]
    assert later
    incompatible = [m.name for m in later if m.compatible_from is None or m.compatible_from > released]
    assert incompatible == []


def test_released_migrations_are_not_edited(previous_release: PreviousRelease) -> None:
    released = load(previous_release.source / "bellringer/store/schema")
    assert [(m.name, m.checksum) for m in released] == [(m.name, m.checksum) for m in load()[: len(released)]]


def test_no_function_that_python_calls_was_removed(previous_release: PreviousRelease) -> None:
    """The statements above prove it for those that are written out; this covers names in strings that are composed."""
    defines = re.compile(r"create or replace function (?:bellringer\.)?(\w+)")
    folder = previous_release.source / "bellringer/store/functions"
    before = {name for file in load_functions(folder).files for name in defines.findall(file.sql)}
    now = {name for file in load_functions().files for name in defines.findall(file.sql)}
    code = "\n".join(
        file.read_text()
        for file in (previous_release.source / "bellringer").rglob("*")
        if file.suffix in {".py", ".sql"} and "store/functions" not in str(file) and "store/schema" not in str(file)
    )
    assert {name for name in before - now if re.search(rf"\bbellringer\.{name}\b", code)} == set()


def test_the_previous_release_reads_notifications_as_this_one_does(previous_release: PreviousRelease) -> None:
    payloads = ["", "2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00+00:00;10,250,-7"]
    code = f"from bellringer.store.wakeups import parse_work_hint; print(*map(parse_work_hint, {payloads}), sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=previous_release.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().split("|") == [str(parse_work_hint(payload)) for payload in payloads]


async def test_running_programs_repeat_statements_whose_result_a_migration_changed(dsn: str) -> None:
    """In autocommit, in the transaction of a request, and in the transaction of a caller who sees all tenants."""
    tenants, owner = await open_tenants(dsn, size=1), await connect(dsn)
    try:
        for number, scope in enumerate((1, None)):
            store = ScopedStore(tenants, scope, "test")
            await store.pool.fetchrow("select * from pools limit 1")
            await owner.execute(f"alter table pools add column first_{number} integer")
            row = await store.pool.fetchrow("select * from pools limit 1")
            assert row is not None
            assert f"first_{number}" in dict(row)
            async with store.transaction():
                await owner.execute(f"alter table pools add column second_{number} integer")
                row = await store.pool.fetchrow("select * from pools limit 1")
                assert row is not None
                assert f"second_{number}" in dict(row)
    finally:
        await tenants.close()
        await owner.close()
