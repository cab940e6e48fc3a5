"""Finds free ports, identifies server processes, and stores both in the folder of a server."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "state.json"
HOST: Final = "127.0.0.1"

# Below the ephemeral ports, so that no client connection takes the port of a stopped server.
LOWEST_PORT: Final = 20_000
HIGHEST_PORT: Final = 32_000


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a server; a stopped server keeps its ports for the next start."""

    version: str
    address: str
    ports: tuple[int, ...] = ()
    pid: int = 0
    born: str = ""  # start time of the process: its id may be reused after it ends

    @property
    def lives(self) -> bool:
        return self.pid > 0 and born(self.pid) == self.born


def read(folder: Path) -> ServerState | None:
    """Returns the stored state; None if the file is missing or invalid."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ServerState)
    except (OSError, msgspec.MsgspecError):
        return None


def write(folder: Path, state: ServerState) -> None:
    """Replace the file atomically."""
    beside = folder / f"{FILE}.new"
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    beside.replace(folder / FILE)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of this folder; other processes wait."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def free_ports(count: int) -> tuple[int, ...]:
    """Returns ports that are free now; another process may still take them before the server starts."""
    found: set[int] = set()
    while len(found) < count:
        port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
        if are_free((port,)):
            found.add(port)
    return tuple(sorted(found))


def are_free(ports: Sequence[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


def born(pid: int) -> str:
    """Returns the start time of this process as a string; empty if it has ended or is a zombie."""
    if sys.platform != "linux":
        asked = subprocess.run(["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
        said = asked.stdout.decode().strip()
        return "" if said.startswith("Z") else said.partition(" ")[2].strip()
    fields = _stat(pid)
    # The main thread may have ended while other threads still hold the ports.
    if not fields or (fields[0] in {"Z", "X"} and int(fields[17]) <= 1):
        return ""
    # The start time counts from boot, so the boot id belongs to it.
    return f"{fields[19]}@{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def is_stopped(pid: int) -> bool:
    """Whether all threads of this process are stopped or have ended."""
    if sys.platform != "linux":
        return True  # the state of single threads is not available
    states = (fields[0] for thread in Path(f"/proc/{pid}/task").glob("*") if (fields := _read_stat(thread / "stat")))
    return all(state in {"T", "t", "Z", "X"} for state in states)


def children(pid: int) -> list[int]:
    """Returns the running child processes of this process."""
    if sys.platform != "linux":
        asked = subprocess.run(["/usr/bin/pgrep", "-P", str(pid)], capture_output=True, check=False)  # noqa: S603
        return [int(line) for line in asked.stdout.split()]
    everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [other for other in everyone if (fields := _stat(other)) and int(fields[1]) == pid]


def send(pid: int, since: str, number: signal.Signals) -> None:
    """Send a signal to the process with this id and start time, never to another process that reuses the id."""
    if pid <= 0 or not since:  # kill(0) and negative ids signal process groups
        return
    if sys.platform != "linux":
        if born(pid) == since:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)  # refers to this process even if its id is reused meanwhile
        try:
            if born(pid) == since:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _stat(pid: int) -> list[str]:
    return _read_stat(Path(f"/proc/{pid}/stat"))


def _read_stat(path: Path) -> list[str]:
    """Returns the fields after the name, which may contain spaces and brackets."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
