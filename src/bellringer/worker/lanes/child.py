"""The child process that executes isolated handlers, one attempt after another.

`python -m bellringer.worker.lanes.child TARGET FD PARENT MEMORY [PIPES LEVEL]`. The worker sends messages over the
socket FD, so output of the handler cannot disturb them. If output is captured, the worker sends over the socket PIPES
the pipes that replace standard output and standard error during an attempt; LEVEL is the lowest level of `logging` that
is captured. The handler runs in the main thread; a second thread receives messages.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import termios
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, NoReturn

from bellringer import tracing
from bellringer.clock import SystemClock
from bellringer.core.runs import Ending
from bellringer.core.tasks import Registry, Task
from bellringer.worker import fork_guard, results
from bellringer.worker.app_loader import load_target
from bellringer.worker.attempt import Control, Work
from bellringer.worker.context import Context
from bellringer.worker.lanes import child_protocol
from bellringer.worker.output import capture
from bellringer.worker.output.attempt_output import AttemptOutput, set_current_output

_monotonic: Final = SystemClock().monotonic


class Channel:
    """The socket to the worker. Thread-safe. Processes forked by a handler close it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._sender = 0  # the thread that is sending
        self._outbox: deque[bytes] = deque()
        self._buffer = b""
        fork_guard.run_in_forks(connection.close)

    def send(self, message: child_protocol.FromChild, token: str = "") -> None:
        fork_guard.exit_if_forked()
        self._outbox.append(child_protocol.encode_line(child_protocol.ChildMessage(token, os.getpid(), message)))
        if self._sender == threading.get_ident():
            return  # a signal handler prints while its thread sends, and the outer call sends this message next
        with self._lock:
            self._sender = threading.get_ident()
            try:
                while self._outbox:
                    self._connection.sendall(self._outbox.popleft())
            finally:
                self._sender = 0

    def receive(self, wait: float | None) -> list[child_protocol.ToChild] | None:
        """Wait up to `wait` seconds and return the messages received. Returns None if the worker has exited."""
        ready, _, _ = select.select([self._connection], [], [], wait)
        if not ready:
            return []
        data = self._connection.recv(1 << 16)
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [child_protocol.decode_in_child(line) for line in lines]


class ChildLoop:
    """The main loop of the child: receives an attempt, calls its handler, sends the ending."""

    def __init__(
        self, registry: Registry, channel: Channel, runner: asyncio.Runner, redirect: OutputRedirect | None
    ) -> None:
        self._registry = registry
        self._redirect = redirect
        self._channel = channel
        self._runner = runner
        self._runs: SimpleQueue[tuple[child_protocol.RunMessage, Control]] = SimpleQueue()
        self._current: Control | None = None
        self._token = ""  # of the current run
        self._tick: float | None = None
        self._reporting = threading.RLock()  # a finalizer that prints may run while this thread reports

    def serve(self) -> NoReturn:
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._listen, name="bellringer-listener", daemon=True).start()
        self._channel.send(child_protocol.ReadyMessage())
        with fork_guard.handler_thread(self._runner.get_loop()):
            while True:
                run, control = self._runs.get()
                self._channel.send(child_protocol.BeganMessage(), run.token)
                output = AttemptOutput(run.work, partial(self._record, control), captures=run.captures)
                redirect = self._redirect if run.captures else None
                if redirect is not None:
                    redirect.begin()
                set_current_output(output)
                leave_trace = _enter_trace(run.work)
                try:
                    ending = self._execute(run, control)
                finally:
                    fork_guard.exit_if_forked()
                    output.end()
                    set_current_output(None)
                    leave_trace()
                    if redirect is not None:
                        redirect.end()
                _flush()
                with self._reporting:  # no message about this attempt may follow its ending
                    self._report(control)
                    self._current = None
                self._channel.send(child_protocol.EndMessage(ending), run.token)

    def _execute(self, run: child_protocol.RunMessage, control: Control) -> Ending:
        began = _monotonic()
        task = self._registry.get(run.work.task)
        if task is None:
            return results.failed_ending("UnknownTask", f"the app in the child process has no task {run.work.task!r}")
        try:
            value = self._call(task, run, control)
        except SystemExit:
            raise  # the handler wants to end this process
        except BaseException as error:  # noqa: BLE001 - fails the attempt, not this process
            ran = _monotonic() - began
            if control.cancel_delivered:
                return results.cancelled_ending(control.reason or "", ran=ran)
            return results.ending_of_error(error, ran=ran)
        return results.ending_of_value(value, limit=run.limit, ran=_monotonic() - began)

    def _call(self, task: Task, run: child_protocol.RunMessage, control: Control) -> Any:
        args, kwargs = task.convert(run.work.spec.args, run.work.spec.kwargs)
        if task.wants_context:
            lateness = timedelta(seconds=run.lateness)
            args.insert(0, Context(run.work, control, lateness=lateness, sink=partial(self._log, control)))
        value = task.function(*args, **kwargs)
        if task.is_async:
            return self._runner.run(value, context=contextvars.copy_context())  # the runner's own context is older
        return value

    def _record(
        self,
        control: Control,
        _work: Work,
        level: str,
        message: str,
        fields: dict[str, Any] | None,
        source: str,
        *,
        echo: bool,
    ) -> None:
        self._log(control, level, message, fields, source, echo=echo)

    def _log(
        self,
        control: Control,
        level: str,
        message: str,
        fields: dict[str, Any] | None,
        source: str | None = None,
        *,
        echo: bool = True,
    ) -> None:
        with self._reporting:
            if control is self._current:  # ignore threads left behind by an earlier attempt
                line = child_protocol.LogMessage(level, message, fields, source, echo)
                if self._redirect is not None:
                    line.at, line.unread = _monotonic(), self._redirect.count_unread()
                self._channel.send(line, self._token)

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
        """Handle SIGTERM: exit in a way that runs the handler's `finally` blocks. Further signals are ignored."""
        signal.signal(number, signal.SIG_IGN)
        if self._current is not None:
            self._current.request_cancel(
                "the process was asked to exit"
            )  # the actual reason may still be in the socket
        raise SystemExit(128 + number)

    def _take(self, message: child_protocol.ToChild) -> None:
        if isinstance(message, child_protocol.RunMessage):
            self._token, self._current = message.token, Control(message.work, _monotonic)
            self._tick = message.tick
            self._runs.put((message, self._current))
        elif self._current is not None and message.token == self._token:
            self._current.request_cancel(message.reason)

    def _report(self, control: Control) -> None:
        """Send heartbeats and progress since the last tick. Called per tick, so handlers can report at any rate."""
        if control.progress_pending:
            self._channel.send(child_protocol.AliveMessage(control.take_progress()), self._token)
            control.last_heartbeat_at = 0.0
        elif control.last_heartbeat_at:
            control.last_heartbeat_at = 0.0
            self._channel.send(child_protocol.AliveMessage(), self._token)


