"""The embedded PostgreSQL as a test server."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from bellringer.backends.embedded_postgres import postmaster
from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from tools.servers import ports_and_pids
from tools.servers.ports_and_pids import ServerState
from tools.servers.server import Server


class Postgres(Server):
    """Listens on a Unix socket, so it needs no port; its address is its DSN."""

    name: ClassVar[str] = "postgres"
    setting: ClassVar[str] = "BELLRINGER_DSN"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # fast shutdown

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        super().__init__(folder, tied=tied)
        self._data = self._folder / "postgres"
        self._engine = EmbeddedPostgres(self._folder, tied=tied)

    def _begin(self) -> None:
        server = self._engine.start()
        version = (server.data / "PG_VERSION").read_text().strip()
        self._remember(
            ServerState(version=version, address=server.dsn, pid=server.pid, born=ports_and_pids.born(server.pid))
        )

    def _forget(self) -> None:
        super()._forget()
        self._engine.stop()  # releases the folder; the server has already ended
        with suppress(OSError):
            postmaster.socket_folder(self._data, self._data.stat().st_uid).rmdir()

    def _signal(self, number: signal.Signals) -> None:
        """Sessions are separate processes, so SIGSTOP, SIGCONT and SIGKILL must reach them too."""
        others = [(pid, ports_and_pids.born(pid)) for pid in self._pids()[1:]] if number != self.stop_signal else []
        super()._signal(number)
        for pid, born in others:
            ports_and_pids.send(pid, born, number)

    def _pids(self) -> list[int]:
        return [pid for first in super()._pids() for pid in (first, *ports_and_pids.children(first))]

    def _answers(self) -> bool:
        running = postmaster.find_server(self._data)
        return running is not None and postmaster.accepts_connections(running)
