"""Serves /metrics, /healthz and /readyz of a process on a port of its own, without credentials.

The server runs in a thread, so that it responds even if the event loop of the process is blocked.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as ResultTimeout
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from bellringer.core.loop_progress import (
    Health,
    check_health,
    check_readiness,
    create_registry,
    loops_of_all_processes,
    loops_of_process,
)
from bellringer.telemetry import DATABASE_UP

if TYPE_CHECKING:
    from bellringer.api.app import Api

T = TypeVar("T")

REQUEST_TIMEOUT_SECONDS: Final = 10.0
LOOP_TIMEOUT_SECONDS: Final = 6.0  # for the event loop of a server to read the gauges from the database
_JSON: Final = "application/json"
_NOT_FOUND: Final = b'{"code":"not_found","detail":"the paths are /metrics, /healthz and /readyz"}'


class MetricsSource:
    """The responses of a scheduler or worker process."""

    def __init__(self, role: str, registry: CollectorRegistry = REGISTRY) -> None:
        self._role = role
        self._registry = registry

    def metrics(self) -> bytes:
        return generate_latest(self._registry)

    def health(self) -> Health:
        return check_health(loops_of_process())

    def readiness(self) -> Health:
        return check_readiness(loops_of_process(), self._role)


class ServerMetricsSource(MetricsSource):
    """The responses of an API server, which reads gauges from the database. With several processes on one port, each
    responds for all of them.
    """

    def __init__(self) -> None:
        super().__init__("server")
        self._api: Api | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, api: Api) -> None:
        """Sets the API of this process. To be called on its event loop."""
        self._api, self._loop = api, asyncio.get_running_loop()

    def metrics(self) -> bytes:
        if self._api is None:
            DATABASE_UP.set(0)
        else:
            with suppress(ResultTimeout):  # the loop is blocked: respond without new gauges
                return self._call(self._api.gauges.render())
        return generate_latest(create_registry())

    def health(self) -> Health:
        return check_health(loops_of_all_processes())

    def readiness(self) -> Health:
        if self._api is None:
            return False, {"status": "not_ready", "checks": {"process": "starting"}}
        try:
            document = self._call(self._api.check_readiness())
        except ResultTimeout:
            return False, {"status": "not_ready", "checks": {"process": "does not respond"}}
        return document.status == "ready", msgspec.to_builtins(document)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(LOOP_TIMEOUT_SECONDS)
        except ResultTimeout:
            future.cancel()
            raise


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_SECONDS
    server_version = "bellringer"
    sys_version = ""

    def __init__(self, source: MetricsSource, *arguments: Any) -> None:
        self._source = source
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        checks: dict[str, Callable[[], Health]]
        checks = {"/healthz": self._source.health, "/readyz": self._source.readiness}
        if path == "/metrics":
            self._respond(200, self._source.metrics(), CONTENT_TYPE_LATEST)
        elif path in checks:
            good, document = checks[path]()
            self._respond(200 if good else 503, json.dumps(document).encode(), _JSON)
        else:
            self._respond(404, _NOT_FOUND, _JSON)

    do_HEAD = do_GET  # noqa: N815 - the name is the library's

    def _respond(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, source: MetricsSource) -> None:
        super().__init__(listening.getsockname()[:2], partial(_Handler, source), bind_and_activate=False)
        self.socket.close()
        listening.settimeout(0)  # another process on the same socket may accept the connection first
        self.socket = listening

    def handle_error(self, *_: object) -> None:
        """Do not print clients that disconnect early."""


def serve_metrics(listening: socket.socket, source: MetricsSource) -> int:
    """Serves the source in a thread for the rest of the process, and returns the port."""
    server = _Server(listening, source)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    bound: int = listening.getsockname()[1]
    return bound
