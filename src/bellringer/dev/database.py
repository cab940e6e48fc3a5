"""The database that everything on this machine works on: one of our own in the folder, or the one that was named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from bellringer.dev.lines import Paint, say
from bellringer.dev.place import shown
from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.store.migrate import migrate
from bellringer.store.pool import connect

LOOK: Final = 5.0  # seconds between two looks


class Database:
    """Opened once, with the schema of this program; one of our own that ends is started again."""

    def __init__(
        self, folder: Path, dsn: str | None, paint: Paint, *, settings: Mapping[str, str] = MappingProxyType({})
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
                say(f"  {self._paint('making a database in', 'dim')} {shown(self._folder)} …")
            self._own = EmbeddedPostgres(self._folder, settings=self._settings)
            undo.callback(self._own.stop)
            server = self._own.start()
            dsn, self.pid = server.dsn, server.pid
        applied = asyncio.run(_migrate(dsn))
        if applied and self._named:
            say(f"  applied {applied} migrations")
        return dsn

    def look(self) -> None:
        """Start it again if it has ended; now and then, as it is asked for often."""
        now = time.monotonic()
        if self._own is None or now - self._looked_at < LOOK:
            return
        self._looked_at = now
        pid = self._own.start().pid  # does nothing while it answers
        if pid != self.pid:
            self.pid = pid
            say("  the database had ended; it runs again")

    @property
    def where(self) -> str:
        if self._own:
            return f"embedded in {shown(self._folder)}"
        parts = urlsplit(self._named or "")
        return f"{parts.hostname or 'local'}{parts.path}"

    @property
    def kept(self) -> str:
        """What became of it when all has stopped."""
        return "the database was left running" if self._named else f"the data is kept in {shown(self._folder)}"


async def _migrate(dsn: str) -> int:
    connection = await connect(dsn, name="bellringer migrate")
    try:
        return len(await migrate(connection))
    finally:
        await connection.close()
