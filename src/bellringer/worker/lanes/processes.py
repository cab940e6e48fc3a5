"""The lane for isolated handlers: a pool of child processes, each of which executes one attempt at a time."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from bellringer.core.runs import Ending, Outcome
from bellringer.core.secret_references import SECRET_VARIABLE_PREFIX
from bellringer.errors import ConfigError
from bellringer.telemetry import log
from bellringer.worker import results
from bellringer.worker.attempt import RunningAttempt, Work
from bellringer.worker.context import LogSink
from bellringer.worker.lanes import child_protocol
from bellringer.worker.output.attempt_output import log_fields
from bellringer.worker.output.echo import CaptureSettings
from bellringer.worker.output.pipes import OutputPipes

MAX_RUNS_PER_CHILD: Final = 1000  # then the child is replaced, which frees memory leaked by handlers
CHILD_START_TIMEOUT_SECONDS: Final = 60.0  # includes the import of the app
KILL_AFTER_SECONDS: Final = 2.0  # between SIGTERM and SIGKILL
_REPORT_INTERVAL_SECONDS: Final = 0.2
_CHILD_MODULE: Final = "bellringer.worker.lanes.child"

_PREFIX: Final = "BELLRINGER_"
_FILE_SUFFIX: Final = "_FILE"
# Settings that children get. Others are withheld: they may contain credentials of servers, or of their backends.
CHILD_SETTINGS: Final = frozenset(
    {"name", "region", "url", "public_url", "log", "log_level", "log_attempts", "tracing"}
    | {"capture_output", "capture_level", "echo_output", "payload_codec"}
)
SENDING_SETTINGS: Final = frozenset({"dsn", "payload_keys"})  # only with `with_dsn`
_OTHER_VARIABLES: Final = frozenset({"app_version", "debug", "fault"})  # children get these, too
_LIBPQ_CREDENTIALS: Final = frozenset({"PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings:
    """How child processes are isolated from each other and from the worker."""

    shared: bool = False  # one child can execute runs of several tenants
    with_dsn: bool = True  # pass the database DSN to children, so that handlers can send runs
    memory: int = 0  # bytes that each child can allocate; 0: no limit
    secret_prefixes: tuple[str, ...] = ()  # of environment variables with secrets, which children do not get

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a child: of those of Bellringer only the ones that it may have."""
        prefixes = (SECRET_VARIABLE_PREFIX, *self.secret_prefixes)
        return {
            name: value
            for name, value in environ.items()
            if not name.startswith(prefixes)
            and (self._may_have(name) if name.startswith(_PREFIX) else self._is_safe(name))
        }

    def _may_have(self, variable: str) -> bool:
        name = variable.removeprefix(_PREFIX).removesuffix(_FILE_SUFFIX).lower()
        return name in CHILD_SETTINGS or name in _OTHER_VARIABLES or (self.with_dsn and name in SENDING_SETTINGS)

    def _is_safe(self, variable: str) -> bool:
        return self.with_dsn or variable not in _LIBPQ_CREDENTIALS


class ChildStartError(Exception):
    """A child could not import the app. `error` is the stored form of the error."""

    def __init__(self, error: dict[str, object]) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


