"""Starts servers, schedulers, workers and senders of any release, and replaces them one by one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import asyncpg
import httpx2

from bellringer.clock import SystemClock
from bench.rolling.app import RECORD_VARIABLE

HERE: Final = Path(__file__).parent
STOP_SECONDS: Final = 60.0  # within which a process must have stopped after SIGTERM
START_SECONDS: Final = 90.0  # within which it must be ready, on a busy machine
PROBE_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.2
MAX_TRIES: Final = 3
# A scheduler is ready when it holds shards, a worker when it is live.
SCHEDULER_READY: Final = "select exists (select 1 from nodes where pid = $1 and shards > 0)"
WORKER_READY: Final = "select exists (select 1 from workers where pid = $1 and state = 'live')"


def environment_of_this_release() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BELLRINGER_")}


@dataclass
class FleetProcess:
    """One place of the fleet: a process now, its successor later."""

    kind: str  # server, scheduler, worker or sender
    name: str
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    is_changing: bool = False

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """How long a process took to stop, and its successor to become ready."""

    name: str
    stop_seconds: float
    start_seconds: float


@dataclass
class RollingFleet:
    """The processes of one installation. Their output is in files of the folder."""

    dsn: str
    folder: Path
    slots: int = 50
    members: dict[str, FleetProcess] = field(default_factory=dict)
    not_ready: list[str] = field(default_factory=list)  # answers of servers that should have been ready
    errors: list[str] = field(default_factory=list)  # failed requests
    retried: list[str] = field(default_factory=list)  # sends that failed before they were accepted
    _clock: SystemClock = field(default_factory=SystemClock)
    _client: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(timeout=30, trust_env=False))
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sends_over_api: bool = True

    @property
    def record(self) -> Path:
        return self.folder / "record"

    async def start(self, kind: str, name: str, environ: Mapping[str, str], *arguments: str) -> FleetProcess:
        """Starts a process, and waits until it is ready."""
        self.record.mkdir(exist_ok=True)
        member = self.members.setdefault(name, FleetProcess(kind, name, _free_port() if kind == "server" else 0))
        member.process = self._spawn(member, environ, arguments)
        await self._until_ready(member)
        return member

    def _spawn(
        self, member: FleetProcess, environ: Mapping[str, str], arguments: tuple[str, ...]
    ) -> subprocess.Popen[bytes]:
        settings = {"DSN": self.dsn, "NAME": member.name, "AUTH": "none", "GRACE": "10s"}
        with (self.folder / f"{member.name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own programs
                self._command(member, arguments),
                cwd=self.folder,
                env={
                    **environ,
                    **{f"BELLRINGER_{name}": value for name, value in settings.items()},
                    RECORD_VARIABLE: str(self.record),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def stop(self, name: str) -> float:
        """Stops a process as an operator does; returns the seconds that it took."""
        member = self.members[name]
        began = self._clock.monotonic()
        member.running.send_signal(signal.SIGTERM)
        while member.running.poll() is None:
            if self._clock.monotonic() - began > STOP_SECONDS:
                raise AssertionError(f"{name} did not stop; {self._tail(name)}")
            await asyncio.sleep(0.02)
        if member.running.returncode != 0:
            raise AssertionError(f"{name} ended with {member.running.returncode}; {self._tail(name)}")
        return self._clock.monotonic() - began

    async def replace(self, name: str, environ: Mapping[str, str]) -> Replacement:
        """Stops a process and starts its successor."""
        member = self.members[name]
        member.is_changing = True
        try:
            stopped = await self.stop(name)
            began = self._clock.monotonic()
            await self.start(member.kind, name, environ)
            return Replacement(name=name, stop_seconds=stopped, start_seconds=self._clock.monotonic() - began)
        finally:
            member.is_changing = False

    async def replace_all(self, environ: Mapping[str, str]) -> list[Replacement]:
        """Replaces all processes but the senders, one after another."""
        names = [member.name for member in self.members.values() if member.kind != "sender"]
        return [await self.replace(name, environ) for name in names]

    async def replace_by_kind(self, environ: Mapping[str, str]) -> list[Replacement]:
        """Replaces the processes of each kind one after another, and different kinds at the same time."""
        kinds = dict.fromkeys(member.kind for member in self.members.values() if member.kind != "sender")

        async def replace_kind(kind: str) -> list[Replacement]:
            names = [member.name for member in self.members.values() if member.kind == kind]
            return [await self.replace(name, environ) for name in names]

        return [each for of_kind in await asyncio.gather(*map(replace_kind, kinds)) for each in of_kind]

    async def probe(self) -> None:
        """Asks the servers for readiness and for jobs, and sends one-shots, for as long as it is not cancelled."""
        numbers = count()
        while True:
            for member in [member for member in self.members.values() if member.kind == "server"]:
                await self._ask(member)
                async with self._sending:
                    if self._sends_over_api:
                        await self._send(member, f"api-{next(numbers)}")
            await asyncio.sleep(PROBE_SECONDS)

    async def stop_senders(self) -> None:
        """Stops everything that sends one-shots, and waits for the last of them."""
        async with self._sending:
            self._sends_over_api = False
        for name in [member.name for member in self.members.values() if member.kind == "sender"]:
            await self.stop(name)

    async def _send(self, member: FleetProcess, tag: str) -> None:
        """Sends a one-shot with an Idempotency-Key; a request that fails is repeated, as a client does."""
        for _ in range(MAX_TRIES):
            if member.is_changing:
                return
            with suppress(httpx2.HTTPError, OSError):
                url = f"http://127.0.0.1:{member.port}/api/v1/jobs/execute"
                body = {"task": "record", "args": [tag]}
                answer = await self._client.post(url, json=body, headers={"Idempotency-Key": tag})
                if answer.status_code == 202:
                    with (self.record / "sent-api").open("a") as sent:
                        sent.write(f"{tag} {answer.json()['run_id']}\n")
                    return
                self.retried.append(f"{member.name}: {answer.status_code} {answer.text}")
        if not member.is_changing:
            self.errors.append(f"{member.name}: {tag} was not accepted")

    async def _ask(self, member: FleetProcess) -> None:
        process = member.process
        for path, faults in (("/readyz", self.not_ready), ("/api/v1/jobs?limit=5", self.errors)):
            if member.is_changing:
                return
            try:
                answer = await self._client.get(f"http://127.0.0.1:{member.port}{path}")
                told = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text}"
            except (httpx2.HTTPError, OSError) as error:
                told = f"{type(error).__name__}: {error}"
            if told and not member.is_changing and member.process is process:
                faults.append(f"{member.name}: {told}")

    async def create_jobs(self, number: int) -> None:
        """Creates jobs that are due every second, over the API."""
        port = next(member.port for member in self.members.values() if member.kind == "server")
        items = [
            {
                "name": f"job-{n}",
                "task": "record",
                "schedule": {"every": "1s"},
                "overlap": "allow",
                "args": [f"job-{n}"],
            }
            for n in range(number)
        ]
        answer = await self._client.post(f"http://127.0.0.1:{port}/api/v1/jobs/bulk", json={"items": items})
        answer.raise_for_status()

    async def close(self) -> None:
        """Kills all processes that still run."""
        for member in self.members.values():
            if member.process is not None and member.process.poll() is None:
                member.process.kill()
                member.process.wait()
        await self._client.aclose()

    def _command(self, member: FleetProcess, arguments: tuple[str, ...]) -> list[str]:
        program = [sys.executable, "-m", "bellringer", member.kind]
        match member.kind:
            case "server":
                return [*program, "--no-scheduler", "--port", str(member.port)]
            case "worker":
                return [*program, f"{HERE / 'app.py'}:app", "--slots", str(self.slots)]
            case "sender":
                return [sys.executable, str(HERE / "sender.py"), member.name, *arguments]
            case _:
                return program

    async def _until_ready(self, member: FleetProcess) -> None:
        began = self._clock.monotonic()
        while not await self._is_ready(member):
            if member.running.poll() is not None:
                raise AssertionError(f"{member.name} ended while it started; {self._tail(member.name)}")
            if self._clock.monotonic() - began > START_SECONDS:
                raise AssertionError(f"{member.name} did not become ready; {self._tail(member.name)}")
            await asyncio.sleep(POLL_SECONDS)

    async def _is_ready(self, member: FleetProcess) -> bool:
        if member.kind == "sender":
            sent = self.record / f"sent-{member.name}"
            return sent.exists() and sent.stat().st_size > 0
        if member.kind == "server":
            with suppress(httpx2.HTTPError, OSError):
                return (await self._client.get(f"http://127.0.0.1:{member.port}/readyz")).status_code == 200
            return False
        query = SCHEDULER_READY if member.kind == "scheduler" else WORKER_READY
        connection = await asyncpg.connect(self.dsn, server_settings={"search_path": "bellringer"})
        try:
            return bool(await connection.fetchval(query, member.running.pid))
        finally:
            await connection.close()

    def _tail(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text().splitlines()
        return "its last lines: " + " | ".join(lines[-5:])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
