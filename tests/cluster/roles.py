"""Starts scheduler, worker and server commands against any database, and ends them with the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

APP = '''
from bellringer import App, every

app = App()


@app.schedule(every("1s"), overlap="allow")
@app.task
async def tick() -> None:
    """Does nothing, every second."""
'''


class Roles:
    """Processes of one installation, with the output of each."""

    def __init__(self, folder: Path, dsn: str, *, app: str = APP, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.dsn = dsn
        self.url = ""  # of the server that was started last
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = environment or {}
        (folder / "app.py").write_text(app)

    def start(self, *command: str, **settings: str) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}
        inherited |= self._environment
        chosen = {"dsn": self.dsn, "name": f"{command[0]}-{number}", **settings}
        with self._said(number).open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "bellringer", *command],
                cwd=self.folder,
                env={**inherited, **{f"BELLRINGER_{name.upper()}": value for name, value in chosen.items()}},
                stdout=said,
                stderr=said,
            )
        self.processes.append(process)
        return process

    def scheduler(self, **settings: str) -> subprocess.Popen[bytes]:
        return self.start("scheduler", **settings)

    def worker(self, **settings: str) -> subprocess.Popen[bytes]:
        return self.start("worker", "app.py", **settings)

    def server(self, *, with_scheduler: bool = False, **settings: str) -> subprocess.Popen[bytes]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = [] if with_scheduler else ["--no-scheduler"]
        return self.start("server", *options, "--port", str(port), **settings)

    def by_name(self, role: str) -> subprocess.Popen[bytes]:
        started: subprocess.Popen[bytes] = getattr(self, role)()
        return started

    def said(self, process: subprocess.Popen[bytes]) -> str:
        return self._said(self.processes.index(process)).read_text()

    def _said(self, number: int) -> Path:
        return self.folder / f"said-{number}.log"

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
