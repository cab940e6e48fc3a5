"""PgBouncer in transaction mode, from this machine or from Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

from bellringer.backends.embedded_postgres import launch
from bellringer.store.dsn import endpoints
from tools.servers.debian_package import find_program
from tools.servers.listener import Listener, version_of
from tools.servers.ports_and_pids import HOST

PACKAGES: Final = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
ADMIN: Final = "pgbouncer"  # the name of the console's database, and of its user

# Test databases come and go, so idle server connections are closed soon.
SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pool_mode": "transaction",
        "auth_type": "trust",
        "max_client_conn": "1000",
        "default_pool_size": "20",
        "server_idle_timeout": "5",
        "server_fast_close": "1",
        "unix_socket_dir": "",
        "admin_users": ADMIN,
        "log_connections": "0",
        "log_disconnections": "0",
        "log_pooler_errors": "1",
    }
)


class PgBouncer(Listener):
    """Forwards every database of one PostgreSQL server. Its programs are kept in `downloads`."""

    name: ClassVar[str] = "pgbouncer"
    setting: ClassVar[str] = "BELLRINGER_DSN"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # waits for running transactions

    def __init__(
        self,
        folder: Path,
        target: str,
        *,
        users: tuple[str, ...],
        downloads: Path,
        settings: Mapping[str, str] = MappingProxyType({}),
        database_options: str = "",
    ) -> None:
        """`target` is the DSN of the server; `users` may log in without a password."""
        super().__init__(folder)
        self._target = target
        self._users = users
        self._downloads = downloads.absolute()
        self._settings = {**SETTINGS, **settings}
        self._database_options = database_options
        self._files: Path | None = None

    def dsn(self, database_dsn: str) -> str:
        """Returns the address of a database of the server through this pooler."""
        user, _, _ = database_dsn.partition("://")[2].rpartition("@")
        name = database_dsn.partition("://")[2].partition("/")[2].partition("?")[0]
        return f"postgresql://{user}@{HOST}:{self.port}/{name}?pgbouncer=true&sslmode=disable"

    @property
    def console_dsn(self) -> str:
        return f"postgresql://{ADMIN}@{HOST}:{self.port}/{ADMIN}?sslmode=disable"

    def _prepare(self) -> str:
        self._program = find_program("pgbouncer", PACKAGES, self._downloads)
        return version_of(self._program.path, r"PgBouncer ([\d.]+)", self._program.environ)

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **self._program.environ}

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        host, port = endpoints(self._target)[0]
        self._files = self._files or Path(tempfile.mkdtemp(prefix="bellringer-pgbouncer-"))
        self._files.chmod(0o755)  # another user may run the program
        users = self._files / "users.txt"
        users.write_text("".join(f'"{user}" ""\n' for user in (*self._users, ADMIN)))
        lines = [
            "[databases]",
            f"* = host={host} port={port} {self._database_options}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {ports[0]}",
            f"auth_file = {users}",
            *(f"{name} = {value}" for name, value in self._settings.items()),
        ]
        config = self._files / "pgbouncer.ini"
        config.write_text("\n".join(lines) + "\n")
        return [str(self._program.path), str(config)]

    def _tie(self, command: list[str]) -> list[str]:
        """PgBouncer refuses to run as root, so it runs as the user of the server's socket."""
        tied = super()._tie(command)
        folder = Path(endpoints(self._target)[0][0])
        if os.geteuid() != 0 or not folder.is_dir():
            return tied
        owner = folder.stat()
        way, uid, gid = ("user", owner.st_uid, owner.st_gid) if owner.st_uid else ("namespace", 65534, 65534)
        tie = (os.getpid(), int(signal.SIGKILL), way, uid, gid)
        return [sys.executable, "-I", "-S", launch.__file__, *map(str, tie), *command]

    def _forget(self) -> None:
        super()._forget()
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)
            self._files = None

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        """Logs in to the console, which needs no server."""
        body = struct.pack("!i", 3 << 16) + f"user\0{ADMIN}\0database\0{ADMIN}\0\0".encode()
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                client.sendall(struct.pack("!i", len(body) + 4) + body)
                return client.recv(64).startswith(b"R")
        except OSError:
            return False
