"""Runs one system through the scenarios, in three sessions with a new database each.

timed      S3 single, then S1 and S4 on the same two workers, which first execute what S3 sent
ready      S3 bulk, then S5: what was sent is executed by one worker process, and again by two
recurring  S2
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bellringer.clock import SystemClock
from bench.peers import figures
from bench.peers.catalog import System, environment
from bench.peers.cpu import cpu_seconds
from bench.peers.figures import Failed
from bench.peers.processes import PREPARE_TIMEOUT_SECONDS, Process
from bench.peers.recorder import FOLDER_VARIABLE, Execution, Recordings
from bench.peers.servers import Postgres, VolatileRedis

SESSIONS: Final = {"ready": ("S3-bulk", "S5-1", "S5-2"), "timed": ("S3-single", "S1", "S4"), "recurring": ("S2",)}
SCENARIOS: Final = tuple(sorted(scenario for scenarios in SESSIONS.values() for scenario in scenarios))
COUNTS: Final = {"S1": 10_000, "S2": 10_000, "S3-single": 2_000, "S3-bulk": 20_000, "S4": 2_000}
CHUNK: Final = 1_000  # jobs per call of a bulk interface
S4_SPAN_SECONDS: Final = 20
WORKERS: Final = 2

SEND_TIMEOUT_SECONDS: Final = 120.0
EXECUTE_TIMEOUT_SECONDS: Final = 60.0
MINUTE_TIMEOUT_SECONDS: Final = 50.0  # before the next occurrence
START_SECONDS: Final = 6.0  # for workers and schedulers to start
QUIET_TIMEOUT_SECONDS: Final = 90.0
LEAD_SECONDS: Final = 3.0  # between the last send and the first due time, at least
SETTLE_SECONDS: Final = 1.0  # between two scenarios; executions that are repeated show up in it
POLL_SECONDS: Final = 0.03
WARM_COUNT: Final = 200  # jobs that show that the workers are ready, if S3 sends none
CONNECT_BATCH, WARM_BATCH, S1_BATCH, S4_BATCH, CRON_BATCH, FIRST_READY_BATCH = 0, 1, 2, 3, 4, 10

Emit = Callable[[str, dict[str, Any]], None]


@dataclass(slots=True)
class Run:
    """One session of one system: its database, its processes and its records."""

    system: System
    dsn: str
    redis: VolatileRedis
    postgres: Postgres
    folder: Path
    emit: Emit
    scenarios: Collection[str]
    cron_jobs: int = 0
    recordings: Recordings = field(init=False)
    groups: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.recordings = Recordings(self.folder)
        self.groups = {"PostgreSQL": [self.postgres.pid]}
        if self.system.store == "Redis":
            self.groups["Redis"] = [self.redis.pid]

    def start(self, role: str) -> Process:
        settings = {
            "dsn": self.dsn,
            "redis": self.redis.address,
            "chunk": CHUNK,
            "cron_jobs": self.cron_jobs,
            "cron_batch": CRON_BATCH,
        }
        variables = {
            **environment(),
            "BELLRINGER_DSN": self.dsn,
            "BENCH_SETTINGS": json.dumps(settings),
            FOLDER_VARIABLE: str(self.folder),
        }
        return Process(self.system.commands[role], variables, self.folder / f"{role}.log")

    def prepare(self) -> None:
        if "prepare" in self.system.commands:
            self.start("prepare").wait(PREPARE_TIMEOUT_SECONDS)

    @contextmanager
    def working(self, workers: int) -> Iterator[list[Process]]:
        """Run a scheduler, if the system has one, and worker processes; their CPU time is counted by role."""
        with ExitStack() as stack:
            roles = [role for role in self._background_roles() if role in self.system.commands]
            started = [stack.enter_context(self.start(role)) for role in roles]
            working = [stack.enter_context(self.start("worker")) for _ in range(min(workers, self.system.max_workers))]
            self.groups |= {role: [process.pid] for role, process in zip(roles, started, strict=True)}
            self.groups |= {f"worker {number}": [process.pid] for number, process in enumerate(working, 1)}
            yield [*working, *started]
        self.groups = {name: pids for name, pids in self.groups.items() if name in {"PostgreSQL", "Redis"}}

    def _background_roles(self) -> tuple[str, ...]:
        return ("scheduler", "beat") if self.cron_jobs else ("scheduler",)

    @contextmanager
    def client(self, processes: list[Process]) -> Iterator[Process]:
        if self.system.sends_in_worker and processes:
            yield processes[0]
            return
        process = self.start("client")
        try:
            yield process
            process.finish()
        finally:
            process.stop()

    def count(self, scenario: str) -> int:
        return self.system.counts.get(scenario, COUNTS[scenario])

    def cpu(self) -> dict[str, float]:
        return cpu_seconds(self.groups)

    def wait(self, batch: int, count: int, deadline: float, processes: list[Process]) -> None:
        """Wait until so many executions are recorded, or until the deadline."""
        while self.recordings.poll(batch) < count and time.monotonic() < deadline:
            for process in processes:
                process.check_running()
            time.sleep(POLL_SECONDS)

    def measure(self, scenario: str, run: Callable[[], dict[str, Any]]) -> None:
        """Report the result of a scenario, or why it has none; the scenarios after it run in both cases."""
        try:
            result = run()
        except Failed as error:
            result = {"failed": str(error)}
        if scenario in self.scenarios:
            self.emit(scenario, result)


def send(client: Process, kind: str, batch: int, count: int, due_us: int = 0, span_us: int = 0) -> float:
    return client.call(SEND_TIMEOUT_SECONDS, do=kind, batch=batch, count=count, due_us=due_us, span_us=span_us)


def run_ready(run: Run) -> None:
    """S3 bulk and S5."""
    for workers in range(1, run.system.max_workers + 1):
        if not {"S3-bulk", f"S5-{workers}"} & set(run.scenarios):
            continue
        batch = FIRST_READY_BATCH + workers
        run.measure("S3-bulk", partial(_bulk, run, batch))
        if f"S5-{workers}" in run.scenarios:
            run.measure(f"S5-{workers}", partial(_drain, run, workers, batch))


def _bulk(run: Run, batch: int) -> dict[str, Any]:
    count = run.count("S3-bulk")
    with run.client([]) as client:
        send(client, "single", CONNECT_BATCH, 1)  # connects
        seconds = send(client, "bulk", batch, count)
    return {"count": count, "per_second": round(count / seconds, 1)}


def _drain(run: Run, workers: int, batch: int) -> dict[str, Any]:
    count = run.count("S3-bulk")
    with run.working(workers) as processes:
        deadline = time.monotonic() + EXECUTE_TIMEOUT_SECONDS + START_SECONDS
        run.wait(batch, 1, deadline, processes)
        seen_ns, before = SystemClock().now().timestamp() * 1e9, run.cpu()
        run.wait(batch, count, deadline, processes)
        after = run.cpu()
        time.sleep(SETTLE_SECONDS)
        run.recordings.poll(batch)
    executions = run.recordings.of(batch)
    figures.check_exactly_once(executions, count)
    cpu = figures.difference(after, before)
    measured = sum(1 for execution in executions if execution.start_ns >= seen_ns)
    return {
        "count": count,
        **figures.drain(executions),
        "worker_us_per_run": round(_of_workers(cpu) / max(measured, 1) * 1e6, 1),
        "worker_us_per_run_with_start": round(_of_workers(after) / count * 1e6, 1),
        "cpu_seconds": cpu,
    }


def _of_workers(cpu: Mapping[str, float]) -> float:
    return sum(seconds for group, seconds in cpu.items() if group.startswith("worker"))


def run_timed(run: Run) -> None:
    """S3 single, S1 and S4."""
    count = run.count("S3-single") if "S3-single" in run.scenarios else WARM_COUNT
    run.measure("S3-single", partial(_single, run, count))
    timed = [(scenario, run_it) for scenario, run_it in (("S1", _herd), ("S4", _spread)) if scenario in run.scenarios]
    if not timed:
        return
    with run.working(WORKERS) as processes, run.client(processes) as client:
        run.wait(WARM_BATCH, count, time.monotonic() + EXECUTE_TIMEOUT_SECONDS, processes)
        figures.check_exactly_once(_settled(run, WARM_BATCH), count)
        for scenario, run_it in timed:
            run.measure(scenario, partial(run_it, run, client, processes))


def _single(run: Run, count: int) -> dict[str, Any]:
    with run.client([]) as client:
        send(client, "single", CONNECT_BATCH, 1)  # connects
        seconds = send(client, "single", WARM_BATCH, count)
    return {"count": count, "per_second": round(count / seconds, 1)}


def _due(run: Run, count: int) -> int:
    """Returns a whole second, in microseconds, before which the system can be sent so many jobs."""
    lead = LEAD_SECONDS + count / run.system.timed_per_second
    return math.ceil(SystemClock().now().timestamp() + lead) * 1_000_000


def _sleep_until(due_us: int, seconds_before: float = 0.0) -> float:
    """Sleep until shortly before an instant; returns the seconds that are left. Raises Failed if it has passed."""
    left = due_us / 1e6 - seconds_before - SystemClock().now().timestamp()
    if left < 0:
        raise Failed(f"the jobs were sent {-left:.1f} s too late")
    time.sleep(left)
    return seconds_before


def _herd(run: Run, client: Process, processes: list[Process]) -> dict[str, Any]:
    count = run.count("S1")
    due_us = _due(run, count)
    send(client, "bulk", S1_BATCH, count, due_us)
    _sleep_until(due_us, 0.3)
    before = run.cpu()
    executions = _execute(run, S1_BATCH, count, due_us / 1e6 + EXECUTE_TIMEOUT_SECONDS, processes)
    after = run.cpu()
    figures.check_exactly_once(_settled(run, S1_BATCH), count)
    return {
        "count": count,
        **figures.herd(executions, due_us * 1000),
        "cpu_seconds": figures.difference(after, before),
    }


def _spread(run: Run, client: Process, processes: list[Process]) -> dict[str, Any]:
    count = run.count("S4")
    due_us = _due(run, count)
    send(client, "bulk", S4_BATCH, count, due_us, S4_SPAN_SECONDS * 1_000_000)
    _sleep_until(due_us, 0.2)
    before = run.cpu()
    end = due_us / 1e6 + S4_SPAN_SECONDS + EXECUTE_TIMEOUT_SECONDS / 2
    time.sleep(S4_SPAN_SECONDS)
    _execute(run, S4_BATCH, count, end, processes)
    after = run.cpu()
    executions = _settled(run, S4_BATCH)
    figures.check_exactly_once(executions, count)
    return {"count": count, **figures.lateness(executions), "cpu_seconds": figures.difference(after, before)}


def _execute(run: Run, batch: int, count: int, until: float, processes: list[Process]) -> list[Execution]:
    run.wait(batch, count, time.monotonic() + until - SystemClock().now().timestamp(), processes)
    return run.recordings.of(batch)


def _settled(run: Run, batch: int) -> list[Execution]:
    time.sleep(SETTLE_SECONDS)
    run.recordings.poll(batch)
    return run.recordings.of(batch)


def run_recurring(run: Run) -> None:
    """S2."""
    run.measure("S2", partial(_minute, run))


def _minute(run: Run) -> dict[str, Any]:
    count = run.count("S2")
    clock = SystemClock()
    left = 60 - clock.now().timestamp() % 60
    if left < run.system.register_seconds + START_SECONDS:  # no minute may begin between registration and start
        time.sleep(left + 0.1)
    with run.client([]) as client:
        registered = send(client, "register", CRON_BATCH, count)
    with run.working(WORKERS) as processes:
        _await_quiet(run, processes)
        due_us = math.ceil(clock.now().timestamp() / 60) * 60_000_000
        _sleep_until(due_us, 0.3)
        before = run.cpu()
        run.recordings.poll(CRON_BATCH)
        earlier = len(run.recordings.of(CRON_BATCH))
        _execute(run, CRON_BATCH, earlier + count, due_us / 1e6 + MINUTE_TIMEOUT_SECONDS, processes)
        after = run.cpu()
        executions = _settled(run, CRON_BATCH)[earlier:]
    due_ns = due_us * 1000
    executions = figures.of_occurrence(executions, due_ns)
    figures.check_exactly_once(executions, count)
    return {
        "count": count,
        **figures.herd(executions, due_ns),
        "registered_per_second": round(count / registered, 1) if registered > 0.1 else None,  # or declared in code
        "cpu_seconds": figures.difference(after, before),
    }


def _await_quiet(run: Run, processes: list[Process]) -> None:
    """Wait until the workers have started; some systems first execute the occurrences of the minute before."""
    deadline = time.monotonic() + QUIET_TIMEOUT_SECONDS
    known = -1
    while (found := run.recordings.poll(CRON_BATCH)) != known and time.monotonic() < deadline:
        known = found
        for process in processes:
            process.check_running()
        time.sleep(START_SECONDS)
