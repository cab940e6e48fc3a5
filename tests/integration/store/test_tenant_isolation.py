"""The second wall: what a connection that serves one tenant can see and do, whatever a statement says.

The tables and functions come from the catalogue, so a new one without a wall fails here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from bellringer.errors import BellringerError
from bellringer.store.connection_pool import Store, connect
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer, at_database

MINE, THEIRS = 1, 2
JOBS = """'[{"tenant_id": 1}]'"""  # as register takes them

# Rows of tenants that carry no tenant_id, and are known by what they belong to.
BELONGING = {"job_revisions", "gaps", "logs", "days_off", "flow_nodes", "graph_nodes", "graph_edges", "signals"}
# What all tenants share: words, hands and machines. Read only.
SHARED = {"pools", "tasks", "schedules", "cohorts", "workers", "tz_versions", "tz_moves", "tz_applied", "recounts"}
SHARED |= {"audit_seals"}
# Closed, or but for a few columns.
CLOSED = {
    "job_digests",
    "cluster",
    "leases",
    "nodes",
    "migrations",
    "upgrades",
    "applied_functions",
    "troubles_read",
    "pool_rates",
    "quarantine",
    "restores",
    "archive_batches",
    "archive_parts",
    "trimmed_days",
    "notification_position",
    "lease_moves",
}
READ_ONLY = {"tenants", "job_revisions", "audit"}
# Functions that pass the wall without a tenant: they make days, or answer numbers or a name.
OPEN_FUNCTIONS = {"ensure_days", "slots_taken", "pool_limits", "scheduler_of", "component_waited_for"}

TABLES = """
select c.relname as name,
       exists (select 1 from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id') as has_tenant
from pg_class c where c.relnamespace = 'bellringer'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
order by c.relname
"""
COLUMNS = """
select a.attname as name, format_type(a.atttypid, null) as type, t.typtype = 'e' as is_enum,
       (select substring(pg_get_constraintdef(k.oid) from $re$'([^']*)'$re$) from pg_constraint k
         where k.conrelid = a.attrelid and k.contype = 'c' and k.conkey = array[a.attnum] limit 1) as allowed
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = ('bellringer.' || $1)::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
FUNCTIONS = """
select p.proname as name, coalesce(p.proargnames[:p.pronargs], '{}') as names,
       array(select format_type(t, null) from unnest(p.proargtypes::oid[]) t) as types,
       has_function_privilege(bellringer.tenant_role(), p.oid, 'execute') as is_open
from pg_proc p where p.pronamespace = 'bellringer'::regnamespace and p.prosecdef order by 1
"""
VALUES = {
    "integer": "1", "smallint": "1", "bigint": "1", "real": "1", "double precision": "1", "boolean": "true",
    "jsonb": "'{}'", "uuid": "md5('x')::uuid", "bytea": "'x'", "interval": "'1 s'", "date": "'2026-01-01'",
    "xid8": "'1'", "text": "'x'", "timestamp with time zone": "date_trunc('day', pg_catalog.now())",
}  # fmt: skip


