"""Which ports are free, which process is ours, and what the folder of a server remembers of both."""

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

# Below those that the kernel lends to clients: nobody takes the ports of a server while it is down.
LOWEST_PORT: Final = 20_000
HIGHEST_PORT: Final = 32_000


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A server as its folder remembers it; one that was stopped keeps its ports for the next start."""

    version: str
    address: str
    ports: tuple[int, ...] = ()
    pid: int = 0
    born: str = ""  # when the process began: after it is gone, its number may be anyone's

    @property
    def lives(self) -> bool:
        return self.pid > 0 and born(self.pid) == self.born


def read(folder: Path) -> State | None:
    """What the file in this folder says; a broken one says nothing."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError):
        return None


def write(folder: Path, state: State) -> None:
    """All at once, so that nobody reads half a file."""
    beside = folder / f"{FILE}.new"
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    beside.replace(folder / FILE)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Alone in this folder: a second one waits until the first is done, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody listens on now; who starts a server must still expect to lose a race for them."""
    found: set[int] = set()
    while len(found) < count:
        port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
        if are_free((port,)):
            found.add(port)
    return tuple(sorted(found))


def are_free(ports: Sequence[int]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do not count
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


def born(pid: int) -> str:
    """When this process began, as the system tells it; nothing if it is gone, or only waits to be buried."""
    if sys.platform != "linux":
        asked = subprocess.run(["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
        said = asked.stdout.decode().strip()
        return "" if said.startswith("Z") else said.partition(" ")[2].strip()
    fields = _stat(pid)
    # The first thread may be dead long before the last one lets go of the ports.
    if not fields or (fields[0] in {"Z", "X"} and int(fields[17]) <= 1):
        return ""
    # Counted from the start of the machine, so the machine's start belongs to it.
    return f"{fields[19]}@{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def is_stopped(pid: int) -> bool:
    """Whether none of its threads can do anything; one that is gone cannot either."""
    if sys.platform != "linux":
        return True  # not told by thread
    states = (fields[0] for thread in Path(f"/proc/{pid}/task").glob("*") if (fields := _read_stat(thread / "stat")))
    return all(state in {"T", "t", "Z", "X"} for state in states)


def children(pid: int) -> list[int]:
    """Processes that this one has started and that are still there."""
    if sys.platform != "linux":
        asked = subprocess.run(["/usr/bin/pgrep", "-P", str(pid)], capture_output=True, check=False)  # noqa: S603
        return [int(line) for line in asked.stdout.split()]
    everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [other for other in everyone if (fields := _stat(other)) and int(fields[1]) == pid]


def send(pid: int, since: str, number: signal.Signals) -> None:
    """Send a signal to the process that began then, and to no other that has its number now."""
    if pid <= 0 or not since:  # to the system, 0 and below mean many
        return
    if sys.platform != "linux":
        if born(pid) == since:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)  # stays with this process, though the number may pass on while we look
        try:
            if born(pid) == since:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _stat(pid: int) -> list[str]:
    return _read_stat(Path(f"/proc/{pid}/stat"))


def _read_stat(path: Path) -> list[str]:
    """The fields behind the name, which may itself hold spaces and brackets."""
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
