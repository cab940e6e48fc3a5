"""The processes of the drill: an API server, schedulers and workers with metrics ports, and a Prometheus."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

from tools.servers.prometheus import Prometheus

from bellringer.clock import SystemClock
from bench.rolling.fleet import environment_of_this_release

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
HOST: Final = "127.0.0.1"
MISFIRE_GRACE: Final = "10s"  # instead of 60 s, so that a short outage misses occurrences
SLOTS: Final = 300
START_SECONDS: Final = 90.0
POLL_SECONDS: Final = 0.2


class DiskExporter:
    """Reports the free space of a disk as node_exporter does. The drill cannot fill a real disk."""

    def __init__(self) -> None:
        exporter = self
        self.free_share = 0.5

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                labels = '{mountpoint="/var/lib/postgresql"}'
                sizes = {"avail": exporter.free_share * 1e12, "size": 1e12}
                body = "".join(f"node_filesystem_{name}_bytes{labels} {value}\n" for name, value in sizes.items())
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.port: int = self._server.server_address[1]
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class AlertFleet:
    """All processes of the drill. `processes` maps a name to a process, `targets` to its metrics port."""

    def __init__(self, dsn: str, folder: Path, rules: str, *, schedulers: int, workers: int) -> None:
        self.dsn = dsn
        self._folder = folder
        self.disk = DiskExporter()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        names = ["server-1", *(f"scheduler-{n + 1}" for n in range(schedulers))]
        names += [f"worker-{n + 1}" for n in range(workers)]
        self.ports = dict(zip(names, free_ports(len(names) + 1), strict=False))
        self._api_port = free_ports(1)[0]
        scaled = folder / "alerts.yaml"
        scaled.write_text(rules, encoding="utf-8")
        targets = [f"{HOST}:{port}" for port in (*self.ports.values(), self.disk.port)]
        downloads = ROOT / ".services" / "prometheus"
        self.prometheus = Prometheus(folder / "prometheus", targets, rules=[scaled], downloads=downloads)

    async def start(self) -> None:
        for name in self.ports:
            self.start_process(name)
        await self.wait_until(lambda: all(map(self._answers, self.ports.values())), "all processes respond")
        self.prometheus.start()

    def start_process(self, name: str, **settings: str) -> None:
        role = name.partition("-")[0]
        more = {
            "server": ["--no-scheduler", "--port", str(self._api_port), "--insecure"],
            "scheduler": [],
            "worker": ["app.py", "--slots", str(SLOTS)],
        }
        chosen = {"dsn": self.dsn, "name": name, "misfire_grace": MISFIRE_GRACE, **settings}
        with (self._folder / f"{name}.log").open("ab") as said:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "bellringer", role, *more[role], "--metrics-port", str(self.ports[name])],
                cwd=HERE,
                env={
                    **environment_of_this_release(),
                    **{f"BELLRINGER_{key.upper()}": value for key, value in chosen.items()},
                },
                stdout=said,
                stderr=said,
            )

    def stop_process(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def signal(self, role: str, number: signal.Signals) -> None:
        """Sends a signal to all processes of a role."""
        for name, process in self.processes.items():
            if name.startswith(role) and process.poll() is None:
                process.send_signal(number)

    def is_stopped(self, name: str) -> bool:
        """Whether SIGSTOP has stopped the process."""
        with suppress(OSError):
            return Path(f"/proc/{self.processes[name].pid}/stat").read_text().rpartition(") ")[2].startswith("T")
        return False

    async def wait_until(self, holds: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + seconds
        while not await asyncio.to_thread(holds):
            if clock.monotonic() > deadline:
                raise TimeoutError(f"{what}: not after {seconds:.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    def _answers(self, port: int) -> bool:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        return False

    def close(self) -> None:
        for name in self.processes:
            self.stop_process(name)
        self.prometheus.kill()
        self.disk.close()


def free_ports(count: int) -> Sequence[int]:
    """Returns ports that nobody uses."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
