"""Executes attempts: chooses the lane of each task, enforces timeouts and heartbeats, and returns the endings."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from bellringer import tracing
from bellringer.clock import Clock
from bellringer.codecs import PayloadCodec
from bellringer.core.payload import MAX_PAYLOAD_BYTES
from bellringer.core.runs import Ending, RunKey
from bellringer.core.tasks import Registry, Task
from bellringer.durations import format_duration
from bellringer.telemetry import set_context_fields
from bellringer.worker import attempt_spans, results
from bellringer.worker.attempt import (
    Control,
    ExecutionLane,
    Expired,
    LogLine,
    ReportProtection,
    RunningAttempt,
    Work,
)
from bellringer.worker.context import Context, LogSink
from bellringer.worker.lanes.coroutines import STOP_GRACE_SECONDS, CoroutineLane
from bellringer.worker.lanes.processes import IsolationSettings, ProcessLane
from bellringer.worker.lanes.threads import ThreadLane
from bellringer.worker.lanes.watchdog import BLOCK_LIMIT_SECONDS, LoopBlockReport
from bellringer.worker.output import capture
from bellringer.worker.output.attempt_output import AttemptOutput, current_log_fields
from bellringer.worker.output.echo import CaptureSettings, Echo
from bellringer.worker.payload_preparation import AttemptProtection, stored_ending

MAX_NOTIFIED_NEIGHBOURS: Final = 200  # runs on a blocked loop that get a log line
_ZERO: Final = timedelta(0)


class Executor:
    """Runs handlers in three lanes: coroutines on separate event loops, threads, and child processes.

    `log` receives the log lines of handlers, also from other threads. With `capture`, the output of handlers is
    captured and logged too. `echo` receives every line for the worker's own stream, except lines that the app's logging
    handlers write themselves. `target` is the app that child processes import,
    as given on the worker's command line. Without `own_loop`, coroutines run on the loop that calls `start`, for
    handlers that are known not to block. `blocked` receives reports of coroutines that block their loop. `may_start` is
    called with the attempt right before its handler, also from other threads; if it returns False, the attempt ends as
    not started.
    `codec` encrypts the results of handlers.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        threads: int = 32,
        processes: int = 4,
        isolation: IsolationSettings | None = None,
        target: str | None = None,
        clock: Clock,
        database_now: Callable[[], datetime],
        log: Callable[[LogLine], None],
        result_limit: int = MAX_PAYLOAD_BYTES,
        grace: float = STOP_GRACE_SECONDS,
        own_loop: bool = True,
        block_limit: float = BLOCK_LIMIT_SECONDS,
        blocked: Callable[[LoopBlockReport], None] | None = None,
        may_start: Callable[[Work], bool] = lambda _: True,
        capture: CaptureSettings | None = None,
        echo: Echo | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        self._registry = registry
        self._monotonic = clock.monotonic
        self._database_now = database_now
        self._log = log
        self._running: dict[tuple[RunKey, int], RunningAttempt] = {}
        self._progressed: deque[Control] = deque()
        self._blocked = blocked
        self._may_start = may_start
        self._capture = capture
        self._echo = echo
        self._codec = codec
        self._is_capturing = False
        set_context_fields(current_log_fields)
        self._coroutines = CoroutineLane(
            limit=result_limit,
            grace=grace,
            left_behind=self._left_behind,
            own_loop=own_loop,
            block_limit=block_limit,
            report=self._report,
        )
        self._built_in = CoroutineLane(limit=result_limit, left_behind=self._left_behind, own_loop=False)
        self._threads = ThreadLane(threads, limit=result_limit, left_behind=self._left_behind)
        self._processes = ProcessLane(
            processes,
            target=target,
            limit=result_limit,
            lateness=self._lateness,
            sink=self._sink,
            has_expired=self._has_expired,
            isolation=isolation,
            capture=capture,
        )
        self._lanes: tuple[ExecutionLane, ...] = (self._coroutines, self._built_in, self._threads, self._processes)

    @property
    def stray(self) -> int:
        """The number of handlers still running although their attempt has ended."""
        return sum(lane.stray for lane in self._lanes)

    async def execute(self, work: Work, secrets: Sequence[str] = ()) -> Ending:
        """Execute one attempt and return its ending. Errors of the handler never propagate."""
        end: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

        def on_end(ending: Ending) -> None:
            if not end.done():
                end.set_result(ending)

        self.start(work, on_end, secrets)
        attempt = self._running.get((work.key, work.attempt))
        try:
            return await end
        except asyncio.CancelledError:  # the worker is shutting down
            if attempt is not None:
                self._stop(attempt, "the worker stopped")
            raise

    def start(self, work: Work, on_end: Callable[[Ending], None], secrets: Sequence[str] = ()) -> None:
        """Start one attempt. `on_end` is called on this loop when it has ended, never before this method returns.

        `secrets` are values among the arguments that must not appear in anything that the attempt reports.
        """
        task = self._registry.get(work.task)
        if task is None:
            asyncio.get_running_loop().call_soon(on_end, self._unknown_task_ending(work))
            return
        lane = self._lane(task)
        captures = self._capture is not None and task.capture_output and not task.built_in
        if captures and not self._running:
            self._install_capture()
        span = attempt_spans.start(work, self._database_now) if tracing.active() is not None else None
        if span is not None:
            work = msgspec.structs.replace(work, traceparent=span.traceparent)
        protection = None
        if secrets or work.spec.redact or task.redact or (self._codec is not None and not task.built_in):
            protection = AttemptProtection(work, secrets, [*work.spec.redact, *task.redact], self._codec)
        record = self._record if protection is None else partial(self._record_protected, protection)
        attempt = RunningAttempt(
            work,
            task,
            lane,
            on_end=partial(self._ended, on_end),
            monotonic=self._monotonic,
            changed=self._progressed.append,
            prepare=self._prepare_arguments,
            may_start=self._may_start,
            output=AttemptOutput(work, record, captures=captures),
            protection=protection,
            span=span,
        )
        self._running[work.key, work.attempt] = attempt
        try:
            lane.start(attempt)
            if work.spec.timeout or work.spec.heartbeat:
                self._check_timeouts(attempt)
        except Exception as error:  # noqa: BLE001 - such as a thread that cannot be started
            asyncio.get_running_loop().call_soon(attempt.finish, results.ending_of_error(error))

    def _ended(self, on_end: Callable[[Ending], None], attempt: RunningAttempt, ending: Ending) -> None:
        self._running.pop((attempt.work.key, attempt.work.attempt), None)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if (progress := attempt.control.stored_progress()) is not None:  # the next attempt resumes from it
            ending = msgspec.structs.replace(ending, progress=progress)
        if (protection := attempt.control.protection) is not None:
            ending = protection.ending(ending)
        if ending.result is not None and not attempt.task.built_in:
            ending = stored_ending(ending, attempt.work, self._codec)
        if attempt.span is not None:
            attempt_spans.end(attempt.span, ending)
        on_end(ending)

    def cancel(self, key: RunKey, attempt: int, reason: str) -> bool:
        """Request cancellation of a running attempt. Returns False if it does not run here."""
        running = self._running.get((key, attempt))
        if running is None:
            return False
        self._stop(running, reason)
        return True

    def progress(self) -> list[tuple[RunKey, int, dict[str, Any]]]:
        """Return the latest progress of each attempt that reported since the last call."""
        reports: list[tuple[RunKey, int, dict[str, Any]]] = []
        while self._progressed:
            control = self._progressed.popleft()
            if (report := control.take_progress()) is not None:
                reports.append((control.work.key, control.work.attempt, report))
        return reports

    def find(self, key: RunKey, attempt: int) -> RunningAttempt | None:
        """Return an attempt that waits for its lane or runs; None if it is unknown or has ended."""
        return self._running.get((key, attempt))

    async def close(self) -> None:
        """Stop running attempts: cancel coroutines, kill child processes, leave threads behind."""
        for attempt in list(self._running.values()):
            self._stop(attempt, "the worker stopped")
        await asyncio.gather(*(lane.close() for lane in self._lanes))
        if self._is_capturing:
            self._is_capturing = False
            capture.uninstall()

    def _lane(self, task: Task) -> ExecutionLane:
        if task.isolation == "process":
            return self._processes
        if task.built_in:
            return self._built_in
        return self._coroutines if task.is_async else self._threads

    def _prepare_arguments(self, attempt: RunningAttempt) -> tuple[list[Any], dict[str, Any]]:
        spec, task = attempt.work.spec, attempt.task
        if self._has_expired(attempt.work):
            raise Expired
        args, kwargs = task.convert(spec.args, spec.kwargs)
        if task.wants_context:
            lateness, sink = self._lateness(attempt.work), self._sink(attempt.work)
            args.insert(0, Context(attempt.work, attempt.control, lateness=lateness, sink=sink))
        return args, kwargs

    def _has_expired(self, work: Work) -> bool:
        return work.spec.expires_at is not None and self._database_now().timestamp() >= work.spec.expires_at

    def _check_timeouts(self, attempt: RunningAttempt) -> None:
        """Stop an attempt that exceeds its timeout or heartbeat limit, or check again when it could."""
        spec, now = attempt.work.spec, self._monotonic()
        began = now if attempt.began_at is None else attempt.began_at  # the attempt may still be queued
        deadline = began + spec.timeout if spec.timeout else inf
        heartbeat_deadline = max(began, attempt.control.last_heartbeat_at) + spec.heartbeat if spec.heartbeat else inf
        wait = min(deadline, heartbeat_deadline) - now
        if wait > 0:
            attempt.timer = asyncio.get_running_loop().call_later(wait, self._check_timeouts, attempt)
            return
        reason = (
            f"still running after its timeout of {_format_seconds(spec.timeout)}"
            if deadline <= heartbeat_deadline
            else f"no heartbeat for {_format_seconds(spec.heartbeat)}"
        )
        attempt.lane.stop(attempt, results.timed_out_ending(reason, ran=attempt.ran))

    def _stop(self, attempt: RunningAttempt, reason: str) -> None:
        attempt.control.request_cancel(reason)
        attempt.lane.stop(attempt, results.cancelled_ending(reason, ran=attempt.ran))

    def _lateness(self, work: Work) -> timedelta:
        return max(_ZERO, self._database_now() - work.key.scheduled_for)

    def _install_capture(self) -> None:
        if self._is_capturing:
            capture.reinstall()
        elif self._capture is not None:
            self._is_capturing = True
            capture.install(self._capture.level)

    def _sink(self, work: Work) -> LogSink:
        running = self._running.get((work.key, work.attempt))
        protection = None if running is None else running.control.protection
        if protection is None:
            return partial(self._record, work)
        return partial(self._record_protected, protection, work)

    def _record_protected(
        self,
        protection: ReportProtection,
        work: Work,
        level: str,
        message: str,
        fields: dict[str, Any] | None,
        source: str | None = None,
        *,
        echo: bool = True,
    ) -> None:
        message, fields = protection.line(message, fields)
        self._record(work, level, message, fields, source, echo=echo)

    def _record(
        self,
        work: Work,
        level: str,
        message: str,
        fields: dict[str, Any] | None,
        source: str | None = None,
        *,
        echo: bool = True,
    ) -> None:
        line = LogLine(work.key, work.attempt, self._database_now(), level, message, fields, source)
        self._log(line)
        if echo and self._echo is not None:
            with (
                capture.passing_through(),
                suppress(Exception),
            ):  # a closed or full stream of the worker is no fault of the handler
                self._echo(work, line)

    def _left_behind(self, attempt: RunningAttempt) -> None:
        self._sink(attempt.work)(
            "warning", "the handler did not stop in time; it may still be running in the background", None
        )

    def _report(self, block: LoopBlockReport) -> None:
        """Report a blocked loop to the worker, and log it for the other runs on that loop."""
        if self._blocked is not None:
            self._blocked(block)
        culprit = block.attempt.work
        for other in block.neighbours[:MAX_NOTIFIED_NEIGHBOURS] if block.is_new else ():
            name = f"the task {culprit.task} (run {culprit.key.id})"
            who = name if other.work.tenant_id == culprit.tenant_id else "a run of another tenant"
            self._sink(other.work)("warning", f"the event loop of this run is blocked by {who}", None)

    def _unknown_task_ending(self, work: Work) -> Ending:
        close = self._registry.closest(work.task)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        return results.failed_ending("UnknownTask", f"this worker has no task {work.task!r}{meant}")


def _format_seconds(seconds: float | None) -> str:
    return format_duration(timedelta(seconds=seconds or 0))
