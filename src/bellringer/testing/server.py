"""A real PostgreSQL for a test run, and a database of its own, freshly copied, for every test that asks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.sdk.portal import Portal
from bellringer.store.migrate import migrate

GIVEN: Final = "BELLRINGER_TEST_DSN"

# Nothing in here outlives the test run, so nothing needs to survive a power cut.
SETTINGS: Final = {
    "max_connections": "300",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "512MB",
}

# A copy of a database is hundreds of small files, which cost a disk five times as much processor time as memory.
MEMORY: Final = Path("/dev/shm")  # noqa: S108
ROOM: Final = 2 << 30  # bytes that must be free there; a container may have next to none
BY_FILE: Final = "strategy file_copy"  # what makes it slow elsewhere are checkpoints that wait for a disk


@dataclass(frozen=True, slots=True)
class TestServer:
    """A server, and the migrated database in it that others are copied from."""

    __test__ = False  # not a test case, whatever its name

    dsn: str
    template: str
    copying: str = ""  # how the server is to copy the template; nothing leaves it to the server

    async def create(self) -> str:
        """Make a migrated database; answers its DSN."""
        name = f"test_{uuid4().hex[:12]}"
        await _execute(self.dsn, f"create database {name} template {self.template} {self.copying}")
        return at_database(self.dsn, name)

    async def drop(self, dsn: str) -> None:
        """Drop a database that `create` has made, whoever still uses it."""
        await _drop(self.dsn, urlsplit(dsn).path[1:])

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The DSN of a migrated database that is there for as long as this context."""
        dsn = await self.create()
        try:
            yield dsn
        finally:
            await self.drop(dsn)

    @contextmanager
    def plain_database(self) -> Iterator[str]:
        """The same, for plain fixtures."""
        portal = Portal("bellringer test database")
        try:
            dsn = portal.run(self.create, instead="`database()`")
            try:
                yield dsn
            finally:
                portal.run(lambda: self.drop(dsn), instead="`database()`")
        finally:
            portal.close()


@contextmanager
def serve(dsn: str | None = None, *, in_memory: bool = False) -> Iterator[TestServer]:
    """A server for a test run: the one given, or that of BELLRINGER_TEST_DSN, or an embedded one.

    An embedded one has its data in memory if that is asked for and there is room, and otherwise on the disk.
    To be called in the main thread, which an embedded server takes for its parent.
    """
    given = dsn or os.environ.get(GIVEN)
    if given:
        with _prepared(given) as server:
            yield server
        return
    folder = Path(tempfile.mkdtemp(prefix="bellringer-test-", dir=_memory() if in_memory else None))
    try:
        with EmbeddedPostgres(folder, settings=SETTINGS) as running, _prepared(running.dsn, BY_FILE) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def at_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{name}{query}"


def _memory() -> Path | None:
    """Where files are kept in memory, if this machine has such a place, and room in it."""
    if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        return MEMORY
    return None


@contextmanager
def _prepared(dsn: str, copying: str = "") -> Iterator[TestServer]:
    # Several test runs may share a server, so each brings a template of its own.
    server = TestServer(dsn, f"template_{uuid4().hex[:12]}", copying)
    portal = Portal("bellringer test server")
    try:
        portal.run(lambda: _make_template(server), instead="a plain fixture")
        yield server
        portal.run(lambda: _drop(dsn, server.template), instead="a plain fixture")
    finally:
        portal.close()


async def _make_template(server: TestServer) -> None:
    await _execute(server.dsn, f"create database {server.template}")
    connection = await asyncpg.connect(at_database(server.dsn, server.template))
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _drop(dsn: str, name: str) -> None:
    """Drop a database, and the role that its migration made for it; a copy that somebody left behind keeps the role."""
    connection = await asyncpg.connect(dsn)
    try:
        number = await connection.fetchval("select oid from pg_database where datname = $1", name)
        await connection.execute(f"drop database {name} with (force)")
        with suppress(asyncpg.DependentObjectsStillExistError):
            await connection.execute(f"drop role if exists bellringer_tenant_{number}")
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