@pytest.fixture
async def owner(store: Store, bellringer_server: TestServer) -> AsyncIterator[asyncpg.Connection]:
    """The owner's connection, in a database where every table has a row of the first tenant."""
    connection = await connect(at_database(bellringer_server.dsn, urlsplit(store.dsn).path[1:]))  # it may do all
    async with connection.transaction():
        await connection.execute("set local session_replication_role = replica")  # no foreign keys, no triggers
        await connection.execute("insert into tenants (name) values ('theirs')")
        for name in await walled(connection):
            checks = "select conname from pg_constraint where contype = 'c' and conrelid = $1::text::regclass"
            for check in await connection.fetch(checks + " and cardinality(conkey) > 1", name):
                await connection.execute(f"alter table {name} drop constraint {check['conname']}")
            if name != "tenants":
                await connection.execute(await insertion(connection, name))
    await connection.close()
    connection = await connect(store.dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def serving(owner: asyncpg.Connection, store: Store) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the role, which is not told of a tenant yet."""
    connection = await connect(store.dsn)
    await connection.execute(f"set role {await connection.fetchval('select bellringer.tenant_role()')}")
    yield connection
    await connection.close()


async def tell(connection: asyncpg.Connection, tenant_id: int | str) -> None:
    await connection.fetchval("select set_config('bellringer.tenant', $1, false)", str(tenant_id))


async def walled(connection: asyncpg.Connection) -> list[str]:
    """The tables that hold rows of tenants."""
    return [row["name"] for row in await connection.fetch(TABLES) if row["has_tenant"] or row["name"] in BELONGING]


async def insertion(connection: asyncpg.Connection, table: str) -> str:
    """A statement that inserts a row of the first tenant, with whatever its columns take."""
    names, values = [], []
    for column in await connection.fetch(COLUMNS, table):
        names.append(column["name"])
        if column["name"] == "tenant_id":
            values.append(str(MINE))
        elif column["name"] == "to_at":
            values.append(VALUES["timestamp with time zone"] + " + interval '1 s'")
        elif column["allowed"] and (column["is_enum"] or column["type"] == "text"):
            values.append(f"'{column['allowed']}'")
        elif column["is_enum"]:
            values.append(f"(enum_range(null::{column['type']}))[1]")
        else:
            values.append(value_of(column["type"]))
    return f"insert into {table} ({', '.join(names)}) overriding system value values ({', '.join(values)})"


def value_of(kind: str) -> str:
    return "'{}'" if kind.endswith("[]") else VALUES.get(kind, "null")


async def test_every_table_is_on_one_side_of_the_wall(owner: asyncpg.Connection) -> None:
    tables = {row["name"]: row["has_tenant"] for row in await owner.fetch(TABLES)}
    placed = {name for name, has_tenant in tables.items() if has_tenant} | BELONGING | SHARED | CLOSED
    assert tables.keys() - placed == set(), (
        "say here what these tables are, and in schema/007_row_security.sql who may read them"
    )
    unguarded = await owner.fetch(
        "select relname from pg_class where relname = any ($1) and relnamespace = 'bellringer'::regnamespace"
        " and not (relrowsecurity and exists (select 1 from pg_policy where polrelid = pg_class.oid))",
        await walled(owner),
    )
    assert unguarded == []


async def test_there_are_no_views_which_would_read_for_their_owner(owner: asyncpg.Connection) -> None:
    views = await owner.fetch("select viewname from pg_views where schemaname = 'bellringer'")
    assert views == []


async def test_a_tenant_sees_its_own_rows_of_every_table_and_another_none(
    owner: asyncpg.Connection, serving: asyncpg.Connection
) -> None:
    tables = await walled(owner)
    assert len(tables) > 20
    for tenant, expected in ((MINE, True), (THEIRS, False), ("", False)):
        await tell(serving, tenant)
        for name in tables:
            mine = f" where tenant_id = {MINE}" if name not in BELONGING else ""
            count = await serving.fetchval(f"select count(*) from {name}{mine}")
            assert (count > 0) is expected, f"{name} for {tenant or 'nobody'}"


async def test_a_tenant_cannot_change_remove_or_make_anothers_rows(
    owner: asyncpg.Connection, serving: asyncpg.Connection
) -> None:
    await tell(serving, THEIRS)
    for name in await walled(owner):
        column = (await owner.fetch(COLUMNS, name))[-1]["name"]
        mine = f" where tenant_id = {MINE}" if name == "tenants" else ""
        for change in (f"update {name} set {column} = {column}{mine}", f"delete from {name}{mine}"):
            try:
                assert (await serving.execute(change)).endswith(" 0"), change
            except asyncpg.InsufficientPrivilegeError:
                assert name in READ_ONLY, change
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await serving.execute(await insertion(owner, name))


async def test_a_tenant_cannot_give_its_own_rows_away(owner: asyncpg.Connection, serving: asyncpg.Connection) -> None:
    await tell(serving, MINE)
    for name in ("jobs", "queue", "freezes"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await serving.execute(f"update {name} set tenant_id = {THEIRS}")


async def test_what_is_shared_is_read_only_and_the_rest_is_closed(
    owner: asyncpg.Connection, serving: asyncpg.Connection
) -> None:
    await tell(serving, MINE)
    there = {row["name"] for row in await owner.fetch(TABLES)}
    for name in SHARED & there:
        await serving.fetch(f"select * from {name} limit 1")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await serving.execute(f"delete from {name}")
    for name in CLOSED & there:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await serving.fetch(f"select * from {name}")
    for table in ("runs", "attempts", "logs"):  # a day itself has no wall, so it is closed
        [day] = await owner.fetch(
            "select inhrelid::regclass::text as name from pg_inherits where inhparent = $1::text::regclass limit 1",
            table,
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await serving.fetch(f"select 1 from {day['name']}")


async def test_functions_that_pass_the_wall_refuse_another_tenant(
    owner: asyncpg.Connection, serving: asyncpg.Connection
) -> None:
    await tell(serving, THEIRS)
    functions = await owner.fetch(FUNCTIONS)
    assert {"register", "pause", "send", "cancel", "redrive", "store_calendar"} <= {f["name"] for f in functions}
    for function in functions:
        if not function["is_open"] or function["name"] in OPEN_FUNCTIONS:
            continue
        given = dict(zip(function["names"], function["types"], strict=True))
        values = [
            str(MINE) if name == "p_tenant" else JOBS if name == "p_jobs" else f"{value_of(kind)}::{kind}"
            for name, kind in given.items()
        ]
        assert {"p_tenant", "p_jobs"} & given.keys(), f"{function['name']} passes the wall for nobody in particular"
        with pytest.raises(asyncpg.PostgresError) as refused:
            await serving.fetch(f"select * from {function['name']}({', '.join(values)})")
        assert refused.value.sqlstate in ("BR004", "42501"), function["name"]


async def test_a_scoped_store_is_limited_to_the_rows_of_a_tenant_and_who_acts(store: Store, tenants: Store) -> None:
    assert tenants.role is not None
    mine, theirs = ScopedStore(tenants, MINE, '{"who": "me"}'), ScopedStore(tenants, THEIRS, None)
    await store.pool.execute("insert into tenants (name) values ('theirs')")
    for scoped, name in ((mine, "default"), (theirs, "theirs"), (mine, "default")):
        assert [row["name"] for row in await scoped.pool.fetch("select name from tenants")] == [name]
    assert await mine.pool.fetchval("select current_setting('bellringer.actor')") == '{"who": "me"}'


async def test_the_settings_of_an_installation_wide_caller_end_with_its_statement(store: Store) -> None:
    everywhere = ScopedStore(store, None, '{"who": "root"}')
    told = "select coalesce(current_setting('bellringer.actor', true), '') as actor, current_tenant() as tenant"
    assert dict(await everywhere.pool.fetchrow(told) or {}) == {"actor": '{"who": "root"}', "tenant": None}
    for _ in range(10):
        assert await store.pool.fetchval(told) == ""


async def test_days_that_were_made_in_vain_are_made_again(store: Store, tenants: Store) -> None:
    scoped = ScopedStore(tenants, MINE, None)
    day = (await store.now()).date()
    with contextlib.suppress(BellringerError):
        async with scoped.transaction():
            scoped.days.add(day)
            raise BellringerError("in vain")
    assert day not in scoped.days
    async with scoped.transaction():
        scoped.days.add(day)
        assert day not in tenants.days
    assert day in tenants.days


async def test_a_refused_statement_does_not_spoil_the_transaction_around_it(store: Store, tenants: Store) -> None:
    scoped = ScopedStore(tenants, MINE, None)
    async with scoped.transaction():
        await scoped.pool.execute("insert into limits (tenant_id, key, most) values (1, 'x', 1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await scoped.pool.execute("insert into limits (tenant_id, key, most) values (1, 'x', 1)")
        await scoped.pool.execute("insert into limits (tenant_id, key, most) values (1, 'y', 1)")
    assert await store.pool.fetchval("select count(*) from limits") == 2


async def test_without_the_role_the_store_serves_without_the_wall(dsn: str, store: Store) -> None:
    await store.pool.execute(
        "create or replace function bellringer.tenant_role() returns text language sql as $$ select 'no_such_role' $$"
    )
    opened = await open_tenants(dsn)
    try:
        assert opened.role is None
        assert await ScopedStore(opened, MINE, None).pool.fetchval("select count(*) from tenants") == 1
    finally:
        await opened.close()


async def test_the_role_of_another_installation_has_no_way_in(store: Store, bellringer_server: TestServer) -> None:
    theirs = await bellringer_server.create_empty()
    try:
        await bellringer_server.migrate(theirs)
        connection = await connect(theirs)
        try:
            role = await connection.fetchval("select bellringer.tenant_role()")
            assert await connection.fetchval("select has_schema_privilege($1::text, 'bellringer', 'usage')", role)
        finally:
            await connection.close()
        assert not await store.pool.fetchval("select has_schema_privilege($1::text, 'bellringer', 'usage')", role)
        assert not await store.pool.fetchval("select has_table_privilege($1::text, 'bellringer.runs', 'select')", role)
    finally:
        await bellringer_server.drop(theirs)
    assert await store.pool.fetchval("select to_regrole($1::text)", role) is None
