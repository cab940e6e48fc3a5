"""Runs the entry point of a built image against a real PostgreSQL: read-only root, no capability, not root."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bellringer.backends.embedded_postgres.server import EmbeddedPostgres
from tools.image_root.build import BuiltImage
from tools.image_root.sandbox import Bind, Sandbox
from tools.servers.ports_and_pids import HOST, free_ports

TIMEOUT_SECONDS: Final = 60.0
STATUS_LINES: Final = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs")
APP: Final = '''
import os
from pathlib import Path

from bellringer import App

app = App()


@app.task(name="describe")
def describe() -> dict:
    """Returns who runs this, and whether the root can be written."""
    written = []
    for place in ("/app/x", "/opt/bellringer/x", "/etc/x", "/tmp/x"):
        try:
            Path(place).write_text("x")
            written.append(place)
        except OSError:
            pass
    return {"uid": os.getuid(), "gid": os.getgid(), "written": written}
'''


class CheckFailed(Exception):
    """The image does not work. The message says what was expected, and the output of the process."""


@dataclass(slots=True)
class CheckReport:
    """The results, and the seconds of each step."""

    seconds: dict[str, float] = field(default_factory=dict)
    version: str = ""
    ready: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)  # of the task
    status: Mapping[str, str] = field(default_factory=dict)  # of the server's process, from /proc
    healthy: tuple[int, int] = (-1, -1)  # exit codes of the health check: of the server and of the worker
    unhealthy: int = -1  # exit code of the health check after the server has stopped
    exit_codes: Mapping[str, int] = field(default_factory=dict)  # after SIGTERM

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)


@contextmanager
def serve_postgres(folder: Path) -> Iterator[str]:
    """Yields the DSN of a new server that accepts TCP with a password, as another user needs it."""
    (port,) = free_ports(1)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    settings = {"listen_addresses": HOST, "port": str(port), "fsync": "off"}
    with EmbeddedPostgres(folder, settings=settings) as running:
        _psql(running.dsn, "alter role bellringer password 'secret'")
        hba = folder / "postgres" / "pg_hba.conf"
        hba.write_text(f"host all all {HOST}/32 scram-sha-256\n{hba.read_text()}")
        _psql(running.dsn, "select pg_reload_conf()")
        yield f"postgresql://bellringer:secret@{HOST}:{port}/bellringer"


def _psql(dsn: str, statement: str) -> None:
    import asyncio

    import asyncpg

    async def execute() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute())


class ImageRun:
    """Processes of one image, with the mounts that compose.yaml gives them."""

    def __init__(self, image: BuiltImage, folder: Path, dsn: str) -> None:
        self._image = image
        self._folder = folder
        secrets, app = folder / "secrets", folder / "app"
        for made in (secrets, app):
            made.mkdir(parents=True)
            made.chmod(0o755)
        (secrets / "dsn").write_text(f"{dsn}\n")
        (app / "app.py").write_text(APP)
        binds = [Bind(source=secrets, target="/run/secrets"), Bind(source=app, target=image.folder)]
        self._sandbox: Sandbox = replace(image.sandbox, binds=[*image.sandbox.binds, *binds])
        self._sandbox.prepare()
        self._environ = {**image.environ, "BELLRINGER_DSN_FILE": "/run/secrets/dsn", "BELLRINGER_HOST": HOST}

    def run(self, command: Sequence[str], **settings: str) -> tuple[int, str]:
        """Runs a command in the image, as `docker exec` would."""
        return self._sandbox.run(command, **self._options(settings))

    def bellringer(self, *arguments: str, **settings: str) -> str:
        """Runs the entry point to its end. Returns its output."""
        code, output = self.run([*self._image.entrypoint, *arguments], **settings)
        if code:
            raise CheckFailed(f"bellringer {' '.join(arguments)} ended with {code}:\n{output}")
        return output

    def start(self, name: str, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [*self._image.entrypoint, *arguments]
            return self._sandbox.start(command, stdout=log, stderr=log, **self._options(settings))

    def _options(self, settings: Mapping[str, str]) -> dict[str, Any]:
        environ = {**self._environ, **settings}
        return {"environ": environ, "folder": self._image.folder, "user": self._image.user, "read_only": True}

    def output(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def wait(self, what: str, holds: Callable[[], Any], process: subprocess.Popen[bytes], name: str) -> Any:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not (found := holds()):
            if process.poll() is not None or time.monotonic() > end:
                raise CheckFailed(f"{what}: the {name} wrote\n{self.output(name)}")
            time.sleep(0.1)
        return found


def check(image: BuiltImage, dsn: str, folder: Path) -> CheckReport:
    """Migrates the database, starts a server and a worker, executes a run, and stops both."""
    report, run = CheckReport(), ImageRun(image, folder, dsn)
    port, metrics_port = free_ports(2)
    url, started = f"http://{HOST}:{port}", []
    try:
        with report.step("version"):
            report.version = run.bellringer("--version").strip()
        with report.step("migrate"):
            run.bellringer("migrate")
        key = run.bellringer("keys", "create", "ops", "--role=admin", f"--dsn={dsn}", "--output=key").strip()
        with report.step("server ready"):
            server = run.start("server", *image.command, BELLRINGER_PORT=str(port))
            started.append(server)
            report.ready = run.wait("/readyz returns 200", lambda: _get(port, "/readyz"), server, "server")
        report.status = _read_status(server.pid)
        with report.step("worker joined"):
            worker = run.start("worker", "worker", "app.py", f"--metrics-port={metrics_port}")
            started.append(worker)
            run.wait("the worker joins", lambda: "worker joined" in run.output("worker"), worker, "worker")
        with report.step("run executed"):
            server_options = (f"--url={url}", f"--key={key}")
            run_id = run.bellringer("runs", "send", "describe", "--output=name", *server_options).strip()
            run.bellringer("runs", "wait", run_id, *server_options)
            shown = json.loads(run.bellringer("runs", "get", run_id, "--output=json", *server_options))
            report.result = shown["attempts"][-1]["result"]
        with report.step("health check"):
            code, _ = run.run([*image.healthcheck], HEALTHCHECK_URL=f"{url}/readyz")
            of_worker, _ = run.run([*image.healthcheck, f"http://{HOST}:{metrics_port}/healthz"])
            report.healthy = (code, of_worker)
        with report.step("stopped"):
            report.exit_codes = {"worker": _stop(worker), "server": _stop(server)}
        report.unhealthy, _ = run.run([*image.healthcheck], HEALTHCHECK_URL=f"{url}/readyz")
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
    return report


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(TIMEOUT_SECONDS)


def _get(port: int, path: str) -> Mapping[str, Any] | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        document: Mapping[str, Any] = json.loads(response.read())
        return document if response.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _read_status(pid: int) -> dict[str, str]:
    """Returns the user, the capabilities and the root of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {**{name: found[name] for name in STATUS_LINES}, "root": os.readlink(f"/proc/{pid}/root")}


def remove_tree(folder: Path) -> None:
    """Deletes a folder with roots. All mounts belong to processes that have ended."""
    shutil.rmtree(folder, ignore_errors=True)
