"""Runs `bellringer dev`: a database, a server and a worker, from start to stop."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bellringer.core.loop_progress import METRICS_FOLDER_VARIABLE
from bellringer.dev import state_dir
from bellringer.dev.dev_database import DevDatabase
from bellringer.dev.live_output import Painter, print_line
from bellringer.dev.state_dir import DevState
from bellringer.errors import ConfigError
from bellringer.supervise import shared_metrics
from bellringer.supervise.process_group import (
    ChildExit,
    ChildFailed,
    ProcessGroup,
    StopRequested,
    SupervisedProcess,
    describe_exit,
    is_ready,
)

GUIDE: Final = Path(__file__).parents[1] / "console" / "guide"  # written by `make docs`, and part of the wheel
SET_BY_DEV: Final = "BELLRINGER_SET_BY_DEV"  # read by `config.describe_settings`
DEV_GRACE: Final = "5s"
QUIET_OPTIONS: Final = ("--with-parent", "--log", "text", "--log-level", "warning")


def report_exit(child: SupervisedProcess, ended: ChildExit, *, restarts: bool = True) -> None:
    """Prints that a child died. Raises ChildFailed if the child was never ready: it probably got wrong arguments."""
    how = f"  {child.name} {describe_exit(ended.code)}"
    if not child.was_ready:
        if ended.code < 0:
            print_line(f"{how} before it was ready")
        raise ChildFailed(child, ended.code)
    print_line(f"{how}; it starts again in {ended.pause_seconds:g} s" if restarts else how)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevPlan:
    """What `bellringer dev` runs, and where."""

    folder: Path
    listening: socket.socket
    url: str
    version: str
    target: str | None = None
    dsn: str | None = None  # None: a database of our own, in the folder
    own_keys: bool = False  # the settings name keys for secrets …
    own_networks: bool = False  # … and networks that may be called
    auth: str = "none"  # the server's auth mode for callers on this machine
    insecure: bool = False  # no caller has to log in
    server_options: Sequence[str] = ()  # so that the server knows the host and port that it was given a socket of


class DevSupervisor:
    """Runs a plan until a signal arrives."""

    def __init__(self, plan: DevPlan, paint: Painter, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._paint = paint
        self._environment = dict(environment)
        self._metrics = plan.folder / "metrics"
        self._database = DevDatabase(plan.folder, plan.dsn, paint)
        self._family = ProcessGroup(on_exit=self._on_exit, besides=self._database.look)

    def run(self) -> int:
        """Starts everything, supervises it and stops it. Returns the exit code when nothing runs any more."""
        code = 0
        self._family.handle_signals()
        with ExitStack() as undo:
            try:
                state_dir.prepare(self._plan.folder)
                dsn = self._database.open(undo)
                self._family.raise_if_stopped()
                undo.callback(self._family.stop)
                self._start(dsn, undo)
                self._family.keep()
            except StopRequested:
                print_line(f"\n  {self._paint('stopping …', 'dim')}")
            except ChildFailed as failure:
                code = failure.code
        print_line(f"  stopped; {self._database.kept}")
        return code

    def _start(self, dsn: str, undo: ExitStack) -> None:
        """Starts the worker first, so that the app's jobs exist when the server reports readiness."""
        plan = self._plan
        shared_metrics.clear(self._metrics)
        undo.callback(state_dir.remove, plan.folder)
        state_dir.write(plan.folder, DevState(dsn=dsn, url=plan.url, pid=os.getpid()))
        print_line(f"  {self._paint(f'bellringer {plan.version}', 'bold')}   database {self._database.where}")
        environment = {
            **self._environment,
            "BELLRINGER_DSN": dsn,
            "BELLRINGER_URL": plan.url,
            "BELLRINGER_METRICS_PORT": "0",  # the processes share their metrics, and the API serves them
            "BELLRINGER_AUTH": plan.auth,
            METRICS_FOLDER_VARIABLE: str(self._metrics),
        }
        if plan.target:
            arguments = ["worker", plan.target, "--live", "--grace", DEV_GRACE, *QUIET_OPTIONS]
            worker = SupervisedProcess(
                "the worker", arguments, environment=environment, clock=time.monotonic, tells_ready=True
            )
            self._family.add(worker)
            self._family.wait(worker.name, lambda: worker.was_ready)
        if (GUIDE / "index.html").is_file():
            environment.setdefault("BELLRINGER_DOCS_SITE", "packaged")
        self._start_server(environment)
        print_line(f"  {self._paint('✓', '✓')} ready on {self._paint(plan.url, 'bold')}   Ctrl-C stops it")
        print_line(f"  console on {plan.url}/console/")
        if "BELLRINGER_DOCS_SITE" in environment:
            print_line(f"  documentation on {plan.url}/guide/")
        else:
            print_line("  no documentation in this installation: run `make docs` in a checkout, then start again")
        if not self._is_found_from_here():
            print_line(f"  other commands need  export BELLRINGER_URL={plan.url}")
        if not plan.target:
            print_line("  no app was given, so nothing runs yet: try `bellringer dev app.py`, or --demo")
        print_line()

    def _is_found_from_here(self) -> bool:
        """Whether other commands in this directory reach this instance: not with another --folder, or if another
        instance runs here.
        """
        try:
            found = state_dir.find(Path.cwd(), instead="")
        except ConfigError:
            return False
        return found is not None and found.url == self._plan.url

    def _start_server(self, environment: Mapping[str, str]) -> None:
        plan = self._plan
        descriptor = plan.listening.fileno()
        ours = {name for name, value in environment.items() if self._environment.get(name) != value}
        egress = state_dir.egress(plan.folder, own_keys=plan.own_keys, own_networks=plan.own_networks)
        server = SupervisedProcess(
            "the server",
            [
                *("server", "--listening-fd", str(descriptor), *QUIET_OPTIONS, *plan.server_options),
                *(["--insecure"] if plan.insecure else []),
            ],
            environment={**environment, **egress, SET_BY_DEV: ",".join(sorted(ours | egress.keys()))},
            clock=time.monotonic,
            descriptors=(descriptor,),
        )
        self._family.add(server)
        self._family.wait(server.name, lambda: is_ready(plan.url))
        server.was_ready = True

    def _on_exit(self, child: SupervisedProcess, ended: ChildExit) -> bool:
        shared_metrics.delete_gauges(self._metrics, ended.pid)
        report_exit(child, ended)
        return True
