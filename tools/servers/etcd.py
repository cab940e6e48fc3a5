"""etcd, from this machine or from Debian's package."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import ClassVar

from tools.servers import etcd_program
from tools.servers.certificates import CertificateFiles
from tools.servers.listener import Listener
from tools.servers.ports_and_pids import HOST


class Etcd(Listener):
    """A cluster with one member. Its program is kept in `downloads`, by default the server's folder."""

    name: ClassVar[str] = "etcd"
    setting: ClassVar[str] = "BELLRINGER_COORDINATION"
    port_count = 2  # client port and peer port

    def __init__(
        self,
        folder: Path,
        *,
        tied: bool = True,
        downloads: Path | None = None,
        tls: CertificateFiles | None = None,
        extra: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder, tied=tied)
        self._tls = tls
        self._extra = extra
        self._downloads = (downloads or self._folder).absolute()

    @property
    def program(self) -> Path:
        """The path of the program; etcdctl is in the same folder."""
        return etcd_program.get(self._downloads)

    def _prepare(self) -> str:
        self._program = etcd_program.get(self._downloads)
        return etcd_program.version_of_program(self._program)

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        clients, members = (
            f"{scheme}://{HOST}:{port}" for scheme, port in zip((self._scheme, "http"), ports, strict=True)
        )
        secured = self._tls and [f"--cert-file={self._tls.cert}", f"--key-file={self._tls.key}"]
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
            *(secured or ()),
            *self._extra,
        ]

    @property
    def _scheme(self) -> str:
        return "https" if self._tls else "http"

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"{'etcds' if self._tls else 'etcd'}://{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        client = HTTPConnection(HOST, self.port, timeout=1)
        if self._tls:
            client = HTTPSConnection(
                HOST, self.port, timeout=1, context=ssl.create_default_context(cafile=str(self._tls.ca))
            )
        try:
            client.request("GET", "/health")  # true once it has a leader and can write
            return b'"health":"true"' in client.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            client.close()
