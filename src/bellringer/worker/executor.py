"""Executes one attempt after another, each in the lane that its task asks for, and says how each ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Final

from bellringer.clock import Clock
from bellringer.durations import format_duration
from bellringer.payload import LIMIT
from bellringer.runs import Ending, RunKey
from bellringer.tasks import Registry, Task
from bellringer.worker import endings
from bellringer.worker.attempt import Attempt, Lane
from bellringer.worker.context import Context, Sink
from bellringer.worker.control import Control
from bellringer.worker.coroutines import GRACE, Coroutines
from bellringer.worker.process import Processes
from bellringer.worker.threads import Threads
from bellringer.worker.work import LogLine, Work

_ZERO: Final = timedelta(0)


class Executor:
    """The three lanes of one worker: coroutines on its loop, threads, and child processes.

    `log` takes the lines of handlers; it is called from their threads too. `target` is where child processes
    find the app, as it was written on the worker's command line.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        threads: int = 32,
        processes: int = 4,
        target: str | None = None,
        clock: Clock,
        database_now: Callable[[], datetime],
        log: Callable[[LogLine], None],
        result_limit: int = LIMIT,
        grace: float = GRACE,
    ) -> None:
        self._registry = registry
        self._monotonic = clock.monotonic
        self._database_now = database_now
        self._log = log
        self._running: dict[tuple[RunKey, int], Attempt] = {}
        self._moved: deque[Control] = deque()
        self._coroutines = Coroutines(limit=result_limit, grace=grace, left_behind=self._left_behind)
        self._threads = Threads(threads, limit=result_limit, left_behind=self._left_behind)
        self._processes = Processes(
            processes, target=target, limit=result_limit, lateness=self._lateness, sink=self._sink
        )
        self._lanes: tuple[Lane, ...] = (self._coroutines, self._threads, self._processes)

    @property
    def stray(self) -> int:
        """Handlers that run on after their attempt was settled: threads that hang, coroutines that refuse."""
        return sum(lane.stray for lane in self._lanes)

    async def execute(self, work: Work) -> Ending:
        """Execute one attempt. Whatever its handler does, there is an ending; nothing is raised."""
        end = self.start(work)
        attempt = self._running.get((work.key, work.attempt))
        try:
            return await end
        except asyncio.CancelledError:  # the worker itself is torn down
            if attempt is not None:
                self._stop(attempt, "the worker stopped")
            raise

    def start(self, work: Work) -> asyncio.Future[Ending]:
        """Begin one attempt; the future is its ending. The caller needs no task of its own to wait for it."""
        end: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        task = self._registry.get(work.task)
        if task is None:
            end.set_result(self._unknown(work))
            return end
        lane = self._lane(task)
        attempt = Attempt(work, task, lane, end=end, monotonic=self._monotonic, changed=self._moved.append)
        self._running[work.key, work.attempt] = attempt
        end.add_done_callback(partial(self._ended, attempt))
        try:
            if lane is not self._processes:  # a child converts its own
                self._prepare(attempt)
            lane.start(attempt)
            if work.spec.timeout or work.spec.heartbeat:
                self._watch(attempt)
        except Exception as error:  # noqa: BLE001 - an argument that cannot be converted; no thread to be had
            attempt.settle(endings.raised(error))
        return end

    def _ended(self, attempt: Attempt, _end: asyncio.Future[Ending]) -> None:
        self._running.pop((attempt.work.key, attempt.work.attempt), None)
        if attempt.timer is not None:
            attempt.timer.cancel()

    def cancel(self, key: RunKey, attempt: int, reason: str) -> bool:
        """Ask one running attempt to cancel. False: it is not running here."""
        running = self._running.get((key, attempt))
        if running is None:
            return False
        self._stop(running, reason)
        return True

    def progress(self) -> list[tuple[RunKey, int, dict[str, Any]]]:
        """What attempts reported since this was last asked, each once with its newest."""
        reports: list[tuple[RunKey, int, dict[str, Any]]] = []
        while self._moved:
            control = self._moved.popleft()
            if (report := control.collect()) is not None:
                reports.append((control.work.key, control.work.attempt, report))
        return reports

    async def close(self) -> None:
        """Stop what still runs: coroutines are cancelled, child processes killed, threads left behind."""
        for attempt in list(self._running.values()):
            self._stop(attempt, "the worker stopped")
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    def _lane(self, task: Task) -> Lane:
        if task.isolation == "process":
            return self._processes
        return self._coroutines if task.is_async else self._threads

    def _prepare(self, attempt: Attempt) -> None:
        spec, task = attempt.work.spec, attempt.task
        attempt.args, attempt.kwargs = task.convert(spec.args, spec.kwargs)
        if task.wants_context:
            lateness, sink = self._lateness(attempt.work), self._sink(attempt.work)
            attempt.args.insert(0, Context(attempt.work, attempt.control, lateness=lateness, sink=sink))

    def _watch(self, attempt: Attempt) -> None:
        """See whether an attempt has had its time, and come back when it may have."""
        spec, now = attempt.work.spec, self._monotonic()
        began = now if attempt.began_at is None else attempt.began_at  # it may still wait for its place
        deadline = began + spec.timeout if spec.timeout else inf
        quiet = max(began, attempt.control.signed_at) + spec.heartbeat if spec.heartbeat else inf
        wait = min(deadline, quiet) - now
        if wait > 0:
            attempt.timer = asyncio.get_running_loop().call_later(wait, self._watch, attempt)
            return
        trouble = (
            f"still running after {_shown(spec.timeout)}, its timeout"
            if deadline <= quiet
            else f"no heartbeat for {_shown(spec.heartbeat)}"
        )
        attempt.lane.stop(attempt, endings.timed_out(trouble, ran=attempt.ran))

    def _stop(self, attempt: Attempt, reason: str) -> None:
        attempt.control.ask(reason)
        attempt.lane.stop(attempt, endings.cancelled(reason, ran=attempt.ran))

    def _lateness(self, work: Work) -> timedelta:
        return max(_ZERO, self._database_now() - work.key.scheduled_for)

    def _sink(self, work: Work) -> Sink:
        def sink(level: str, message: str, fields: dict[str, Any] | None) -> None:
            self._log(LogLine(work.key, work.attempt, self._database_now(), level, message, fields))

        return sink

    def _left_behind(self, attempt: Attempt) -> None:
        self._sink(attempt.work)(
            "warning", "the handler did not stop and was left behind; it may still be running", None
        )

    def _unknown(self, work: Work) -> Ending:
        close = self._registry.closest(work.task)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        return endings.failed("UnknownTask", f"this worker knows no task {work.task!r}{meant}")


def _shown(seconds: float | None) -> str:
    return format_duration(timedelta(seconds=seconds or 0))
