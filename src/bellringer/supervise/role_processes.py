"""Runs `worker --procs N` and `server --procs N`: several processes that logs, metrics and signals present as one.

The supervisor neither imports an app nor connects to the database. Each process is a new Python interpreter, so no
event loop or thread is inherited, and no socket but the one on which servers listen.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from bellringer.core.loop_progress import (
    METRICS_FOLDER_VARIABLE,
    Health,
    LoopCollector,
    check_health,
    check_readiness,
    read_shared,
)
from bellringer.core.process_sums import ProcessSums
from bellringer.metrics_server import MetricsSource
from bellringer.supervise import shared_metrics
from bellringer.supervise.process_group import (
    ChildExit,
    ChildFailed,
    ProcessGroup,
    StopRequested,
    SupervisedProcess,
    describe_exit,
)
from bellringer.supervise.systemd import ALIVE, READY, STOPPING, ChildReports, SystemdNotifier, without_notifier
from bellringer.telemetry import log

MAX_QUICK_EXITS: Final = 5  # exits in a row, each within 30 s of its start, that end the supervisor
CHECK_INTERVAL_SECONDS: Final = 0.1
START_TIMEOUT_SECONDS: Final = float("inf")  # a process waits for its database without limit, and says so
# Beyond the grace period: a worker cancels what is left 10 s later and waits 5 s for threads of handlers.
STOP_MARGIN_SECONDS: Final = 20.0
INTERRUPTED_EXIT_CODE: Final = 130
STOPPED_EXIT_CODE: Final = 90  # of a process that was asked to stop; a handler that calls os._exit(0) ends with 0
_FOLDER_PREFIX: Final = "bellringer-worker-metrics-"
_LOCK_FILE: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """The processes to run: `arguments` are those of the role's command, without the ones that differ by process."""

    role: Literal["worker", "server"]
    processes: int
    arguments: Sequence[str]
    arguments_after_first: Sequence[str] = ()  # further arguments of all processes but the first
    environment: Mapping[str, str]
    grace_seconds: float
    name: str | None = None  # a process gets name-1, name-2 …
    metrics_folder: MetricsFolder | None = None
    descriptors: Sequence[int] = ()  # inherited by every process


class RoleProcesses:
    """Runs a plan until a signal arrives, a process is in a crash loop, or all processes were asked to stop."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self._group = ProcessGroup(
            on_exit=self._on_exit, besides=self._watch, check_interval_seconds=CHECK_INTERVAL_SECONDS
        )
        self._notifier = SystemdNotifier("", None)
        self._reports: ChildReports | None = None
        self._reported_at = float("-inf")
        self._numbers: dict[str, int] = {}
        self._is_started = False
        self.restarts = 0

    @property
    def running(self) -> int:
        """The number of processes that run; the others wait to be restarted, or were asked to stop."""
        return sum(child.runs for child in list(self._group.children))

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in list(self._group.children) if child.runs]

    @property
    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether at least one process runs, and the document for /healthz."""
        running, wanted = self.running, self._plan.processes
        status = "ok" if running >= len(self._group.children) else "degraded" if running else "down"
        return running > 0, {"status": status, "processes": wanted, "running": running}

    def run(self) -> int:
        """Starts the processes, supervises them and stops them. Returns the exit code when none runs any more."""
        self._group.handle_signals()
        self._notifier = SystemdNotifier.from_environment(os.environ)
        with ExitStack() as opened:
            if self._notifier.watchdog_seconds is not None:
                self._reports = ChildReports(self._notifier.watchdog_seconds, time.monotonic)
                opened.callback(self._reports.close)
            return self._run()

    def _run(self) -> int:
        code = 0
        try:
            self._start()
            self._notifier.send(READY)
            self._group.keep(until_empty=True)
        except StopRequested:
            log.info(f"{self._plan.role} stopping", processes=self.running, grace_s=self._plan.grace_seconds)
        except ChildFailed as failure:
            code = failure.code
        self._notifier.send(STOPPING)
        self._group.stop(timeout_seconds=self._plan.grace_seconds + STOP_MARGIN_SECONDS)
        code = code or self._exit_code_after_stop()
        log.info(f"{self._plan.role} stopped", processes=self._plan.processes, exit_code=code)
        return code

    def _start(self) -> None:
        """Starts the first process alone: if the app or the settings are wrong, there is one message, not N."""
        first, *others = range(1, self._plan.processes + 1)
        self._add(first)
        self._wait_for_all()
        self._is_started = True
        for number in others:
            self._add(number)
        self._wait_for_all()
        log.info(f"{self._plan.role} started", processes=self._plan.processes, **self._describe_slots())

    def _watch(self) -> None:
        """Reports to the watchdog of systemd, and kills processes that do not report: they are then restarted."""
        interval, now = self._notifier.interval_seconds, time.monotonic()
        if interval is None or self._reports is None:
            return
        silent = self._reports.find_silent()
        for child in self._group.children:
            if child.runs and child.pid in silent:
                facts = {"proc": self._numbers[child.name], "pid": child.pid}
                log.error(f"{self._plan.role} process does not progress and is killed", **facts)
                child.kill()
        if now - self._reported_at >= interval:
            self._reported_at = now
            self._notifier.send(ALIVE)

    def _describe_slots(self) -> dict[str, Any]:
        slots = _read_slots(self._group.children)
        in_all = {pool: count * self._plan.processes for pool, count in slots.items()}
        return {"slots_per_process": slots, "slots_in_all": in_all} if slots else {}

    def _add(self, number: int) -> None:
        plan = self._plan
        environment = without_notifier(plan.environment)
        if self._reports is not None:
            environment.update(self._reports.environment)
        if plan.name:
            environment["BELLRINGER_NAME"] = f"{plan.name}-{number}"
        descriptors = list(plan.descriptors)
        if plan.metrics_folder is not None:
            environment[METRICS_FOLDER_VARIABLE] = str(plan.metrics_folder.path)
            descriptors.append(plan.metrics_folder.lock)
        own = plan.arguments_after_first if number > 1 else ()
        child = SupervisedProcess(
            f"{plan.role} process {number}",
            [plan.role, *plan.arguments, *own, "--proc", str(number), "--with-parent"],
            environment=environment,
            clock=time.monotonic,
            descriptors=descriptors,
            tells_ready=True,
        )
        self._numbers[child.name] = number
        self._group.add(child)

    def _wait_for_all(self) -> None:
        self._group.wait(
            f"the {self._plan.role}",
            lambda: all(child.was_ready for child in self._group.children),
            timeout_seconds=START_TIMEOUT_SECONDS,
        )

    def _on_exit(self, child: SupervisedProcess, ended: ChildExit) -> bool:
        process = f"{self._plan.role} process"
        if self._reports is not None:
            self._reports.forget(ended.pid)
        if self._plan.metrics_folder is not None:
            shared_metrics.delete_gauges(self._plan.metrics_folder.path, ended.pid)
        facts = {"proc": self._numbers[child.name], "pid": ended.pid, "exit": describe_exit(ended.code)}
        if not self._is_started:
            if ended.code < 0:  # otherwise the process has printed why
                log.error(f"{process} ended before it was ready", **facts)
            raise ChildFailed(child, ended.exit_code)
        if ended.code == STOPPED_EXIT_CODE:  # `bellringer workers stop`, or a signal to this process alone
            log.info(f"{process} stopped on request", **facts)
            return False
        if ended.quick_exits >= MAX_QUICK_EXITS:
            log.error(
                f"{process} is in a crash loop; all processes are stopped",
                **facts,
                crashes=ended.quick_exits,
                uptime_s=round(ended.uptime_seconds, 1),
            )
            raise ChildFailed(child, ended.exit_code)
        self.restarts += 1
        log.warning(f"{process} ended and is restarted", **facts, restart_in_s=ended.pause_seconds)
        return True

    def _exit_code_after_stop(self) -> int:
        """Returns 0 if all processes stopped as requested, else the code of one that did not.

        A process that SIGTERM ended had not begun to work: afterwards it handles the signal.
        """
        if self._group.killed:
            return INTERRUPTED_EXIT_CODE
        codes = [child.exit_code or 0 for child in self._group.children]
        failed = [code for code in codes if code not in {0, STOPPED_EXIT_CODE, -signal.SIGTERM}]
        return 0 if not failed else failed[0] if failed[0] > 0 else 128 - failed[0]


