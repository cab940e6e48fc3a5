"""What an app hands out: tasks to call and send, runs to wait for, jobs to steer.

Every act exists twice, plain and with an `a` before its name for `async def` code; both do the same one thing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, Never, ParamSpec, TypeVar

from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.durations import parse_duration
from bellringer.errors import InvalidInput
from bellringer.jobs import DEFAULT_POOL, Definition
from bellringer.misuse import check_schedules, refuse_unknown
from bellringer.policies import Delivery, Retry
from bellringer.runs import RunKey, Spec, State
from bellringer.schedule import At, Schedule, at
from bellringer.tasks import Duration, Registry, Task, task_from
from bellringer.worker.context import Context
from bellringer.worker.control import Control
from bellringer.worker.work import Work

if TYPE_CHECKING:
    from bellringer.connection import Connection
    from bellringer.desk import Desk
    from bellringer.lifecycle.send import Order
    from bellringer.store.jobs import Job
    from bellringer.store.runs import Run

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: Final = ("at", "delay", "delivery", "key", "pool", "priority", "retry", "timeout")
_DATE: Final = re.compile(r"\d{4}-")


class TaskHandle(Generic[P, R]):
    """A task of an app. Called, it runs here and now, as the plain function that it is; sent, a worker runs it."""

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
        timeout: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str | None = None,
        **unknown: Never,
    ) -> Prepared[P]:
        """The same task with other choices, for one send or job: `charge.options(delay="5m").send(7)`.

        With a `key`, a second send of the tenant with the same key within a day of the first makes no new run,
        but answers the first, with `created` False.
        """
        refuse_unknown(unknown, _OPTIONS, of="options")
        if at is not None and delay is not None:
            raise InvalidInput("at and delay cannot both be given", pointer="/delay", code="choice")
        choices = {"priority": priority, "pool": pool, "timeout": timeout, "retry": retry, "delivery": delivery}
        return Prepared(
            _with_choices(self.task, {name: value for name, value in choices.items() if value is not None}),
            self._connection,
            at=_instant(at),
            delay=None if delay is None else parse_duration(delay, what="delay"),
            key=key,
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

    def send(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return self.connection.run(self._send(args, kwargs), instead="`await ….asend(…)`")

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle:
        return await self.connection.call(self._send(args, kwargs))

    def schedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        self.connection.run(lambda desk: desk.schedule(definition), instead="`await ….aschedule(…)`")
        return JobHandle(id, self.connection)

    async def aschedule(self, schedule: Schedule, /, *args: Any, id: str, **kwargs: Any) -> JobHandle:  # noqa: A002
        definition = self._definition(schedule, id, args, kwargs)
        await self.connection.call(lambda desk: desk.schedule(definition))
        return JobHandle(id, self.connection)

    def _send(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[Desk], Any]:
        placed, named = self.task.bind(args, kwargs)  # a mistake is said here, whether or not a database is there

        async def send(desk: Desk) -> RunHandle:
            sent = await desk.send(_order(self, placed, named), self.delay)
            return RunHandle(sent.key, self.connection, created=sent.created)

        return send

    def _definition(
        self, schedule: Schedule, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Definition:
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
        return definition_of(self.task, name=name, schedules=(schedule,), args=placed, kwargs=named)


class RunHandle:
    """One run: ask what became of it, wait for it, stop it."""

    def __init__(self, key: RunKey, connection: Connection, *, created: bool = True) -> None:
        self.key = key
        self.created = created
        self._connection = connection

    @property
    def id(self) -> str:
        return self.key.id

    def get(self) -> Run:
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> Run:
        return await self._connection.call(self._get)

    def state(self) -> State:
        return self.get().state

    async def astate(self) -> State:
        return (await self.aget()).state

    def wait(self, timeout: Duration | None = None) -> State:
        """Wait until it has ended; answers how. Raises TimeoutError."""
        return self._connection.run(self._end(timeout), instead="`await ….await_end()`").state

    async def await_end(self, timeout: Duration | None = None) -> State:
        return (await self._connection.call(self._end(timeout))).state

    def result(self, timeout: Duration | None = None) -> Any:
        """What the task returned, as JSON keeps it. Raises RunFailed with the remote error, or TimeoutError."""
        return self._connection.run(self._result(timeout), instead="`await ….aresult()`")

    async def aresult(self, timeout: Duration | None = None) -> Any:
        return await self._connection.call(self._result(timeout))

    def cancel(self, reason: str = "cancelled by its sender") -> State:
        """Cancel it: `cancelled` if it had not begun, `running` while it is being asked to stop."""
        return self._connection.run(self._cancel(reason), instead="`await ….acancel()`")

    async def acancel(self, reason: str = "cancelled by its sender") -> State:
        return await self._connection.call(self._cancel(reason))

    def _get(self, desk: Desk) -> Any:
        return desk.run(self.key)

    def _end(self, timeout: Duration | None) -> Callable[[Desk], Any]:
        seconds = _seconds(timeout)
        return lambda desk: desk.end(self.key, seconds)

    def _result(self, timeout: Duration | None) -> Callable[[Desk], Any]:
        seconds = _seconds(timeout)
        return lambda desk: desk.result(self.key, seconds)

    def _cancel(self, reason: str) -> Callable[[Desk], Any]:
        return lambda desk: desk.cancel(self.key, reason)

    def __repr__(self) -> str:
        return f"<{self.id}>"


class JobHandle:
    """One job, by its name: the whole of it, or the last part where only one declared job ends so."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        *,
        registry: Registry | None = None,
        declared: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._connection = connection
        self._registry = registry or Registry()
        self._declared = declared

    def get(self) -> Job:
        return self._connection.run(self._get, instead="`await ….aget()`")

    async def aget(self) -> Job:
        return await self._connection.call(self._get)

    def runs(self, limit: int = 50) -> list[Run]:
        """Its newest runs, the newest first."""
        return self._connection.run(partial(self._runs, limit), instead="`await ….aruns()`")

    async def aruns(self, limit: int = 50) -> list[Run]:
        return await self._connection.call(partial(self._runs, limit))

    def pause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        """Fire nothing more and hold what waits, until resumed or until then: a time, or so long from now."""
        self._connection.run(self._pause(reason, until), instead="`await ….apause()`")

    async def apause(self, reason: str | None = None, until: Duration | datetime | None = None) -> None:
        await self._connection.call(self._pause(reason, until))

    def resume(self) -> None:
        """Go on from now; what was missed stays missed."""
        self._connection.run(self._resume, instead="`await ….aresume()`")

    async def aresume(self) -> None:
        await self._connection.call(self._resume)

    def trigger(self, **kwargs: Any) -> RunHandle:
        """Run it now, whatever its schedule says; arguments hold for this run alone."""
        return self._connection.run(partial(self._trigger, kwargs), instead="`await ….atrigger()`")

    async def atrigger(self, **kwargs: Any) -> RunHandle:
        return await self._connection.call(partial(self._trigger, kwargs))

    def delete(self) -> None:
        """End its future; what runs finishes, and its history stays."""
        self._connection.run(self._delete, instead="`await ….adelete()`")

    async def adelete(self) -> None:
        await self._connection.call(self._delete)

    async def _get(self, desk: Desk) -> Job:
        return await desk.job(await desk.find(self.name, self._declared))

    async def _runs(self, limit: int, desk: Desk) -> list[Run]:
        return await desk.runs_of(await desk.find(self.name, self._declared), limit)

    def _pause(self, reason: str | None, until: Duration | datetime | None) -> Callable[[Desk], Any]:
        end = _until(until)

        async def pause(desk: Desk) -> None:
            await desk.pause(await desk.find(self.name, self._declared), reason, end)

        return pause

    async def _resume(self, desk: Desk) -> None:
        await desk.resume(await desk.find(self.name, self._declared))

    async def _trigger(self, kwargs: Mapping[str, Any], desk: Desk) -> RunHandle:
        job_id = await desk.find(self.name, self._declared)
        return RunHandle(await desk.trigger(job_id, kwargs, self._registry), self._connection)

    async def _delete(self, desk: Desk) -> None:
        await desk.delete(await desk.find(self.name, self._declared))

    def __repr__(self) -> str:
        return f"<job {self.name!r}>"
