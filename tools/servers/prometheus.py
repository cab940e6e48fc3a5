"""Prometheus, from this machine or from Debian's package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

from bellringer.errors import Unavailable
from tools.servers.debian_package import find_program
from tools.servers.listener import Listener, version_of
from tools.servers.ports_and_pids import HOST

_PACKAGES = ("prometheus",)


class Prometheus(Listener):
    """A Prometheus that scrapes the given `host:port` addresses every second, with rule files and Alertmanagers.

    Its program is kept in `downloads`, by default the server's folder.
    """

    name: ClassVar[str] = "prometheus"
    setting: ClassVar[str] = ""  # Bellringer does not connect to it

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str] = (),
        *,
        rules: Sequence[Path] = (),
        alertmanagers: Sequence[str] = (),
        tied: bool = True,
        downloads: Path | None = None,
    ) -> None:
        super().__init__(folder, tied=tied)
        self._downloads = (downloads or self._folder).absolute()
        self._targets = tuple(targets)
        self._alertmanagers = list(alertmanagers)
        self._rules = tuple(path.absolute() for path in rules)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of an expression. Raises ValueError if Prometheus rejects the expression."""
        answer = self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        if answer["status"] != "success":
            raise ValueError(f"{expression}: {answer['error']}")
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that are pending or firing."""
        found: list[dict[str, Any]] = self._get("/api/v1/alerts")["data"]["alerts"]
        return found

    def _get(self, path: str) -> Any:
        client = HTTPConnection(HOST, self.port, timeout=10)
        try:
            client.request("GET", path)
            return json.loads(client.getresponse().read())
        except (OSError, HTTPException) as error:
            raise Unavailable(f"prometheus does not respond: {error}") from error
        finally:
            client.close()

    def _prepare(self) -> str:
        self._program = find_program("prometheus", _PACKAGES, self._downloads).path
        return version_of(self._program, r"prometheus, version (\S+)")

    def _command(self, ports: tuple[int, ...]) -> list[str]:
        configuration = self._folder / "prometheus.json"  # JSON is YAML
        scrape = {"job_name": "bellringer", "static_configs": [{"targets": list(self._targets)}]}
        configuration.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(path) for path in self._rules],
                    "scrape_configs": [scrape],
                    "alerting": {"alertmanagers": [{"static_configs": [{"targets": self._alertmanagers}]}]},
                }
            )
        )
        return [
            str(self._program),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={self._data}",
            f"--web.listen-address={HOST}:{ports[0]}",
            "--rules.alert.resend-delay=2s",  # alerts that fire before it knows its Alertmanagers are lost
            "--log.level=warn",
        ]

    def _address_of(self, ports: tuple[int, ...]) -> str:
        return f"http://{HOST}:{ports[0]}"

    def _answers(self) -> bool:
        client = HTTPConnection(HOST, self.port, timeout=1)
        try:
            client.request("GET", "/-/ready")
            return client.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            client.close()
