"""`App`: declares the tasks, workflows and schedules of a program, and connects them to the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from bellringer.clock import SystemClock
from bellringer.core.apps import AppVersion, OrphanPolicy
from bellringer.core.jobs import BUILT_IN_TASKS, DEFAULT_PRIORITY, Definition, check_name
from bellringer.core.messages import Message
from bellringer.core.policies import After, Delivery
from bellringer.core.retry_policy import Retry
from bellringer.core.tasks import Duration, Isolation, Registry, Task, make_task
from bellringer.durations import parse_duration
from bellringer.errors import Conflict, InvalidInput
from bellringer.schedule import Schedule
from bellringer.sdk.app_identity import check_version, find_version, module_of
from bellringer.sdk.arguments import bind, by_name, takes_workflow
from bellringer.sdk.connection import ServiceCall, ServiceConnection
from bellringer.sdk.handles import Jobs, RunHandle, Runs
from bellringer.sdk.policies import POLICIES, Policies, read_policies, split_triggers
from bellringer.sdk.task_handle import TaskHandle, check_message, definition_of, send_items
from bellringer.sdk.usage_errors import read_choice, refuse_unknown
from bellringer.sdk.workflows import Declares, WorkflowHandle
from bellringer.worker.context import Context

if TYPE_CHECKING:
    from bellringer.codecs import PayloadCodec
    from bellringer.engine.declare import AppDeclaration
    from bellringer.sdk.service import Service

P = ParamSpec("P")
R = TypeVar("R")

_TASK_OPTIONS: Final = (
    "capture_output", "delivery", "expected_duration", "expires_in", "heartbeat", "isolation", "keep_result", "name",
    "pool", "priority", "redact", "retry", "tags", "timeout",
)  # fmt: skip
_WORKFLOW_OPTIONS: Final = ("max_parallel", "name", "pool", "priority", "tags", "timeout")
_SCHEDULE_OPTIONS: Final = ("args", "expires_in", "kwargs", "name", "tags", *POLICIES)


class MakesTask(Protocol):
    """The type of `@app.task(…)` and `@app.schedule(…)`: accepts a function, a task or a workflow."""

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
    """One use of @app.schedule. Reads the task late, because a decorator above may still change its options."""

    handle: TaskHandle[..., Any] | WorkflowHandle
    name: str | None
    of_job: Mapping[str, Any]

    def definition(self) -> Definition:
        if isinstance(self.handle, WorkflowHandle):
            return self.handle.definition(name=self.name or self.handle.name, **self.of_job)
        task = self.handle.task
        return definition_of(task, name=self.name or task.name, owner="code", **self.of_job)


class App:
    """The tasks, workflows and schedules of a program.

        app = App()

        @app.schedule(cron("30 2 * * *", tz="Europe/Paris"))
        @app.task(retry=5)
        def nightly_report(days: int = 1) -> None: ...

        nightly_report.send(days=7)  # run it once, on a worker

    The app connects to the database on first use, and again after a fork. The database is `dsn`, or BELLRINGER_DSN,
    or that of a `bellringer dev` in this folder.

    A `name` makes the app the owner of the jobs that it declares. `version` orders its deployments: an old process
    that starts again does not undo what a newer version declared. By default it is BELLRINGER_APP_VERSION, or the
    version of the installed package. `orphans` (keep, pause or delete) says what happens to jobs that the code no
    longer declares. Both need a name; without one, the app is named after its module.

    `payload_codec` encrypts arguments before they are stored. By default it is the one that BELLRINGER_PAYLOAD_CODEC
    names, with the keys in BELLRINGER_PAYLOAD_KEYS.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        version: str | None = None,
        orphans: OrphanPolicy | str = OrphanPolicy.KEEP,
        payload_codec: PayloadCodec | None = None,
    ) -> None:
        self._module = module_of(sys._getframe(1))  # noqa: SLF001 - as logging and warnings do
        self._version = None if version is None else check_version(version)
        self._orphans = read_choice(orphans, OrphanPolicy, what="orphans")
        self._is_named = name is not None
        if name is None and (version is not None or self._orphans is not OrphanPolicy.KEEP):
            option = "orphans" if version is None else "version"
            hint = "other programs may have a module of the same name; write App(name=…)"
            raise InvalidInput(
                f"{option} needs a name of the app", hint=hint, pointer="/name", code="conflicting_fields"
            )
        self.registry = Registry()
        self.connection = ServiceConnection(
            dsn, tenant=tenant, name=check_name(name or self._module, what="app name"), codec=payload_codec
        )
        self.jobs = Jobs(self.connection, self.registry, lambda: [d.name for d in self.definitions()])
        self.runs = Runs(self.connection)
        self.is_superseded = False  # the last declaration was refused: a newer version of the app is current
        self._declared: list[_Declared] = []
        self._job_names: set[str] = set()  # of the declared jobs, in lower case
        self._workflows: list[WorkflowHandle] = []

    @property
    def dsn(self) -> str:
        """The URL of the database. Raises ConfigError if none is configured."""
        return self.connection.dsn

    @property
    def tenant(self) -> str:
        return self.connection.tenant

    @property
    def name(self) -> str:
        return self.connection.name

    @property
    def codec(self) -> PayloadCodec | None:
        """The codec that encrypts payloads; None if there is none."""
        return self.connection.codec

    @cached_property
    def version(self) -> str:
        """The version that orders the declarations of this app; "" if it is not known, or the app has no name."""
        if not self._is_named:
            return ""
        return find_version(self._module) if self._version is None else self._version

    # Declarations

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
        expires_in: Duration | None = None,
        keep_result: bool = False,
        isolation: Isolation = "auto",
        tags: Sequence[str] = (),
        capture_output: bool = True,
        redact: Sequence[str] = (),
    ) -> MakesTask: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:
        """Turn a function into a task: `@app.task`, or `@app.task(pool="io", retry=5)`.

        The function may be `def` or `async def`. If its first parameter is annotated as `Context`, it receives the
        context of the run.
        """
        refuse_unknown({name: 1 for name in options if name not in _TASK_OPTIONS}, _TASK_OPTIONS, of="@app.task")
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
        """Turn a function that declares nodes into a workflow. The function is called once, at import.

            @app.workflow
            def etl(wf: Workflow, region: str = "eu"):
                files = wf.add(extract, region)
                return wf.add(load, wf.map(transform, files))

        The workflow becomes a job, with the schedules declared above it, or without any.
        """
        refuse_unknown(
            {name: 1 for name in options if name not in _WORKFLOW_OPTIONS}, _WORKFLOW_OPTIONS, of="@app.workflow"
        )
        if function is not None:
            return self._flow(function, options)
        return lambda function: self._flow(function, options)

    def schedule(
        self,
        schedule: Schedule | After,
        *more: Schedule | After,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        expires_in: Duration | None = None,
        **policies: Unpack[Policies],
    ) -> MakesTask:
        """Declare a job that runs a task or a workflow by schedule: `@app.schedule(every("5m"), name="sync")`, or when
        a run of another job ends: `@app.schedule(after("extract"))`.

        Use it above or below `@app.task`, and above `@app.workflow`. Workers register the job when they start. Without
        a name, the job is named like the task. The policies (`misfire`, `overlap`, `jitter`, …) are those of a job.
        """
        refuse_unknown({name: 1 for name in policies if name not in POLICIES}, _SCHEDULE_OPTIONS, of="@app.schedule")
        triggers = split_triggers((schedule, *more), of="@app.schedule")
        of_job = {**triggers, "tags": tuple(tags), **read_policies(policies)}
        if expires_in is not None:
            of_job["expires_in"] = parse_duration(expires_in, what="expires_in")
        job_name = None if name is None else check_name(name)
        return lambda function: self._declare(function, job_name, of_job, args, kwargs or {})  # type: ignore[return-value]

    def definitions(self) -> list[Definition]:
        """The jobs of all @app.schedule declarations, and of workflows without a schedule."""
        unscheduled = [workflow.definition() for workflow in self._workflows if not workflow.jobs]
        found = [*(declared.definition() for declared in self._declared), *unscheduled]
        names = [definition.name for definition in found]
        return [_with_full_upstream(definition, names) for definition in found]

    # Operation

    def declare(self) -> int:
        """Declare the jobs of this app, as workers do when they start. Returns the number of created or changed jobs.

        The declaration is complete: other jobs that this app has declared before become orphans. If a newer version
        of the app is current, nothing is changed.
        """
        return self.connection.run(self._declaration(), instead="`await app.adeclare()`").changed

    async def adeclare(self) -> int:
        return (await self.connection.call(self._declaration())).changed

    def _declaration(self) -> ServiceCall[AppDeclaration]:
        app = AppVersion(name=self.name, version=self.version, orphans=self._orphans, is_named=self._is_named)
        definitions, tasks = self.definitions(), self.registry.names()

        async def declare(service: Service) -> AppDeclaration:
            done = await service.declare(app, definitions, tasks)
            self.is_superseded = done.superseded_by is not None
            return done

        return declare

    @overload
    def send_many(self, messages: Iterable[Message], *, atomic: Literal[True] = True) -> list[RunHandle]: ...
    @overload
    def send_many(self, messages: Iterable[Message], *, atomic: bool) -> list[RunHandle | InvalidInput]: ...
    def send_many(self, messages: Iterable[Message], *, atomic: bool = True) -> Any:
        """Send messages of several tasks, and return their runs in order; see `TaskHandle.send_many`.

        app.send_many([charge.message(7), remind.options(delay="2h").message(7)])
        """
        return self.connection.run(self._send_many(messages, atomic), instead="`await app.asend_many(…)`")

    @overload
    async def asend_many(self, messages: Iterable[Message], *, atomic: Literal[True] = True) -> list[RunHandle]: ...
    @overload
    async def asend_many(self, messages: Iterable[Message], *, atomic: bool) -> list[RunHandle | InvalidInput]: ...
    async def asend_many(self, messages: Iterable[Message], *, atomic: bool = True) -> Any:
        return await self.connection.call(self._send_many(messages, atomic))

    def _send_many(self, messages: Iterable[Message], atomic: bool) -> ServiceCall[list[RunHandle | InvalidInput]]:
        read = partial(check_message, hint="create it with task.message(…)")
        return send_items(self.connection, list(messages), read, atomic=atomic)

    def run_worker(self, pools: Mapping[str, int] | None = None, **options: Any) -> None:
        """Run a worker in this process until SIGTERM or Ctrl-C: `app.run_worker({"io": 8})`."""
        import_module("bellringer.process_assembly").run_worker(self, pools=pools, **options)

    def close(self) -> None:
        """Close the connections to the database. The next use opens them again."""
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
        if isinstance(function, TaskHandle):  # an @app.schedule below has already made it a task
            function.task = self._add(function.task.function, options)
            return function
        return TaskHandle(self._add(function, options), self.connection)

    def _add(self, function: Any, options: Mapping[str, Any]) -> Task:
        if isinstance(function, WorkflowHandle) or takes_workflow(function):
            hint = "use @app.workflow directly above the function, and @app.schedule above it"
            raise InvalidInput(f"{function!r} is a workflow, not a task", hint=hint, pointer="/function", code="type")
        task = make_task(function, **options)
        if task.name in BUILT_IN_TASKS:  # the worker would receive runs of the built-in task
            hint = "give it another name="
            raise InvalidInput(f"{task.name} is a built-in task", hint=hint, pointer="/name", code="name_reserved")
        return self.registry.add(task)

    def _flow(self, function: Any, options: Mapping[str, Any]) -> WorkflowHandle:
        if isinstance(function, TaskHandle | WorkflowHandle):
            hint = "use @app.workflow directly above the function, and @app.schedule above it"
            raise InvalidInput(f"{function!r} is already declared", hint=hint, pointer="/function", code="type")
        handle = WorkflowHandle(function, self.connection, self.registry, **options)
        handle.definition().validate(SystemClock().now())
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
        positional, named = _bind(handle, args, kwargs)
        declared = _Declared(handle=handle, name=name, of_job={**of_job, "args": positional, "kwargs": named})
        definition = declared.definition()
        # A one-shot in the past is not an error: the code may be older than the instant.
        definition.validate(definition.once_at or SystemClock().now())
        self._refuse_second(definition.name, besides=handle)
        self._declared.append(declared)
        self._job_names.add(definition.name.lower())
        if isinstance(handle, WorkflowHandle):
            handle.jobs[definition.name] = named
        return handle

    def _refuse_second(self, name: str, besides: object = None) -> None:
        unscheduled = {w.name.lower() for w in self._workflows if not w.jobs and w is not besides}
        if name.lower() in self._job_names or name.lower() in unscheduled:
            raise Conflict(
                f"two schedules declare the job {name!r}",
                hint="give one of them a different name=, or pass both schedules to one @app.schedule",
            )


def _with_full_upstream(definition: Definition, names: Sequence[str]) -> Definition:
    """Replace the short name of a declared upstream job, `extract`, by its full name, `etl.extract`."""
    upstream = definition.after
    if upstream is None or upstream.job in names:
        return definition
    matches = [name for name in names if name.rpartition(".")[2] == upstream.job]
    return replace(definition, after=replace(upstream, job=matches[0])) if len(matches) == 1 else definition


def _bind(
    handle: TaskHandle[..., Any] | WorkflowHandle, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    try:
        if isinstance(handle, WorkflowHandle):
            return [], bind(handle.signature, by_name(handle.signature, args, kwargs))
        return handle.task.bind(args, kwargs)
    except InvalidInput as error:
        hint = error.hint or "pass it with args= or kwargs= of @app.schedule"
        raise InvalidInput(error.message, hint=hint, pointer=error.pointer, code=error.code) from None
