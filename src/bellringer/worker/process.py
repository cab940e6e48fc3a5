"""The lane of isolated handlers, seen from the worker: a small pool of child processes, each with one run."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import msgspec

from bellringer.errors import ConfigError
from bellringer.runs import Ending, Outcome
from bellringer.worker import endings, pipe
from bellringer.worker.attempt import Attempt
from bellringer.worker.context import Sink
from bellringer.worker.work import Work

RECYCLE_AFTER: Final = 1000  # runs, so that what handlers leak is given back
STARTUP: Final = 60.0  # seconds to import the app
KILL_AFTER: Final = 2.0  # seconds between asking a child to end and ending it
_TICK: Final = 0.2  # seconds between a child's reports
_MODULE: Final = "bellringer.worker.child"


class StartError(Exception):
    """A child could not import the app; the error is as it is stored."""

    def __init__(self, error: dict[str, object]) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


class Child:
    """One child process, and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process, limit: int) -> None:
        self.runs = 0
        self._process = process
        self._limit = limit
        self._is_garbled = False
        self._killer: asyncio.TimerHandle | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reaper = asyncio.create_task(self._reap())

    @classmethod
    async def start(cls, target: str, limit: int) -> Child:
        """Start a child and wait until it has imported the app."""
        ours, theirs = socket.socketpair()
        try:
            # In a session of its own: Ctrl-C is the worker's affair, and all that it starts can be killed.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-X", "faulthandler", "-m", _MODULE, target, str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = cls(process, limit)
        child._reader, child._writer = await asyncio.open_connection(sock=ours, limit=limit + pipe.ROOM)
        try:
            async with asyncio.timeout(STARTUP):
                await child._greet()
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._killer is None and not self._reader.at_eof()

    async def run(self, attempt: Attempt, lateness: timedelta, sink: Sink) -> Ending | None:
        """Have an attempt executed. None: the child died before it began, so the attempt is untouched."""
        self.runs += 1
        tick = min(_TICK, (attempt.work.spec.heartbeat or 60.0) / 4)
        self._send(pipe.Run(attempt.work, lateness.total_seconds(), self._limit, tick))
        while (message := await self._hear()) is not None:
            if isinstance(message, pipe.End):
                return message.ending
            self._follow(attempt, message, sink)
        ran = attempt.ran
        story = await self._mourn()
        return None if attempt.began_at is None else endings.failed("ProcessCrashed", story, ran=ran)

    def cancel(self, reason: str) -> None:
        """Tell the handler that it is about to be stopped, and stop it."""
        self._send(pipe.Cancel(reason))
        self.kill()

    def kill(self) -> None:
        """End the process, and with it whatever the handler started: politely, then not."""
        if self._killer is None:
            self._signal(signal.SIGTERM)
            self._killer = asyncio.get_running_loop().call_later(KILL_AFTER, self._signal, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self.kill()
        await asyncio.shield(self._reaper)
        self._writer.close()

    async def _greet(self) -> None:
        message = await self._hear()
        if isinstance(message, pipe.Broken):
            raise StartError(message.error)
        if message is None:
            story = await self._mourn()
            raise StartError(endings.trouble("ProcessCrashed", f"while it imported the app, {story}"))

    async def _hear(self) -> pipe.FromChild | None:
        """The next message; None once the child is gone, or makes no sense any more."""
        try:
            message: pipe.FromChild = pipe.read_in_parent(await self._reader.readuntil())
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (asyncio.LimitOverrunError, msgspec.DecodeError, UnicodeError):
            self._is_garbled = True  # a handler wrote into what is not its own
            return None
        return message

    async def _mourn(self) -> str:
        """The pipe has ended: see to it that the process has too, and say how it came."""
        if not self._is_garbled:
            await asyncio.wait({self._reaper}, timeout=KILL_AFTER)
        if not self._reaper.done():
            self.kill()
            await asyncio.shield(self._reaper)
            return f"the process {'garbled' if self._is_garbled else 'closed'} its pipe to the worker"
        return _crash(self._process.returncode or 0)

    def _follow(self, attempt: Attempt, message: pipe.FromChild, sink: Sink) -> None:
        if isinstance(message, pipe.Began):
            attempt.begin()
        elif isinstance(message, pipe.Line):
            attempt.control.sign()
            sink(message.level, message.message, message.fields)
        elif isinstance(message, pipe.Alive):
            attempt.control.sign()
            if message.progress is not None:
                attempt.control.report(message.progress)

    def _send(self, message: pipe.ToChild) -> None:
        if not self._writer.is_closing():
            self._writer.write(pipe.line(message))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _reap(self) -> None:
        await self._process.wait()
        # What the handler left running would hold our pipe open, and outlive the attempt that it belongs to.
        self._signal(signal.SIGKILL)
        if self._killer is not None:
            self._killer.cancel()


class Processes:
    """The pool: children are started when needed, used again, and replaced when they have served long."""

    def __init__(
        self,
        size: int,
        *,
        target: str | None,
        limit: int,
        lateness: Callable[[Work], timedelta],
        sink: Callable[[Work], Sink],
    ) -> None:
        self._target = target
        self._limit = limit
        self._lateness = lateness
        self._sink = sink
        self._places = asyncio.Semaphore(size)
        self._idle: list[Child] = []
        self._busy: dict[Attempt, Child] = {}
        self._waiting: set[Attempt] = set()  # for a place, or for a child to start
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stray(self) -> int:
        return 0  # a process can be killed

    def start(self, attempt: Attempt) -> None:
        attempt.runner = self._keep(self._run(attempt))

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        if attempt.verdict is not None:
            return
        attempt.verdict = ending
        child = self._busy.get(attempt)
        if child is None:
            attempt.settle(ending)  # it still waits for a place
        else:
            child.cancel(attempt.control.reason or "its time is over")

    async def close(self) -> None:
        for attempt in self._waiting:
            attempt.runner.cancel()
        for child in self._busy.values():
            child.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end() for child in idle))

    async def _run(self, attempt: Attempt) -> None:
        self._waiting.add(attempt)
        try:
            async with self._places:
                if attempt.end.done():  # stopped while it waited
                    return
                ending = await self._execute(attempt)
        except StartError as error:
            ending = Ending(outcome=Outcome.FAILED, error=error.error)
        except Exception as error:  # noqa: BLE001 - no process to be had
            ending = endings.raised(error)
        finally:
            self._waiting.discard(attempt)
        attempt.settle(ending)

    async def _execute(self, attempt: Attempt) -> Ending:
        for _ in range(2):
            child = await self._child()
            if attempt.verdict is not None:
                self._idle.append(child)
                return attempt.verdict
            ending = await self._use(child, attempt)
            if ending is not None:
                return ending
        return endings.failed("ProcessCrashed", "the process died twice before the handler was called")

    async def _use(self, child: Child, attempt: Attempt) -> Ending | None:
        self._waiting.discard(attempt)
        self._busy[attempt] = child
        try:
            ending = await child.run(attempt, self._lateness(attempt.work), self._sink(attempt.work))
        finally:
            del self._busy[attempt]
        if attempt.verdict is not None:
            await child.end()  # settled only when the handler has stopped for certain
            return attempt.verdict
        if child.is_alive and child.runs < RECYCLE_AFTER:
            self._idle.append(child)
        else:
            self._keep(child.end())
        return ending

    async def _child(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            self._keep(child.end())
        if self._target is None:
            raise ConfigError(
                "this worker cannot start processes: it does not know where its app is",
                hint="start it with `bellringer worker module:app` or `bellringer worker path/to/file.py`",
            )
        return await Child.start(self._target, self._limit)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _crash(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    hint = ", as happens when memory runs out" if -code == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"
