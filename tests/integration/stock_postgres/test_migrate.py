"""`bellringer migrate` as the owner of an empty database, with no other privilege, on the distribution's server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.support.stock_server import SETTINGS

from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate, require_current, row_security
from bellringer.store.tenant_scope import ScopedStore, open_tenants
from bellringer.testing.postgres import TestServer, at_database

BELLRINGER = Path(sys.executable).with_name("bellringer")
PRIVILEGES = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolbypassrls", "rolreplication")
# What the server's configuration changes, but for what `initdb` chooses by itself: locale, time zone and memory.
CHANGED = """
select name from pg_settings
where source = 'configuration file' and setting is distinct from boot_val
  and name !~* '^lc_|^default_text_search|timezone$|^dynamic_shared_memory_type$|^shared_buffers$'
"""


@pytest.fixture
async def empty(stock_server: TestServer) -> AsyncIterator[str]:
    """A database in which nothing is, as its owner reaches it."""
    dsn = await stock_server.create_empty()
    yield dsn
    await stock_server.drop(dsn)


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def migrated(dsn: str, *arguments: str) -> list[str]:
    """What the command says."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
    done = subprocess.run(
        [BELLRINGER, "migrate", *arguments],
        env={**environ, "BELLRINGER_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


async def test_the_server_has_its_default_settings_and_the_role_no_privilege(
    stock_server: TestServer, empty: str
) -> None:
    plain, admin = await asyncpg.connect(empty), await asyncpg.connect(stock_server.dsn)
    try:
        role = await plain.fetchrow("select * from pg_roles where rolname = current_user")
        assert role is not None
        assert not any(role[name] for name in PRIVILEGES)
        assert await plain.fetchval("select current_setting('jit')") == "on"
        changed = [row["name"] for row in await admin.fetch(CHANGED)]
        assert set(changed) == {*SETTINGS, "unix_socket_directories"}
    finally:
        await plain.close()
        await admin.close()


async def test_the_owner_of_an_empty_database_can_migrate_it(empty: str) -> None:
    connection = await connect(empty)
    try:
        assert await migrate(connection)
        await require_current(connection)
        found = await row_security(connection)
        assert found is not None
        assert not found.is_on
    finally:
        await connection.close()


async def test_row_security_is_reported_as_off_and_can_be_turned_on_later(stock_server: TestServer, empty: str) -> None:
    said = migrated(empty)
    assert "row-level security is off: only the program's own queries separate tenants" in said
    (remedy,) = (line.partition(": ")[2] for line in said if "an administrator must run" in line)
    assert (await role_of_tenants(empty)) is None

    await execute(at_database(stock_server.dsn, empty.split("?", maxsplit=1)[0].rpartition("/")[2]), remedy)
    assert (await role_of_tenants(empty)) is None  # the role has no privileges yet: the server must not act as it
    assert migrated(empty, "status")[-3].startswith("row-level security is off")

    said = migrated(empty)
    role = remedy.split()[2]
    assert said == ["the schema is current", f"row-level security is on (role {role})"]
    assert (await role_of_tenants(empty)) == role


async def role_of_tenants(dsn: str) -> str | None:
    """The role that serves tenants, after a look that it can read their rows."""
    tenants = await open_tenants(dsn)
    try:
        assert await ScopedStore(tenants, 1, None).pool.fetchval("select count(*) from tenants") == 1
        return tenants.role
    finally:
        await tenants.close()
