"""etcd, from this machine or from Debian's package."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from tools.servers import etcd_program
from tools.servers.listener import Listener
from tools.servers.ports_and_pids import HOST


class Etcd(Listener):
    """A cluster with one member. Its program is kept in `downloads`, by default the server's folder."""

    name: ClassVar[str] = "etcd"
    setting: ClassVar[str] = "BELLRINGER_COORDINATION"
    port_count: ClassVar[int] = 2  # client port and peer port

    def __init__(self, folder: Path, *, tied: bool = True, downloads: Path | None = None) -> None:
        super().__init__(folder, tied=tied)
        self._downloads = (downloads or self._folder).absolute()

    @property
    def program(self) -> Path:
        """The path of the program; etcdctl is in the same folder."""
        return etcd_program.get(self._downloads)

    def _prepare(self) -> str:
        self._program = etcd_program.get(self._downloads)
        return etcd_program.version_of_program(self._program)

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
