"""Captures the output of handlers in this process: `sys.stdout`, `sys.stderr`, `logging` and `warnings`.

Several attempts share a process, so a context variable says which attempt the running code belongs to. It follows
coroutines and tasks by itself; `Thread.start` and `ThreadPoolExecutor.submit` are wrapped so that it follows threads.
Everything here passes through unchanged when no attempt is current.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any, Final, TextIO

from bellringer.worker.context import storable_fields
from bellringer.worker.output.attempt_output import (
    AttemptOutput,
    current_output,
    log_fields,
    restore_output,
    set_current_output,
)
from bellringer.worker.output.programs import capture_programs
from bellringer.worker.results import format_traceback, safe_text

LOGGING_SOURCE: Final = "logging:"
WARNINGS_SOURCE: Final = "warnings"
MAX_NESTED_RECORDS: Final = 8  # a logging handler that logs calls itself; deeper records are dropped
DEFAULT_CAPTURE_LEVEL: Final = "info"
_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Thread(threading.local):
    """The calls of logging handlers, or of an echo, that this thread is in. Streams pass through what they write."""

    logging_calls = 0
    echoes = 0


class _Process:
    """What is installed in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.level = logging.INFO
        self.is_fork = False
        self.is_redirected = False  # descriptors 1 and 2 are captured elsewhere
        self.streams: dict[str, CapturedStream] = {}
        self.show_warning: Callable[..., None] = warnings.showwarning


_thread: Final = _Thread()
_process: Final = _Process()


def capturing() -> AttemptOutput | None:
    """Return the output of the current attempt, if what is written now belongs to it."""
    output = current_output()
    if output is None or not output.captures or _thread.logging_calls or _thread.echoes or _process.is_fork:
        return None
    return output


@contextmanager
def passing_through() -> Iterator[None]:
    """Pass everything through that this thread writes. The echo of a line would otherwise be captured again."""
    _thread.echoes += 1
    try:
        yield
    finally:
        _thread.echoes -= 1


# Installation


def install(level: str = DEFAULT_CAPTURE_LEVEL) -> None:
    """Start capturing. `level` is the lowest level of `logging` that is stored. Pair each call with `uninstall`."""
    with _process.lock:
        _process.users += 1
        _process.level = getattr(logging, level.upper())
        if _process.users == 1:
            _patch()
            for name in ("stdout", "stderr"):
                if (real := getattr(sys, name)) is not None:
                    _process.streams[name] = CapturedStream(name, real)
    reinstall()


def uninstall() -> None:
    """Restore the streams when the last user stops. The other wrappers stay: they pass through without an attempt."""
    with _process.lock:
        _process.users -= 1
        if _process.users:
            return
        for name, stream in _process.streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.uncaptured)
        _process.streams.clear()


def reinstall() -> None:
    """Install the streams again if a task that is not captured has replaced them. Called only while no handler runs: a
    handler may redirect `sys.stdout` as long as it likes."""
    for name, stream in _process.streams.items():
        if getattr(sys, name) is not stream:
            setattr(sys, name, stream)
    shown = warnings.showwarning
    if shown is not _show_warning and shown is not logging._showwarning:  # type: ignore[attr-defined]  # noqa: SLF001
        _process.show_warning = shown
        warnings.showwarning = _show_warning


def replace_real_stream(name: str, descriptor: int) -> None:
    """Pass output through to another descriptor, in a child process that redirects descriptors 1 and 2."""
    _process.streams[name].uncaptured = _open_stream(descriptor)
    _process.is_redirected = True


def _open_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, errors="backslashreplace", closefd=False)


def _patch() -> None:
    sys.__class__ = _SysModule
    for owner, name, wrapper in (
        (logging.Logger, "callHandlers", _call_handlers),
        (logging.Logger, "isEnabledFor", _is_enabled_for),
        (threading.Thread, "start", _start_thread),
        (ThreadPoolExecutor, "submit", _submit),
        (subprocess.Popen, "__init__", _popen_init),
        (subprocess.Popen, "wait", _popen_wait),
    ):
        if getattr(owner, name) is _ORIGINALS[owner, name]:
            setattr(owner, name, wrapper)


