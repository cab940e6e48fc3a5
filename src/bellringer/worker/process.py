"""The lane of isolated handlers, seen from the worker: a small pool of child processes, each with one run."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

from bellringer.runs import Ending
from bellringer.worker import endings, pipe
from bellringer.worker.attempt import Attempt
from bellringer.worker.context import Sink
from bellringer.worker.work import Work

RECYCLE_AFTER: Final = 1000  # runs, so that what handlers leak is given back
STARTUP: Final = 60.0  # seconds to import the app
KILL_AFTER: Final = 2.0  # seconds between asking a child to end and ending it
_TICK: Final = 0.2  # seconds between a child's reports
_MODULE: Final = "bellringer.worker.child"


class ChildBroken(Exception):
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
        self._killer: asyncio.TimerHandle | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reaper = asyncio.create_task(self._reap())

    @classmethod
    async def start(cls, target: str, limit: int) -> Child:
        """Start a child and wait until it has imported the app."""
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C is the worker's affair, and what the handler started can be killed too.
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
            child.kill()
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
        self.kill()  # it may only have closed its end
        code = await self._process.wait()
        if attempt.began_at is None:
            return None
        return endings.failed("ProcessCrashed", _crash(code), ran=attempt.ran)

    def cancel(self, reason: str) -> None:
        """Tell the handler that it is about to be stopped, and stop it."""
        self._send(pipe.Cancel(reason))
        self.kill()

    def kill(self) -> None:
        """End the process, and with it whatever the handler started: politely, then not."""
        if self._killer is None:
            self._signal(signal.SIGTERM)
            self._killer = asyncio.get_running_loop().call_later(KILL_AFTER, self._signal, signal.SIGKILL)

    async def wait(self) -> None:
        await self._reaper

    async def _greet(self) -> None:
        message = await self._hear()
        if isinstance(message, pipe.Broken):
            raise ChildBroken(message.error)
        if message is None:
            self.kill()
            code = await self._process.wait()
            raise ChildBroken(endings.trouble("ProcessCrashed", f"while it imported the app, {_crash(code)}"))

    async def _hear(self) -> pipe.FromChild | None:
        """The next message; None once the child is gone, or makes no sense any more."""
        try:
            return pipe.read_in_parent(await self._reader.readuntil())
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (asyncio.LimitOverrunError, msgspec.DecodeError, UnicodeError):
            return None  # a handler wrote into what is not its own

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
        writer = getattr(self, "_writer", None)
        if writer is not None and self._killer is not None:
            writer.close()


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
        self._runners: set[asyncio.Task[None]] = set()

    @property
    def stray(self) -> int:
        return 0  # a process can be killed

    def start(self, attempt: Attempt) -> None:
        attempt.runner = asyncio.create_task(self._run(attempt))
        self._runners.add(attempt.runner)
        attempt.runner.add_done_callback(self._runners.discard)

    def stop(self, attempt: Attempt, ending: Ending) -> None:
        if attempt.verdict is not None:
            return
        attempt.verdict = ending
        child = self._busy.get(attempt)
        if child is None:
            attempt.settle(ending)  # it still waits for a place
        else:
            child.cancel(attempt.control.reason or "its time is over")
