"""An app: the tasks of a program, the schedules that it declares, and its way to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from bellringer.clock import SystemClock
from bellringer.errors import Conflict, InvalidInput
from bellringer.jobs import BUILT_IN, DEFAULT_PRIORITY, Definition, check_name
from bellringer.policies import Delivery, Retry
from bellringer.schedule import Schedule
from bellringer.sdk.arguments import bind, by_name, takes_workflow
from bellringer.sdk.connection import Connection
from bellringer.sdk.handles import Jobs, Runs
from bellringer.sdk.misuse import check_schedules, refuse_unknown
from bellringer.sdk.policies import POLICIES, Policies, read_policies
from bellringer.sdk.sending import TaskHandle, definition_of
from bellringer.sdk.workflows import Declares, WorkflowHandle
from bellringer.tasks import Duration, Isolation, Registry, Task, task_from
from bellringer.worker.context import Context

P = ParamSpec("P")
R = TypeVar("R")

_TASK: Final = (
    "delivery", "expected_duration", "heartbeat", "isolation", "name", "pool", "priority", "retry", "tags", "timeout",
)  # fmt: skip
_WORKFLOW: Final = ("max_parallel", "name", "pool", "priority", "tags", "timeout")
_SCHEDULE: Final = ("args", "kwargs", "name", "tags", *POLICIES)


class MakesTask(Protocol):
    """A decorator that makes a task of a function, with its context or without, or of what is one already."""

    @overload
    def __call__(self, function: WorkflowHandle, /) -> WorkflowHandle: ...
    @overload
    def __call__(self, function: TaskHandle[P, R], /) -> TaskHandle[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> TaskHandle[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskHandle[P, R]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """One use of @app.schedule. The task is asked late: a decorator above may still give it options."""

    handle: TaskHandle[..., Any] | WorkflowHandle
    name: str | None
    of_job: Mapping[str, Any]

    def definition(self) -> Definition:
        if isinstance(self.handle, WorkflowHandle):
            return self.handle.definition(name=self.name or self.handle.name, **self.of_job)
        task = self.handle.task
        return definition_of(task, name=self.name or task.name, owner="code", **self.of_job)


class App:
    """The tasks of one program, as one tenant. It connects at the first use, and again after a fork.

    The database is the one given, or that of BELLRINGER_DSN, or that of a `bellringer dev` in this folder.
    """

    def __init__(self, dsn: str | None = None, *, tenant: str = "default", name: str | None = None) -> None:
        self.registry = Registry()
        self.connection = Connection(dsn, tenant=tenant, name=name or "bellringer app")
        self.jobs = Jobs(self.connection, self.registry, lambda: [d.name for d in self.definitions()])
        self.runs = Runs(self.connection)
        self._declared: list[_Declared] = []
        self._workflows: list[WorkflowHandle] = []

    @property
    def dsn(self) -> str:
        """Where its database is; raises ConfigError if nobody has said."""
        return self.connection.dsn

    @property
    def tenant(self) -> str:
        return self.connection.tenant

    @property
    def name(self) -> str:
        return self.connection.name

    # Declaring

    @overload
    def task(self, function: TaskHandle[P, R], /) -> TaskHandle[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> TaskHandle[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskHandle[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        pool: str | None = None,
        expected_duration: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        timeout: Duration | None = None,
        heartbeat: Duration | None = None,
        retry: Retry | int | None = None,
        delivery: Delivery | str = Delivery.AT_LEAST_ONCE,
        isolation: Isolation = "auto",
        tags: Sequence[str] = (),
    ) -> MakesTask: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(pool="io", retry=5)`."""
        refuse_unknown({name: 1 for name in options if name not in _TASK}, _TASK, of="@app.task")
        if function is not None:
            return self._make(function, options)
        return lambda function: self._make(function, options)

    @overload
    def workflow(self, function: Declares, /) -> WorkflowHandle: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        max_parallel: int | None = None,
        pool: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        timeout: Duration | None = None,
        tags: Sequence[str] = (),
    ) -> Callable[[Declares], WorkflowHandle]: ...
    def workflow(self, function: Any = None, /, **options: Any) -> Any:
        """Make a workflow of a function that declares its nodes: it is called at once, and never again.

        It becomes a job, with the schedules above it or without any.
        """
        refuse_unknown({name: 1 for name in options if name not in _WORKFLOW}, _WORKFLOW, of="@app.workflow")
        if function is not None:
            return self._flow(function, options)
        return lambda function: self._flow(function, options)

    def schedule(
        self,
        schedule: Schedule,
        *more: Schedule,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        **policies: Unpack[Policies],
    ) -> MakesTask:
        """Declare a job of a task, above or below `@app.task`, or of a workflow, above `@app.workflow`.

        Workers register it when they start.
        """
        refuse_unknown({name: 1 for name in policies if name not in POLICIES}, _SCHEDULE, of="@app.schedule")
        check_schedules((schedule, *more), of="@app.schedule")
        of_job = {"schedules": (schedule, *more), "tags": tuple(tags), **read_policies(policies)}
        called = None if name is None else check_name(name)
        return lambda function: self._declare(function, called, of_job, args, kwargs or {})  # type: ignore[return-value]

    def definitions(self) -> list[Definition]:
        """The jobs that @app.schedule declares, and workflows that it does not."""
        unscheduled = [workflow.definition() for workflow in self._workflows if not workflow.jobs]
        return [*(declared.definition() for declared in self._declared), *unscheduled]

    # At work

    def declare(self) -> int:
        """Register the declared jobs, as workers do at their start; answers how many had to change."""
        definitions = self.definitions()
        return self.connection.run(lambda desk: desk.declare(definitions), instead="`await app.adeclare()`")

    async def adeclare(self) -> int:
        definitions = self.definitions()
        return await self.connection.call(lambda desk: desk.declare(definitions))

    def run_worker(self, pools: Mapping[str, int] | None = None, **options: Any) -> None:
        """Serve this app's tasks in this process until it is told to stop: `app.run_worker({"io": 8})`."""
        import_module("bellringer.assembly").run_worker(self, pools=pools, **options)

    def close(self) -> None:
        """Let go of the database; the next use connects again."""
        self.connection.close()

    async def aclose(self) -> None:
        await self.connection.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<App {self.name!r}, {len(self.registry.names())} tasks>"

    def _make(self, function: Any, options: Mapping[str, Any]) -> TaskHandle[..., Any]:
        if isinstance(function, TaskHandle):  # @app.schedule stood below, and has made a task of it already
            function.task = self._add(function.task.function, options)
            return function
        return TaskHandle(self._add(function, options), self.connection)

    def _add(self, function: Any, options: Mapping[str, Any]) -> Task:
        if isinstance(function, WorkflowHandle) or takes_workflow(function):
            hint = "write @app.workflow directly above its function, and @app.schedule above that"
            raise InvalidInput(f"{function!r} is a workflow, not a task", hint=hint, pointer="/function", code="type")
        task = task_from(function, **options)
        if task.name in BUILT_IN:  # its runs would be handed what others have servers call, or run as nodes
            hint = "give it another name="
            raise InvalidInput(f"{task.name} is a built-in task", hint=hint, pointer="/name", code="name_reserved")
        return self.registry.add(task)

    def _flow(self, function: Any, options: Mapping[str, Any]) -> WorkflowHandle:
        if isinstance(function, TaskHandle | WorkflowHandle):
            hint = "write @app.workflow directly above the function, and @app.schedule above that"
            raise InvalidInput(f"{function!r} is declared already", hint=hint, pointer="/function", code="type")
        handle = WorkflowHandle(function, self.connection, self.registry, **options)
        handle.definition().checked(SystemClock().now())
        self._refuse_second(handle.name)
        self._workflows.append(handle)
        return handle

    def _declare(
        self,
        function: Any,
        name: str | None,
        of_job: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> TaskHandle[..., Any] | WorkflowHandle:
        handle = function if isinstance(function, TaskHandle | WorkflowHandle) else self._make(function, {})
        placed, named = _bind(handle, args, kwargs)
        declared = _Declared(handle=handle, name=name, of_job={**of_job, "args": placed, "kwargs": named})
        definition = declared.definition()
        # A one-shot in the past is no mistake of the code that still names it.
        definition.checked(definition.once_at or SystemClock().now())
        self._refuse_second(definition.name, besides=handle)
        self._declared.append(declared)
        if isinstance(handle, WorkflowHandle):
            handle.jobs[definition.name] = named
        return handle

    def _refuse_second(self, name: str, besides: object = None) -> None:
        unscheduled = [w.name for w in self._workflows if not w.jobs and w is not besides]
        taken = [*(declared.definition().name for declared in self._declared), *unscheduled]
        if any(other.lower() == name.lower() for other in taken):
            raise Conflict(
                f"two schedules declare the job {name!r}",
                hint="give one of them another name=, or give both schedules to one @app.schedule",
            )


def _bind(
    handle: TaskHandle[..., Any] | WorkflowHandle, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    try:
        if isinstance(handle, WorkflowHandle):
            return [], bind(handle.signature, by_name(handle.signature, args, kwargs))
        return handle.task.bind(args, kwargs)
    except InvalidInput as error:
        hint = error.hint or "give it by args= or kwargs= of @app.schedule"
        raise InvalidInput(error.message, hint=hint, pointer=error.pointer, code=error.code) from None
