"""Starts the processes of a system, talks to its client, and stops them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from bellringer.backends.embedded_postgres import launch
from bench.peers.figures import Failed

STOP_TIMEOUT_SECONDS: Final = 8.0
PREPARE_TIMEOUT_SECONDS: Final = 60.0
SHOWN_LOG_CHARACTERS: Final = 600


class Process:
    """One process, in a session of its own, so that its whole tree can be ended. Its stderr goes to a log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._name = Path(command[0]).name if len(command) < 3 else " ".join(command[1:3])
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*_tie(), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**clean_environment(), **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def check_running(self) -> None:
        if self._process.poll() is not None:
            raise self._failure(f"ended with code {self._process.returncode}")

    def call(self, timeout: float, **command: Any) -> float:
        """Send a command to a client; returns the seconds that it took there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise self._failure(f"{command['do']} took longer than {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failure(f"ended during {command['do']}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{command['do']}: {answer['error'].strip().splitlines()[-1]}")
        return float(answer["seconds"])

    def wait(self, timeout: float) -> None:
        """Wait for a process that ends by itself."""
        try:
            _, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise self._failure(f"not done after {timeout:.0f} s") from None
        if self._process.returncode:
            raise self._failure(f"ended with code {self._process.returncode}")

    def finish(self) -> None:
        """Close a client's stdin, upon which it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end(STOP_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Ask the process to stop; then kill what is left of its session."""
        if self._process.poll() is None:
            self._process.terminate()
        self._end(STOP_TIMEOUT_SECONDS)

    def _end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session, not yet reaped
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _failure(self, what: str) -> Failed:
        said = self._log.read_text(errors="replace")[-SHOWN_LOG_CHARACTERS:].strip()
        return Failed(f"{self._name} {what}: {said}")


def _tie() -> list[str]:
    """Returns the beginning of a command that is killed when this process ends, however it ends."""
    tie = (os.getpid(), int(signal.SIGKILL), "self", os.geteuid(), os.getegid())
    return [sys.executable, "-I", "-S", launch.__file__, *map(str, tie)]


def clean_environment() -> dict[str, str]:
    """Returns this process's environment without variables that would configure a system under test."""
    prefixes = ("BELLRINGER_", "PG", "DBOS", "REDIS", "CELERY", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
