"""Child processes that are started, restarted when they die, and stopped together."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bellringer.errors import Unavailable

FIRST_RESTART_DELAY_SECONDS: Final = 0.5
MAX_RESTART_DELAY_SECONDS: Final = 15.0
STEADY_SECONDS: Final = 30.0  # after this uptime the restart delay and the count of quick exits are reset
MAX_READY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildExit:
    """The end of a child process. `code` is negative if a signal ended it."""

    pid: int
    code: int
    uptime_seconds: float
    quick_exits: int  # exits in a row before STEADY_SECONDS of uptime
    pause_seconds: float  # until a restart

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + n for signal n."""
        return self.code if self.code >= 0 else 128 - self.code


class SupervisedProcess:
    """A child process that runs a `bellringer` command and is restarted when it dies.

    It belongs to our process group, so a signal to the group reaches it too; with `apart` it has its own group, so
    Ctrl-C reaches only us. Its standard input is a pipe from us, so it stops if we are killed. With `tells_ready` it
    gets a pipe, to which it writes anything when it is ready. Its output goes to our own output, or is appended to
    the file `log`.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        clock: Callable[[], float],
        descriptors: Sequence[int] = (),
        tells_ready: bool = False,
        log: Path | None = None,
        apart: bool = False,
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "bellringer", *arguments]
        self._environment = dict(environment)
        self._descriptors = tuple(descriptors)
        self._clock = clock
        self._tells_ready = tells_ready
        self._log = log
        self._group = 0 if apart else None
        self._reading: int | None = None
        self._was_ready = False
        self.ready_message = b""  # written by the process when it was last ready
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._again_at: float | None = None
        self._pause = FIRST_RESTART_DELAY_SECONDS
        self._quick_exits = 0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        command, descriptors, writing = self._command, self._descriptors, None
        if self._tells_ready:
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._stop_reading()
            command, descriptors = [*command, "--ready-fd", str(writing)], (*descriptors, writing)
            self._reading = reading
        saying = None if self._log is None else os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.PIPE,
                stdout=saying,
                stderr=saying,
                env=self._environment,
                pass_fds=descriptors,
                process_group=self._group,
            )
        finally:
            for ours in (writing, saying):
                if ours is not None:
                    os.close(ours)
        self._started_at, self._again_at = self._clock(), None

    @property
    def was_ready(self) -> bool:
        """Whether the process has ever reported readiness. A process that never did probably got wrong arguments."""
        if self._reading is not None:
            with suppress(BlockingIOError):
                if message := os.read(self._reading, MAX_READY_BYTES):
                    self._was_ready, self.ready_message = True, message
                self._stop_reading()
        return self._was_ready

    @was_ready.setter
    def was_ready(self, value: bool) -> None:
        self._was_ready = value

    def _stop_reading(self) -> None:
        if self._reading is not None:
            os.close(self._reading)
            self._reading = None

    def check(self) -> ChildExit | None:
        """Restarts the process when its delay is over. Returns its exit if it has just died."""
        now = self._clock()
        if self._again_at is not None:
            if now >= self._again_at:
                self.start()
            return None
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        uptime = now - self._started_at
        if uptime > STEADY_SECONDS:
            self._pause, self._quick_exits = FIRST_RESTART_DELAY_SECONDS, 0
        else:
            self._pause, self._quick_exits = min(self._pause * 2, MAX_RESTART_DELAY_SECONDS), self._quick_exits + 1
        self._again_at = now + self._pause
        return ChildExit(
            pid=self.pid,
            code=code,
            uptime_seconds=uptime,
            quick_exits=self._quick_exits,
            pause_seconds=self._pause,
        )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended, negative for a signal; None if it runs or waits for a restart."""
        return self._process.poll() if self._process and self._again_at is None else None

    def ask(self) -> None:
        """Ask it to stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process without waiting for it: signal handlers must not block."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Kills the process and waits until it is gone."""
        self.kill()
        if self._process:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self.runs:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def describe_exit(code: int) -> str:
    """Describes an exit code."""
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"


STOP_TIMEOUT_SECONDS: Final = 12.0  # seconds from asking the children to stop to ending them
READY_TIMEOUT_SECONDS: Final = 60.0
CHECK_INTERVAL_SECONDS: Final = 0.05
KEEP_INTERVAL_SECONDS: Final = 0.2  # once all children are ready


class StopRequested(Exception):
    """Raised to leave the current step when a stop was requested."""


class ChildFailed(Exception):
    """A child ended before it was ready, so restarting it would not help."""

    def __init__(self, child: SupervisedProcess, code: int) -> None:
        self.child = child
        self.code = code if code > 0 else 1


ExitPolicy = Callable[[SupervisedProcess, ChildExit], bool]


class ProcessGroup:
    """All children of one parent. Everything runs in the main thread.

    `on_exit` is called with each child that died. It returns whether to restart the child after the pause, or raises
    to end the whole group. `besides` is called in every check.
    """

    def __init__(
        self,
        *,
        on_exit: ExitPolicy,
        besides: Callable[[], None] = lambda: None,
        check_interval_seconds: float = CHECK_INTERVAL_SECONDS,
    ) -> None:
        self._on_exit = on_exit
        self._besides = besides
        self._check_interval_seconds = check_interval_seconds
        self._stop_requests = 0
        self.killed = False  # a second Ctrl-C killed the children
        self.children: list[SupervisedProcess] = []

    def handle_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up stays ignored
                signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, _frame: object) -> None:
        """Stops the group. Only a second Ctrl-C does not wait for the grace period: a terminal that closes may send
        several hang-ups, and process managers may repeat SIGTERM.
        """
        self._stop_requests += 1
        if self._stop_requests > 1 and number == signal.SIGINT:
            self.killed = True
            for child in self.children:
                child.kill()

    def raise_if_stopped(self) -> None:
        if self._stop_requests:
            raise StopRequested

    def add(self, child: SupervisedProcess) -> None:
        self.children.append(child)
        child.start()

    def wait(self, name: str, is_ready: Callable[[], bool], *, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            self.look()
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready after {timeout_seconds:.0f} s", hint="see the lines above")
            time.sleep(self._check_interval_seconds)

    def keep(self, *, until_empty: bool = False) -> None:
        """Supervises the children until a signal arrives, or with `until_empty` also until none is left."""
        while self.children or not until_empty:
            self.look()
            time.sleep(max(self._check_interval_seconds, KEEP_INTERVAL_SECONDS))

    def look(self) -> None:
        """Checks all children once and restarts those that died."""
        self.raise_if_stopped()
        for child in list(self.children):
            ended = child.check()
            if ended is None:
                continue
            self.raise_if_stopped()
            if not self._on_exit(child, ended):
                self.children.remove(child)
        self._besides()

    def stop(
        self, some: Sequence[SupervisedProcess] | None = None, *, timeout_seconds: float = STOP_TIMEOUT_SECONDS
    ) -> None:
        """Asks all children, or some, to stop, and returns when they are gone."""
        children = self.children if some is None else some
        for child in children:
            child.ask()
        deadline = time.monotonic() + timeout_seconds
        while any(child.runs for child in children) and time.monotonic() < deadline:
            time.sleep(CHECK_INTERVAL_SECONDS)
        for child in children:
            child.end()


def is_ready(url: str) -> bool:
    """Whether a server reports readiness."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=0.5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
