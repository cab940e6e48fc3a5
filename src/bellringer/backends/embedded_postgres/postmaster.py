"""The interface to an embedded server: its settings, socket folder, pid file and readiness."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from bellringer.errors import ConfigError

CANNOT_CONNECT_NOW: Final = b"C57P03\0"
MAX_SOCKET_PATH_BYTES: Final = 103  # bytes; 107 on Linux, 103 on macOS

# fsync and synchronous_commit are set explicitly: durability must not depend on a default.
DEFAULT_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "autovacuum_naptime": "10s",
        "checkpoint_completion_target": "0.9",
        "checkpoint_timeout": "15min",
        "cluster_name": "bellringer",
        "fsync": "on",
        "huge_pages": "try",
        "jit": "off",
        "listen_addresses": "",
        "log_checkpoints": "off",
        "log_timezone": "UTC",
        "logging_collector": "off",
        "max_connections": "200",
        "max_wal_size": "2GB",
        "port": "5432",
        "random_page_cost": "1.1",
        "shared_buffers": "256MB",
        "synchronous_commit": "on",
        "timezone": "UTC",
        "unix_socket_permissions": "0700",
        "wal_buffers": "16MB",
        "wal_level": "replica",
        # A bulk insert writes tens of megabytes of WAL; writing it in the background shortens its commit.
        "wal_writer_delay": "10ms",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A live server, as described by its pid file."""

    pid: int
    port: int
    socket: Path
    is_ready: bool

    @property
    def dsn(self) -> str:
        return f"postgresql://bellringer@/bellringer?host={quote(str(self.socket), safe='')}&port={self.port}"


def find_server(data: Path) -> RunningServer | None:
    """Return the server that runs on this data folder, whether ready or not."""
    lines = _read_pid_file(data)
    if lines is None or not is_alive(int(lines[0]), data):
        return None
    lines += [""] * 8  # the file grows while the server starts
    return RunningServer(
        pid=int(lines[0]),
        port=int(lines[3] or 0),
        socket=Path(lines[4]),
        is_ready=lines[7].strip() == "ready",
    )


def is_alive(pid: int, data: Path) -> bool:
    """Whether this process is a server on this data folder. After a crash, its pid can belong to another process."""
    if sys.platform != "linux":
        asked = subprocess.run(["/bin/ps", "-o", "comm=", "-p", str(pid)], capture_output=True, check=False)  # noqa: S603
        return b"postgres" in asked.stdout
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", data)  # a server works inside its data folder
    except OSError:
        return False


def accepts_connections(running: RunningServer) -> bool:
    """Whether the server accepts sessions. During startup and shutdown it returns "cannot connect now"."""
    if not running.is_ready:
        return False
    body = struct.pack("!i", 3 << 16) + b"user\0bellringer\0database\0bellringer\0\0"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(str(running.socket / f".s.PGSQL.{running.port}"))
            client.sendall(struct.pack("!i", len(body) + 4) + body)
            reply = client.recv(4096)
            if reply.startswith(b"R"):
                client.sendall(b"X" + struct.pack("!i", 4))
                while client.recv(4096):  # to the end, or the server logs a broken connection
                    pass
        except OSError:
            return False
    return reply != b"" and CANNOT_CONNECT_NOW not in reply


def remove_stale_pid_file(data: Path) -> None:
    """Remove a pid file that would prevent the start of a server although none is running.

    PostgreSQL overrides the file of a dead process, but not an empty file (after a power cut), nor one whose pid now
    belongs to another process of this user (in a restarted container).
    """
    lines = _read_pid_file(data)
    if lines is None or _process_exists(int(lines[0])):
        (data / "postmaster.pid").unlink(missing_ok=True)


def socket_folder(data: Path, uid: int) -> Path:
    """Return a short path for the socket. The path of the data folder may exceed the limit for sockets."""
    name = f"bellringer-{hashlib.sha256(os.fsencode(data)).hexdigest()[:12]}-{uid}"
    root = Path("/tmp")  # noqa: S108 the folder is made private, and refused if another user made it
    folder = (root if os.access(root, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())) / name
    if len(os.fsencode(folder / ".s.PGSQL.65535")) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(f"{folder} is too long a path for a socket", hint="set TMPDIR to a shorter one")
    return folder


def make_socket_folder(data: Path, uid: int, gid: int) -> Path:
    """Create the socket folder, empty and accessible only to the server's user."""
    folder = socket_folder(data, uid)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {uid, os.geteuid()}:
            raise ConfigError(
                f"{folder} belongs to another user", hint="have it removed; the socket must be private"
            ) from None
        folder.chmod(0o700)
        for left in folder.iterdir():  # a stale socket lock with a reused pid would prevent the start
            left.unlink()
    if os.geteuid() == 0:
        os.chown(folder, uid, gid)
    return folder


def include_settings(data: Path) -> None:
    """Include our settings file in the configuration of a new data folder."""
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write("\ninclude 'bellringer.conf'  # rewritten at each start\n")


def write_settings(data: Path, settings: Mapping[str, str], sockets: Path) -> None:
    """Write the settings file. Done at each start, so that settings of an upgrade take effect."""
    merged = {**settings, "unix_socket_directories": str(sockets)}
    path, owner = data / "bellringer.conf", data.stat()
    path.write_text(
        "".join(f"{_check_setting_name(name)} = {_quote(value)}\n" for name, value in sorted(merged.items()))
    )
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _check_setting_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name, re.ASCII):
        raise ConfigError(f"{name!r} is not the name of a PostgreSQL setting")
    return name


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"


def _read_pid_file(data: Path) -> list[str] | None:
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    return lines if lines and lines[0].isdecimal() else None


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
