"""What all servers have in common: a folder, a process, and how it is started and ended."""

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
from bellringer.services import places
from bellringer.services.places import State

STOP_LIMIT: Final = 30.0
ANSWER_LIMIT: Final = 10.0  # for one that runs already
POLL: Final = 0.02


class Server(ABC):
    """One real server on 127.0.0.1, with its data in a folder of its own.

        with Kafka(folder) as kafka:
            connect(kafka.address)

    `start` answers the address once the server answers; a server that runs already is kept. `stop` ends it as it
    wishes to be ended, `kill` as a crash does; `start` then finds its data and its ports again. `pause` and
    `resume` freeze and thaw it, connections and all. `wipe` kills it and forgets its data, not its ports.

    A `tied` server dies with this process, and can be started from the main thread only: the kernel counts the
    thread that forked as the parent. One that is not outlives it; another object on the same folder finds it.
    """

    name: ClassVar[str]
    setting: ClassVar[str]  # the variable by which our processes are told its address
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, *, tied: bool = True) -> None:
        self._folder = folder.absolute()
        self._data = self._folder / "data"
        self._tied = tied
        self._state = places.read(self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> State:
        """What is known of it, whether it runs or not."""
        if self._state is None:
            raise Unavailable(f"{self.name} has never run in {self._folder}", hint="start it first")
        return self._state

    @property
    def address(self) -> str:
        return self.state.address

    @property
    def data(self) -> Path:
        """Where its data is; to be copied or replaced only while it is down."""
        return self._data

    @property
    def pid(self) -> int:
        return self.state.pid

    @property
    def version(self) -> str:
        return self.state.version

    @property
    def lives(self) -> bool:
        """Whether its process is there; one that is paused lives too."""
        return self._state is not None and self._state.lives

    def start(self) -> str:
        """Start it unless it runs, wait until it answers, and say its address."""
        if self.lives and self._wait(ANSWER_LIMIT):
            return self.address
        self.kill()
        if self._tied and threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"a tied {self.name} must be started from the main thread")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._begin()
        return self.address

    def stop(self) -> None:
        """Let it end in its own way, and wait until it is gone."""
        self._signal(self.stop_signal)
        self._signal(signal.SIGCONT)  # one that is paused would never hear of it
        if self._await_end():
            self._forget()
        else:
            self.kill()

    def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._await_end()
        self._forget()

    def pause(self) -> None:
        """It keeps its connections, and does nothing from now on."""
        # The signal reaches one thread, which has to tell the others; and a process may just have begun another.
        while not all(map(places.is_stopped, self._pids())):
            self._signal(signal.SIGSTOP)
            time.sleep(POLL)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Kill it and remove its data: the next start begins with nothing, on the same ports."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    @abstractmethod
    def _begin(self) -> None:
        """Start its process, remember it, and wait until it answers."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves its clients."""

    def _remember(self, state: State) -> None:
        self._state = state
        places.write(self._folder, state)

    def _forget(self) -> None:
        """Keep its ports, not its process."""
        if self._state and self._state.pid:
            kept = State(version=self.version, address=self.address, ports=self._state.ports)
            self._remember(kept)

    def _pids(self) -> list[int]:
        """All of its processes that are there, the one that started the others first."""
        return [self.state.pid] if self.lives else []

    def _signal(self, number: signal.Signals) -> None:
        if self._state:
            places.send(self._state.pid, self._state.born, number)

    def _wait(self, limit: float) -> bool:
        """Whether it answers within so many seconds; not if it dies before."""
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
