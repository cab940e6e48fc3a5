"""The lane of isolated handlers, seen from inside: one process that executes one run after another.

`python -m bellringer.worker.child TARGET FD PARENT`; the worker speaks over the socket FD, so that whatever a
handler prints cannot come between. The handler has the main thread; a second one listens.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, NoReturn

from bellringer.clock import SystemClock
from bellringer.runs import Ending
from bellringer.tasks import Registry, Task
from bellringer.worker import endings, pipe
from bellringer.worker.context import Context
from bellringer.worker.control import Control
from bellringer.worker.target import load_target

_PR_SET_PDEATHSIG: Final = 1
_monotonic: Final = SystemClock().monotonic


class Channel:
    """The socket to the worker; messages from several threads do not mix."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._buffer = b""

    def send(self, message: pipe.FromChild) -> None:
        with self._lock:
            self._connection.sendall(pipe.line(message))

    def receive(self, wait: float | None) -> list[pipe.ToChild] | None:
        """What came within so many seconds; None when the worker is gone."""
        ready, _, _ = select.select([self._connection], [], [], wait)
        if not ready:
            return []
        data = self._connection.recv(1 << 16)
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [pipe.read_in_child(line) for line in lines]


class Inside:
    """The child's own loop: take a run, call its handler, tell how it ended."""

    def __init__(self, registry: Registry, channel: Channel, runner: asyncio.Runner) -> None:
        self._registry = registry
        self._channel = channel
        self._runner = runner
        self._runs: SimpleQueue[tuple[pipe.Run, Control]] = SimpleQueue()
        self._current: Control | None = None
        self._tick: float | None = None
        self._reporting = threading.Lock()

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._listen, name="bellringer-listener", daemon=True).start()
        self._channel.send(pipe.Ready())
        while True:
            run, control = self._runs.get()
            self._channel.send(pipe.Began())
            ending = self._execute(run, control)
            _flush()
            with self._reporting:  # after the end, nothing more may be said of this run
                self._report(control)
                self._current = None
            self._channel.send(pipe.End(ending))

    def _execute(self, run: pipe.Run, control: Control) -> Ending:
        began = _monotonic()
        task = self._registry.get(run.work.task)
        if task is None:
            return endings.failed("UnknownTask", f"the app in the child process has no task {run.work.task!r}")
        try:
            value = self._call(task, run, control)
        except SystemExit:
            raise  # who wants this process to end is taken at his word
        except BaseException as error:  # noqa: BLE001 - the attempt's failure, and not this process's
            ran = _monotonic() - began
            if control.heard:
                return endings.cancelled(control.reason or "", ran=ran)
            return endings.raised(error, ran=ran)
        return endings.returned(value, limit=run.limit, ran=_monotonic() - began)

    def _call(self, task: Task, run: pipe.Run, control: Control) -> Any:
        args, kwargs = task.convert(run.work.spec.args, run.work.spec.kwargs)
        if task.wants_context:
            lateness = timedelta(seconds=run.lateness)
            args.insert(0, Context(run.work, control, lateness=lateness, sink=self._log))
        value = task.function(*args, **kwargs)
        return self._runner.run(value) if task.is_async else value

    def _log(self, level: str, message: str, fields: dict[str, Any] | None) -> None:
        self._channel.send(pipe.Line(level, message, fields))

    def _listen(self) -> None:
        while (messages := self._channel.receive(self._tick)) is not None:
            for message in messages:
                self._take(message)
            with self._reporting:
                if self._current is None:
                    self._tick = None
                else:
                    self._report(self._current)
        _die()

    def _terminate(self, number: int, _frame: FrameType | None) -> NoReturn:
        """Asked to end: let the handler's `finally` run. Only the first time, so that it is not disturbed."""
        signal.signal(number, signal.SIG_IGN)
        if self._current is not None:
            self._current.ask("the process was told to end")  # the reason proper may still be on its way
        raise SystemExit(128 + number)

    def _take(self, message: pipe.ToChild) -> None:
        if isinstance(message, pipe.Run):
            self._current = Control(message.work, _monotonic)
            self._tick = message.tick
            self._runs.put((message, self._current))
        elif self._current is not None:
            self._current.ask(message.reason)

    def _report(self, control: Control) -> None:
        """Tell what happened since the last tick; so a handler may report as often as it likes."""
        if control.pending:
            self._channel.send(pipe.Alive(control.collect()))
            control.signed_at = 0.0
        elif control.signed_at:
            control.signed_at = 0.0
            self._channel.send(pipe.Alive())


def main(arguments: list[str]) -> NoReturn:
    target, descriptor, parent = arguments
    _follow_into_death(int(parent))
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)  # what the handler starts shall not hold the pipe open
    channel = Channel(connection)
    try:
        registry = load_target(target).registry
    except Exception as error:  # noqa: BLE001 - the worker shall hear of it, whatever it is
        channel.send(pipe.Broken(endings.describe(error)))
        sys.exit(1)
    with asyncio.Runner() as runner:
        Inside(registry, channel, runner).serve()


def _follow_into_death(parent: int) -> None:
    """Ask the kernel to end this process with its parent; where it cannot, the closed pipe says so."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we could ask
        _die()


def _die() -> NoReturn:
    """The worker is gone: end at once, with all that the handler started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