class OutputRedirect:
    """Replaces file descriptors 1 and 2 during an attempt, for programs and C code, which bypass `sys.stdout`."""

    def __init__(self, descriptor: int, level: str) -> None:
        self._connection = socket.socket(fileno=descriptor)
        self._connection.set_inheritable(False)
        capture.install(level)
        # Output that is passed through goes to the worker's streams, also during an attempt.
        self._saved = (os.dup(1), os.dup(2))  # not inherited by programs
        for name, saved in zip(("stdout", "stderr"), self._saved, strict=True):
            capture.replace_real_stream(name, saved)

    def begin(self) -> None:
        """Receive the pipes of the attempt that follows."""
        _, pipes, _, _ = socket.recv_fds(self._connection, 1, 2, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        for pipe, descriptor in zip(pipes, (1, 2), strict=True):
            os.dup2(pipe, descriptor)
            os.close(pipe)

    def count_unread(self) -> tuple[int, int]:
        """Return how many bytes in the two pipes the worker has not read yet."""
        with suppress(OSError):  # not supported, or the handler has closed a descriptor
            unread = [int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder) for end in (1, 2)]
            return unread[0], unread[1]
        return 0, 0

    def end(self) -> None:
        """Restore the descriptors, and the streams if the handler has replaced or closed them."""
        capture.reinstall()
        for stream in (sys.__stdout__, sys.__stderr__):
            with suppress(Exception):
                stream.flush()  # type: ignore[union-attr]
        for saved, descriptor in zip(self._saved, (1, 2), strict=True):
            os.dup2(saved, descriptor)


def main(arguments: list[str]) -> NoReturn:
    target, descriptor, parent, memory, *capturing = arguments
    fork_guard.die_with_parent(int(parent))
    _limit_memory(int(memory))
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)  # processes started by the handler must not keep the socket open
    channel = Channel(connection)
    redirect = OutputRedirect(int(capturing[0]), capturing[1]) if capturing else None
    try:
        registry = load_target(target).registry
    except Exception as error:  # noqa: BLE001 - any error is reported to the worker
        channel.send(child_protocol.ImportFailedMessage(results.describe_error(error)))
        sys.exit(1)
    with asyncio.Runner() as runner:
        ChildLoop(registry, channel, runner, redirect).serve()


def _enter_trace(work: Work) -> Callable[[], None]:
    """Make the span of the attempt, which the worker records, the parent of the handler's spans. Returns a function
    that reverts this."""
    if work.traceparent is None:
        return lambda: None
    tracing.enable("bellringer-worker")
    tracer = tracing.active()
    if tracer is None:
        return lambda: None
    return partial(tracer.detach, tracer.attach_remote(work.traceparent))


def _limit_memory(most: int) -> None:
    """Limit the memory that this process can allocate, in bytes; 0: no limit. Excludes mapped files and libraries."""
    if most:
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        resource.setrlimit(kind, (most, most))


def _die() -> NoReturn:
    """Exit at once and kill all processes started by the handler, because the worker has exited."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