def _read_slots(children: Sequence[SupervisedProcess]) -> dict[str, int]:
    """Returns the slots per pool that a process reported: only a process has imported the app that names the pools."""
    for child in children:
        with suppress(ValueError):
            return {str(pool): int(count) for pool, count in json.loads(child.ready_message).items()}
    return {}


class MetricsFolder:
    """A temporary folder in which the processes count. It is deleted at the end, or by the next supervisor."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock  # inherited by the processes, so the folder is in use until the last one ends


@contextmanager
def open_metrics_folder() -> Iterator[MetricsFolder]:
    """Creates a folder for the metrics of one supervisor, and deletes those that killed supervisors left behind."""
    _delete_unused_folders(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, path, ignore_errors=True)
        unnamed = path / f"{_LOCK_FILE}.new"
        lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(path / _LOCK_FILE)  # only now, so that no other supervisor finds it unlocked
        yield MetricsFolder(path, lock)


def _delete_unused_folders(parent: Path) -> None:
    for folder in parent.glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, or in use
            lock = os.open(folder / _LOCK_FILE, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


class WorkerCollector:
    """Collects the sums over all processes, also over those that have ended, and the metrics of the supervisor."""

    def __init__(self, workers: RoleProcesses, folder: Path) -> None:
        self._workers = workers
        self._folder = folder
        self._lock = Lock()  # the metrics server has several threads
        self._processes = ProcessSums(os.getpid(), lambda: workers.pids)
        self._shared = MultiProcessCollector(None, path=str(folder))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            shared_metrics.merge_ended(self._folder)
            yield from self._shared.collect()  # type: ignore[no-untyped-call]
        workers = self._workers
        yield GaugeMetricFamily(
            "bellringer_worker_processes", "Running processes of this worker", value=workers.running
        )
        yield CounterMetricFamily(
            "bellringer_worker_restarts", "Processes of this worker that were restarted", value=workers.restarts
        )
        yield from self._processes.collect()


class WorkersMetricsSource(MetricsSource):
    """The responses of the supervisor of `worker --procs`, for all of its processes."""

    def __init__(self, workers: RoleProcesses, folder: Path) -> None:
        registry = CollectorRegistry()
        registry.register(WorkerCollector(workers, folder))
        registry.register(LoopCollector(partial(read_shared, folder)))
        super().__init__("worker", registry)
        self._workers = workers
        self._folder = folder

    def health(self) -> Health:
        runs, document = self._workers.health
        progresses, loops = check_health(read_shared(self._folder))
        return runs and progresses, document if progresses else {**document, **loops}

    def readiness(self) -> Health:
        return check_readiness(read_shared(self._folder), "worker")
