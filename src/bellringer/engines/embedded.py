"""A real PostgreSQL of our own in a folder: made on first use, private to its user, gone with its parent.

    folder/postgres/      the data                folder/postgres.log    what the server says
    folder/postgres.lock  held while it runs      /tmp/bellringer-…/     its socket, for short paths

The server is a child in a session of its own, so Ctrl-C does not reach it before our processes have
drained; the kernel sends it a fast shutdown if we die without stopping it. One that is not `tied`
outlives us, and whoever starts the folder next keeps it.
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

from bellringer.engines import embedded_postmaster as postmaster
from bellringer.engines.embedded_programs import (
    Programs,
    choose,
    command,
    environment,
    find_binaries,
    give,
    owner,
)
from bellringer.errors import ConfigError, Conflict, Unavailable

__all__ = ["EmbeddedPostgres", "Server", "find_binaries"]

START_LIMIT: Final = 60.0
STOP_LIMIT: Final = 30.0
LOG_LIMIT: Final = 8_000_000  # bytes; beyond it a start begins a new log and keeps one old one
STEADY: Final = 0.5  # seconds that an orphan must go on answering before we believe that it stays
POLL: Final = 0.02

# Processes of a killed server that have not noticed yet; they do within moments, so try again.
LINGERING: Final = ("pre-existing shared memory block", "is another postmaster")
NO_MEMORY: Final = "could not map anonymous shared memory"
MODEST: Final = MappingProxyType({"shared_buffers": "32MB"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: how to reach it, where its data is, and its process."""

    dsn: str
    data: Path
    pid: int


