"""Attempts: the claimed work, the state shared with its handler, and the contract of the lanes that execute it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from bellringer.core.runs import Ending, RunKey, Spec
from bellringer.core.tasks import Task
from bellringer.errors import Cancelled
from bellringer.worker import results
from bellringer.worker.output.attempt_output import AttemptOutput, set_current_output

if TYPE_CHECKING:
    from bellringer.tracing.opentelemetry_tracer import AttemptSpan


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One claimed attempt. `attempt` is also the fencing token: it grows with every claim of the run."""

    key: RunKey
    attempt: int
    spent: int  # attempts since the run was created or last redriven, including this one
    task: str
    spec: Spec
    claimed_at: datetime
    due_at: datetime | None = None  # the scheduled time plus jitter; for a retry, the time of the retry
    tenant: str = "default"
    tenant_id: int = 0
    worker_id: int = 0  # of the claim: the attempt belongs to the worker only while it has this id
    pool: str = "short"
    job: str | None = None  # the job's name; None for sent runs
    resume_from: Any = None  # the last progress details of earlier attempts
    last_result: Any = None  # the result of the previous run of the job
    traceparent: str | None = None  # of the span of this attempt; None: tracing is off


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a handler. `source` is None for `ctx.log`, else where the line was captured."""

    key: RunKey
    attempt: int
    at: datetime
    level: str
    message: str
    fields: dict[str, Any] | None = None
    source: str | None = None

    @property
    def row(self) -> tuple[RunKey, int, datetime, str, str, dict[str, Any] | None, str | None]:
        return self.key, self.attempt, self.at, self.level, self.message, self.fields, self.source


class Control:
    """State shared between a handler and its worker: heartbeats, progress and cancel requests.

    The handler's thread and the worker's event loop read and write it without a lock: each field changes by a single
    assignment.
    """

    __slots__ = (
        "_changed",
        "_monotonic",
        "cancel_delivered",
        "last_heartbeat_at",
        "progress",
        "progress_pending",
        "protection",
        "reason",
        "work",
    )

    def __init__(
        self, work: Work, monotonic: Callable[[], float], changed: Callable[[Control], None] | None = None
    ) -> None:
        self.work = work
        self._monotonic = monotonic
        self._changed = changed
        self.last_heartbeat_at = 0.0
        self.reason: str | None = None  # set when cancellation is requested
        self.cancel_delivered = False  # Cancelled was raised in the handler
        self.progress: dict[str, Any] | None = None
        self.progress_pending = False  # progress was reported and not taken yet
        self.protection: ReportProtection | None = None  # applied to everything that the attempt reports

    def heartbeat(self) -> None:
        """Record that the handler is alive."""
        self.last_heartbeat_at = self._monotonic()

    def request_cancel(self, reason: str) -> None:
        """Request cancellation. The first reason is kept."""
        if self.reason is None:
            self.reason = reason

    def check(self) -> None:
        """Record a heartbeat; raise Cancelled if cancellation was requested."""
        self.last_heartbeat_at = self._monotonic()
        if self.reason is not None:
            self.cancel_delivered = True
            raise Cancelled(self.reason)

    def report_progress(self, progress: dict[str, Any]) -> None:
        """Store progress. The value is set before `progress_pending`, so that a reader always sees the newest one."""
        self.progress = progress
        if not self.progress_pending:
            self.progress_pending = True
            if self._changed is not None:
                self._changed(self)

    def take_progress(self) -> dict[str, Any] | None:
        """Return the latest progress as it is stored, and mark it as taken."""
        self.progress_pending = False
        return self.stored_progress()

    def stored_progress(self) -> dict[str, Any] | None:
        progress = self.progress
        return progress if progress is None or self.protection is None else self.protection.progress(progress)


class ReportProtection(Protocol):
    """Removes secrets and hidden values from what an attempt reports."""

    def line(self, message: str, fields: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]: ...

    def ending(self, ending: Ending) -> Ending: ...

    def progress(self, progress: dict[str, Any]) -> dict[str, Any]: ...


class NotStarted(BaseException):
    """Raised instead of calling a handler when the worker's lease has expired, or the worker stops."""


class Expired(BaseException):
    """Raised instead of calling a handler when the deadline of the run has passed."""


