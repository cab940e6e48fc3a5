"""Processes that a test may stop, continue and kill; none outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

NODE = Path(__file__).with_name("node.py")


class Processes:
    """Starts nodes against one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, name: str, *, fault: str = "", most: int = 8_000) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(NODE), kind, self._dsn, name, str(most)],
            env={**os.environ, "BELLRINGER_FAULT": fault},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def processes(dsn: str) -> Iterator[Processes]:
    running = Processes(dsn)
    yield running
    running.end()


async def until(holds: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Wait for an event, not for time; answers how long it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not await holds():
        if loop.time() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        await asyncio.sleep(0.05)
    return loop.time() - started


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process was stopped by SIGSTOP."""
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
