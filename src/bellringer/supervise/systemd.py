"""Reports to systemd that a process is ready, alive and stopping: the protocol of sd_notify(3), without a library.

The supervisor of `--procs` receives the reports of its processes over the same protocol.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bellringer.core.background_loops import wait_for_any
from bellringer.telemetry import log

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
READY: Final = "READY=1"
ALIVE: Final = "WATCHDOG=1"
STOPPING: Final = "STOPPING=1"
REPORTS_PER_TIMEOUT: Final = 4  # one report may be lost or late without consequence
MAX_REPORT_BYTES: Final = 4096
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid of the sender


def without_notifier(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the variables that would make a process report to our socket."""
    hidden = {SOCKET_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE}
    return {name: value for name, value in environ.items() if name not in hidden}


class SystemdNotifier:
    """Sends states to the socket of systemd, or of the supervisor. Does nothing if there is none."""

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds if address else None

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> SystemdNotifier:
        """Reads the variables and removes them, so that child processes do not report in the name of this one."""
        address = environ.pop(SOCKET_VARIABLE, "")
        microseconds = environ.pop(WATCHDOG_VARIABLE, "")
        is_watched = environ.pop(WATCHDOG_PID_VARIABLE, "") in {"", str(os.getpid())}
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and is_watched else 0.0
        return cls(address, seconds or None)

    @property
    def interval_seconds(self) -> float | None:
        """Seconds between two reports of the watchdog; None if it is off."""
        return None if self.watchdog_seconds is None else self.watchdog_seconds / REPORTS_PER_TIMEOUT

    def send(self, state: str) -> None:
        """Sends a state. Errors are ignored: a process must not fail because nobody reads its reports."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            sender.connect(address)
            sender.send(state.encode())

    async def report(
        self,
        stop: asyncio.Event,
        stalled: Callable[[], Sequence[str]],
        ready: asyncio.Event | None = None,
    ) -> None:
        """Reports until `stop` is set. The watchdog gets no report while `stalled` returns the name of a loop.

        This coroutine shares the event loop with the background loops, so a blocked event loop sends nothing either.
        """
        if ready is not None:
            await wait_for_any(ready, stop)
        if not stop.is_set():
            self.send(READY)
        was_stalled = False
        while not await _is_set_within(stop, self.interval_seconds):
            names = stalled()
            if not names:
                self.send(ALIVE)
            elif not was_stalled:
                log.error("background loops do not progress; the watchdog gets no report", loops=list(names))
            was_stalled = bool(names)
        self.send(STOPPING)


async def _is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class ChildReports:
    """Receives the reports of child processes and finds those that were alive and are silent now.

    The kernel adds the process id of the sender to each report, so a child cannot report for another one.
    """

    def __init__(self, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._reported_at: dict[int, float] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="bellringer-notify-"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(0)
        self._socket.bind(str(self._folder / "socket"))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a child report here."""
        return {
            SOCKET_VARIABLE: str(self._folder / "socket"),
            WATCHDOG_VARIABLE: str(int(self._timeout_seconds * 1e6)),
        }

    def find_silent(self) -> list[int]:
        """Returns the process ids that have not reported within the timeout. Each one is returned once."""
        self._receive()
        earliest = self._clock() - self._timeout_seconds
        silent = [pid for pid, reported_at in self._reported_at.items() if reported_at < earliest]
        for pid in silent:
            del self._reported_at[pid]
        return silent

    def forget(self, pid: int) -> None:
        """Stops waiting for the reports of a process that has ended."""
        self._reported_at.pop(pid, None)

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            while True:
                report, details, _, _ = self._socket.recvmsg(MAX_REPORT_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
                for level, kind, data in details:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                        self._note(_CREDENTIALS.unpack(data)[0], report.decode(errors="replace"))

    def _note(self, pid: int, report: str) -> None:
        if report == STOPPING:  # it drains now, for as long as its grace period allows
            self.forget(pid)
        else:
            self._reported_at[pid] = self._clock()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)
