"""The captured output of one attempt: bounded lines with a level and a source, and the attempt that is current."""

from __future__ import annotations

import codecs
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from bellringer.tracing.span_refs import traceparent_log_fields
from bellringer.worker.results import clip

if TYPE_CHECKING:
    from bellringer.worker.attempt import Work

MAX_CAPTURED_LINES: Final = 2_000  # per attempt, in addition to the lines of `ctx.log`
MAX_CAPTURED_BYTES: Final = 1 << 20  # per attempt
MAX_LINE_CHARACTERS: Final = 4_000  # a longer line of a stream is split
MAX_MESSAGE_BYTES: Final = 8 * 1024  # a longer message of `logging` loses its middle
MAX_SOURCE_BYTES: Final = 200
STREAM_LEVELS: Final = {"stdout": "info", "stderr": "warning"}
DROPPED_MESSAGE: Final = (
    f"further output dropped: the limit per attempt is {MAX_CAPTURED_LINES:,} lines or {MAX_CAPTURED_BYTES >> 20} MiB"
)


class RecordLine(Protocol):
    """Receives captured lines. `echo` says whether the worker's own stream should show the line too."""

    def __call__(
        self, work: Work, level: str, message: str, fields: dict[str, Any] | None, source: str, *, echo: bool
    ) -> None: ...


class Program(Protocol):
    """A program that the handler has started, whose output is read."""

    def drain(self) -> None: ...


