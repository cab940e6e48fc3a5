"""The parent of all that `bellringer dev` runs: a database, a server and a worker, from start to stop."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bellringer.dev import place
from bellringer.dev.children import Child
from bellringer.dev.database import Database
from bellringer.dev.family import Asked, ChildFailed, Family, answers
from bellringer.dev.lines import Paint, say
from bellringer.dev.place import Place

GRACE: Final = "5s"
QUIET: Final = ("--with-parent", "--log", "text", "--log-level", "warning")


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


class Supervisor:
    """Runs a plan until a signal comes."""

    def __init__(self, plan: Plan, paint: Paint, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._paint = paint
        self._environment = dict(environment)
        self._metrics = plan.folder / "metrics"
        self._database = Database(plan.folder, plan.dsn, paint)
        self._family = Family(gone=self._bury, besides=self._database.look)

    def run(self) -> int:
        """Start all, keep it running, and stop it. Answers the exit code when nothing of it runs any more."""
        code = 0
        self._family.heed_signals()
        with ExitStack() as undo:
            try:
                place.prepare(self._plan.folder)
                dsn = self._database.open(undo)
                self._family.until_asked()
                undo.callback(self._family.stop)
                self._start(dsn, undo)
                self._family.keep()
            except Asked:
                say(f"\n  {self._paint('stopping …', 'dim')}")
            except ChildFailed as failure:
                code = failure.code
        say(f"  stopped; {self._database.kept}")
        return code

    def _start(self, dsn: str, undo: ExitStack) -> None:
        """The worker first: once the server says that it is ready, the app's jobs are there to be seen."""
        plan = self._plan
        self._metrics = place.empty_metrics(plan.folder)
        undo.callback(place.remove, plan.folder)
        place.write(plan.folder, Place(dsn=dsn, url=plan.url, pid=os.getpid()))
        say(f"  {self._paint(f'bellringer {plan.version}', 'bold')}   database {self._database.where}")
        environment = {
            **self._environment,
            "BELLRINGER_DSN": dsn,
            "BELLRINGER_URL": plan.url,
            "BELLRINGER_AUTH": plan.auth,
            "PROMETHEUS_MULTIPROC_DIR": str(self._metrics),
        }
        if plan.target:
            arguments = ["worker", plan.target, "--live", "--grace", GRACE, *QUIET]
            worker = Child("the worker", arguments, environment=environment, clock=time.monotonic, tells_ready=True)
            self._family.add(worker)
            self._family.wait(worker.name, lambda: worker.was_ready)
        self._start_server(environment)
        say(f"  {self._paint('✓', '✓')} ready on {self._paint(plan.url, 'bold')}   Ctrl-C stops it")
        if not plan.target:
            say("  no app was given, so nothing runs yet: try `bellringer dev app.py`, or --demo")
        say()

    def _start_server(self, environment: Mapping[str, str]) -> None:
        plan = self._plan
        descriptor = plan.listening.fileno()
        egress = place.egress(plan.folder, own_keys=plan.own_keys, own_networks=plan.own_networks)
        server = Child(
            "the server",
            ["server", "--listening-fd", str(descriptor), *QUIET, *(["--insecure"] if plan.insecure else [])],
            environment={**environment, **egress},
            clock=time.monotonic,
            descriptors=(descriptor,),
        )
        self._family.add(server)
        self._family.wait(server.name, lambda: answers(plan.url))
        server.was_ready = True

    def _bury(self, _child: Child, pid: int) -> None:
        place.bury(self._metrics, pid)