class RunningAttempt:
    """An attempt that is queued or running in a lane."""

    __slots__ = (
        "_may_start",
        "_monotonic",
        "_on_end",
        "_prepare",
        "began_at",
        "called",
        "control",
        "ended",
        "forced_ending",
        "lane",
        "output",
        "runner",
        "span",
        "step",
        "task",
        "timer",
        "work",
    )

    def __init__(
        self,
        work: Work,
        task: Task,
        lane: ExecutionLane,
        *,
        on_end: Callable[[RunningAttempt, Ending], None],
        monotonic: Callable[[], float],
        changed: Callable[[Control], None],
        prepare: Callable[[RunningAttempt], tuple[list[Any], dict[str, Any]]],
        may_start: Callable[[Work], bool],
        output: AttemptOutput,
        span: AttemptSpan | None = None,
        protection: ReportProtection | None = None,
    ) -> None:
        self.work = work
        self.span = span
        self.output = output
        self.task = task
        self.lane = lane
        self.control = Control(work, monotonic, changed)
        self.control.protection = protection
        self.ended = False
        self.began_at: float | None = None  # None while the attempt waits for a thread or a process
        self.called = False  # the handler was called, or is about to be
        self.forced_ending: Ending | None = None  # set when the lane stops the attempt; replaces the handler's result
        self.timer: asyncio.TimerHandle | None = None
        self.runner: Any = None  # owned by the lane: a thread id, a loop or a task
        self.step: asyncio.Task[None] | None = None  # coroutines: the task that runs the handler
        self._monotonic = monotonic
        self._prepare = prepare
        self._on_end = on_end
        self._may_start = may_start

    def begin(self) -> None:
        self.began_at = self.control.last_heartbeat_at = self._monotonic()

    def enter_context(self) -> None:
        """Make the output and the span of this attempt current, in a context that ends with the attempt."""
        set_current_output(self.output)
        if self.span is not None:
            self.span.activate()

    def may_start(self) -> bool:
        """Whether the handler may be called. Checked right before the call, in case the lease has expired."""
        return self._may_start(self.work)

    @property
    def ran(self) -> float:
        return 0.0 if self.began_at is None else self._monotonic() - self.began_at

    def call(self) -> Any:
        """Convert the arguments and call the handler. Both can run app code, so never call this on the service loop."""
        args, kwargs = self._prepare(self)
        self.called = True  # set before the check: after starts are forbidden, an attempt without it is not called
        if not self.may_start():
            self.called = False
            raise NotStarted
        return self.task.function(*args, **kwargs)

    def ending_of_value(self, value: Any, limit: int) -> Ending:
        """Return the ending for a handler that returned. A stop or a delivered cancellation takes precedence."""
        if self.forced_ending is not None:
            return self.forced_ending
        if self.control.cancel_delivered:
            return results.cancelled_ending(self.control.reason or "", ran=self.ran)
        return results.ending_of_value(value, limit=limit, ran=self.ran)

    def ending_of_error(self, error: BaseException) -> Ending:
        """Return the ending for a handler that raised. If the attempt was stopped, the traceback is added to the
        ending of the stop."""
        if self.forced_ending is not None:
            return results.with_traceback(self.forced_ending, results.format_traceback(error))
        if isinstance(error, NotStarted):
            return results.not_started_ending()
        if isinstance(error, Expired):
            return results.expired_ending()
        if self.control.cancel_delivered:
            ending = results.cancelled_ending(self.control.reason or "", ran=self.ran)
            return results.with_traceback(ending, results.format_traceback(error))
        return results.ending_of_error(error, ran=self.ran)

    def finish(self, ending: Ending) -> None:
        """Report the ending. Called on the service loop; only the first call has an effect."""
        if not self.ended:
            self.ended = True
            self._on_end(self, ending)


class ExecutionLane(Protocol):
    """A way to execute attempts: on event loops, in threads, or in child processes."""

    @property
    def stray(self) -> int:
        """The number of handlers still running although their attempt has ended."""

    def start(self, attempt: RunningAttempt) -> None:
        """Start an attempt, or queue it. The lane later calls `attempt.finish` on the service loop."""

    def stop(self, attempt: RunningAttempt, ending: Ending) -> None:
        """Stop an attempt as far as possible. It ends with `ending`, unless the handler finishes first."""

    async def close(self) -> None:
        """Stop all attempts of this lane."""
