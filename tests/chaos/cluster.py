"""A PostgreSQL, schedulers and workers as people start them, each behind a proxy of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final, Self

import asyncpg

from bellringer.store.migrate import migrate

from .proxy import Proxy

HERE: Final = Path(__file__).parent
RESTART_SECONDS: Final = 1.0  # after which a process that ended by itself is started again
SLOTS: Final = 30


class Database:
    """The PostgreSQL of a history; its folder outlives its kills."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: Process | None = None
        self._busy = asyncio.Lock()
        self.dsn = ""
        self.runs = False

    async def start(self) -> None:
        async with self._busy:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, str(HERE / "database.py"), str(self._folder), stdin=PIPE, stdout=PIPE
                )
            if not self.runs:
                self.dsn = await self._say("start")
                self.runs = True

    async def stop(self, how: str) -> None:
        """Stop it: `fast` as an operator does, `kill` as the kernel does."""
        async with self._busy:
            if self.runs:
                self.runs = False
                await self._say(how)

    async def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def _say(self, what: str) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n".encode())
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the database's process ended on {what!r}; see {self._folder}")
        return line.decode().strip()


class Member:
    """A scheduler or a worker: a process that is started again whenever it ends."""

    def __init__(self, name: str, command: Sequence[str], proxy: Proxy, folder: Path) -> None:
        self.name = name
        self.proxy = proxy
        self.exits: list[str] = []  # those that nobody asked for
        self.pids: list[int] = []
        self._command = command
        self._log = folder / f"{name}.log"
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("BELLRINGER_")},
            "BELLRINGER_DSN": proxy.dsn,
            "BELLRINGER_NAME": name,
            "BELLRINGER_GRACE": "5s",
            "CHAOS_SINK": str(folder / "sink"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._expected = False  # somebody ended the current process
        self._resume_at = 0.0

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._wanted, self._expected = True, False
        self.pids.append(self._process.pid)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(number)

    def end(self, number: int, down_seconds: float) -> None:
        """Kill or terminate it; it is started again no sooner than after a while."""
        self._expected = True
        self._resume_at = time.monotonic() + down_seconds
        self.signal(number)

    def look(self) -> None:
        """Start it again if it has ended and its time has come."""
        if self._process is None or self.runs or not self._wanted:
            return
        self._clear_group()
        if not self._expected:
            self._expected = True
            self.exits.append(f"{self.name} ended by itself with {self._process.returncode}")
            self._resume_at = time.monotonic() + RESTART_SECONDS
        if time.monotonic() >= self._resume_at:
            self.start()

    def close(self) -> None:
        self._wanted = False
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._clear_group()

    def _clear_group(self) -> None:
        """End children that outlived their worker's grace: a supervisor clears the whole group as well."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Cluster:
    """All of it, in a folder."""

    def __init__(self, folder: Path, *, schedulers: int = 2, workers: int = 3) -> None:
        self.folder = folder
        self.sink = folder / "sink"
        self.database = Database(folder)
        self.schedulers = [f"scheduler-{number}" for number in range(1, schedulers + 1)]
        self.workers = [f"worker-{number}" for number in range(1, workers + 1)]
        self.members: dict[str, Member] = {}
        self._stack = AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.sink.mkdir(parents=True)
        try:
            await self.database.start()
            connection = await asyncpg.connect(self.database.dsn)
            try:
                await migrate(connection)
            finally:
                await connection.close()
            for name in [*self.schedulers, *self.workers]:
                proxy = await self._stack.enter_async_context(Proxy(self.database.dsn))
                self.members[name] = Member(name, self._command(name), proxy, self.folder)
                self.members[name].start()
        except BaseException:
            await self.__aexit__()
            raise
        self._watch = asyncio.create_task(self._look_after())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for member in self.members.values():
            member.close()
        await self._stack.aclose()
        await self.database.close()

    def close_members(self, names: Sequence[str]) -> None:
        for name in names:
            self.members[name].close()

    async def heal(self) -> None:
        """End all faults, and wait until everything has been started."""
        await self.database.start()
        for member in self.members.values():
            member.signal(signal.SIGCONT)
            member.proxy.heal()
        while not all(member.runs for member in self.members.values()):  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.1)

    def exits(self) -> list[str]:
        return [told for member in self.members.values() for told in member.exits]

    def dropped(self) -> Counter[str]:
        """The calls whose responses were lost, and how often."""
        return Counter(call for member in self.members.values() for call in member.proxy.dropped)

    async def _look_after(self) -> None:
        while True:
            for member in self.members.values():
                member.look()
            await asyncio.sleep(0.2)

    def _command(self, name: str) -> list[str]:
        bellringer = [sys.executable, "-m", "bellringer"]
        if name in self.schedulers:
            return [*bellringer, "scheduler"]
        return [*bellringer, "worker", f"{HERE / 'app.py'}:app", "--slots", str(SLOTS)]
