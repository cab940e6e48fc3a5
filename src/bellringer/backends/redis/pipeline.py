"""A pipelined connection to Redis, shared by a process, with a circuit breaker for a Redis that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from bellringer.clock import Clock
from bellringer.errors import ConfigError
from bellringer.telemetry import CACHE_FAILURES, log

T = TypeVar("T")
Command = Sequence[str | bytes | float]

REDIS_TIMEOUT_SECONDS: Final = 0.05  # for a batch of commands
CONNECT_TIMEOUT_SECONDS: Final = 1.0  # requests do not wait for a connection
RETRY_DELAY_SECONDS: Final = 1.0  # after a failure
MAX_PIPELINED_COMMANDS: Final = 500  # per batch
MAX_WAITING_COMMANDS: Final = 20_000
_LATE_REPLY_ITERATIONS: Final = 4  # loop iterations in which a reply that arrived in time can still be processed
FAILURES: Final = (RedisError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError)


class RedisUnavailable(Exception):
    """Redis cannot be used at the moment."""


class RedisPipeline:
    """Sends all commands of one event loop iteration as a batch; commands added meanwhile form the next batch.

    Every new connection first executes the `greeting` commands. Every batch starts with the `proof` commands; if Redis
    rejects one of them, the whole batch fails.
    """

    def __init__(self, url: str, clock: Clock, greeting: Sequence[Command] = (), proof: Sequence[Command] = ()) -> None:
        self._settings = parse_settings(url)
        self._clock = clock
        self._greeting = greeting
        self._proof = proof
        self._connection: AbstractConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._retry_at = float("-inf")

    async def open(self) -> None:
        """Try to connect and wait for the result."""
        self._connect()
        if self._connecting is not None:
            await asyncio.wait({self._connecting})

    async def request(self, *command: str | bytes | float) -> Any:
        """Return the reply. Raises RedisUnavailable on a timeout and ResponseError if Redis rejects the command."""
        if self._connection is None or len(self._waiting) >= MAX_WAITING_COMMANDS:
            self._connect()
            raise RedisUnavailable
        return await self._add(command)

    def send_and_forget(self, *command: str | bytes | float) -> None:
        """Send a command before all later ones and ignore its reply."""
        if self._connection is not None and len(self._waiting) < MAX_WAITING_COMMANDS:
            self._add(command).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _add(self, command: Command) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return reply

    def fail(self, error: BaseException) -> None:
        """Close the connection, fail all waiting commands, and do not connect again for a while."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            _close_soon(connection)
        self._retry_at = self._clock.monotonic() + RETRY_DELAY_SECONDS
        CACHE_FAILURES.inc()
        server = f"{self._settings.get('host', 'localhost')}:{self._settings.get('port', 6379)}"
        more = {"hint": hint} if (hint := _login_hint(error)) else {}
        log.warning("redis failed; retrying in a moment", server=server, error=_describe(error), **more)
        waiting, self._waiting = self._waiting, []
        _fail_all(waiting)

    async def close(self) -> None:
        for task in (self._connecting, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.disconnect(nowait=True)
        waiting, self._waiting = self._waiting, []
        _fail_all(waiting)

    def _connect(self) -> None:
        if self._connecting is None and self._clock.monotonic() >= self._retry_at:
            self._connecting = asyncio.create_task(self._connect_once())

    async def _connect_once(self) -> None:
        connection = make_connection(self._settings)
        try:
            await _within(CONNECT_TIMEOUT_SECONDS, _connect_and_greet(connection, self._greeting))
            self._connection = connection
        except FAILURES as error:
            _close_soon(connection)
            self.fail(error)
        except BaseException:
            _close_soon(connection)
            raise
        finally:
            self._connecting = None

    async def _send(self) -> None:
        try:
            while self._waiting and self._connection is not None:
                batch, self._waiting = self._waiting[:MAX_PIPELINED_COMMANDS], self._waiting[MAX_PIPELINED_COMMANDS:]
                try:
                    commands = [*self._proof, *(command for command, _ in batch)]
                    replies = await _within(REDIS_TIMEOUT_SECONDS, _exchange(self._connection, commands))
                    _check(replies[: len(self._proof)])
                except FAILURES as error:
                    self.fail(error)
                    _fail_all(batch)
                except BaseException:
                    _fail_all(batch)
                    raise
                else:
                    _resolve(batch, replies[len(self._proof) :])
        finally:
            self._sending = None


def parse_settings(url: str) -> dict[str, Any]:
    try:
        return dict(parse_url(url))
    except (ValueError, TypeError) as error:
        message = f"the address of the cache is invalid: {error}"
        raise ConfigError(message, hint="write it like redis://host:6379/0") from None


def make_connection(settings: dict[str, Any]) -> AbstractConnection:
    """Return an unconnected connection without retries and timeouts of its own."""
    kind = settings.get("connection_class", Connection)
    rest = {name: value for name, value in settings.items() if name != "connection_class"}
    made: AbstractConnection = kind(
        **{
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        }
        | rest
    )
    return made


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _login_hint(error: BaseException) -> str:
    if isinstance(error, AuthenticationError | NoPermissionError):
        return "check user, password and ACL in BELLRINGER_CACHE"
    if "certificate" in str(error).lower() or "ssl" in str(error).lower():
        return "check rediss://, ssl_ca_certs, ssl_certfile and ssl_keyfile in BELLRINGER_CACHE"
    return ""


async def _connect_and_greet(connection: AbstractConnection, greeting: Sequence[Command]) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]
    _check(await _exchange(connection, greeting))


def _check(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
    """Send all commands, then read all replies. The reply of a rejected command is its ResponseError."""
    if not commands:
        return []
    if not connection.is_connected:  # the driver would reconnect without the greeting
        raise ConnectionError("the connection is closed")
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Any] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; raise TimeoutError if it takes too long. A reply that arrived in time is still
    processed if the event loop was busy."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(_LATE_REPLY_ITERATIONS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
    except BaseException:
        task.cancel()
        raise
    task.cancel()
    await asyncio.wait({task})
    raise TimeoutError(f"no reply within {seconds:g} s")


def _resolve(batch: Sequence[tuple[Command, asyncio.Future[Any]]], replies: Sequence[Any]) -> None:
    for (_, future), reply in zip(batch, replies, strict=True):
        if future.done():
            continue  # the request was cancelled
        if isinstance(reply, ResponseError):
            future.set_exception(reply)
        else:
            future.set_result(reply)


def _fail_all(batch: Sequence[tuple[Command, asyncio.Future[Any]]]) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(RedisUnavailable())


_closing: Final[set[asyncio.Task[None]]] = set()  # keeps references: the event loop holds tasks only weakly


def _close_soon(connection: AbstractConnection) -> None:
    """Close a connection in the background."""
    task = asyncio.create_task(_close(connection))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close(connection: AbstractConnection) -> None:
    with suppress(*FAILURES):
        await connection.disconnect(nowait=True)
