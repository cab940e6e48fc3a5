"""A PostgreSQL server for tests, and migrated databases copied from a template."""

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

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.sdk.sync_bridge import BlockingPortal
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate, row_security

TEST_DSN_VARIABLE: Final = "BELLRINGER_TEST_DSN"

# Nothing in here outlives the test run, so nothing needs to survive a power cut.
FAST_SETTINGS: Final = {
    "max_connections": "300",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "512MB",
}

# A copy of a database is hundreds of small files, which cost a disk five times as much processor time as memory.
MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108
MIN_FREE_BYTES: Final = 2 << 30  # bytes that must be free there; a container may have next to none
FILE_COPY_STRATEGY: Final = "strategy file_copy"  # what makes it slow elsewhere are checkpoints that wait for a disk


@dataclass(frozen=True, slots=True)
class TestServer:
    """A server, and its migrated template database."""

    __test__ = False  # not a test case, whatever its name

    dsn: str  # of a role that may create databases
    template: str
    copying: str = ""  # how the server is to copy the template; nothing leaves it to the server
    owner: str | None = None  # the role that owns the databases, if it is not the role of the DSN

    async def create(self) -> str:
        """Creates a migrated database and returns its DSN."""
        return await self._create(f"test_{uuid4().hex[:12]}", f"template {self.template} {self.copying}")

    async def create_empty(self) -> str:
        """Creates a database without tables and returns its DSN."""
        return await self._create(f"empty_{uuid4().hex[:12]}")

    async def _create(self, name: str, how: str = "") -> str:
        owned = "" if self.owner is None else f"owner {self.owner}"
        await _execute(self.dsn, f"create database {name} {owned} {how}")
        return at_database(self.dsn, name, user=self.owner)

    async def migrate(self, dsn: str) -> None:
        """Migrates a database and enables row-level security."""
        connection = await connect(dsn)
        try:
            await migrate(connection)
            found = await row_security(connection)
            if found is not None and not found.is_on:  # the owner may not create roles
                await _execute(self.dsn, found.remedy)
                await migrate(connection)
        finally:
            await connection.close()

    async def drop(self, dsn: str) -> None:
        """Drops a database that `create` made, even if it has connections."""
        await _drop(self.dsn, urlsplit(dsn).path[1:])

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Yields the DSN of a migrated database that exists during the context."""
        dsn = await self.create()
        try:
            yield dsn
        finally:
            await self.drop(dsn)

    @contextmanager
    def plain_database(self) -> Iterator[str]:
        """The same as `database`, for synchronous fixtures."""
        portal = BlockingPortal("bellringer test database")
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
    """Yields a server for a test run: the given one, that of BELLRINGER_TEST_DSN, or an embedded one.

    With `in_memory`, an embedded server keeps its data in memory if there is enough room. Call it in the main thread,
    because an embedded server takes the calling thread for its parent.
    """
    given = dsn or os.environ.get(TEST_DSN_VARIABLE)
    if given:
        with prepare_server(given) as server:
            yield server
        return
    folder = Path(tempfile.mkdtemp(prefix="bellringer-test-", dir=find_memory_folder() if in_memory else None))
    try:
        with (
            EmbeddedPostgres(folder, settings=FAST_SETTINGS) as running,
            prepare_server(running.dsn, FILE_COPY_STRATEGY) as server,
        ):
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def at_database(dsn: str, name: str, *, user: str | None = None) -> str:
    """Returns the DSN with another database, and another user if given."""
    parts = urlsplit(dsn)
    query = f"?{parts.query}" if parts.query else ""
    place = parts.netloc if user is None else f"{user}@{parts.netloc.rpartition('@')[2]}"
    return f"{parts.scheme}://{place}/{name}{query}"


def find_memory_folder() -> Path | None:
    """Returns a folder in memory if this machine has one with enough room."""
    if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY_FOLDER).free >= MIN_FREE_BYTES:
        return MEMORY_FOLDER
    return None


@contextmanager
def prepare_server(dsn: str, copying: str = "", owner: str | None = None) -> Iterator[TestServer]:
    """Yields a server with a migrated template. Each test run creates its own template, because several may share a
    server.
    """
    server = TestServer(dsn, f"template_{uuid4().hex[:12]}", copying, owner)
    portal = BlockingPortal("bellringer test server")
    try:
        portal.run(lambda: _make_template(server), instead="a plain fixture")
        yield server
        portal.run(lambda: _drop(dsn, server.template), instead="a plain fixture")
    finally:
        portal.close()


async def _make_template(server: TestServer) -> None:
    if server.owner is not None:
        await _execute(server.dsn, f"create role {server.owner} login")
    await server.migrate(await server._create(server.template))  # noqa: SLF001


async def _drop(dsn: str, name: str) -> None:
    """Drops a database and the role that its migration created. A copy that was left behind keeps the role."""
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
