"""READY=1, WATCHDOG=1 and STOPPING=1 of real processes, received on a real socket as systemd would."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_worker_processes import Supervised, wait_until

pytestmark = pytest.mark.cluster

WATCHDOG_SECONDS = 2.0
ROLES = {"worker": ("worker", "app.py"), "server": ("server", "--port=0"), "scheduler": ("scheduler",)}


class Systemd:
    """The socket of a service manager, and the reports that arrived."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0)
        self.reports: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}

    def count(self, report: str) -> int:
        try:
            while True:
                self.reports.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return self.reports.count(report)

    def wait_for(self, report: str, count: int = 1) -> None:
        wait_until(lambda: self.count(report) >= count, 30, f"{count} × {report}: {self.reports}")

    def wait_for_more(self, report: str) -> None:
        self.wait_for(report, self.count(report) + 2)

    def close(self) -> None:
        self._socket.close()


def assert_silent(*managers: Systemd) -> None:
    time.sleep(0.2)  # a report may be on its way
    before = [manager.count("WATCHDOG=1") for manager in managers]
    time.sleep(WATCHDOG_SECONDS)  # a living process reports four times within this time
    assert [manager.count("WATCHDOG=1") for manager in managers] == before


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    manager = Systemd(tmp_path / "notify")
    yield manager
    manager.close()


class Service:
    """One process of a role, under a service manager of its own."""

    def __init__(self, role: str, folder: Path, dsn: str) -> None:
        folder.mkdir()
        self.systemd = Systemd(folder / "notify")
        self.supervised = Supervised(folder, dsn, *ROLES[role])
        self.process = self.supervised.start(**self.systemd.environment)

    def end(self) -> None:
        self.supervised.end()
        self.systemd.close()


def test_stopped_processes_send_no_watchdog_report(tmp_path: Path, dsn: str) -> None:
    services = [Service(role, tmp_path / role, dsn) for role in ROLES]
    try:
        for service in services:
            service.systemd.wait_for("READY=1")
            service.systemd.wait_for_more("WATCHDOG=1")
        assert [service.systemd.count("STOPPING=1") for service in services] == [0, 0, 0]
        for service in services:
            service.process.send_signal(signal.SIGSTOP)
        assert_silent(*(service.systemd for service in services))
        for service in services:
            service.process.send_signal(signal.SIGCONT)
        for service in services:
            service.systemd.wait_for_more("WATCHDOG=1")
            service.process.send_signal(signal.SIGTERM)
        for service in services:
            assert service.process.wait(30) == 0
            assert service.systemd.count("READY=1") == 1
            assert (service.systemd.reports[0], service.systemd.reports[-1]) == ("READY=1", "STOPPING=1")
    finally:
        for service in services:
            service.end()


def test_the_supervisor_replaces_a_silent_process_and_reports_for_all(
    tmp_path: Path, dsn: str, systemd: Systemd
) -> None:
    service = Supervised(tmp_path, dsn)
    try:
        supervisor = service.start("--procs", "2", **systemd.environment)
        systemd.wait_for("READY=1")
        assert systemd.count("READY=1") == 1  # of the supervisor only, after both processes
        assert len(service.lines("worker joined")) == 2
        systemd.wait_for_more("WATCHDOG=1")
        stopped = service.lines("worker joined")[0]["proc"]
        (victim,) = [pid for pid in service.children() if f"--proc\0{stopped}\0" in _command_line(pid)]
        os.kill(victim, signal.SIGSTOP)
        (line,) = service.wait_for("worker process does not progress and is killed", seconds=15)
        assert (line["pid"], line["proc"]) == (victim, stopped)
        service.wait_for("worker joined", 3)
        systemd.wait_for_more("WATCHDOG=1")
        supervisor.send_signal(signal.SIGSTOP)
        assert_silent(systemd)
        supervisor.send_signal(signal.SIGCONT)
        systemd.wait_for_more("WATCHDOG=1")
        assert len(service.lines("worker process does not progress and is killed")) == 1
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
        assert systemd.count("STOPPING=1") == 1
        assert list(tmp_path.glob("bellringer-notify-*")) == []
    finally:
        service.end()


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
