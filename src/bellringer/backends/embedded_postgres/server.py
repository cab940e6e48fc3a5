"""A PostgreSQL server in a folder: created on first use, private to its user, stopped with its parent process.

    folder/postgres/      the data                folder/postgres.log    the server's log
    folder/postgres.lock  held while it runs      /tmp/bellringer-…/     its socket, in a short path

The server is a child process in its own session, so Ctrl-C does not reach it before our processes have drained. The
kernel sends it a fast shutdown if this process ends without stopping it. A server that is not `tied` keeps running, and
the next start with the same folder adopts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Final

from bellringer.backends.embedded_postgres import postmaster
from bellringer.backends.embedded_postgres.programs import (
    Programs,
    build_command,
    choose_programs,
    clean_environment,
    file_owner,
    find_binaries,
    give_ownership,
)
from bellringer.errors import ConfigError, Conflict, Unavailable

__all__ = ["EmbeddedPostgres", "EmbeddedServer", "find_binaries"]

START_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 30.0
MAX_LOG_BYTES: Final = 8_000_000  # a larger log is rotated at the next start; one old log is kept
ADOPT_AFTER_SECONDS: Final = 0.5  # an orphaned server that responds for this long is not shutting down
POLL_SECONDS: Final = 0.02

# Errors caused by processes of a killed server that end within moments; the start is retried.
LINGERING_ERRORS: Final = ("pre-existing shared memory block", "is another postmaster")
OUT_OF_MEMORY_ERROR: Final = "could not map anonymous shared memory"
LOW_MEMORY_SETTINGS: Final = MappingProxyType({"shared_buffers": "32MB"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedServer:
    """A running server."""

    dsn: str
    data: Path
    pid: int


class EmbeddedPostgres:
    """Starts and stops the PostgreSQL server of a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        tied: bool = True,
        binaries: Path | None = None,
        defaults: Mapping[str, str] = postmaster.DEFAULT_SETTINGS,
    ) -> None:
        """`binaries` is the folder of the PostgreSQL programs to use; empty `defaults` keep PostgreSQL's own."""
        self._folder = folder.resolve()
        self._binaries = binaries
        self._data = self._folder / "postgres"
        self._log = self._folder / "postgres.log"
        self._settings = {**defaults, **settings}
        self._tied = tied
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None  # None for an adopted server
        self._running: postmaster.RunningServer | None = None
        self._sockets: Path | None = None

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> EmbeddedServer:
        """Create the data if necessary, start the server and wait until it accepts connections.

        Call it only from the main thread: to the kernel, the forking thread is the parent, and the server would be shut
        down when that thread ends.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("EmbeddedPostgres.start() must be called from the main thread")
        if self._running is None or not postmaster.accepts_connections(self._running):
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            self._take_lock()
            try:
                self._running = self._adopt(deadline) or self._launch(deadline)
            except BaseException:
                self.stop()
                raise
        return EmbeddedServer(dsn=self._running.dsn, data=self._data, pid=self._running.pid)

    def stop(self) -> None:
        """Shut the server down, wait until it has ended, and release the folder."""
        if self._process:
            self._shut_down(self._process.pid)
        elif self._running:
            self._shut_down(self._running.pid)
        if self._sockets:
            with contextlib.suppress(OSError):
                self._sockets.rmdir()
        self._process = self._running = self._sockets = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        """Lock the folder. The kernel releases the lock when this process ends."""
        if self._lock is not None:
            return
        path = self._folder / "postgres.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            holder = path.read_text().strip() or "unknown"
            raise Conflict(
                f"the database in {self._folder} is already running here (pid {holder})",
                hint="stop that process first, or choose another folder",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot use the folder {self._folder}: {error.strerror}",
                hint="choose a folder that this user can write to",
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    def _adopt(self, deadline: float) -> postmaster.RunningServer | None:
        """Adopt a server that outlived its supervisor, or wait until it has shut down."""
        answered_since: float | None = None
        while left := postmaster.find_server(self._data):
            now = time.monotonic()
            if not postmaster.accepts_connections(left):
                answered_since = None
            elif answered_since is None:
                answered_since = now
            elif now - answered_since > ADOPT_AFTER_SECONDS:
                self._sockets = left.socket
                return left
            if now > deadline:
                raise Unavailable(
                    f"an earlier server on {self._data} (pid {left.pid}) neither responds nor ends",
                    hint=f"see {self._log}, or end that process",
                )
            time.sleep(POLL_SECONDS)
        return None

    def _launch(self, deadline: float) -> postmaster.RunningServer:
        """Start a server. Retries while processes of a killed server have not ended."""
        if self._process:
            self._shut_down(self._process.pid)
        programs = self._prepare(deadline)
        self._sockets = postmaster.make_socket_folder(self._data, *file_owner(programs.identity))
        settings = dict(self._settings)
        while True:
            postmaster.write_settings(self._data, settings, self._sockets)
            postmaster.remove_stale_pid_file(self._data)
            running, said = self._attempt(programs, deadline)
            if running is not None:
                return running
            if OUT_OF_MEMORY_ERROR in said and settings.get("shared_buffers") != LOW_MEMORY_SETTINGS["shared_buffers"]:
                settings |= LOW_MEMORY_SETTINGS
            elif time.monotonic() > deadline or not any(sign in said for sign in LINGERING_ERRORS):
                raise self._failure("PostgreSQL did not start", said)
            time.sleep(POLL_SECONDS)

    def _prepare(self, deadline: float) -> Programs:
        """Return usable programs and make sure that the data exists and fits their version."""
        self._rotate_log()
        programs = choose_programs(self._folder, self._data, self._binaries)
        if not (self._data / "PG_VERSION").exists():
            self._create(programs, deadline)
        made_by = (self._data / "PG_VERSION").read_text().strip()
        if made_by != str(programs.major):
            raise ConfigError(
                f"{self._data} was made by PostgreSQL {made_by}, the programs here are {programs.major}",
                hint=f"set BELLRINGER_PG_BIN to the bin folder of a PostgreSQL {made_by}, "
                "or move the data away to begin with an empty database",
            )
        give_ownership(self._data, programs.identity)
        return programs

    def _attempt(self, programs: Programs, deadline: float) -> tuple[postmaster.RunningServer | None, str]:
        """Start the server once. Returns it when it accepts connections; otherwise None and its log output."""
        with self._open_log() as log:
            begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                build_command(programs, "postgres", "-D", str(self._data), tied=self._tied),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(),
                cwd="/",
                start_new_session=True,
            )
        while self._process.poll() is None and time.monotonic() < deadline:
            running = postmaster.find_server(self._data)
            if running and running.pid == self._process.pid and postmaster.accepts_connections(running):
                return running, ""
            time.sleep(POLL_SECONDS)
        self._shut_down(self._process.pid)
        return None, self._said(begin)

    def _create(self, programs: Programs, deadline: float) -> None:
        """Create the data in a staging folder and rename it when complete, so that a failed attempt leaves nothing."""
        if self._data.exists() and any(self._data.iterdir()):
            raise ConfigError(
                f"{self._data} is not a PostgreSQL data folder", hint="move it away, or choose another folder"
            )
        staging = self._folder / "postgres.new"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        give_ownership(staging, programs.identity)
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if programs.major >= 17 else []
        access = ["--username=bellringer", "--auth-local=trust", "--auth-host=reject"]
        where = ["-D", str(staging)]
        # Synced once at the end instead of after each step.
        options = ["--no-locale", "--encoding=UTF8", "--data-checksums", "--no-sync", "--no-instructions"]
        self._run(programs, deadline, "initdb", *where, *options, *locale, *access)
        alone = ["--single", "-F", "-c", "exit_on_error=on", *where, "postgres"]
        self._run(programs, deadline, "postgres", *alone, said="CREATE DATABASE bellringer\n")
        postmaster.include_settings(staging)
        self._run(programs, deadline, "initdb", "--sync-only", *where)
        staging.rename(self._data)
        self._sync_folder()  # otherwise a power cut could undo the rename after rows were written

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _run(self, programs: Programs, deadline: float, name: str, *arguments: str, said: str = "") -> None:
        """Run a program to its end; its output goes to the log."""
        with self._open_log() as log:
            begin = log.tell()
            try:
                done = subprocess.run(  # noqa: S603
                    build_command(programs, name, *arguments),
                    input=said.encode(),
                    stdout=log,
                    stderr=log,
                    env=clean_environment(),
                    cwd="/",
                    start_new_session=True,
                    timeout=max(deadline - time.monotonic(), 1),
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise self._failure(f"{name} took too long", self._said(begin)) from None
        if done.returncode != 0:
            raise self._failure(f"{name} failed", self._said(begin))

    def _rotate_log(self) -> None:
        if self._log.exists() and self._log.stat().st_size > MAX_LOG_BYTES:
            self._log.replace(self._log.with_suffix(".log.1"))

    def _open_log(self) -> IO[bytes]:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "ab")

    def _said(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read(100_000).decode(errors="replace")

    def _failure(self, what: str, said: str) -> Unavailable:
        tail = "\n".join(said.strip().splitlines()[-6:]) or "there was no output"
        return Unavailable(f"{what}:\n{tail}", hint=f"see {self._log}")

    def _lives(self, pid: int) -> bool:
        return self._process.poll() is None if self._process else postmaster.is_alive(pid, self._data)

    def _shut_down(self, pid: int) -> None:
        """Shut down fast, then immediately, then by SIGKILL. After the latter two, the next start recovers."""
        for way in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not self._lives(pid):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, way)
            deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
            while self._lives(pid) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