class EmbeddedPostgres:
    """Starts and stops the one PostgreSQL of a folder."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] = MappingProxyType({}), tied: bool = True) -> None:
        self._folder = folder.resolve()
        self._data = self._folder / "postgres"
        self._log = self._folder / "postgres.log"
        self._settings = dict(settings)
        self._tied = tied
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None  # none while the server is an adopted one
        self._running: postmaster.Running | None = None
        self._sockets: Path | None = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Server:
        """Make the data if there is none, start the server and wait until it answers.

        Only from the main thread: the kernel counts the thread that forked as the parent, and would
        shut the server down when that thread ends.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("EmbeddedPostgres.start() must be called from the main thread")
        if self._running is None or not postmaster.answers(self._running):
            deadline = time.monotonic() + START_LIMIT
            self._take_lock()
            try:
                self._running = self._adopt(deadline) or self._launch(deadline)
            except BaseException:
                self.stop()
                raise
        return Server(dsn=self._running.dsn, data=self._data, pid=self._running.pid)

    def stop(self) -> None:
        """Shut the server down, wait until it is gone, and let others have the folder."""
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
        """Hold the folder for as long as we live; the kernel lets go of it however we end."""
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
                hint="stop that one first, or choose another folder",
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot use the folder {self._folder}: {error.strerror}",
                hint="choose a folder that this user can write to",
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock

    def _adopt(self, deadline: float) -> postmaster.Running | None:
        """A server that outlived its supervisor: wait while it goes, keep it if it means to stay."""
        answered_since: float | None = None
        while left := postmaster.find(self._data):
            now = time.monotonic()
            if not postmaster.answers(left):
                answered_since = None
            elif answered_since is None:
                answered_since = now
            elif now - answered_since > STEADY:
                self._sockets = left.socket
                return left
            if now > deadline:
                raise Unavailable(
                    f"an earlier server on {self._data} (pid {left.pid}) neither answers nor ends",
                    hint=f"look into {self._log}, or end that process",
                )
            time.sleep(POLL)
        return None

    def _launch(self, deadline: float) -> postmaster.Running:
        """Start a server of our own, again if what a killed one left behind is not gone yet."""
        if self._process:
            self._shut_down(self._process.pid)
        programs = self._prepare(deadline)
        self._sockets = postmaster.make_socket_folder(self._data, *owner(programs.identity))
        settings = dict(self._settings)
        while True:
            postmaster.write_settings(self._data, settings, self._sockets)
            postmaster.forget(self._data)
            running, said = self._attempt(programs, deadline)
            if running is not None:
                return running
            if NO_MEMORY in said and "shared_buffers" not in settings:
                settings |= MODEST
            elif time.monotonic() > deadline or not any(sign in said for sign in LINGERING):
                raise self._failure("PostgreSQL did not start", said)
            time.sleep(POLL)

    def _prepare(self, deadline: float) -> Programs:
        """Programs that run here, and data that fits them."""
        self._rotate_log()
        programs = choose(self._folder, self._data)
        if not (self._data / "PG_VERSION").exists():
            self._create(programs, deadline)
        made_by = (self._data / "PG_VERSION").read_text().strip()
        if made_by != str(programs.major):
            raise ConfigError(
                f"{self._data} was made by PostgreSQL {made_by}, the programs here are {programs.major}",
                hint=f"set BELLRINGER_PG_BIN to the bin folder of a PostgreSQL {made_by}, "
                "or move the data away to begin with an empty database",
            )
        give(self._data, programs.identity)
        return programs

    def _attempt(self, programs: Programs, deadline: float) -> tuple[postmaster.Running | None, str]:
        """The server once it answers; or None, and what it said before it ended or took too long."""
        with self._open_log() as log:
            begin = log.tell()
            self._process = subprocess.Popen(  # noqa: S603
                command(programs, "postgres", "-D", str(self._data), tied=self._tied),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
        while self._process.poll() is None and time.monotonic() < deadline:
            running = postmaster.find(self._data)
            if running and running.pid == self._process.pid and postmaster.answers(running):
                return running, ""
            time.sleep(POLL)
        self._shut_down(self._process.pid)
        return None, self._said(begin)

    def _create(self, programs: Programs, deadline: float) -> None:
        """Make the data beside its place and move it there when whole: a broken attempt leaves nothing."""
        if self._data.exists() and any(self._data.iterdir()):
            raise ConfigError(
                f"{self._data} is not a PostgreSQL data folder", hint="move it away, or choose another folder"
            )
        staging = self._folder / "postgres.new"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        give(staging, programs.identity)
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if programs.major >= 17 else []
        access = ["--username=bellringer", "--auth-local=trust", "--auth-host=reject"]
        where = ["-D", str(staging)]
        # Synced once at the end rather than by each step.
        options = ["--no-locale", "--encoding=UTF8", "--data-checksums", "--no-sync", "--no-instructions"]
        self._run(programs, deadline, "initdb", *where, *options, *locale, *access)
        alone = ["--single", "-F", "-c", "exit_on_error=on", *where, "postgres"]
        self._run(programs, deadline, "postgres", *alone, said="CREATE DATABASE bellringer\n")
        postmaster.include(staging)
        self._run(programs, deadline, "initdb", "--sync-only", *where)
        staging.rename(self._data)
        self._sync_folder()  # or a power cut could undo the move, with rows already in the data

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _run(self, programs: Programs, deadline: float, name: str, *arguments: str, said: str = "") -> None:
        """Run one program to its end, its words going to the log."""
        with self._open_log() as log:
            begin = log.tell()
            try:
                done = subprocess.run(  # noqa: S603
                    command(programs, name, *arguments),
                    input=said.encode(),
                    stdout=log,
                    stderr=log,
                    env=environment(),
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
        if self._log.exists() and self._log.stat().st_size > LOG_LIMIT:
            self._log.replace(self._log.with_suffix(".log.1"))

    def _open_log(self) -> IO[bytes]:
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "ab")

    def _said(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read(100_000).decode(errors="replace")

    def _failure(self, what: str, said: str) -> Unavailable:
        tail = "\n".join(said.strip().splitlines()[-6:]) or "it said nothing"
        return Unavailable(f"{what}:\n{tail}", hint=f"see {self._log}")

    def _lives(self, pid: int) -> bool:
        return self._process.poll() is None if self._process else postmaster.is_alive(pid, self._data)

    def _shut_down(self, pid: int) -> None:
        """Fast shutdown; if it does not end, the immediate one, after which the next start recovers."""
        for way in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if not self._lives(pid):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, way)
            deadline = time.monotonic() + STOP_LIMIT
            while self._lives(pid) and time.monotonic() < deadline:
                time.sleep(POLL)
