"""Runs `bellringer cluster up`: backend servers, a database, nodes and workers, from start to stop."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bellringer.core.loop_progress import METRICS_FOLDER_VARIABLE
from bellringer.dev import state_dir
from bellringer.dev.dev_database import DevDatabase
from bellringer.dev.dev_supervisor import DEV_GRACE, QUIET_OPTIONS, report_exit
from bellringer.dev.live_output import Painter, print_line
from bellringer.dev.local_servers import SETTINGS
from bellringer.dev.state_dir import ClusterProcess, DevState
from bellringer.errors import Conflict
from bellringer.supervise import shared_metrics
from bellringer.supervise.process_group import (
    ChildExit,
    ChildFailed,
    ProcessGroup,
    StopRequested,
    SupervisedProcess,
    is_ready,
)

NODE_CONNECTIONS: Final = 40  # maximum per node: API, scheduler and listeners
WORKER_CONNECTIONS: Final = 20
SPARE_CONNECTIONS: Final = 60
NAME_WIDTH: Final = 10
SERVER_CHECK_INTERVAL_SECONDS: Final = 1.0  # seconds between two looks at servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The number of nodes and workers, and the state directory. Each node has a listening socket."""

    folder: Path
    listening: Sequence[socket.socket]
    urls: Sequence[str]
    workers: int
    target: str
    version: str
    servers: Mapping[str, str] = field(default_factory=dict)  # addresses of kafka, etcd and redis
    dsn: str | None = None  # None: a database of our own, in the folder
    own_keys: bool = False
    own_networks: bool = False
    auth: str = "none"
    restarts: bool = True
    fresh: bool = False  # the folder was unused …
    keep: bool = False  # … but must not be removed at the end

    @property
    def connections(self) -> int:
        return len(self.urls) * NODE_CONNECTIONS + self.workers * WORKER_CONNECTIONS + SPARE_CONNECTIONS


@contextmanager
def lock_folder(folder: Path, paint: Painter) -> Iterator[bool]:
    """Locks the state directory and yields whether it is unused. If a cluster runs in it, prints its processes and
    raises Conflict.
    """
    with ExitStack() as undo:
        try:
            undo.enter_context(state_dir.alone(folder))
        except Conflict:
            if running := state_dir.read(folder):
                for part in running.parts:
                    print_part(part, paint)
            raise
        yield state_dir.is_unused(folder)


