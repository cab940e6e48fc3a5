"""The parent of all that `bellringer cluster up` runs: servers of engines, a database, nodes and workers."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol

from bellringer.dev import place
from bellringer.dev.children import Child
from bellringer.dev.database import Database
from bellringer.dev.family import Asked, ChildFailed, Family, answers
from bellringer.dev.lines import Paint, say
from bellringer.dev.logs import Log
from bellringer.dev.place import Part, Place
from bellringer.dev.supervisor import GRACE, QUIET
from bellringer.errors import BellringerError, Conflict

NODE_CONNECTIONS: Final = 40  # to the database, at most: the API's, the scheduler's, and those that listen
WORKER_CONNECTIONS: Final = 20
SPARE_CONNECTIONS: Final = 60
WIDTH: Final = 10
SERVERS_LOOK: Final = 1.0  # seconds between two looks at servers


class Server(Protocol):
    """A real server of an engine, on this machine: `setting` is the variable that tells its address."""

    name: ClassVar[str]
    setting: ClassVar[str]

    @property
    def pid(self) -> int: ...

    @property
    def lives(self) -> bool: ...

    def start(self) -> str: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many of what, and where; each node has a socket that listens already."""

    folder: Path
    listening: Sequence[socket.socket]
    urls: Sequence[str]
    workers: int
    target: str
    version: str
    servers: Sequence[Server] = ()
    dsn: str | None = None  # None: a database of our own, in the folder
    own_keys: bool = False
    own_networks: bool = False
    auth: str = "none"
    restarts: bool = True
    fresh: bool = False  # nobody has used the folder before …
    keep: bool = False  # … and still it shall not be removed at the end

    @property
    def connections(self) -> int:
        return len(self.urls) * NODE_CONNECTIONS + self.workers * WORKER_CONNECTIONS + SPARE_CONNECTIONS


@contextmanager
def taken(folder: Path, paint: Paint) -> Iterator[bool]:
    """Have the folder for ourselves; answers whether nobody has used it before. Where a cluster runs, it is told of."""
    with ExitStack() as undo:
        try:
            undo.enter_context(place.alone(folder))
        except Conflict:
            if running := place.read(folder):
                for part in running.parts:
                    tell(part, paint)
            raise
        yield place.is_unused(folder)


