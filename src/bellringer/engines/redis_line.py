"""One connection to Redis for all that a process asks of it, and a breaker that leaves a Redis in trouble alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from bellringer.clock import Clock
from bellringer.errors import ConfigError
from bellringer.telemetry import CACHE_FAILURES, log

T = TypeVar("T")
Command = Sequence[str | bytes | float]

PATIENCE: Final = 0.05  # seconds for all that is asked at once
CONNECTING: Final = 1.0  # seconds; nobody waits for it
REST: Final = 1.0  # seconds for which Redis is left alone after a failure
MOST: Final = 500  # commands that go out together
MOST_WAITING: Final = 20_000
_TURNS: Final = 4  # of the loop, in which an answer that has arrived in time is taken up
FAILURES: Final = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError)


class Away(Exception):
    """Redis is not to be had now."""


class Line:
    """What is asked in one turn of the loop goes out together, and what is asked meanwhile, after it.

    Each connection begins with a greeting, so that nothing is read of a Redis that came back before it has heard it;
    and all that goes out begins with a proof, whose refusal is a failure of the rest too.
    """

    def __init__(self, url: str, clock: Clock, greeting: Sequence[Command] = (), proof: Sequence[Command] = ()) -> None:
        self._settings = settings_of(url)
        self._clock = clock
        self._greeting = greeting
        self._proof = proof
        self._connection: AbstractConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._quiet_until = float("-inf")

    async def open(self) -> None:
        """Try to connect; whoever asks before that is done is told that Redis is away."""
        self._connect()
        if self._connecting is not None:
            await asyncio.wait({self._connecting})

    async def ask(self, *command: str | bytes | float) -> Any:
        """The reply; Away where it does not come in time, ResponseError where Redis refuses the command."""
        if self._connection is None or len(self._waiting) >= MOST_WAITING:
            self._connect()
            raise Away
        return await self._add(command)

    def post(self, *command: str | bytes | float) -> None:
        """Send it, before all that is asked later; what becomes of it does not matter."""
        if self._connection is not None and len(self._waiting) < MOST_WAITING:
            self._add(command).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _add(self, command: Command) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return reply

    def fail(self, error: BaseException) -> None:
        """Leave Redis alone for a while; the next connection begins with the greeting."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            _drop(connection)
        self._quiet_until = self._clock.monotonic() + REST
        CACHE_FAILURES.inc()
        log.warning("redis is left alone for a moment", error=f"{type(error).__name__}: {error}"[:200])
        waiting, self._waiting = self._waiting, []
        _refuse(waiting)

    async def close(self) -> None:
        for task in (self._connecting, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
        waiting, self._waiting = self._waiting, []
        _refuse(waiting)

    def _connect(self) -> None:
        if self._connecting is None and self._clock.monotonic() >= self._quiet_until:
            self._connecting = asyncio.create_task(self._connect_once())

    async def _connect_once(self) -> None:
        connection = connection_of(self._settings)
        try:
            await _within(CONNECTING, _greeted(connection, self._greeting))
            self._connection = connection
        except FAILURES as error:
            _drop(connection)
            self.fail(error)
        except BaseException:
            _drop(connection)
            raise
        finally:
            self._connecting = None

    async def _send(self) -> None:
        try:
            while self._waiting and self._connection is not None:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                try:
                    commands = [*self._proof, *(command for command, _ in batch)]
                    replies = await _within(PATIENCE, _exchange(self._connection, commands))
                    _check(replies[: len(self._proof)])
                except FAILURES as error:
                    self.fail(error)
                    _refuse(batch)
                except BaseException:
                    _refuse(batch)
                    raise
                else:
                    _hand_out(batch, replies[len(self._proof) :])
        finally:
            self._sending = None


def settings_of(url: str) -> dict[str, Any]:
    try:
        return dict(parse_url(url))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the cache's address cannot be read: {error}", hint="as redis://host:6379/0") from None


def connection_of(settings: dict[str, Any]) -> AbstractConnection:
    """Not connected yet; it neither repeats what failed nor waits by itself."""
    kind = settings.get("connection_class", Connection)
    rest = {name: value for name, value in settings.items() if name != "connection_class"}
    made: AbstractConnection = kind(
        **{"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": None, "socket_connect_timeout": CONNECTING}
        | rest
    )
    return made


async def _greeted(connection: AbstractConnection, greeting: Sequence[Command]) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]
    _check(await _exchange(connection, greeting))


def _check(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
    """Send all, then read all; a command that is refused has the error as its reply."""
    if not commands:
        return []
    if not connection.is_connected:  # it would connect anew by itself, and the greeting would be missing
        raise ConnectionError("the connection is gone")
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Its result, if it comes in time. A loop that was busy with others meanwhile takes up first what has arrived."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
    except BaseException:
        task.cancel()
        raise
    task.cancel()
    await asyncio.wait({task})
    raise TimeoutError(f"no answer within {seconds:g} s")


def _hand_out(batch: Sequence[tuple[Command, asyncio.Future[Any]]], replies: Sequence[Any]) -> None:
    for (_, future), reply in zip(batch, replies, strict=True):
        if future.done():
            continue  # who asked has gone
        if isinstance(reply, ResponseError):
            future.set_exception(reply)
        else:
            future.set_result(reply)


def _refuse(batch: Sequence[tuple[Command, asyncio.Future[Any]]]) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(Away())


_ending: Final[set[asyncio.Task[None]]] = set()  # the loop alone would let go of them


def _drop(connection: AbstractConnection) -> None:
    """End it at once, without waiting for the other side."""
    task = asyncio.create_task(_end(connection))
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _end(connection: AbstractConnection) -> None:
    with suppress(*FAILURES):
        await connection.disconnect(nowait=True)