class LocalCluster:
    """Runs a plan until a signal arrives; then stops workers first, nodes next, servers last."""

    def __init__(self, plan: ClusterPlan, paint: Painter, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._paint = paint
        self._environment = dict(environment)
        self._metrics = plan.folder / "metrics"
        more = {"max_connections": str(plan.connections)}
        self._database = DevDatabase(plan.folder, plan.dsn, paint, settings=more)
        self._family = ProcessGroup(on_exit=self._on_exit, besides=self._besides)
        self._nodes: dict[str, SupervisedProcess] = {}
        self._workers: dict[str, SupervisedProcess] = {}
        self._logs: list[LogTail] = []
        self._known: DevState | None = None
        self._dsn = ""
        self._looked_at = 0.0

    def run(self) -> int:
        """Starts everything, supervises it and stops it. Returns the exit code when nothing runs any more."""
        code, folder, described = 0, self._plan.folder, ""
        self._family.handle_signals()
        with ExitStack() as undo:
            try:
                self._start(undo)
                self._family.keep()
            except StopRequested:
                print_line(f"\n  {self._paint('stopping: workers, nodes, database …', 'dim')}")
            except ChildFailed as failure:
                code, name = failure.code, failure.child.name
                described = f"{name} did not start, see {state_dir.shown(self._log_of(name))}; "
        if self._plan.fresh and not self._plan.keep and not code:
            shutil.rmtree(folder, ignore_errors=True)
            print_line("  stopped; nothing is left (--keep would have kept the data)")
        else:
            print_line(f"  {described}stopped; {self._database.kept}")
        return code

    # Starting

    def _start(self, undo: ExitStack) -> None:
        plan = self._plan
        (plan.folder / "logs").mkdir(exist_ok=True)
        shared_metrics.clear(self._metrics)
        self._dsn = self._database.open(undo)
        print_line(f"  {self._paint(f'bellringer {plan.version}', 'bold')}   database {self._database.where}")
        for name, address in plan.servers.items():
            print_line(f"  {self._paint('✓', '✓')} {self._paint(f'{name:<{NAME_WIDTH}}', 'bold')} {address}")
        undo.callback(self._close_logs)
        undo.callback(lambda: self._family.stop(list(self._nodes.values())))
        undo.callback(lambda: self._family.stop(list(self._workers.values())))
        undo.callback(state_dir.remove, plan.folder)
        self._start_workers(1)  # alone: it declares the app's schedules, which the others then find
        self._await_workers()
        self._start_workers(plan.workers)
        self._start_nodes()
        self._await_workers()
        self._await_nodes()
        self._write_place()
        self._summary()

    def _start_workers(self, upto: int) -> None:
        """Starts workers until there are `upto`."""
        arguments = ["worker", self._plan.target, "--live", "--grace", DEV_GRACE, *QUIET_OPTIONS]
        for number in range(len(self._workers) + 1, upto + 1):
            name = f"worker-{number}"
            self._workers[name] = self._child(name, arguments, tells_ready=True)

    def _await_workers(self) -> None:
        for name, worker in self._workers.items():
            if not worker.was_ready:
                self._family.wait(name, lambda worker=worker: worker.was_ready)  # type: ignore[misc] # bound now
                print_part(ClusterProcess(name=name, where=self._plan.target, pid=worker.pid), self._paint)

    def _start_nodes(self) -> None:
        plan = self._plan
        egress = state_dir.egress(plan.folder, own_keys=plan.own_keys, own_networks=plan.own_networks)
        for number, listening in enumerate(plan.listening, 1):
            arguments = ["server", "--listening-fd", str(listening.fileno()), *QUIET_OPTIONS]
            name = f"node-{number}"
            self._nodes[name] = self._child(name, arguments, more=egress, descriptors=(listening.fileno(),))

    def _await_nodes(self) -> None:
        for (name, node), url in zip(self._nodes.items(), self._plan.urls, strict=True):
            self._family.wait(name, lambda url=url: is_ready(url))  # type: ignore[misc] # bound now
            node.was_ready = True
            print_part(ClusterProcess(name=name, where=url, pid=node.pid), self._paint)

    def _child(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        more: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        tells_ready: bool = False,
    ) -> SupervisedProcess:
        log = self._log_of(name)
        self._logs.append(LogTail(name, log, width=NAME_WIDTH, paint=self._paint))
        environment = {
            **self._environment,
            **{SETTINGS[name]: address for name, address in self._plan.servers.items()},
            **(more or {}),
            "BELLRINGER_DSN": self._dsn,
            "BELLRINGER_URL": self._plan.urls[0],
            "BELLRINGER_METRICS_PORT": "0",  # the processes share their metrics, and the API serves them
            "BELLRINGER_AUTH": self._plan.auth,
            "BELLRINGER_NAME": name,
            METRICS_FOLDER_VARIABLE: str(self._metrics),
        }
        child = SupervisedProcess(
            name,
            arguments,
            environment=environment,
            clock=time.monotonic,
            descriptors=descriptors,
            tells_ready=tells_ready,
            log=log,
            apart=True,
        )
        self._family.add(child)
        return child

    # Keeping

    def _besides(self) -> None:
        for log in self._logs:
            log.print_new()
        now = time.monotonic()
        if now - self._looked_at < SERVER_CHECK_INTERVAL_SECONDS:
            return
        self._looked_at = now
        if self._plan.restarts:
            self._database.look()
        if len(self._nodes) == len(self._plan.urls):
            self._write_place()

    def _on_exit(self, child: SupervisedProcess, ended: ChildExit) -> bool:
        shared_metrics.delete_gauges(self._metrics, ended.pid)
        if not self._plan.restarts and child.name in self._nodes:
            self._plan.listening[
                list(self._nodes).index(child.name)
            ].close()  # otherwise clients would wait for a node that never accepts
        report_exit(child, ended, restarts=self._plan.restarts)
        return self._plan.restarts

    def _write_place(self) -> None:
        """Writes the state file if the running processes have changed."""
        workers = [
            ClusterProcess(name=n, where=self._plan.target, pid=c.pid) for n, c in self._workers.items() if c.runs
        ]
        nodes = [
            ClusterProcess(name=name, where=url, pid=node.pid)
            for (name, node), url in zip(self._nodes.items(), self._plan.urls, strict=True)
            if node.runs
        ]
        url = nodes[0].where if nodes else self._plan.urls[0]
        now = DevState(dsn=self._dsn, url=url, pid=os.getpid(), parts=(*workers, *nodes))
        if now != self._known:
            state_dir.write(self._plan.folder, now)
            self._known = now

    # Words

    def _log_of(self, name: str) -> Path:
        return self._plan.folder / "logs" / f"{name}.log"

    def _close_logs(self) -> None:
        for log in self._logs:
            log.close()

    def _summary(self) -> None:
        name, node = next(iter(self._nodes.items()))
        after = "it starts again" if self._plan.restarts else "it stays away"
        print_line()
        print_line(f"  see it      bellringer cluster status --url {self._plan.urls[-1]}")
        print_line(f"  try it      kill -9 {node.pid}   ends {name}: the others take over its shards, and {after}")
        print_line(f"  read it     {state_dir.shown(self._plan.folder / 'logs')}")
        print_line("  stop it     Ctrl-C")
        print_line()


def print_part(part: ClusterProcess, paint: Painter) -> None:
    pid = paint(f"pid {part.pid}", "dim")
    print_line(f"  {paint('✓', '✓')} {paint(f'{part.name:<{NAME_WIDTH}}', 'bold')} {part.where}   {pid}")


MAX_LOG_BYTES_PER_READ: Final = 65_536  # per child and check, so that a noisy child does not hide the others
MAX_LOG_FILE_BYTES: Final = 8_000_000  # the file is truncated beyond this size


class LogTail:
    """Prints the lines that a child appends to its log file. A file outlives both processes; a pipe would break."""

    def __init__(self, name: str, path: Path, *, width: int, paint: Painter) -> None:
        self.path = path
        self._sign = paint(f"{name:<{width}} │", "dim")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        self._place = 0

    def print_new(self, *, rest: bool = False) -> None:
        """Prints the new lines; with `rest` also a last line without a newline."""
        said = os.pread(self._file, MAX_LOG_BYTES_PER_READ, self._place)
        whole = said if rest or len(said) == MAX_LOG_BYTES_PER_READ else said[: said.rfind(b"\n") + 1]
        for line in whole.decode(errors="replace").splitlines():
            print_line(f"  {self._sign} {line.rstrip()}".rstrip())
        self._place += len(whole)
        if self._place > MAX_LOG_FILE_BYTES and self._place == os.fstat(self._file).st_size:
            os.ftruncate(self._file, 0)  # the child appends, so it continues at the new end
            self._place = 0

    def close(self) -> None:
        self.print_new(rest=True)
        os.close(self._file)
