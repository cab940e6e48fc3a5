"""Pipes that replace standard output and standard error of a child process during one attempt.

They receive everything that does not pass through Python's `sys.stdout`: programs that a handler starts, C extensions,
`os.write(1, …)`, and the report of a crash. Each attempt has its own pipes, so output of a program that outlives its
attempt is never stored with the next one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from contextlib import suppress
from typing import Final

from bellringer.clock import SystemClock
from bellringer.telemetry import uncaptured
from bellringer.worker.output.attempt_output import AttemptOutput

READ_BYTES: Final = 1 << 16
# Messages of the child that were sent earlier are recorded first, also by a loop that was busy and reads both at once.
READ_DELAY_SECONDS: Final = 0.01
LOOP_TURNS_BEFORE_READ: Final = 3
MAX_READS_KEPT: Final = 100  # with their times, to order the output of programs and the lines of the handler
MAX_READS_AT_END: Final = 64  # of a pipe whose writer may not stop
monotonic: Final = SystemClock().monotonic


class OutputPipes:
    """The worker's ends of the pipes of one attempt. Used on the service loop only."""

    def __init__(self, output: AttemptOutput) -> None:
        self._output: AttemptOutput | None = output
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, str] = {}
        self._read_counts = {"stdout": 0, "stderr": 0}  # bytes
        self._reads: deque[tuple[float, str, int]] = deque(maxlen=MAX_READS_KEPT)  # time, stream, bytes
        self.write_ends: list[int] = []
        try:
            for stream in ("stdout", "stderr"):
                read_end, write_end = os.pipe()
                os.set_blocking(read_end, False)
                self._streams[read_end] = stream
                self.write_ends.append(write_end)
        except OSError:  # out of file descriptors
            self.close_write_ends()
            for read_end in list(self._streams):
                self._close(read_end)
            raise
        for read_end in self._streams:
            self._loop.add_reader(read_end, self._on_readable, read_end)

    def close_write_ends(self) -> None:
        """Close this process's copies of the write ends, so that a read sees the end of the last writer."""
        for write_end in self.write_ends:
            os.close(write_end)
        self.write_ends.clear()

    def end(self) -> None:
        """Record everything written so far. Later output of programs that still hold a pipe is passed through to the
        worker's own streams, until the last of them closes the pipe."""
        self.close_write_ends()
        for read_end in list(self._streams):
            for _ in range(MAX_READS_AT_END):
                if not self._read(read_end):
                    break
        self._output = None

    def read_before(self, at: float, unread: tuple[int, int]) -> None:
        """Record what was in the pipes at that time, before the line that the handler wrote then."""
        for read_end, count in zip(list(self._streams), unread, strict=False):
            stream = self._streams[read_end]
            later = sum(size for time, read, size in self._reads if read == stream and time > at)
            end = self._read_counts[stream] - later + count
            while (rest := end - self._read_counts[stream]) > 0:
                if not self._read(read_end, min(rest, READ_BYTES)):
                    break

    def abandon(self) -> None:
        """Close both pipes, because the child did not get them."""
        self.close_write_ends()
        for read_end in list(self._streams):
            self._close(read_end)

    def _on_readable(self, read_end: int) -> None:
        if self._output is None or self._output.is_full:
            self._read(read_end)  # the order no longer matters
        else:
            self._loop.remove_reader(read_end)
            self._loop.call_later(READ_DELAY_SECONDS, self._read_later, read_end, LOOP_TURNS_BEFORE_READ)

    def _read_later(self, read_end: int, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._read_later, read_end, turns - 1)
            return
        if read_end in self._streams:
            self._read(read_end)
        if read_end in self._streams:
            self._loop.add_reader(read_end, self._on_readable, read_end)

    def _read(self, read_end: int, size: int = READ_BYTES) -> bool:
        """Read once. Returns False if there is nothing to read."""
        began_at = monotonic()
        try:
            data = os.read(read_end, size)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(read_end)
            return False
        stream = self._streams[read_end]
        self._read_counts[stream] += len(data)
        self._reads.append((began_at, stream, len(data)))
        if self._output is not None:
            self._output.write_bytes(stream, data)
        else:
            _pass_through(stream, data)
        return True

    def _close(self, read_end: int) -> None:
        if self._streams.pop(read_end, None) is not None:
            self._loop.remove_reader(read_end)
            os.close(read_end)


def _pass_through(stream: str, data: bytes) -> None:
    with suppress(OSError, ValueError):
        real = uncaptured(getattr(sys, stream))
        real.write(data.decode(errors="replace"))
        real.flush()
