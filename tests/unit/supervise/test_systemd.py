"""The messages that a process sends to systemd, over a real socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bellringer.supervise.systemd import ChildReports, SystemdNotifier, without_notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(0)
        listening.bind(str(tmp_path / "notify"))
        yield listening


def received(manager: socket.socket) -> list[str]:
    found = []
    try:
        while True:
            found.append(manager.recv(4096).decode())
    except BlockingIOError:
        return found


async def test_the_watchdog_gets_no_report_while_a_loop_is_stalled(manager: socket.socket) -> None:
    notifier = SystemdNotifier(manager.getsockname(), watchdog_seconds=0.08)
    stop, stalled = asyncio.Event(), ["fire"]
    reporting = asyncio.create_task(notifier.report(stop, lambda: stalled))
    await asyncio.sleep(0.2)
    assert received(manager) == ["READY=1"]
    stalled.clear()
    await asyncio.sleep(0.2)
    assert set(received(manager)) == {"WATCHDOG=1"}
    stop.set()
    await reporting
    assert received(manager)[-1] == "STOPPING=1"


async def test_ready_waits_for_the_event_and_is_not_sent_after_a_stop(manager: socket.socket) -> None:
    notifier = SystemdNotifier(manager.getsockname(), watchdog_seconds=None)
    for is_ready in (True, False):
        stop, ready = asyncio.Event(), asyncio.Event()
        reporting = asyncio.create_task(notifier.report(stop, list, ready))
        await asyncio.sleep(0.05)
        assert received(manager) == []
        (ready if is_ready else stop).set()
        await asyncio.sleep(0.05)
        stop.set()
        await reporting
        assert received(manager) == [*(["READY=1"] if is_ready else []), "STOPPING=1"]


def test_the_variables_are_read_once_and_not_inherited() -> None:
    environ = {"NOTIFY_SOCKET": "@bellringer-test", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert without_notifier({**environ, "HOME": "/"}) == {"HOME": "/"}
    assert SystemdNotifier.from_environment(environ).watchdog_seconds == 3.0
    assert environ == {}
    of_another = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert SystemdNotifier.from_environment(of_another).watchdog_seconds is None
    absent = SystemdNotifier.from_environment({})
    absent.send("READY=1")
    assert absent.interval_seconds is None


def test_names_of_abstract_sockets_begin_with_an_at_sign() -> None:
    name = f"bellringer-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        SystemdNotifier(f"@{name}", None).send("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_a_child_that_reported_once_and_then_no_more_is_silent() -> None:
    now = 100.0
    with closing(ChildReports(2.0, lambda: now)) as reports:
        code = (
            "import os; from bellringer.supervise.systemd import SystemdNotifier as N;"
            "N.from_environment(os.environ).send('WATCHDOG=1'); print(os.getpid())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **reports.environment}, capture_output=True, check=True
        )
        assert reports.find_silent() == []
        now = 101.9
        assert reports.find_silent() == []
        now = 102.1
        assert reports.find_silent() == [int(done.stdout)]
        assert reports.find_silent() == []