class AttemptOutput:
    """Splits the output of one attempt into lines and records them in order. All methods are thread-safe.

    Creating it is cheap, because every attempt needs one and most print nothing: the buffer is made at the first line.
    Once `captures` is false, streams pass output through unchanged.
    """

    __slots__ = ("_buffer", "_programs", "_record", "captures", "has_ended", "work")

    def __init__(self, work: Work, record: RecordLine, *, captures: bool) -> None:
        self.work = work
        self.captures = captures
        self.has_ended = False
        self._record = record
        self._buffer: _Buffer | None = None
        self._programs: list[Program] | None = None

    def write(self, stream: str, text: str) -> None:
        """Add text of stdout or stderr. Lines are recorded when they are complete."""
        buffer = self._buffer or self._make_buffer()
        buffer.call(partial(self._write, buffer, stream, text))

    def write_bytes(self, stream: str, data: bytes) -> None:
        """Add bytes of stdout or stderr, decoded as UTF-8; invalid bytes are replaced."""
        buffer = self._buffer or self._make_buffer()
        buffer.call(partial(self._write_bytes, buffer, stream, data))

    def add(
        self, level: str, source: str, message: str, fields: dict[str, Any] | None = None, *, echo: bool = True
    ) -> None:
        """Add one line that is complete, such as a record of `logging`."""
        buffer = self._buffer or self._make_buffer()
        line = partial(self._add, buffer, level, clip(source, MAX_SOURCE_BYTES), clip(message, MAX_MESSAGE_BYTES))
        buffer.call(partial(line, fields, echo=echo))

    def redirect(self, stream: str, target: Any) -> None:
        """Send a stream of this attempt elsewhere; None restores the target before the last one."""
        targets = (self._buffer or self._make_buffer()).redirects.setdefault(stream, [])
        if target is not None:
            targets.append(target)
        elif targets:
            targets.pop()

    def redirected(self, stream: str) -> Any:
        """Return the stream that the handler has assigned, if any."""
        targets = None if self._buffer is None else self._buffer.redirects.get(stream)
        return targets[-1] if targets else None

    def add_program(self, program: Program) -> None:
        """Wait at the end for what this program has written until then."""
        self._programs = [*(self._programs or ()), program]

    def end(self) -> None:
        """Record incomplete lines. Later output, as of a thread that the handler left behind, is passed through."""
        for program in self._programs or ():
            program.drain()
        self.has_ended = True
        self.captures = False
        if self._buffer is not None:
            self._buffer.call(partial(self._flush, self._buffer))

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, so that further output is dropped."""
        return self._buffer is not None and self._buffer.is_full

    def _make_buffer(self) -> _Buffer:
        with _making_buffer:
            if self._buffer is None:
                self._buffer = _Buffer()
            return self._buffer

    def _write_bytes(self, buffer: _Buffer, stream: str, data: bytes) -> None:
        if stream not in buffer.decoders:
            buffer.decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        self._write(buffer, stream, buffer.decoders[stream].decode(data))

    def _write(self, buffer: _Buffer, stream: str, text: str) -> None:
        if buffer.is_full:
            return
        text = text[: MAX_CAPTURED_BYTES + 1]  # no more could be recorded
        *lines, rest = (buffer.partial.get(stream, "") + text).split("\n")
        for line in lines:
            self._add_pieces(buffer, stream, _shown_part(line))
        if "\r" in rest:
            rest = _shown_part(rest) + "\r" * rest.endswith("\r")
        while len(rest) > MAX_LINE_CHARACTERS and not buffer.is_full:
            self._add_pieces(buffer, stream, rest[:MAX_LINE_CHARACTERS])
            rest = rest[MAX_LINE_CHARACTERS:]
        buffer.partial[stream] = rest

    def _add_pieces(self, buffer: _Buffer, stream: str, line: str) -> None:
        for start in range(0, len(line) or 1, MAX_LINE_CHARACTERS):
            piece = line[start : start + MAX_LINE_CHARACTERS]
            self._add(buffer, STREAM_LEVELS[stream], stream, clip(piece, MAX_MESSAGE_BYTES * 4), None, echo=True)
            if buffer.is_full:
                return

    def _add(
        self,
        buffer: _Buffer,
        level: str,
        source: str,
        message: str,
        fields: dict[str, Any] | None,
        *,
        echo: bool,
    ) -> None:
        if buffer.is_full:
            return
        buffer.lines += 1
        buffer.size += len(message.encode()) + (len(repr(fields)) if fields else 0)
        if buffer.lines > MAX_CAPTURED_LINES or buffer.size > MAX_CAPTURED_BYTES:
            buffer.is_full = True
            buffer.partial.clear()
            level, message, fields = "warning", DROPPED_MESSAGE, None
        self._record(self.work, level, message, fields, source, echo=echo)

    def _flush(self, buffer: _Buffer) -> None:
        for stream, decoder in buffer.decoders.items():
            self._write(buffer, stream, decoder.decode(b"", final=True))
        for stream, rest in list(buffer.partial.items()):
            if rest:
                self._add_pieces(buffer, stream, _shown_part(rest))
        buffer.partial.clear()


class _Buffer:
    """Incomplete lines and counts of an attempt that has written something."""

    __slots__ = ("_lock", "_owner", "_postponed", "decoders", "is_full", "lines", "partial", "redirects", "size")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._postponed: deque[Callable[[], None]] = deque()
        self.decoders: dict[str, codecs.IncrementalDecoder] = {}
        self.partial: dict[str, str] = {}
        self.redirects: dict[str, list[Any]] = {}  # streams that the handler has assigned to `sys.stdout`
        self.lines = 0
        self.size = 0
        self.is_full = False

    def call(self, step: Callable[[], None]) -> None:
        """Call a step under the lock. A step inside a step, as of a finalizer or a signal handler that prints, is
        postponed: waiting for the lock would never end."""
        thread = threading.get_ident()
        if self._owner == thread:
            self._postponed.append(step)
            return
        with self._lock:
            self._owner = thread
            try:
                step()
                while self._postponed:
                    self._postponed.popleft()()
            finally:
                self._owner = 0


_making_buffer: Final = threading.RLock()
_current: Final[ContextVar[AttemptOutput | None]] = ContextVar("bellringer_attempt_output", default=None)
current_output: Final = _current.get
set_current_output: Final = _current.set
restore_output: Final = _current.reset


def log_fields(work: Work) -> dict[str, Any]:
    """Return the fields with which log lines of the worker name an attempt."""
    fields = {
        "run_id": work.key.id,
        "job": work.job,
        "task": work.task,
        "attempt": work.attempt,
        "tenant": work.tenant,
    }
    return fields if work.traceparent is None else {**fields, **traceparent_log_fields(work.traceparent)}


def current_log_fields() -> dict[str, Any] | None:
    """Return the log fields of the attempt that runs in this context, if any."""
    output = _current.get()
    return None if output is None or output.has_ended else log_fields(output.work)


def _shown_part(line: str) -> str:
    """Return the text that a terminal would still show: a carriage return starts the line again."""
    line = line.rstrip("\r")
    return line.rpartition("\r")[2] if "\r" in line else line
