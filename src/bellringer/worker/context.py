"""The context of a handler (`ctx`): information about the attempt, logging, progress, heartbeats and cancellation."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, Protocol

from bellringer.core.payload import to_plain
from bellringer.core.runs import encode_run_id
from bellringer.errors import InvalidInput
from bellringer.tracing.span_refs import traceparent_log_fields
from bellringer.worker.attempt import Control, Work
from bellringer.worker.results import clip, format_traceback, safe_text

MAX_LOG_LINE_BYTES: Final = 8 * 1024
MAX_LOG_LINES_PER_ATTEMPT: Final = 1000  # an attempt
MAX_LOG_FIELD_BYTES: Final = 4 * 1024
MAX_LOG_FIELDS: Final = 32
MAX_PROGRESS_NOTE_BYTES: Final = 1024
MAX_PROGRESS_DETAILS_BYTES: Final = 64 * 1024


class LogSink(Protocol):
    """Receives the log lines of a handler."""

    def __call__(self, level: str, message: str, fields: dict[str, Any] | None, /) -> None: ...


class OptionalAwait:
    """A return value that can be awaited or ignored, so that one method serves `async def` and `def` handlers.

    Awaiting it yields to other coroutines once.
    """

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


_OPTIONAL_AWAIT: Final = OptionalAwait()


class ContextLog:
    """Structured log lines, stored with the attempt: `ctx.log.info("charging", invoice=7)`."""

    __slots__ = ("_control", "_count", "_sink")

    def __init__(self, control: Control, sink: LogSink) -> None:
        self._control = control
        self._sink = sink
        self._count = itertools.count(1)  # next() is atomic, so threads can share it

    def debug(self, message: str, /, **fields: Any) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self._write("warning", message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self._write("error", message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            fields["traceback"] = format_traceback(error)
        self._write("error", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        self._control.heartbeat()
        number = next(self._count)
        if number > MAX_LOG_LINES_PER_ATTEMPT:
            if number == MAX_LOG_LINES_PER_ATTEMPT + 1:
                self._sink("warning", f"further lines dropped: the limit is {MAX_LOG_LINES_PER_ATTEMPT:,}", None)
            return
        self._sink(
            level,
            clip(safe_text(lambda: str(message)), MAX_LOG_LINE_BYTES),
            storable_fields(fields) if fields else None,
        )


@dataclass(frozen=True, slots=True)
class Upstream:
    """The run of another job whose end started this one; see `after` of a job."""

    run_id: str
    job: str
    state: str  # succeeded or dead
    result: Any  # of a succeeded run


class Context:
    """Information and operations of the running attempt. All methods are thread-safe.

    Use `await ctx.progress(1, 10)` in `async def` handlers and `ctx.progress(1, 10)` in others.
    """

    __slots__ = ("_control", "_work", "lateness", "log")

    log: ContextLog
    lateness: timedelta
    """The time between `scheduled_for` and the start of this attempt, by the database's clock; never negative."""

    def __init__(self, work: Work, control: Control, *, lateness: timedelta, sink: LogSink) -> None:
        self._work = work
        self._control = control
        self.lateness = lateness
        self.log = ContextLog(control, sink)

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self._work.attempt

    @property
    def token(self) -> int:
        """A fencing token that grows with every claim of this run.

        A suspended worker can resume after its run was given to another worker. Pass the token with every change
        and reject tokens older than the newest one seen:

            update account set balance = balance - $amount, token = $token where id = $id and token < $token

        or, for a service that supports it: `headers={"X-Fencing-Token": str(ctx.token)}`.
        """
        return self._work.attempt

    @property
    def run_id(self) -> str:
        return encode_run_id(self._work.key)

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for all attempts of this run and unique to it, for services that deduplicate."""
        return encode_run_id(self._work.key)

    @property
    def scheduled_for(self) -> datetime:
        """The time at which the schedule planned this run, even if it runs late."""
        return self._work.key.scheduled_for

    @property
    def job(self) -> str | None:
        """The job's name; None for a sent run."""
        return self._work.job

    @property
    def upstream(self) -> Upstream | None:
        """The run that started this one, if the job starts after another; else None."""
        found = self._work.spec.upstream
        if found is None:
            return None
        return Upstream(encode_run_id(found.key(self.scheduled_for)), found.job, found.state, found.result)

    @property
    def task(self) -> str:
        return self._work.task

    @property
    def tenant(self) -> str:
        return self._work.tenant

    @property
    def trace_id(self) -> str | None:
        """The OpenTelemetry trace of this run; None if tracing is off."""
        traceparent = self._work.traceparent
        return None if traceparent is None else traceparent_log_fields(traceparent)["trace_id"]

    @property
    def tenant_id(self) -> int:
        return self._work.tenant_id

    @property
    def pool(self) -> str:
        return self._work.pool

    @property
    def cancelled(self) -> bool:
        """Whether cancellation of this run was requested."""
        return self._control.reason is not None

    def check(self) -> OptionalAwait:
        """Raise Cancelled if cancellation was requested; also counts as a heartbeat."""
        self._control.check()
        return _OPTIONAL_AWAIT

    def heartbeat(self) -> OptionalAwait:
        """Report that the handler is alive (see the task option `heartbeat`); also does what `check` does."""
        self._control.check()
        return _OPTIONAL_AWAIT

    @property
    def resume_from(self) -> Any:
        """The last `details` that earlier attempts of this run reported with `progress`, or None.

        Set if an earlier attempt failed, timed out, was lost or snoozed, and after a redrive of the dead run.
        """
        return self._work.resume_from

    @property
    def last_result(self) -> Any:
        """The result of the latest run of the same job that was scheduled before this one and has succeeded.

        None for the first run of a job and for sent runs. The job or its task needs the option `keep_result`.
        """
        if self._work.job is not None and not self._work.spec.keep_result:
            raise InvalidInput(
                f"the job {self._work.job} does not keep the results of its runs",
                hint="declare the task with @app.task(keep_result=True), or set keep_result in the job",
                code="result_not_kept",
            )
        return self._work.last_result

    def progress(self, done: float, total: float | None = None, note: str = "", details: Any = None) -> OptionalAwait:
        """Report the progress of this attempt; also does what `check` does.

        `details` is any JSON value of at most 64 KiB, such as a cursor. The next attempt reads the last one reported
        as `ctx.resume_from`.
        """
        report: dict[str, Any] = {"done": _finite_number(done, "done")}
        if total is not None:
            report["total"] = _finite_number(total, "total")
        if note:
            report["note"] = clip(safe_text(lambda: str(note)), MAX_PROGRESS_NOTE_BYTES)
        if details is None:  # a report without details does not take back earlier ones
            earlier = self._control.progress
            if earlier is not None and "details" in earlier:
                report["details"] = earlier["details"]
        else:
            report["details"] = to_plain(details, limit=MAX_PROGRESS_DETAILS_BYTES, what="progress: details")
        self._control.report_progress(report)
        self._control.check()
        return _OPTIONAL_AWAIT

    def __repr__(self) -> str:
        return f"<Context of {self.task} {self.run_id}, attempt {self.attempt}>"


def _finite_number(value: float, what: str) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise InvalidInput(f"progress: {what} must be a finite number, not {value!r}", code="number_invalid")
    return value


def storable_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Make log fields storable as jsonb. Values that are not JSON become text, so logging never fails."""
    stored = {
        clip(name, 200): _storable_value(value) for name, value in itertools.islice(fields.items(), MAX_LOG_FIELDS)
    }
    if len(fields) > MAX_LOG_FIELDS:
        stored["…"] = f"{len(fields) - MAX_LOG_FIELDS} further fields dropped"
    return stored


def _storable_value(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, MAX_LOG_FIELD_BYTES)
    try:
        return to_plain(value, limit=MAX_LOG_FIELD_BYTES)
    except Exception:  # noqa: BLE001 - any object can be logged
        return clip(safe_text(lambda: repr(value)), MAX_LOG_FIELD_BYTES)
