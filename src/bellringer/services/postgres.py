"""A database: our own embedded PostgreSQL, as a server among the others."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from bellringer.engines import embedded_postmaster as postmaster
from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.services import places
from bellringer.services.places import State
from bellringer.services.server import Server


class Postgres(Server):
    """Reached by a socket, so it needs no port; its address is its DSN."""

    name: ClassVar[str] = "postgres"
    setting: ClassVar[str] = "BELLRINGER_DSN"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # at once, but in order

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        super().__init__(folder, tied=tied)
        self._data = self._folder / "postgres"
        self._engine = EmbeddedPostgres(self._folder, tied=tied)

    def _begin(self) -> None:
        server = self._engine.start()
        version = (server.data / "PG_VERSION").read_text().strip()
        self._remember(State(version=version, address=server.dsn, pid=server.pid, born=places.born(server.pid)))

    def _forget(self) -> None:
        super()._forget()
        self._engine.stop()  # lets go of the folder; the server itself is gone
        with suppress(OSError):
            postmaster.socket_folder(self._data, self._data.stat().st_uid).rmdir()

    def _signal(self, number: signal.Signals) -> None:
        """Its sessions are processes of their own: what stops or kills it has to reach them too."""
        others = [(pid, places.born(pid)) for pid in self._pids()[1:]] if number != self.stop_signal else []
        super()._signal(number)
        for pid, born in others:
            places.send(pid, born, number)

    def _pids(self) -> list[int]:
        return [pid for first in super()._pids() for pid in (first, *places.children(first))]

    def _answers(self) -> bool:
        running = postmaster.find(self._data)
        return running is not None and postmaster.answers(running)
