"""A child process: started again when it dies, asked to stop, ended if it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 15.0
STEADY: Final = 30.0  # seconds of life after which a death is a new one, not the same again


class Child:
    """One command of ours, kept running.

    It is in our process group, so a kill of the group takes it along; or `apart`, so that Ctrl-C reaches us alone, and
    it stops when we say so. Its standard input is a pipe from us, so it stops by itself if we are killed. With
    `tells_ready` it gets one to say that it is. What it says goes where our own words go, or to the end of the file
    `log`.
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
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._again_at: float | None = None
        self._pause = FIRST_PAUSE

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        command, descriptors, writing = self._command, self._descriptors, None
        if self._tells_ready:
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
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
        """Whether it has ever said that it is ready; a child that never did was given something wrong."""
        if self._reading is not None:
            with suppress(BlockingIOError):
                self._was_ready = self._was_ready or os.read(self._reading, 1) != b""
                os.close(self._reading)
                self._reading = None
        return self._was_ready

    @was_ready.setter
    def was_ready(self, value: bool) -> None:
        self._was_ready = value

    def check(self) -> tuple[int, float] | None:
        """Start it again when its pause is over; answers the code and the pause if it has just died."""
        now = self._clock()
        if self._again_at is not None:
            if now >= self._again_at:
                self.start()
            return None
        code = self._process.poll() if self._process else None
        if code is None:
            return None
        self._pause = FIRST_PAUSE if now - self._started_at > STEADY else min(self._pause * 2, LONGEST_PAUSE)
        self._again_at = now + self._pause
        return code, self._pause

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self) -> None:
        """Ask it to stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, without waiting for it: signal handlers may not wait."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        if self._process:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self.runs:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def cause(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"
