"""Messages: a task with its arguments and options, ready to be sent as a run without a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from bellringer.core.jobs import (
    DEFAULT_POOL,
    DEFAULT_PRIORITY,
    MAX_RUN_AT_DISTANCE,
    Definition,
    check_instant,
)
from bellringer.core.payload import check_size, decode
from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.run_traces import RunTrace
from bellringer.core.runs import Cause
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import EPOCH

SEND_AHEAD: Final = timedelta(seconds=2)  # a run that is due within this time goes to the queue, a later one to timers
SEND_NOTICE: Final = timedelta(seconds=3)  # schedulers find timers that are due later in time by polling
GRAPH_KEPT: Final = timedelta(days=30)  # graphs without a job are kept this long after a run, and while one is stored
MAX_KEY_CHARACTERS: Final = 255
_CLOCK_TOLERANCE: Final = timedelta(minutes=1)
_NO_ARGS: Final = b'{"args":[],'
_NO_KWARGS: Final = b',"kwargs":{}}'


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageKind:
    """The options that many messages share. They are checked and encoded once."""

    task: str
    pool: str = DEFAULT_POOL
    priority: int = DEFAULT_PRIORITY
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry = field(default_factory=Retry)
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    cause: Cause = Cause.SEND
    expires_in: timedelta | None = None
    graph: int | None = None  # of a workflow run: the version of its graph
    redact: tuple[str, ...] = ()  # paths of values of the payload that are not shown
    options: str = field(init=False, repr=False)  # the fields of the spec that are not arguments, as JSON

    def __post_init__(self) -> None:
        """Raises InvalidInput by the rules for job definitions."""
        definition = Definition(
            name=self.task,
            task=self.task,
            pool=self.pool,
            priority=self.priority,
            timeout=self.timeout,
            heartbeat=self.heartbeat,
            retry=self.retry,
            delivery=self.delivery,
            expires_in=self.expires_in,
            graph=self.graph,
            redact=self.redact,
        )
        try:
            definition.validate(EPOCH)
        except InvalidInput as error:
            error.pointer = error.pointer.replace("/name", "/task")
            raise
        spec = definition.spec()
        if self.expires_in is not None:  # a job has it in a column, a send in its spec
            spec = msgspec.structs.replace(spec, expires_in=self.expires_in.total_seconds())
        object.__setattr__(self, "options", msgspec.json.encode(spec)[1:-1].decode())


class Message(msgspec.Struct, frozen=True):
    """A task with its arguments and the options of one send. `task.message(…)` creates one."""

    kind: MessageKind
    payload: bytes  # the arguments as JSON: {"args":[…],"kwargs":{…}}
    at: datetime | None = None  # None: now, or after the delay
    delay: timedelta | None = None
    key: str | None = None  # a second send of the task with this key within a day returns the first run
    origin: Any = None  # the task of the app that created the message, for chains and groups

    @property
    def task(self) -> str:
        return self.kind.task

    @property
    def args(self) -> list[Any]:
        args: list[Any] = decode(self.payload)["args"]
        return args

    @property
    def kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = decode(self.payload)["kwargs"]
        return kwargs

    def __repr__(self) -> str:
        return f"<message to {self.task}>"

    def check(self, limit: int, now: datetime | None = None) -> None:
        """Raises InvalidInput for a wrong key or too large arguments; with `now`, also for a wrong time."""
        if self.key is not None:
            check_key(self.key)
        if len(self.payload) > limit:
            check_size(self.payload, limit)
        if self.delay is not None and self.delay > MAX_RUN_AT_DISTANCE:
            message = f"the delay of {format_duration(self.delay)} is longer than ten years"
            raise InvalidInput(message, hint="use a shorter delay", pointer="/delay", code="run_at_too_far")
        if now is not None and self.at is not None:
            self.check_time(now)

    def check_time(self, now: datetime) -> None:
        """Raises InvalidInput if the time has passed, or is more than ten years away."""
        try:
            check_instant(self.due(now), now)
        except InvalidInput as error:
            error.pointer = "/delay" if self.at is None else "/at"
            raise

    def due(self, now: datetime) -> datetime:
        """Returns the scheduled time of a run that is created at `now`."""
        if self.at is not None:
            return self.at
        return now + self.delay if self.delay else now

    def may_be_soon(self, host_now: datetime) -> bool:
        """Returns whether the run may be due within SEND_NOTICE; the clock of this host may be a minute off."""
        if self.at is not None:
            return self.at < host_now + _CLOCK_TOLERANCE
        return self.delay is None or self.delay <= SEND_NOTICE

    def spec(self, trace: RunTrace | None = None) -> str:
        """Returns the JSON of `Spec`, with the trace context of the caller. Empty arguments are omitted, as in the
        specs of jobs.
        """
        if trace is None:
            return self._spec()
        return f'{self._spec()[:-1]},"trace":{msgspec.json.encode(trace).decode()}}}'

    def _spec(self) -> str:
        body = self.payload
        if body.startswith(_NO_ARGS):
            body = b"{" + body[len(_NO_ARGS) :]
            if body == b'{"kwargs":{}}':
                return f"{{{self.kind.options}}}"
        elif body.endswith(_NO_KWARGS):
            body = body[: -len(_NO_KWARGS)] + b"}"
        return f"{body[:-1].decode()},{self.kind.options}}}"


def check_key(key: object) -> None:
    """Raises InvalidInput unless a key is text of 1 to 255 characters that the database can store."""
    if not isinstance(key, str):
        raise InvalidInput("key must be text", pointer="/key", code="type")
    if not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidInput(f"key must have 1 to {MAX_KEY_CHARACTERS} characters", pointer="/key", code="limit")
    if "\0" in key:
        raise InvalidInput("key contains a NUL character", pointer="/key", code="nul_character")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("key contains a lone surrogate", pointer="/key", code="encoding") from None
