"""Puts PgBouncer in transaction mode between the tests and their PostgreSQL server (`make test-pgbouncer`)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

import asyncpg
from tools.servers import PgBouncer

from bellringer.sdk.sync_bridge import BlockingPortal
from bellringer.store.connection_pool import SETTINGS
from bellringer.testing.postgres import TestServer, at_database

POOLER_VARIABLE: Final = "BELLRINGER_TEST_POOLER"
# Some tests of the core suite pass a DSN or settings to the driver themselves, which sends them to the server.
TOLERATED: Final = {"ignore_startup_parameters": ",".join(("pgbouncer", *SETTINGS))}


DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "database.md"


def documented_settings() -> dict[str, str]:
    """Returns the settings of PgBouncer that docs/database.md tells users to choose."""
    [block] = re.findall(r"```ini\n(\s*\[databases\].*?)```", DOCUMENT.read_text(), re.DOTALL)
    parser = ConfigParser(interpolation=None)
    parser.read_string(textwrap.dedent(block))
    return dict(parser["pgbouncer"])


@dataclass(frozen=True, slots=True)
class PooledTestServer(TestServer):
    """Creates databases on the server itself, and returns their addresses at the pooler."""

    pooler: PgBouncer | None = None

    async def create(self) -> str:
        assert self.pooler is not None
        return self.pooler.dsn(await TestServer.create(self))

    def direct(self, dsn: str) -> str:
        """Returns the address at the server of a database that `create` made."""
        return at_database(self.dsn, urlsplit(dsn).path[1:], user=self.owner)


@contextmanager
def pooled(
    server: TestServer, folder: Path, downloads: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[PooledTestServer]:
    """Yields the same server behind a pooler with further settings. The roles get the settings that sessions cannot set
    there.
    """
    role = server.owner or urlsplit(server.dsn).username or ""
    portal = BlockingPortal("bellringer pooler settings")
    try:
        portal.run(lambda: give_settings(server.dsn, role), instead="a plain fixture")
    finally:
        portal.close()
    with PgBouncer(folder, server.dsn, users=(role,), downloads=downloads, settings=settings) as pooler:
        yield PooledTestServer(server.dsn, server.template, server.copying, server.owner, pooler)


async def give_settings(dsn: str, role: str) -> None:
    """Makes the settings of Bellringer's sessions defaults of the role."""
    connection = await asyncpg.connect(dsn)
    try:
        for name, value in SETTINGS.items():
            await connection.execute(f"alter role {role} set {name} = '{value}'")
    finally:
        await connection.close()