class Cluster:
    """Runs a plan until a signal comes; then workers stop first, nodes next, servers last."""

    def __init__(self, plan: Plan, paint: Paint, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._paint = paint
        self._environment = dict(environment)
        self._metrics = plan.folder / "metrics"
        more = {"max_connections": str(plan.connections)}
        self._database = Database(plan.folder, plan.dsn, paint, settings=more)
        self._family = Family(gone=self._gone, besides=self._besides, restarts=plan.restarts)
        self._addresses: dict[str, str] = {}
        self._nodes: dict[str, Child] = {}
        self._workers: dict[str, Child] = {}
        self._logs: list[Log] = []
        self._known: Place | None = None
        self._dsn = ""
        self._looked_at = 0.0
        self._ended: set[str] = set()

    def run(self) -> int:
        """Start all, keep it running, and stop it. Answers the exit code when nothing of it runs any more."""
        code, folder, told = 0, self._plan.folder, ""
        self._family.heed_signals()
        with ExitStack() as undo:
            try:
                self._start(undo)
                self._family.keep()
            except Asked:
                say(f"\n  {self._paint('stopping: workers, nodes, servers …', 'dim')}")
            except ChildFailed as failure:
                code, name = failure.code, failure.child.name
                told = f"{name} did not start, see {place.shown(self._log_of(name))}; "
        if self._plan.fresh and not self._plan.keep and not code:
            shutil.rmtree(folder, ignore_errors=True)
            say("  stopped; nothing is left (--keep would have kept the data)")
        else:
            say(f"  {told}stopped; {self._database.kept}")
        return code

    # Starting

    def _start(self, undo: ExitStack) -> None:
        plan = self._plan
        (plan.folder / "logs").mkdir(exist_ok=True)
        self._metrics = place.empty_metrics(plan.folder)
        self._dsn = self._database.open(undo)
        say(f"  {self._paint(f'bellringer {plan.version}', 'bold')}   database {self._database.where}")
        for server in plan.servers:
            self._family.until_asked()
            undo.callback(server.stop)
            say(f"  {self._paint(f'starting {server.name} …', 'dim')}")
            self._addresses[server.name] = server.start()
            tell(Part(name=server.name, where=self._addresses[server.name], pid=server.pid), self._paint)
        undo.callback(self._close_logs)
        undo.callback(lambda: self._family.stop(list(self._nodes.values())))
        undo.callback(lambda: self._family.stop(list(self._workers.values())))
        undo.callback(place.remove, plan.folder)
        self._start_workers(1)  # alone: it declares the app's schedules, which the others then find
        self._await_workers()
        self._start_workers(plan.workers)
        self._start_nodes()
        self._await_workers()
        self._await_nodes()
        self._write_place()
        self._summary()

    def _start_workers(self, upto: int) -> None:
        """Up to so many, all at once."""
        arguments = ["worker", self._plan.target, "--live", "--grace", GRACE, *QUIET]
        for number in range(len(self._workers) + 1, upto + 1):
            name = f"worker-{number}"
            self._workers[name] = self._child(name, arguments, tells_ready=True)

    def _await_workers(self) -> None:
        for name, worker in self._workers.items():
            if not worker.was_ready:
                self._family.wait(name, lambda worker=worker: worker.was_ready)  # type: ignore[misc] # bound now
                tell(Part(name=name, where=self._plan.target, pid=worker.pid), self._paint)

    def _start_nodes(self) -> None:
        plan = self._plan
        egress = place.egress(plan.folder, own_keys=plan.own_keys, own_networks=plan.own_networks)
        for number, listening in enumerate(plan.listening, 1):
            arguments = ["server", "--listening-fd", str(listening.fileno()), *QUIET]
            name = f"node-{number}"
            self._nodes[name] = self._child(name, arguments, more=egress, descriptors=(listening.fileno(),))

    def _await_nodes(self) -> None:
        for (name, node), url in zip(self._nodes.items(), self._plan.urls, strict=True):
            self._family.wait(name, lambda url=url: answers(url))  # type: ignore[misc] # bound now
            node.was_ready = True
            tell(Part(name=name, where=url, pid=node.pid), self._paint)

    def _child(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        more: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        tells_ready: bool = False,
    ) -> Child:
        log = self._log_of(name)
        self._logs.append(Log(name, log, width=WIDTH, paint=self._paint))
        environment = {
            **self._environment,
            **{server.setting: self._addresses[server.name] for server in self._plan.servers},
            **(more or {}),
            "BELLRINGER_DSN": self._dsn,
            "BELLRINGER_URL": self._plan.urls[0],
            "BELLRINGER_AUTH": self._plan.auth,
            "BELLRINGER_NAME": name,
            "PROMETHEUS_MULTIPROC_DIR": str(self._metrics),
        }
        child = Child(
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
            log.tell()
        now = time.monotonic()
        if now - self._looked_at < SERVERS_LOOK:
            return
        self._looked_at = now
        if self._plan.restarts:
            self._database.look()
        for server in self._plan.servers:
            self._look_at(server)
        if len(self._nodes) == len(self._plan.urls):
            self._write_place()

    def _look_at(self, server: Server) -> None:
        if server.name not in self._addresses or server.name in self._ended or server.lives:
            return
        if not self._plan.restarts:
            self._ended.add(server.name)
            say(f"  {server.name} has ended")
            return
        say(f"  {server.name} has ended; it starts again …")
        try:
            server.start()  # on the ports that it had
        except BellringerError as error:  # the others do without, and show how that is
            self._ended.add(server.name)
            say(f"  {error.message}\n  {error.hint}")
        else:
            say(f"  {server.name} runs again (pid {server.pid})")

    def _gone(self, child: Child, pid: int) -> None:
        place.bury(self._metrics, pid)
        if not self._plan.restarts and child.name in self._nodes:
            self._plan.listening[list(self._nodes).index(child.name)].close()  # callers shall not wait for nobody

    def _write_place(self) -> None:
        """What runs and where, whenever that has changed."""
        servers = [Part(name=s.name, where=self._addresses[s.name], pid=s.pid) for s in self._plan.servers if s.lives]
        workers = [Part(name=n, where=self._plan.target, pid=c.pid) for n, c in self._workers.items() if c.runs]
        nodes = [
            Part(name=name, where=url, pid=node.pid)
            for (name, node), url in zip(self._nodes.items(), self._plan.urls, strict=True)
            if node.runs
        ]
        url = nodes[0].where if nodes else self._plan.urls[0]
        now = Place(dsn=self._dsn, url=url, pid=os.getpid(), parts=(*servers, *workers, *nodes))
        if now != self._known:
            place.write(self._plan.folder, now)
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
        say()
        say(f"  see it      bellringer cluster status --url {self._plan.urls[-1]}")
        say(f"  try it      kill -9 {node.pid}   ends {name}: the others take over its shards, and {after}")
        say(f"  read it     {place.shown(self._plan.folder / 'logs')}")
        say("  stop it     Ctrl-C")
        say()


def tell(part: Part, paint: Paint) -> None:
    pid = paint(f"pid {part.pid}", "dim")
    say(f"  {paint('✓', '✓')} {paint(f'{part.name:<{WIDTH}}', 'bold')} {part.where}   {pid}")