class _SysModule(ModuleType):
    """The class of `sys` in a worker. A handler that assigns `sys.stdout`, as `contextlib.redirect_stdout` does,
    changes it for its own attempt only. Reading an attribute of `sys` stays as it was."""

    def __setattr__(self, name: str, value: Any) -> None:
        stream = _process.streams.get(name)
        if stream is None or vars(self).get(name) is not stream or (output := capturing()) is None:
            super().__setattr__(name, value)
        elif value is None:
            output.redirect(name, _NOWHERE)
        else:
            output.redirect(name, None if value is stream else value)


class _Nowhere(io.TextIOBase):
    """Replaces a stream that a handler has set to None: `print` then does nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


_NOWHERE: Final = _Nowhere()

# Streams


class CapturedStream(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`. Writes of a handler go to its attempt, all others to the real stream."""

    def __init__(self, name: str, real: TextIO) -> None:
        super().__init__()
        self._stream = name
        self.uncaptured = real  # `telemetry.uncaptured` reads this attribute

    def write(self, text: str, /) -> int:
        if (output := capturing()) is None:
            return self.uncaptured.write(text)
        if (target := output.redirected(self._stream)) is not None:
            return int(target.write(text))
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        output.write(self._stream, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    @property
    def _target(self) -> Any:
        """The stream to use instead: the handler's own, or outside of handlers the real one; None: captured."""
        output = capturing()
        return self.uncaptured if output is None else output.redirected(self._stream)

    def flush(self) -> None:
        if (target := self._target) is not None:
            target.flush()

    def isatty(self) -> bool:
        return (target := self._target) is not None and bool(target.isatty())

    def close(self) -> None:
        if (target := self._target) is not None:
            target.close()

    def detach(self) -> Any:
        if (target := self._target) is None:
            raise io.UnsupportedOperation("the output of a handler cannot be detached")
        return target.detach()

    def fileno(self) -> int:
        return int((self._target or self.uncaptured).fileno())

    def writable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return (target := self._target) is not None and bool(target.closed)

    @property
    def buffer(self) -> Any:
        target = self._target
        return CapturedBytes(self._stream, self.uncaptured.buffer) if target is None else target.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.uncaptured.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.uncaptured.errors

    @property
    def newlines(self) -> Any:  # type: ignore[override]
        return self.uncaptured.newlines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target or self.uncaptured, name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        """Do not close the real stream, as the base class would."""


class CapturedBytes(io.BufferedIOBase):
    """The `buffer` of a captured stream."""

    def __init__(self, name: str, real: Any) -> None:
        super().__init__()
        self._stream = name
        self._real = real

    def write(self, data: Any, /) -> int:
        if (output := capturing()) is None:
            return int(self._real.write(data))
        raw = bytes(memoryview(data))
        output.write_bytes(self._stream, raw)
        return len(raw)

    def flush(self) -> None:
        if capturing() is None:
            self._real.flush()

    def close(self) -> None:
        if capturing() is None:
            self._real.close()

    def fileno(self) -> int:
        return int(self._real.fileno())

    def writable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return capturing() is None and bool(self._real.closed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __del__(self) -> None:
        """Do not close the real stream, as the base class would."""


# Logging and warnings


def _is_enabled_for(logger: logging.Logger, level: int) -> bool:
    """Enable records of a handler at the capture level, unless the app has set a level for the logger."""
    if _logging_is_enabled_for(logger, level):
        return True
    if level < _process.level or (output := current_output()) is None or not output.captures:
        return False
    return logger.manager.disable < level and not logger.disabled and _has_default_level(logger)


def _has_default_level(logger: logging.Logger) -> bool:
    at: logging.Logger | None = logger
    while at is not None and at.parent is not None:
        if at.level:
            return False
        at = at.parent
    return at is not None and at.level in {logging.WARNING, logging.NOTSET}


def _call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Store a record of a handler, then call the app's logging handlers if the app has enabled the record."""
    output = current_output()
    if output is None or output.has_ended or _thread.echoes or _process.is_fork:
        _logging_call_handlers(logger, record)
        return
    if _thread.logging_calls >= MAX_NESTED_RECORDS:
        return
    _thread.logging_calls += 1
    try:
        is_written_by_app = _has_app_handlers(logger)
        if output.captures and record.levelno >= _process.level:
            _store_record(output, record, echo=not is_written_by_app)
        if _logging_is_enabled_for(logger, record.levelno) and (is_written_by_app or not output.captures):
            for name, value in log_fields(output.work).items():
                record.__dict__.setdefault(name, value)
            _logging_call_handlers(logger, record)
    finally:
        _thread.logging_calls -= 1


def _has_app_handlers(logger: logging.Logger) -> bool:
    """Whether the app has a logging handler for this logger, other than the worker's own."""
    at: logging.Logger | None = logger
    while at is not None:
        if any(not hasattr(handler, "writes_worker_log") for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _store_record(output: AttemptOutput, record: logging.LogRecord, *, echo: bool) -> None:
    fields = {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = format_traceback(record.exc_info[1])
    if record.stack_info:
        fields["stack"] = record.stack_info
    message = safe_text(lambda: str(record.getMessage()))
    source = f"{LOGGING_SOURCE}{record.name}"
    output.add(_level_name(record.levelno), source, message, storable_fields(fields) if fields else None, echo=echo)


def _level_name(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    output = capturing() if file is None else None
    if output is None:
        _process.show_warning(message, category, filename, lineno, file, line)
        return
    text = safe_text(lambda: str(message))
    output.add("warning", WARNINGS_SOURCE, f"{category.__name__}: {text}  ({filename}:{lineno})")


# Threads


def _start_thread(thread: threading.Thread) -> None:
    """Start a thread that belongs to the attempt that starts it."""
    output = current_output()
    if output is None or output.has_ended:
        _thread_start(thread)
        return
    run = thread.run

    def run_in_attempt() -> None:
        thread.__dict__.pop("run", None)
        set_current_output(output)
        run()

    thread.run = run_in_attempt  # type: ignore[method-assign]
    try:
        _thread_start(thread)
    except BaseException:
        thread.__dict__.pop("run", None)
        raise


def _submit(executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Submit a call that belongs to the attempt that submits it. The pool's threads belong to no attempt, because
    attempts may share a pool."""
    output = current_output()
    if output is None:
        return _pool_submit(executor, function, *args, **kwargs)
    token = set_current_output(None)
    try:
        return _pool_submit(executor, _call_in_attempt, output, function, *args, **kwargs)
    finally:
        restore_output(token)


def _call_in_attempt(output: AttemptOutput, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = set_current_output(output)
    try:
        return function(*args, **kwargs)
    finally:
        restore_output(token)


# Programs


def _output_of_program() -> AttemptOutput | None:
    """The output that a program belongs to; None if descriptors 1 and 2 are those of the attempt anyway."""
    return None if _process.is_redirected else capturing()


def _pass_bytes_through(name: str, data: bytes) -> None:
    stream = _process.streams.get(name)
    target = getattr(sys, name) if stream is None else stream.uncaptured
    target.write(data.decode(errors="replace"))
    target.flush()


def _after_fork() -> None:
    if current_output() is not None:  # a copy of the worker that continues inside a handler
        _process.is_fork = True
        if _process.is_redirected:
            for name, descriptor in (("stdout", 1), ("stderr", 2)):
                _process.streams[name].uncaptured = _open_stream(descriptor)


_logging_call_handlers: Final = logging.Logger.callHandlers
_logging_is_enabled_for: Final = logging.Logger.isEnabledFor
_thread_start: Final = threading.Thread.start
_pool_submit: Final = ThreadPoolExecutor.submit
_popen_init, _popen_wait = capture_programs(_output_of_program, _pass_bytes_through, _thread_start)
_ORIGINALS: Final[dict[tuple[type, str], Any]] = {
    (logging.Logger, "callHandlers"): _logging_call_handlers,
    (logging.Logger, "isEnabledFor"): _logging_is_enabled_for,
    (threading.Thread, "start"): _thread_start,
    (ThreadPoolExecutor, "submit"): _pool_submit,
    (subprocess.Popen, "__init__"): subprocess.Popen.__init__,
    (subprocess.Popen, "wait"): subprocess.Popen.wait,
}
os.register_at_fork(after_in_child=_after_fork)
