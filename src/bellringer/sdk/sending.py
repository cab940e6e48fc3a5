"""Tasks as an app hands them out: plain functions when called, durable runs when sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.jobs import Definition
from bellringer.policies import Delivery, Retry
from bellringer.runs import RunKey, Spec
from bellringer.schedule import At, Schedule
from bellringer.schedule.instants import read_instant
from bellringer.sdk.handles import JobHandle, RunHandle
from bellringer.sdk.misuse import check_schedules, refuse_unknown
from bellringer.sdk.policies import POLICIES, Policies, read_policies
from bellringer.tasks import Duration, Registry, Task, task_from
from bellringer.worker.context import Context
from bellringer.worker.control import Control
from bellringer.worker.work import Work

if TYPE_CHECKING:
    from bellringer.lifecycle.send import Order
    from bellringer.sdk.connection import Act, Connection
    from bellringer.sdk.desk import Desk

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: Final = (
    "at", "delay", "delivery", "expected_duration", "key", "pool", "priority", "retry", "timeout", *POLICIES,
)  # fmt: skip


class TaskHandle(Generic[P, R]):
    """A task of an app. Called, it runs here and now, like any function; sent, a worker runs it."""

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, task: Task, connection: Connection) -> None:
        self.task = task
        self._connection = connection
        update_wrapper(self, task.function)

    @property
    def name(self) -> str:
        return self.task.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it locally; a function that takes a context gets one, unless it is given one."""
        given = any(isinstance(value, Context) for value in (*args[:1], *kwargs.values()))
        head = [local_context(self.task)] if self.task.wants_context and not given else []
        answer: R = self.task.function(*head, *args, **kwargs)
        return answer

    def send(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        """Let a worker run it, now. When this returns, the run survives any crash."""
        return self.options().send(*args, **kwargs)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return await self.options().asend(*args, **kwargs)

    def schedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        """Make it a job of that name: a new one, or in place of the one that has the name."""
        return self.options().schedule(schedule, *args, id=id, **kwargs)

    async def aschedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
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
        **policies: Unpack[Policies],
    ) -> Prepared[P]:
        """The same task with other choices, for one send or job: `charge.options(delay="5m").send(7)`, or
        `sync.options(overlap="queue").schedule(every("1m"), id="sync")`.

        With a `key`, a second send with the same key, within a day of the first and in the same tenant, makes
        no new run but answers the first, with `created` False.
        """
        refuse_unknown({name: 1 for name in policies if name not in POLICIES}, _OPTIONS, of="options")
        if at is not None and delay is not None:
            raise InvalidInput("at and delay cannot both be given", pointer="/delay", code="choice")
        choices = {
            "priority": priority,
            "pool": pool,
            "expected_duration": expected_duration,
            "timeout": timeout,
            "retry": retry,
            "delivery": delivery,
        }
        return Prepared(
            _with_choices(self.task, {name: value for name, value in choices.items() if value is not None}),
            self._connection,
            at=_instant(at),
            delay=None if delay is None else parse_duration(delay, what="delay"),
            key=key,
            policies=read_policies(policies),
        )

    def __repr__(self) -> str:
        return f"<task {self.name}>"


@dataclass(frozen=True, slots=True)
class Prepared(Generic[P]):
    """A task with the choices of one send."""

    task: Task
    connection: Connection
    at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    policies: Mapping[str, Any] = field(default_factory=dict)  # of a job

    def send(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return self.connection.run(self._send(args, kwargs), instead="`await ….asend(…)`")

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return await self.connection.call(self._send(args, kwargs))

    def schedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        self.connection.run(lambda desk: desk.schedule(definition), instead="`await ….aschedule(…)`")
        return self._job(id)

    async def aschedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        await self.connection.call(lambda desk: desk.schedule(definition))
        return self._job(id)

    def _send(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Act[RunHandle]:
        """A mistake in the arguments is told here, whether or not there is a database."""
        placed, named = self.task.bind(args, kwargs)
        for option in self.policies:
            message = f"{option} is an option of a job, not of a send"
            raise InvalidInput(message, hint="give it to schedule(…)", pointer=f"/{option}", code="choice")

        async def send(desk: Desk) -> RunHandle:
            sent = await desk.send(self._order(placed, named), self.delay)
            return RunHandle(sent.key, self.connection, created=sent.created)

        return send

    def _order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Order:
        from bellringer.lifecycle.send import Order  # noqa: PLC0415 - heavy, and here already when a desk is

        task = self.task
        return Order(
            task=task.name,
            args=args,
            kwargs=kwargs,
            at=self.at,
            pool=task.goes_to,
            priority=task.priority,
            timeout=task.timeout,
            heartbeat=task.heartbeat,
            retry=task.retry,
            delivery=task.delivery,
            key=self.key,
        )

    def _job(self, name: str) -> JobHandle:
        registry = Registry()
        registry.add(self.task)
        return JobHandle(name, self.connection, registry)

    def _definition(self, schedule: Schedule, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Definition:
        for option in ("at", "delay", "key"):
            if getattr(self, option) is not None:
                raise InvalidInput(
                    f"{option} is an option of a send, not of a job",
                    hint=f"give schedule({option}(…), …)" if option != "key" else "its id is its key",
                    pointer=f"/{option}",
                    code="choice",
                )
        check_schedules((schedule,), of="schedule")
        placed, named = self.task.bind(args, kwargs)
        return definition_of(self.task, name=name, schedules=(schedule,), args=placed, kwargs=named, **self.policies)


def definition_of(task: Task, **of_job: Any) -> Definition:
    """A job of this task: what the job does not choose, the task has chosen."""
    tags = tuple(dict.fromkeys([*task.tags, *of_job.pop("tags", ())]))
    return Definition(
        task=task.name,
        pool=task.goes_to,
        priority=task.priority,
        timeout=task.timeout,
        heartbeat=task.heartbeat,
        retry=task.retry,
        delivery=task.delivery,
        tags=tags,
        expected_duration=task.expected_duration,
        routed=task.pool is None,
        **of_job,
    )


def local_context(task: Task) -> Context:
    """What a handler gets when it is called as a plain function: a first attempt, on time."""
    clock = SystemClock()
    now = clock.now()
    work = Work(
        key=RunKey(uuid7(), now),
        attempt=1,
        spent=1,
        task=task.name,
        spec=Spec(),
        claimed_at=now,
        pool=task.goes_to,
    )
    log = logging.getLogger(task.name)

    def sink(level: str, message: str, fields: dict[str, Any] | None) -> None:
        shown = "".join(f" {name}={value!r}" for name, value in (fields or {}).items())
        log.log(logging.getLevelNamesMapping()[level.upper()], "%s%s", message, shown)

    return Context(work, Control(work, clock.monotonic), lateness=timedelta(0), sink=sink)


def _with_choices(task: Task, choices: Mapping[str, Any]) -> Task:
    """Held to the same rules, in the same words, as the options of @app.task."""
    if not choices:
        return task
    checked = task_from(_nothing, name=task.name, **choices)
    return replace(task, **{name: getattr(checked, name) for name in choices})


def _nothing() -> None:
    """Stands for the function while options are checked."""


def _instant(value: datetime | str | At | None) -> datetime | None:
    if value is None or isinstance(value, At):
        return value.instant if value else None
    return read_instant(value, what="at", pointer="/at")
