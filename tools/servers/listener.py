"""A server that is a single program listening on ports."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bellringer.backends.embedded_postgres import launch
from bellringer.errors import Unavailable
from tools.servers import ports_and_pids
from tools.servers.ports_and_pids import ServerState
from tools.servers.server import Server

START_LIMIT: Final = 90.0
GONE: Final = 5.0  # seconds to wait for the exit status of an ended process
TRIES: Final = 5  # starts with new ports while another process takes the chosen ones
FOREIGN: Final = ("ETCD_", "KAFKA_", "VALKEY_", "REDIS_")  # prefixes of variables that would override the configuration


class Listener(Server):
    """Its process is a child of this process, or was started by an earlier command."""

    port_count: int = 1

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        super().__init__(folder, tied=tied)
        self._log = self._folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None  # None if an earlier command started the server

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.state.ports[0]

    @property
    def lives(self) -> bool:
        if self._process:
            self._process.poll()  # collects its exit status
        return super().lives

    @abstractmethod
    def _prepare(self) -> str:
        """Find or download its programs; returns their version."""

    @abstractmethod
    def _command(self, ports: tuple[int, ...]) -> list[str]:
        """Write its configuration files; returns the command line."""

    @abstractmethod
    def _address_of(self, ports: tuple[int, ...]) -> str: ...

    def _begin(self) -> None:
        version = self._prepare()
        begin = self._log.stat().st_size if self._log.exists() else 0
        ports = self._state.ports if self._state else ()
        for _ in range(TRIES):
            if len(ports) != self.port_count or not ports_and_pids.are_free(ports):
                ports = ports_and_pids.free_ports(self.port_count)
            self._launch(version, ports)
            if self._wait(START_LIMIT):
                return
            self.kill()
            if ports_and_pids.are_free(ports):
                break  # the ports are free, so the start failed for another reason
        raise self._failure("did not start", begin)

    def _launch(self, version: str, ports: tuple[int, ...]) -> None:
        """Start its process and store its state at once."""
        self._data.mkdir(exist_ok=True)
        command = self._command(ports)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                self._tie(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=self._folder,
                start_new_session=True,
            )
        pid, address = self._process.pid, self._address_of(ports)
        self._remember(
            ServerState(version=version, address=address, ports=ports, pid=pid, born=ports_and_pids.born(pid))
        )

    def _environment(self) -> dict[str, str]:
        return environment()

    def _tie(self, command: list[str]) -> list[str]:
        if not self._tied:
            return command
        atexit.register(self.kill)  # for systems without a parent death signal
        tie = (os.getpid(), int(signal.SIGKILL), "self", os.geteuid(), os.getegid())
        return [sys.executable, "-I", "-S", launch.__file__, *map(str, tie), *command]

    def _forget(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):  # ended, but its exit status is not available yet
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
    """Returns the environment without variables that configure the servers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def version_of(program: Path, pattern: str, environ: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns the version that a program prints."""
    asked = subprocess.run(  # noqa: S603
        [program, "--version"], capture_output=True, text=True, env={**environment(), **environ}, check=False
    )
    found = re.search(pattern, asked.stdout)
    if found is None:
        said = (asked.stderr or asked.stdout).strip()
        raise Unavailable(f"{program} cannot be executed: {said}", hint="install a version for this machine")
    return found[1]
