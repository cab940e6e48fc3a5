"""The parent of all that `bellringer dev` runs: a database, a server and a worker, from start to stop."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bellringer.dev import place
from bellringer.dev.children import Child, cause
from bellringer.dev.lines import Paint, say
from bellringer.dev.place import Place
from bellringer.engines.embedded import EmbeddedPostgres
from bellringer.errors import Unavailable
from bellringer.store.migrate import migrate
from bellringer.store.pool import connect

GRACE: Final = "5s"
STOP_LIMIT: Final = 12.0  # seconds from asking the children to stop to ending them
READY_LIMIT: Final = 60.0
LOOK: Final = 0.05
DATABASE_LOOK: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, and where."""

    folder: Path
    listening: socket.socket
    url: str
    version: str
    target: str | None = None
    dsn: str | None = None  # None: a database of our own, in the folder
    own_keys: bool = False  # the settings name keys for secrets …
    own_networks: bool = False  # … and networks that may be called
    auth: str = "none"  # of the server: whether who calls from this machine has to log in
    insecure: bool = False  # nobody has to


class Asked(Exception):
    """Unwinds whatever we are at."""


class ChildFailed(Exception):
    """A child ended before it was ever ready, so there is no sense in starting it again."""

    def __init__(self, code: int) -> None:
        self.code = code


