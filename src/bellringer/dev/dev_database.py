"""The database of `bellringer dev` or a local cluster: an embedded one in the state directory, or an external one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from bellringer.dev.live_output import Painter, print_line
from bellringer.dev.state_dir import shown
from bellringer.store.connection_pool import connect
from bellringer.store.migrate import migrate

CHECK_INTERVAL_SECONDS: Final = 5.0  # seconds between two looks


class DevDatabase:
    """Migrated when it is opened. An embedded database that ends is restarted."""

    def __init__(
        self, folder: Path, dsn: str | None, paint: Painter, *, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._folder = folder
        self._named = dsn
        self._paint = paint
        self._settings = settings
        self._own: EmbeddedPostgres | None = None
        self._looked_at = time.monotonic()
        self.pid = 0

    def open(self, undo: ExitStack) -> str:
        if self._named:
            dsn = self._named
        else:
            if not (self._folder / "postgres").exists():
                print_line(f"  {self._paint('making a database in', 'dim')} {shown(self._folder)} …")
            self._own = EmbeddedPostgres(self._folder, settings=self._settings)
            undo.callback(self._own.stop)
            server = self._own.start()
            dsn, self.pid = server.dsn, server.pid
        applied = asyncio.run(_migrate(dsn))
        if applied and self._named:
            print_line(f"  applied {applied} migrations")
        return dsn

    def look(self) -> None:
        """Restarts an embedded database if it has ended. Checks at most every CHECK_INTERVAL_SECONDS."""
        now = time.monotonic()
        if self._own is None or now - self._looked_at < CHECK_INTERVAL_SECONDS:
            return
        self._looked_at = now
        pid = self._own.start().pid  # does nothing while the server responds
        if pid != self.pid:
            self.pid = pid
            print_line("  the database had ended; it runs again")

    @property
    def where(self) -> str:
        if self._own:
            return f"embedded in {shown(self._folder)}"
        parts = urlsplit(self._named or "")
        return f"{parts.hostname or 'local'}{parts.path}"

    @property
    def kept(self) -> str:
        """The message about the database after everything has stopped."""
        return "the database was left running" if self._named else f"the data is kept in {shown(self._folder)}"


async def _migrate(dsn: str) -> int:
    connection = await connect(dsn, name="bellringer migrate")
    try:
        return len((await migrate(connection)).migrations)
    finally:
        await connection.close()
