"""A server that is one program listening on ports."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from bellringer.engines import embedded_launch
from bellringer.errors import Unavailable
from bellringer.services import places
from bellringer.services.places import State
from bellringer.services.server import Server

START_LIMIT: Final = 90.0
GONE: Final = 5.0  # seconds for a process that was ended to be buried
TRIES: Final = 5  # starts, each with other ports, as long as somebody takes them from us
FOREIGN: Final = ("ETCD_", "KAFKA_", "VALKEY_", "REDIS_")  # variables that would override what we ask for


class Listener(Server):
    """Its process is our child, or one that an earlier command has left here."""

    port_count: ClassVar[int] = 1

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        super().__init__(folder, tied=tied)
        self._log = self._folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None  # none while the server is one that we found

    @property
    def port(self) -> int:
        """The one for clients."""
        return self.state.ports[0]

    @property
    def lives(self) -> bool:
        if self._process:
            self._process.poll()  # buries it if it is dead
        return super().lives

    @abstractmethod
    def _prepare(self) -> str:
        """Find or get its programs; answers their version."""

    @abstractmethod
    def _command(self, ports: tuple[int, ...]) -> list[str]:
        """The command line, after all that it reads has been written."""

    @abstractmethod
    def _address_of(self, ports: tuple[int, ...]) -> str: ...

    def _begin(self) -> None:
        version = self._prepare()
        begin = self._log.stat().st_size if self._log.exists() else 0
        ports = self._state.ports if self._state else ()
        for _ in range(TRIES):
            if len(ports) != self.port_count or not places.are_free(ports):
                ports = places.free_ports(self.port_count)
            self._launch(version, ports)
            if self._wait(START_LIMIT):
                return
            self.kill()
            if places.are_free(ports):
                break  # nobody took them from us: it has another reason
        raise self._failure("did not start", begin)

    def _launch(self, version: str, ports: tuple[int, ...]) -> None:
        """Start its process, and remember it before anything else can happen."""
        self._data.mkdir(exist_ok=True)
        command = self._command(ports)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._tie(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                cwd=self._folder,
                start_new_session=True,
            )
        pid, address = self._process.pid, self._address_of(ports)
        self._remember(State(version=version, address=address, ports=ports, pid=pid, born=places.born(pid)))

    def _tie(self, command: list[str]) -> list[str]:
        if not self._tied:
            return command
        atexit.register(self.kill)  # for systems whose kernel knows no death signal
        tie = (os.getpid(), int(signal.SIGKILL), "self", os.geteuid(), os.getegid())
        return [sys.executable, "-I", "-S", embedded_launch.__file__, *map(str, tie), *command]

    def _forget(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):  # it is gone; its parent has yet to hear so
                self._process.wait(GONE)
        self._process = None
        atexit.unregister(self.kill)
        super()._forget()

    def _failure(self, what: str, begin: int) -> Unavailable:
        with self._log.open("rb") as log:
            log.seek(begin)
            said = log.read(100_000).decode(errors="replace").strip()
        tail = "\n".join(said.splitlines()[-6:]) or "it said nothing"
        return Unavailable(f"{self.name} {what}:\n{tail}", hint=f"see {self._log}")


def environment() -> dict[str, str]:
    """Our environment without what would steer the servers behind our back."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def version_of(program: Path, pattern: str) -> str:
    """The version that a program tells."""
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, env=environment(), check=False)  # noqa: S603
    found = re.search(pattern, asked.stdout)
    if found is None:
        said = (asked.stderr or asked.stdout).strip()
        raise Unavailable(f"{program} does not run here: {said}", hint="install one that does")
    return found[1]