class Supervisor:
    """Runs a plan until a signal comes. Everything happens in the main thread, one step after the other."""

    def __init__(self, plan: Plan, paint: Paint, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._paint = paint
        self._environment = dict(environment)
        self._asked = 0
        self._children: list[Child] = []
        self._database: EmbeddedPostgres | None = None
        self._database_pid = 0
        self._looked_at = time.monotonic()

    def run(self) -> int:
        """Start all, keep it running, and stop it. Answers the exit code when nothing of it runs any more."""
        code = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up stays ignored
                signal.signal(number, self._ask)
        with ExitStack() as undo:
            try:
                dsn = self._open_database(undo)
                undo.callback(self._stop_children)
                self._start(dsn, undo)
                self._keep()
            except Asked:
                say(f"\n  {self._paint('stopping …', 'dim')}")
            except ChildFailed as failure:
                code = failure.code
        say(f"  stopped; {self._kept()}")
        return code

    def _ask(self, *_: object) -> None:
        self._asked += 1
        if self._asked > 1:  # a second Ctrl-C does not wait for the grace
            for child in self._children:
                child.kill()

    # Starting

    def _open_database(self, undo: ExitStack) -> str:
        place.prepare(self._plan.folder)
        if self._plan.dsn:
            dsn = self._plan.dsn
        else:
            if not (self._plan.folder / "postgres").exists():
                say(f"  {self._paint('making a database in', 'dim')} {shown(self._plan.folder)} …")
            self._database = EmbeddedPostgres(self._plan.folder)
            undo.callback(self._database.stop)
            server = self._database.start()
            dsn, self._database_pid = server.dsn, server.pid
        applied = asyncio.run(_migrate(dsn))
        if applied and self._plan.dsn:
            say(f"  applied {applied} migrations")
        self._until_asked()
        return dsn

    def _start(self, dsn: str, undo: ExitStack) -> None:
        """The worker first: once the server says that it is ready, the app's jobs are there to be seen."""
        plan = self._plan
        self._metrics = place.empty_metrics(plan.folder)
        undo.callback(place.remove, plan.folder)
        place.write(plan.folder, Place(dsn=dsn, url=plan.url, pid=os.getpid()))
        say(f"  {self._paint(f'bellringer {plan.version}', 'bold')}   database {self._where()}")
        environment = {
            **self._environment,
            "BELLRINGER_DSN": dsn,
            "BELLRINGER_URL": plan.url,
            "BELLRINGER_AUTH": plan.auth,
            "PROMETHEUS_MULTIPROC_DIR": str(self._metrics),
        }
        quiet = ["--with-parent", "--log", "text", "--log-level", "warning"]
        if plan.target:
            self._add("worker", ["worker", plan.target, "--live", "--grace", GRACE, *quiet], environment)
            self._wait("worker", lambda: self._children[0].was_ready)
        descriptor = plan.listening.fileno()
        arguments = ["server", "--listening-fd", str(descriptor), *quiet, *(["--insecure"] if plan.insecure else [])]
        self._add("server", arguments, {**environment, **self._egress()}, descriptor)
        self._wait("server", self._answers)
        self._children[-1].was_ready = True
        say(f"  {self._paint('✓', '✓')} ready on {self._paint(plan.url, 'bold')}   Ctrl-C stops it")
        if not plan.target:
            say("  no app was given, so nothing runs yet: try `bellringer dev app.py`, or --demo")
        say()

    def _egress(self) -> dict[str, str]:
        """A developer can keep secrets and call servers of this machine, unless the settings say otherwise."""
        settings = {}
        if not self._plan.own_keys:
            settings["BELLRINGER_SECRET_KEYS"] = place.secret_key(self._plan.folder)
        if not self._plan.own_networks:
            settings["BELLRINGER_EGRESS_ALLOW"] = "127.0.0.0/8,::1/128"
        return settings

    def _add(self, name: str, arguments: list[str], environment: Mapping[str, str], *descriptors: int) -> None:
        child = Child(
            name,
            arguments,
            environment=environment,
            clock=time.monotonic,
            descriptors=descriptors,
            tells_ready=name == "worker",
        )
        self._children.append(child)
        child.start()

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_LIMIT
        while not is_ready():
            self._look()
            if time.monotonic() > deadline:
                raise Unavailable(f"the {name} was not ready after {READY_LIMIT:.0f} s", hint="see the lines above")
            time.sleep(LOOK)

    def _answers(self) -> bool:
        """Whether the server says that it is ready; before it listens, the request waits for it a moment."""
        parts = urlsplit(self._plan.url)
        connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=0.5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    # Keeping

    def _keep(self) -> None:
        while True:
            self._look()
            time.sleep(LOOK)

    def _look(self) -> None:
        """One look at everything: what died is started again."""
        self._until_asked()
        for child in self._children:
            pid = child.pid
            died = child.check()
            if died is None:
                continue
            self._until_asked()
            place.bury(self._metrics, pid)
            code, pause = died
            if not child.was_ready:
                if code < 0:
                    say(f"  the {child.name} {cause(code)} before it was ready")
                raise ChildFailed(code if code > 0 else 1)
            say(f"  the {child.name} {cause(code)}; it starts again in {pause:g} s")
        now = time.monotonic()
        if self._database and now - self._looked_at > DATABASE_LOOK:
            self._looked_at = now
            self._look_at_database(self._database)

    def _look_at_database(self, database: EmbeddedPostgres) -> None:
        pid = database.start().pid  # does nothing while it answers
        if pid != self._database_pid:
            self._database_pid = pid
            say("  the database had ended; it runs again")

    def _until_asked(self) -> None:
        if self._asked:
            raise Asked

    # Stopping

    def _stop_children(self) -> None:
        for child in self._children:
            child.ask()
        deadline = time.monotonic() + STOP_LIMIT
        while any(child.runs for child in self._children) and time.monotonic() < deadline:
            time.sleep(LOOK)
        for child in self._children:
            child.end()

    # Words

    def _where(self) -> str:
        if self._database:
            return f"embedded in {shown(self._plan.folder)}"
        parts = urlsplit(self._plan.dsn or "")
        return f"{parts.hostname or 'local'}{parts.path}"

    def _kept(self) -> str:
        if self._plan.dsn:
            return "the database was left running"
        return f"the data is kept in {shown(self._plan.folder)}"


async def _migrate(dsn: str) -> int:
    connection = await connect(dsn, name="bellringer migrate")
    try:
        return len(await migrate(connection))
    finally:
        await connection.close()


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return f"./{path.resolve().relative_to(Path.cwd())}"
    except ValueError:
        return str(path)
