"""Alertmanager, from this machine or from Debian's package."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar

from bellringer.errors import Unavailable
from tools.servers.debian_package import find_program
from tools.servers.listener import Listener, version_of
from tools.servers.ports_and_pids import HOST

PACKAGES = ("prometheus-alertmanager",)
PROGRAM = "prometheus-alertmanager"  # Debian's name; elsewhere it is called alertmanager


class Alertmanager(Listener):
    """An Alertmanager with the given configuration.

    Its program is kept in `downloads`, by default the server's folder.
    """

    name: ClassVar[str] = "alertmanager"
    setting: ClassVar[str] = ""  # Bellringer does not connect to it

    def __init__(self, folder: Path, configuration: str, *, tied: bool = True, downloads: Path | None = None) -> None:
        super().__init__(folder, tied=tied)
        self._downloads = (downloads or self._folder).absolute()
        self._configuration = configuration

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that Prometheus has sent; `status.state` is active, or suppressed if one is inhibited."""
        found: list[dict[str, Any]] = json.loads(self._get("/api/v2/alerts")[1])
        return found

    def _prepare(self) -> str:
        self._program = find_program(PROGRAM, PACKAGES, self._downloads).path
        return version_of(self._program, r"alertmanager, version (\S+)")

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        path = self._folder / "alertmanager.yaml"
        path.write_text(self._configuration)
        return [
            str(self._program),
            f"--config.file={path}",
            f"--storage.path={self._data}",
            f"--web.listen-address={HOST}:{ports[0]}",
            "--cluster.listen-address=",  # one instance
            "--log.level=debug",
        ]

    def _tie(self, command: list[str]) -> list[str]:
        """Debian's program reads a template below /usr/share: an unpacked one gets its own in a mount namespace."""
        tied = super()._tie(command)
        root = self._program.parents[2]  # of usr/bin
        if not root.is_relative_to(self._downloads):
            return tied
        script = 'mount --bind "$0/usr/share" /usr/share && exec "$@"'
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(root), *tied]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"http://{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        try:
            return self._get("/-/ready")[0] == 200
        except Unavailable:
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        client = HTTPConnection(HOST, self.port, timeout=5)
        try:
            client.request("GET", path)
            response = client.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            raise Unavailable(f"alertmanager does not respond: {error}") from error
        finally:
            client.close()
