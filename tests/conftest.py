"""A real PostgreSQL for the whole run, and a database of its own, freshly copied, for every test that asks."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.store.migrate import migrate
from bellringer.store.names import Names
from bellringer.store.pool import Store

TEMPLATE = "bellringer_template"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The DSN of a server for this run: BELLRINGER_TEST_DSN, or an embedded one in a temporary folder."""
    if given := os.environ.get("BELLRINGER_TEST_DSN"):
        asyncio.run(_prepare(given))
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="bellringer-test-"))
    with EmbeddedPostgres(folder, settings={"max_connections": "300"}) as running:
        asyncio.run(_prepare(running.dsn))
        yield running.dsn
    shutil.rmtree(folder, ignore_errors=True)


async def _prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"drop database if exists {TEMPLATE}")
    await connection.execute(f"create database {TEMPLATE}")
    await connection.close()
    template = await asyncpg.connect(dsn, database=TEMPLATE)
    await migrate(template)
    await template.close()


@pytest.fixture
async def dsn(server: str) -> AsyncIterator[str]:
    """A migrated database of this test's own."""
    name = f"test_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"create database {name} template {TEMPLATE}")
        yield server.replace("/bellringer?", f"/{name}?")
        await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    opened = await Store.open(dsn)
    yield opened
    await opened.close()


@pytest.fixture
def names(store: Store) -> Names:
    return Names(store)
