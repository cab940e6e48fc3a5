"""Handles of tasks: called like a function, they run locally; sent, they run on a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.messages import Message, MessageKind
from bellringer.core.policies import After, Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, Spec
from bellringer.core.tasks import Duration, Registry, Task, make_task
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.schedule import At, Schedule
from bellringer.schedule.instants import read_instant
from bellringer.sdk.handles import JobHandle, RunHandle
from bellringer.sdk.nodes import refuse_deadline
from bellringer.sdk.policies import POLICIES, Policies, read_policies, split_triggers
from bellringer.sdk.usage_errors import refuse_unknown
from bellringer.worker.attempt import Control, Work
from bellringer.worker.context import Context

if TYPE_CHECKING:
    from bellringer.sdk.connection import ServiceCall, ServiceConnection
    from bellringer.sdk.service import Service

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

BulkItem = Mapping[str, Any] | Sequence[Any] | Message  # named arguments, positional arguments, or both and options

_OPTIONS: Final = (
    "at", "delay", "delivery", "expected_duration", "expires_in", "key", "pool", "priority", "retry", "timeout",
    *POLICIES,
)  # fmt: skip


class TaskHandle(Generic[P, R]):
    """A task of an app.

    charge(order=7)  # call the function locally
    charge.send(order=7)  # run it on a worker
    charge.options(delay="5m", key="order-7").send(order=7)
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, task: Task, connection: ServiceConnection) -> None:
        self.task = task
        self._connection = connection
        self._plain: Prepared[P] | None = None
        update_wrapper(self, task.function)

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function locally. A context is created for functions that take one, unless it is passed."""
        given = any(isinstance(value, Context) for value in (*args[:1], *kwargs.values()))
        head = [local_context(self.task)] if self.task.wants_context and not given else []
        returned: R = self.task.function(*head, *args, **kwargs)
        return returned

    def send(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Run the task on a worker. When `send` returns, the run is stored and survives any crash."""
        return self._prepared().send(*args, **kwargs)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return await self._prepared().asend(*args, **kwargs)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """Check the arguments and return them as a message for `send_many`."""
        return self._prepared().message(*args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Step:
        """Return a step of a `chain` or `group`. In a chain, the result of the step before it is the first argument,
        and these arguments follow.
        """
        return self._prepared().step(*args, **kwargs)

    @overload
    def send_many(self, items: Iterable[BulkItem], *, atomic: Literal[True] = True) -> list[RunHandle]: ...
    @overload
    def send_many(self, items: Iterable[BulkItem], *, atomic: bool) -> list[RunHandle | InvalidInput]: ...
    def send_many(self, items: Iterable[BulkItem], *, atomic: bool = True) -> Any:
        """Run the task on workers, once for each item: a dict of named arguments, a list or tuple of positional ones,
        or a message of this task with options of its own.

            resize.send_many({"photo": photo} for photo in photos)
            resize.send_many(resize.options(key=photo, delay="5m").message(photo) for photo in photos)

        Returns the runs in the order of the items. All are stored, or none: InvalidItems lists every invalid item. With
        `atomic=False`, the valid items are stored, and the list has an InvalidInput for each other one.
        """
        return self._connection.run(self._send_many(items, atomic), instead="`await ….asend_many(…)`")

    @overload
    async def asend_many(self, items: Iterable[BulkItem], *, atomic: Literal[True] = True) -> list[RunHandle]: ...
    @overload
    async def asend_many(self, items: Iterable[BulkItem], *, atomic: bool) -> list[RunHandle | InvalidInput]: ...
    async def asend_many(self, items: Iterable[BulkItem], *, atomic: bool = True) -> Any:
        return await self._connection.call(self._send_many(items, atomic))

    def schedule(self, schedule: Schedule | After, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        """Create or replace the job `id`, which runs the task: `sync.schedule(every("1h"), id="sync")`."""
        return self.options().schedule(schedule, *args, id=id, **kwargs)

    async def aschedule(self, schedule: Schedule | After, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        return await self.options().aschedule(schedule, *args, id=id, **kwargs)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | str | At | None = None,
        key: str | None = None,
        priority: int | None = None,
        pool: str | None = None,
        expected_duration: Duration | None = None,
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        expires_in: Duration | None = None,
        **policies: Unpack[Policies],
    ) -> Prepared[P]:
        """Override options for one send or job: `charge.options(delay="5m").send(7)`, or
        `sync.options(overlap="queue").schedule(every("1m"), id="sync")`.

        `key` makes a send idempotent: another send with the same key in the same tenant within a day creates no run,
        and returns the first run with `created` set to False. A run that has not started `expires_in` after its
        scheduled time never runs: it ends as skipped.
        """
        refuse_unknown({name: 1 for name in policies if name not in POLICIES}, _OPTIONS, of="options")
        if at is not None and delay is not None:
            raise InvalidInput("at and delay are both given", pointer="/delay", code="choice")
        choices = {
            "priority": priority,
            "pool": pool,
            "expected_duration": expected_duration,
            "timeout": timeout,
            "retry": retry,
            "delivery": delivery,
            "expires_in": expires_in,
        }
        chosen = {name: value for name, value in choices.items() if value is not None}
        return Prepared(
            _with_options(self.task, chosen),
            self._connection,
            at=_instant(at),
            delay=None if delay is None else parse_duration(delay, what="delay"),
            key=key,
            policies=read_policies(policies),
            plain=None if chosen else self._prepared(),
        )

    def _prepared(self) -> Prepared[P]:
        """The task without options of a send, prepared once."""
        if self._plain is None or self._plain.task is not self.task:
            self._plain = Prepared(self.task, self._connection)
        return self._plain

    def _send_many(self, items: Iterable[BulkItem], atomic: bool) -> ServiceCall[list[RunHandle | InvalidInput]]:
        return send_items(self._connection, list(items), self._prepared().message_of, atomic=atomic)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


@dataclass(frozen=True)
class Prepared(Generic[P]):
    """A task with the options of one send or job."""

    task: Task
    connection: ServiceConnection
    at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    policies: Mapping[str, Any] = field(default_factory=dict)  # options of a job
    plain: Prepared[P] | None = None  # the task without options, if these do not change its kind of message

    @cached_property
    def kind(self) -> MessageKind:
        task = self.task
        return (
            MessageKind(
                task=task.name,
                pool=task.effective_pool,
                priority=task.priority,
                timeout=task.timeout,
                heartbeat=task.heartbeat,
                retry=task.retry,
                delivery=task.delivery,
                expires_in=task.expires_in,
                redact=task.redact,
            )
            if self.plain is None
            else self.plain.kind
        )

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """Check the arguments and return them with these options as a message for `send_many`."""
        return self._message(args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Step:
        """Return a step of a `chain` or `group` with these options."""
        for option in ("at", "delay", "key"):
            if getattr(self, option) is not None:
                message, hint = (
                    f"{option} is not an option of a step",
                    f"use it for the whole: chain(…).options({option}=…)",
                )
                raise InvalidInput(message, hint=hint, pointer=f"/{option}", code="choice")
        refuse_deadline(self.task)
        self._refuse_policies()
        return Step(self.task, self.connection, args, kwargs)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return self.connection.run(self._send(args, kwargs), instead="`await ….asend(…)`")

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return await self.connection.call(self._send(args, kwargs))

    def schedule(self, schedule: Schedule | After, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        self.connection.run(lambda service: service.schedule(definition), instead="`await ….aschedule(…)`")
        return self._job(id)

    async def aschedule(self, schedule: Schedule | After, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        await self.connection.call(lambda service: service.schedule(definition))
        return self._job(id)

    def _send(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ServiceCall[RunHandle]:
        """Check the arguments now, before connecting to the database."""
        message = self._message(args, kwargs)

        async def send(service: Service) -> RunHandle:
            sent = await service.send(message)
            return RunHandle(sent.key, self.connection, created=sent.created)

        return send

    def _message(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Message:
        payload = self.task.encode(args, kwargs)
        self._refuse_policies()
        return Message(self.kind, payload, self.at, self.delay or None, self.key, self)

    def _refuse_policies(self) -> None:
        for option in self.policies:
            message = f"{option} is an option of a job, not of a send"
            raise InvalidInput(message, hint="use it with schedule(…)", pointer=f"/{option}", code="choice")

    def message_of(self, item: BulkItem) -> Message:
        """Return the message of an item of a bulk."""
        if isinstance(item, Mapping):
            return self._message((), item)
        if isinstance(item, list | tuple):
            return self._message(item, {})
        message = check_message(item, hint="pass a dict of named arguments, a list or tuple, or a message")
        if message.task != self.task.name:
            hint = "send messages of several tasks with app.send_many(…)"
            raise InvalidInput(f"the message is one of the task {message.task}", hint=hint, code="choice")
        return message

    def _job(self, name: str) -> JobHandle:
        registry = Registry()
        registry.add(self.task)
        return JobHandle(name, self.connection, registry)

    def _definition(
        self, schedule: Schedule | After, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Definition:
        for option in ("at", "delay", "key"):
            if getattr(self, option) is not None:
                raise InvalidInput(
                    f"{option} is an option of a send, not of a job",
                    hint=f"pass it as a schedule: schedule({option}(…), …)"
                    if option != "key"
                    else "the id of a job is its key",
                    pointer=f"/{option}",
                    code="choice",
                )
        triggers = split_triggers((schedule,), of="schedule")
        positional, named = self.task.bind(args, kwargs)
        return definition_of(self.task, name=name, args=positional, kwargs=named, **triggers, **self.policies)


@dataclass(frozen=True)
class Step:
    """A task with some of its arguments, as a step of a chain or a member of a group."""

    task: Task
    connection: ServiceConnection
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    takes_input: bool = True

    def without_input(self) -> Step:
        """Return a step that does not get the result of the step before it."""
        return replace(self, takes_input=False)


def definition_of(task: Task, **of_job: Any) -> Definition:
    """Build a job definition; the options of the task are the defaults."""
    tags = tuple(dict.fromkeys([*task.tags, *of_job.pop("tags", ())]))
    of_job.setdefault("expires_in", task.expires_in)
    return Definition(
        task=task.name,
        pool=task.effective_pool,
        priority=task.priority,
        timeout=task.timeout,
        heartbeat=task.heartbeat,
        retry=task.retry,
        delivery=task.delivery,
        keep_result=task.keep_result,
        redact=task.redact,
        tags=tags,
        expected_duration=task.expected_duration,
        routed=task.pool is None,
        **of_job,
    )


def send_items(
    connection: ServiceConnection, items: Sequence[T], read: Callable[[T], Message], *, atomic: bool
) -> ServiceCall[list[RunHandle | InvalidInput]]:
    """Send a bulk. Its items are read while the database writes those before them, unless some have keys."""

    def message_of(item: T) -> Message | InvalidInput:
        try:
            return read(item)
        except InvalidInput as error:
            return error

    async def send(service: Service) -> list[RunHandle | InvalidInput]:
        from bellringer.engine.send import lock_order  # noqa: PLC0415 - a slow import that is only needed here

        if any(isinstance(item, Message) and item.key is not None for item in items):
            sent = await service.send_many(lock_order([message_of(item) for item in items]), atomic=atomic)
        else:
            sent = await service.send_many(((n, message_of(item)) for n, item in enumerate(items)), atomic=atomic)
        return [
            result if isinstance(result, InvalidInput) else RunHandle(result.key, connection, created=result.created)
            for result in sent
        ]

    return send


def check_message(item: object, *, hint: str) -> Message:
    """Return an item that is a message. Raises InvalidInput for anything else."""
    if not isinstance(item, Message):
        message = f"an item must be a message, not {type(item).__name__}"
        raise InvalidInput(message, hint=hint, code="type")
    return item


def local_context(task: Task) -> Context:
    """The context of a local call: the first attempt of a run that is on time."""
    clock = SystemClock()
    now = clock.now()
    work = Work(
        key=RunKey(uuid7(), now),
        attempt=1,
        spent=1,
        task=task.name,
        spec=Spec(),
        claimed_at=now,
        pool=task.effective_pool,
    )
    log = logging.getLogger(task.name)

    def sink(level: str, message: str, fields: dict[str, Any] | None) -> None:
        shown = "".join(f" {name}={value!r}" for name, value in (fields or {}).items())
        log.log(logging.getLevelNamesMapping()[level.upper()], "%s%s", message, shown)

    return Context(work, Control(work, clock.monotonic), lateness=timedelta(0), sink=sink)


def _with_options(task: Task, choices: Mapping[str, Any]) -> Task:
    """Apply options, with the same checks and errors as @app.task."""
    if not choices:
        return task
    checked = make_task(_placeholder, name=task.name, **choices)
    return replace(task, **{name: getattr(checked, name) for name in choices})


def _placeholder() -> None:
    """A placeholder function for checking options."""


def _instant(value: datetime | str | At | None) -> datetime | None:
    if value is None or isinstance(value, At):
        return value.instant if value else None
    return read_instant(value, what="at", pointer="/at")