class ChildProcess:
    """One child process and the socket to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        limit: int,
        tenant_id: int | None = None,
        descriptors: socket.socket | None = None,
    ) -> None:
        self.runs = 0
        self._pipes: OutputPipes | None = None  # of the current attempt
        self._descriptors = descriptors  # carries the pipes of each attempt to the child; None: nothing is captured
        self.tenant_id = tenant_id  # executes only runs of this tenant; None: of all tenants
        self._process = process
        self._limit = limit
        self._token = ""  # of the current attempt
        self._violation = ""  # how the child has broken the protocol
        self._killer: asyncio.TimerHandle | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reaper = asyncio.create_task(self._reap())

    @classmethod
    async def start(
        cls,
        target: str,
        limit: int,
        isolation: IsolationSettings = IsolationSettings(),
        tenant_id: int | None = None,
        capture: CaptureSettings | None = None,
    ) -> ChildProcess:
        """Start a child process and wait until it has imported the app."""
        ours, theirs = socket.socketpair()
        passed, options = [theirs], []
        our_pipes: socket.socket | None = None
        if capture is not None:
            our_pipes, their_pipes = socket.socketpair()
            our_pipes.settimeout(0)
            passed.append(their_pipes)
            options = [str(their_pipes.fileno()), capture.level]
        try:
            # A new session, so that Ctrl-C reaches only the worker and the whole process group can be killed.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-X", "faulthandler", "-m", _CHILD_MODULE),
                *(target, str(theirs.fileno()), str(os.getpid()), str(isolation.memory)),
                *options,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[end.fileno() for end in passed],
                env=isolation.environment(os.environ),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            if our_pipes is not None:
                our_pipes.close()
            raise
        finally:
            for end in passed:
                end.close()
        child = cls(process, limit, tenant_id, our_pipes)
        child._reader, child._writer = await asyncio.open_connection(
            sock=ours, limit=limit + child_protocol.MAX_MESSAGE_OVERHEAD_BYTES
        )
        try:
            async with asyncio.timeout(CHILD_START_TIMEOUT_SECONDS):
                await child._wait_until_ready()
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and self._killer is None and not self._reader.at_eof()

    async def run(self, attempt: RunningAttempt, lateness: timedelta, sink: LogSink) -> Ending | None:
        """Execute an attempt in the child. Returns None if the child died before the handler was called."""
        self.runs += 1
        self._token = secrets.token_hex(16)
        tick = min(_REPORT_INTERVAL_SECONDS, (attempt.work.spec.heartbeat or 60.0) / 4)
        self._pipes = pipes = self._open_pipes(attempt) if attempt.output.captures else None
        message = child_protocol.RunMessage(self._token, attempt.work, lateness.total_seconds(), self._limit, tick)
        message.captures = pipes is not None
        self._send(message)
        try:
            return await self._follow(attempt, sink)
        finally:
            if pipes is not None:
                pipes.end()

    async def _follow(self, attempt: RunningAttempt, sink: LogSink) -> Ending | None:
        """Apply the messages of an attempt until it has ended."""
        while (message := await self._receive()) is not None:
            if isinstance(message, child_protocol.EndMessage):
                return message.ending
            self._apply(attempt, message, sink)
        ran = attempt.ran
        reason = await self._wait_for_exit()
        return None if attempt.began_at is None else results.failed_ending("ProcessCrashed", reason, ran=ran)

    def _open_pipes(self, attempt: RunningAttempt) -> OutputPipes | None:
        """Send the child its streams for this attempt. Without them the attempt runs, and its output is not stored."""
        if self._descriptors is None:
            return None
        pipes = None
        try:
            pipes = OutputPipes(attempt.output)
            socket.send_fds(self._descriptors, [b"."], pipes.write_ends)
        except OSError as error:  # out of descriptors, or the child has exited
            log.warning("the output of a child process is not captured", error=str(error), **log_fields(attempt.work))
            if pipes is not None:
                pipes.abandon()
            return None
        pipes.close_write_ends()
        return pipes

    def cancel(self, reason: str) -> None:
        """Send the cancel reason to the child, then kill it."""
        self._send(child_protocol.CancelMessage(self._token, reason))
        self.kill()

    def kill(self) -> None:
        """Send SIGTERM to the child's process group, and SIGKILL after a delay."""
        if self._killer is None:
            self._signal(signal.SIGTERM)
            self._killer = asyncio.get_running_loop().call_later(KILL_AFTER_SECONDS, self._signal, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process and wait until it has exited."""
        self.kill()
        await asyncio.shield(self._reaper)
        self._writer.close()
        if self._descriptors is not None:
            self._descriptors.close()

    async def _wait_until_ready(self) -> None:
        message = await self._receive()
        if isinstance(message, child_protocol.ImportFailedMessage):
            raise ChildStartError(message.error)
        if message is None:
            reason = await self._wait_for_exit()
            raise ChildStartError(results.error_document("ProcessCrashed", f"while importing the app, {reason}"))

    async def _receive(self) -> child_protocol.FromChild | None:
        """Return the next message about this attempt, or None if the child has exited or broken the protocol."""
        try:
            sent = child_protocol.decode_in_parent(await self._reader.readuntil())
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (asyncio.LimitOverrunError, msgspec.DecodeError, UnicodeError):
            self._violation = "garbled its pipe to the worker"  # a handler wrote to the socket
            return None
        if sent.pid != self._process.pid or sent.token != self._token:
            self._violation = "sent a message that does not belong to this attempt"
            return None
        return sent.message

    async def _wait_for_exit(self) -> str:
        """Wait until the process has exited, kill it if necessary, and return the reason in words."""
        if not self._violation:
            await asyncio.wait({self._reaper}, timeout=KILL_AFTER_SECONDS)
        if not self._reaper.done():
            self.kill()
            await asyncio.shield(self._reaper)
            return f"the process {self._violation or 'closed its pipe to the worker'}"
        return _describe_exit(self._process.returncode or 0)

    def _apply(self, attempt: RunningAttempt, message: child_protocol.FromChild, sink: LogSink) -> None:
        if isinstance(message, child_protocol.BeganMessage):
            attempt.begin()
            attempt.called = True
        elif isinstance(message, child_protocol.LogMessage):
            if self._pipes is not None and any(message.unread):
                self._pipes.read_before(message.at, message.unread)
            if message.source is None:
                attempt.control.heartbeat()
                sink(message.level, message.message, message.fields)
            else:
                attempt.output.add(message.level, message.source, message.message, message.fields, echo=message.echo)
        elif isinstance(message, child_protocol.AliveMessage):
            attempt.control.heartbeat()
            if message.progress is not None:
                attempt.control.report_progress(message.progress)

    def _send(self, message: child_protocol.ToChild) -> None:
        if not self._writer.is_closing():
            self._writer.write(child_protocol.encode_line(message))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _reap(self) -> None:
        await self._process.wait()
        # Processes started by the handler would keep the socket open and outlive the attempt.
        self._signal(signal.SIGKILL)
        if self._killer is not None:
            self._killer.cancel()


class ProcessLane:
    """The pool of child processes. Children are started on demand, reused, and replaced after a number of runs."""

    def __init__(
        self,
        size: int,
        *,
        target: str | None,
        limit: int,
        lateness: Callable[[Work], timedelta],
        sink: Callable[[Work], LogSink],
        has_expired: Callable[[Work], bool],
        isolation: IsolationSettings | None = None,
        capture: CaptureSettings | None = None,
    ) -> None:
        self._size = size
        self._capture = capture
        self._isolation = isolation or IsolationSettings()
        self._target = target
        self._limit = limit
        self._lateness = lateness
        self._sink = sink
        self._has_expired = has_expired
        self._places = asyncio.Semaphore(size)
        self._idle: list[ChildProcess] = []
        self._busy: dict[RunningAttempt, ChildProcess] = {}
        self._waiting: set[RunningAttempt] = set()  # for a free child
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stray(self) -> int:
        return 0  # processes can always be killed

    def start(self, attempt: RunningAttempt) -> None:
        attempt.runner = self._spawn(self._run(attempt))

    def stop(self, attempt: RunningAttempt, ending: Ending) -> None:
        if attempt.forced_ending is not None:
            return
        attempt.forced_ending = ending
        child = self._busy.get(attempt)
        if child is None:
            attempt.finish(ending)  # still waiting for a child
        else:
            child.cancel(attempt.control.reason or "the attempt timed out")

    async def close(self) -> None:
        for attempt in self._waiting:
            attempt.runner.cancel()
        for child in self._busy.values():
            child.kill()
        if self._tasks:
            await asyncio.wait(self._tasks)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end() for child in idle))

    async def _run(self, attempt: RunningAttempt) -> None:
        self._waiting.add(attempt)
        try:
            async with self._places:
                if attempt.ended:  # stopped while waiting
                    return
                ending = await self._execute(attempt)
        except ChildStartError as error:
            ending = Ending(outcome=Outcome.FAILED, error=error.error)
        except Exception as error:  # noqa: BLE001 - such as a process that cannot be started
            ending = results.ending_of_error(error)
        finally:
            self._waiting.discard(attempt)
        attempt.finish(ending)

    async def _execute(self, attempt: RunningAttempt) -> Ending:
        for _ in range(2):
            child = await self._child(attempt.work.tenant_id)
            if attempt.forced_ending is not None:
                self._idle.append(child)
                return attempt.forced_ending
            if not attempt.may_start():
                self._idle.append(child)
                return results.not_started_ending()
            if self._has_expired(attempt.work):
                self._idle.append(child)
                return results.expired_ending()
            ending = await self._use(child, attempt)
            if ending is not None:
                return ending
        return results.failed_ending("ProcessCrashed", "the process died twice before the handler was called")

    async def _use(self, child: ChildProcess, attempt: RunningAttempt) -> Ending | None:
        self._waiting.discard(attempt)
        self._busy[attempt] = child
        try:
            ending = await child.run(attempt, self._lateness(attempt.work), self._sink(attempt.work))
        finally:
            del self._busy[attempt]
            if attempt.began_at is not None:  # otherwise another child executes it
                attempt.output.end()
        if attempt.forced_ending is not None:
            await child.end()  # do not settle before the handler has certainly stopped
            return attempt.forced_ending
        if child.is_alive and child.runs < MAX_RUNS_PER_CHILD and not _ran_out_of_memory(ending):
            self._idle.append(child)
        else:
            self._spawn(child.end())
        return ending

    async def _child(self, tenant_id: int) -> ChildProcess:
        """Return a child for runs of this tenant: an idle one, or a new one that may replace another tenant's."""
        owner = None if self._isolation.shared else tenant_id
        for child in reversed(self._idle.copy()):
            if not child.is_alive:
                self._idle.remove(child)
                self._spawn(child.end())
            elif child.tenant_id == owner:
                self._idle.remove(child)
                return child
        while self._idle and len(self._idle) + len(self._busy) >= self._size:
            self._spawn(self._idle.pop(0).end())
        if self._target is None:
            raise ConfigError(
                "this worker cannot start child processes: the location of its app is unknown",
                hint="start the worker with `bellringer worker module:app` or `bellringer worker path/to/file.py`",
            )
        return await ChildProcess.start(self._target, self._limit, self._isolation, owner, self._capture)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _ran_out_of_memory(ending: Ending | None) -> bool:
    """Whether the attempt hit the memory limit; the process is then not reused."""
    return ending is not None and "MemoryError" in (ending.error or {}).get("lineage", ())


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    hint = ", possibly because memory ran out" if -code == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"
