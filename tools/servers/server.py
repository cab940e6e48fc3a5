"""The common base of test servers: a folder, a process, and how it is started and ended."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from bellringer.errors import Unavailable
from tools.servers import ports_and_pids
from tools.servers.ports_and_pids import ServerState

STOP_LIMIT: Final = 30.0
ANSWER_LIMIT: Final = 10.0  # for a server that already runs
POLL: Final = 0.02


class Server(ABC):
    """One real server on 127.0.0.1, with its data in its own folder.

        with Kafka(folder) as kafka:
            connect(kafka.address)

    `start` returns the address once the server responds; a running server is left alone. `stop` shuts it down
    cleanly, `kill` simulates a crash; the next `start` uses the same data and ports. `pause` and `resume` send SIGSTOP
    and SIGCONT; connections stay open. `wipe` kills the server and deletes its data, but keeps its ports.

    A `tied` server ends with this process, and must be started from the main thread: the kernel treats the thread that
    forked as the parent. Other servers keep running; another object on the same folder finds them.
    """

    name: ClassVar[str]
    setting: ClassVar[str]  # the environment variable for its address
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        self._folder = folder.absolute()
        self._data = self._folder / "data"
        self._tied = tied
        self._state = ports_and_pids.read(self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> ServerState:
        """The stored state, whether the server runs or not."""
        if self._state is None:
            raise Unavailable(f"{self.name} has never run in {self._folder}", hint="start it first")
        return self._state

    @property
    def address(self) -> str:
        return self.state.address

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def data(self) -> Path:
        """The folder of its data; copy or replace it only while the server is down."""
        return self._data

    @property
    def pid(self) -> int:
        return self.state.pid

    @property
    def version(self) -> str:
        return self.state.version

    @property
    def lives(self) -> bool:
        """Whether its process exists, paused or not."""
        return self._state is not None and self._state.lives

    def start(self) -> str:
        """Start it unless it runs, and wait until it responds; returns its address."""
        if self.lives and self._wait(ANSWER_LIMIT):
            return self.address
        self.kill()
        if self._tied and threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"a tied {self.name} must be started from the main thread")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._begin()
        return self.address

    def stop(self) -> None:
        """Shut it down cleanly and wait until it has ended."""
        self._signal(self.stop_signal)
        self._signal(signal.SIGCONT)  # a paused process cannot handle the signal
        if self._await_end():
            self._forget()
        else:
            self.kill()

    def kill(self) -> None:
        """Kill it, as a crash would, and wait until it has ended."""
        self._signal(signal.SIGKILL)
        self._await_end()
        self._forget()

    def pause(self) -> None:
        """Stop all of its processes; connections stay open."""
        # Threads stop one after another, and a process may just have started another one: repeat until all are stopped.
        while not all(map(ports_and_pids.is_stopped, self._pids())):
            self._signal(signal.SIGSTOP)
            time.sleep(POLL)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Kill it and delete its data; the next start uses the same ports."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    @abstractmethod
    def _begin(self) -> None:
        """Start its process, store its state, and wait until it responds."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it responds to clients."""

    def _remember(self, state: ServerState) -> None:
        self._state = state
        ports_and_pids.write(self._folder, state)

    def _forget(self) -> None:
        """Store its state without the process."""
        if self._state and self._state.pid:
            kept = ServerState(version=self.version, address=self.address, ports=self._state.ports)
            self._remember(kept)

    def _pids(self) -> list[int]:
        """Returns its running processes, the parent first."""
        return [self.state.pid] if self.lives else []

    def _signal(self, number: signal.Signals) -> None:
        if self._state:
            ports_and_pids.send(self._state.pid, self._state.born, number)

    def _wait(self, limit: float) -> bool:
        """Returns whether it responds within this many seconds; False if it ends before."""
        deadline = time.monotonic() + limit
        while self.lives and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL)
        return False

    def _await_end(self) -> bool:
        deadline = time.monotonic() + STOP_LIMIT
        while self.lives:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True
