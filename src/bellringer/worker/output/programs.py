"""Captures the output of programs that a handler starts with `subprocess` or `asyncio.create_subprocess_…`.

A program inherits the descriptors 1 and 2 of the worker, where nothing tells concurrent attempts apart. So a program
whose stdout or stderr is not redirected by the handler gets a pipe instead, and a thread reads the pipe into the
attempt. Programs of handlers with `isolation="process"` keep descriptors 1 and 2, which belong to their attempt.
"""

from __future__ import annotations

import inspect
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, Final

from bellringer.worker.output.attempt_output import AttemptOutput

READ_BYTES: Final = 65_536
MAX_DRAIN_SECONDS: Final = 0.5  # a program that leaves others behind may keep its pipe open for ever
DRAIN_POLL_SECONDS: Final = 0.001


class ProgramOutput:
    """Reads the pipes of one program in a thread, until the last process that holds them has closed them.

    Output after the end of the attempt is passed through to the worker's own stream, as that of threads is.
    """

    def __init__(self, output: AttemptOutput, pass_through: Callable[[str, bytes], None]) -> None:
        self._output = output
        self._pass_through = pass_through
        self._names: dict[int, str] = {}  # by the descriptor to read from
        self._is_reading = False

    def open_pipe(self, name: str) -> int:
        """Opens a pipe for a stream, and returns the descriptor that the program writes to."""
        reading, writing = os.pipe()
        self._names[reading] = name
        return writing

    def start(self, start_thread: Callable[[threading.Thread], None]) -> None:
        start_thread(threading.Thread(target=self._read, name="bellringer program output", daemon=True))

    def close(self) -> None:
        """Closes the pipes, if the program was not started."""
        for reading in self._names:
            os.close(reading)
        self._names.clear()

    def drain(self) -> None:
        """Waits until everything is stored that the program has written so far."""
        deadline = time.monotonic() + MAX_DRAIN_SECONDS
        while time.monotonic() < deadline:
            if not self._is_reading and not _readable(list(self._names)):
                return
            time.sleep(DRAIN_POLL_SECONDS)

    def _read(self) -> None:
        while self._names:
            for reading in _readable(list(self._names), seconds=None):
                self._is_reading = True
                data = os.read(reading, READ_BYTES)
                name = self._names[reading]
                if not data:
                    del self._names[reading]
                    os.close(reading)
                elif self._output.captures:
                    self._output.write_bytes(name, data)
                else:
                    with suppress(OSError, ValueError):
                        self._pass_through(name, data)
                self._is_reading = False


def _readable(descriptors: list[int], seconds: float | None = 0.0) -> list[int]:
    """The descriptors that have data or have ended. Unlike `select.select`, `poll` takes descriptors above 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    try:
        return [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]
    except OSError:
        return []


def _is_inherited(output: AttemptOutput | None, name: str, given: Mapping[str, Any]) -> bool:
    """Whether a program would write to the worker's own stream: by default, or because `sys.stdout` was given."""
    target = given.get(name)
    return target is None or (target is getattr(sys, name) and output is not None and not output.redirected(name))


def capture_programs(
    find_output: Callable[[], AttemptOutput | None],
    pass_through: Callable[[str, bytes], None],
    start_thread: Callable[[threading.Thread], None],
) -> tuple[Callable[..., None], Callable[..., int]]:
    """Returns replacements of `Popen.__init__` and `Popen.wait`. `find_output` returns the attempt whose program it is.

    `wait`, which `subprocess.run` calls too, returns after the output is stored, so that lines that the handler prints
    afterwards follow it.
    """
    popen_init, popen_wait = subprocess.Popen.__init__, subprocess.Popen.wait
    parameters = inspect.signature(popen_init)

    @wraps(popen_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        output = find_output()
        try:
            bound = None if output is None else parameters.bind(self, *args, **kwargs).arguments
        except TypeError:
            bound = None  # Popen raises the fitting error
        names = [name for name in ("stdout", "stderr") if bound is not None and _is_inherited(output, name, bound)]
        if output is None or not names:
            popen_init(self, *args, **kwargs)
            return
        program = ProgramOutput(output, pass_through)
        pipes = {name: program.open_pipe(name) for name in names}
        try:
            assert bound is not None
            del bound["self"]
            popen_init(self, **{**bound, **pipes})
        except BaseException:
            program.close()
            raise
        finally:
            for writing in pipes.values():
                os.close(writing)
        self._bellringer_output = program
        output.add_program(program)
        program.start(start_thread)

    @wraps(popen_wait)
    def wait(self: Any, timeout: float | None = None) -> int:
        code = popen_wait(self, timeout)
        if (program := getattr(self, "_bellringer_output", None)) is not None:
            program.drain()
        return code

    return init, wait
