"""What a handler gets when it declares `ctx`: who it is, and a way to speak and to listen."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, Protocol

from bellringer.errors import InvalidInput
from bellringer.payload import to_plain
from bellringer.runs import encode_id
from bellringer.worker.control import Control
from bellringer.worker.endings import clip, told, where
from bellringer.worker.work import Work

LINE_LIMIT: Final = 8 * 1024
LINES_LIMIT: Final = 1000  # an attempt
FIELD_LIMIT: Final = 4 * 1024
FIELDS_LIMIT: Final = 32
NOTE_LIMIT: Final = 1024


class Sink(Protocol):
    """Where a handler's lines go."""

    def __call__(self, level: str, message: str, fields: dict[str, Any] | None) -> None: ...


class Breath:
    """Awaited, it lets other coroutines run; not awaited, it is nothing. So one call serves both colours."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


_BREATH: Final = Breath()


class Log:
    """Structured lines, kept with the attempt: `ctx.log.info("charging", invoice=7)`."""

    __slots__ = ("_control", "_count", "_sink")

    def __init__(self, control: Control, sink: Sink) -> None:
        self._control = control
        self._sink = sink
        self._count = itertools.count(1)  # its next() is atomic, so threads may share it

    def debug(self, message: str, /, **fields: Any) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, /, **fields: Any) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, /, **fields: Any) -> None:
        self._write("warning", message, fields)

    def error(self, message: str, /, **fields: Any) -> None:
        self._write("error", message, fields)

    def exception(self, message: str, /, **fields: Any) -> None:
        """An error line with the traceback of the exception that is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            fields["traceback"] = where(error)
        self._write("error", message, fields)

    def _write(self, level: str, message: str, fields: dict[str, Any]) -> None:
        self._control.sign()
        number = next(self._count)
        if number > LINES_LIMIT:
            if number == LINES_LIMIT + 1:
                self._sink("warning", f"further lines dropped: an attempt keeps {LINES_LIMIT:,}", None)
            return
        self._sink(level, clip(told(lambda: str(message)), LINE_LIMIT), _storable(fields) if fields else None)


class Context:
    """What an attempt knows of itself. Every method may be called from any thread.

    `await ctx.progress(1, 10)` in `async def` handlers, plain `ctx.progress(1, 10)` in others.
    """

    __slots__ = ("_control", "_work", "lateness", "log")

    log: Log
    lateness: timedelta
    """How long after `scheduled_for` this attempt started, by the database's clock; never negative."""

    def __init__(self, work: Work, control: Control, *, lateness: timedelta, sink: Sink) -> None:
        self._work = work
        self._control = control
        self.lateness = lateness
        self.log = Log(control, sink)

    @property
    def attempt(self) -> int:
        """Which try this is; the first is 1."""
        return self._work.attempt

    @property
    def token(self) -> int:
        """A fencing token: it grows with every claim of this run.

        A worker that was paused may wake up after its run was given to another. Hand the token to whatever
        you change, and let that refuse one that is older than the newest it has seen:

            update account set balance = balance - $amount, token = $token where id = $id and token < $token

        or, for a service that knows how: `headers={"X-Fencing-Token": str(ctx.token)}`.
        """
        return self._work.attempt

    @property
    def run_id(self) -> str:
        return encode_id(self._work.key)

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt of this run, and on no other: give it to services that de-duplicate."""
        return encode_id(self._work.key)

    @property
    def scheduled_for(self) -> datetime:
        """The instant that the schedule names, however late the run."""
        return self._work.key.scheduled_for

    @property
    def job(self) -> str | None:
        """The job's name; None for what was sent without one."""
        return self._work.job

    @property
    def task(self) -> str:
        return self._work.task

    @property
    def tenant(self) -> str:
        return self._work.tenant

    @property
    def tenant_id(self) -> int:
        return self._work.tenant_id

    @property
    def pool(self) -> str:
        return self._work.pool

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to cancel."""
        return self._control.reason is not None

    def check(self) -> Breath:
        """A safe point: raises Cancelled if this run was asked to cancel; also a sign of life."""
        self._control.check()
        return _BREATH

    def heartbeat(self) -> Breath:
        """A sign of life, for handlers with a `heartbeat` limit; also a safe point."""
        self._control.check()
        return _BREATH

    def progress(self, done: float, total: float | None = None, note: str = "") -> Breath:
        """Say how far this attempt has come; also a sign of life and a safe point."""
        report: dict[str, Any] = {"done": _number(done, "done")}
        if total is not None:
            report["total"] = _number(total, "total")
        if note:
            report["note"] = clip(told(lambda: str(note)), NOTE_LIMIT)
        self._control.report(report)
        self._control.check()
        return _BREATH

    def __repr__(self) -> str:
        return f"<Context of {self.task} {self.run_id}, attempt {self.attempt}>"


def _number(value: float, what: str) -> float:
    if not isinstance(value, int | float) or not isfinite(value):
        raise InvalidInput(f"progress: {what} must be a finite number, not {value!r}", code="number_invalid")
    return value


def _storable(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields fit for jsonb: what cannot be written as JSON is shown as text. A log line never fails."""
    stored = {clip(name, 200): _field(value) for name, value in itertools.islice(fields.items(), FIELDS_LIMIT)}
    if len(fields) > FIELDS_LIMIT:
        stored["…"] = f"{len(fields) - FIELDS_LIMIT} further fields dropped"
    return stored


def _field(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, FIELD_LIMIT)
    try:
        return to_plain(value, limit=FIELD_LIMIT)
    except Exception:  # noqa: BLE001 - any object may be logged
        return clip(told(lambda: repr(value)), FIELD_LIMIT)
