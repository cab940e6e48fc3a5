"""The async test engine: runs schedules when the test advances the clock, executes runs when the test drains."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from bellringer.core.payload import to_plain
from bellringer.core.runs import Cause, State
from bellringer.core.tasks import Task
from bellringer.durations import format_duration, parse_duration
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.sdk.app import App
from bellringer.sdk.task_handle import TaskHandle
from bellringer.sdk.workflows import WorkflowHandle
from bellringer.store import runs
from bellringer.store.runs import AttemptRow, DeadLetterRow, RunRow
from bellringer.testing import records
from bellringer.testing.clock import TestClock
from bellringer.testing.environment import TestEnvironment
from bellringer.testing.records import Enqueued, FireRecord, Performed
from bellringer.testing.test_worker import CrashMoment
from bellringer.verify import VerifySummary
from bellringer.verify.expected import MICROSECOND

DEFAULT_START: Final = "2026-01-05T12:00:00Z"  # the noon of a Monday
MAX_DRAIN_ATTEMPTS: Final = 10_000
MAX_DEAD_LETTERS: Final = 10_000

Length = str | float | timedelta
AnyTask = TaskHandle[..., Any]
TaskOrName = AnyTask | WorkflowHandle | str


class Engine:
    """One app on one test database, for async tests. `TestEngine` is the synchronous version.

    While it is open, the app uses this database instead of its own.
    """

    clock: TestClock

    def __init__(self, app: App, dsn: str, *, at: datetime | str = DEFAULT_START) -> None:
        self._app = app
        self._stage = TestEnvironment(app, dsn)
        self._start = at

    async def open(self) -> Self:
        await self._stage.open(self._start)
        self.clock = self._stage.clock
        self._began = self.clock.now()
        self._store = self._stage.store
        self._tenant_id = self._stage.tenant_id
        self._workshop = self._stage.test_worker
        return self

    async def close(self) -> None:
        await self._stage.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Time

    async def advance(self, by: Length, *, drain: bool = False) -> Self:
        """Advances the clock; everything that becomes due happens at its own instant.

        Nothing is executed without `drain`. With `drain`, runs are executed as they become ready, so retries, snoozes
        and delays proceed too.
        """
        await self._until(self.clock.now() + parse_duration(by, what="advance"), drain=drain)
        return self

    async def outage(self, by: Length) -> Self:
        """Advances the clock while no scheduler runs; the next `advance` handles the missed occurrences."""
        await self.clock.advance(by)
        return self

    async def _until(self, target: datetime, *, drain: bool) -> None:
        while True:
            if drain:
                await self.drain()
            due = await self.clock.leap(target, workers=drain)
            born = await self._stage.run_due_steps(due)
            if due.now >= target and not due.is_due and not born:
                break
        if drain:
            await self.drain()

    # Work

    async def drain(self, *, with_retries: bool = False) -> Self:
        """Executes all ready runs, one after the other.

        A handler that waits for a run that it has sent would wait forever; use a timeout. Retries and snoozes that
        become due later are left for `advance`; `with_retries` advances the clock to them.
        """
        for _ in range(MAX_DRAIN_ATTEMPTS):
            if await self._workshop.step():
                continue
            moment = await records.next_retry(self._store) if with_retries else None
            if moment is None:
                return self
            await self._until(moment, drain=False)
        raise Conflict(
            f"the queue is not empty after {MAX_DRAIN_ATTEMPTS:,} attempts",
            hint="a handler sends itself, or snoozes, for ever",
        )

    async def perform(self, task: AnyTask, /, *args: Any, attempt: int = 1, **kwargs: Any) -> Performed:
        """Makes one attempt without the queue, with the context that a worker would pass."""
        return await self._workshop.perform(task.task, args, kwargs, attempt)

    def fail_next(self, task: AnyTask, error: BaseException) -> Self:
        """Makes the next attempt of a task fail with this error instead of executing it."""
        self._workshop.fail_next(task.name, error)
        return self

    def crash_worker(self, when: CrashMoment = "before") -> Self:
        """Kills the worker when it next holds work: `before` or `after` its handlers ran."""
        self._workshop.crash_next(when)
        return self

    # Results

    async def runs(self, of: TaskOrName) -> list[RunRow]:
        """Returns the runs of a job, a task or a workflow, in time order."""
        keys = await records.run_keys(self._store, self._tenant_id, await self._name(of))
        found = [await runs.get(self._store, key, self._tenant_id) for key in keys]
        return [run for run in found if run is not None]

    async def attempts(self, run: RunRow) -> list[AttemptRow]:
        return list(await runs.attempts(self._store, run.key, self._tenant_id))

    async def fires(self, job: TaskOrName) -> list[FireRecord]:
        """Returns the occurrences of a job up to now, fired and missed, in time order."""
        name = await self._name(job)
        fired = [
            FireRecord(
                scheduled_for=run.key.scheduled_for,
                outcome="skipped" if run.state is State.SKIPPED else "fired",
                state=run.state,
                reason=run.reason,
                run=run,
            )
            for run in await self.runs(name)
            if run.cause == Cause.SCHEDULE and (run.job or "").lower() == name.lower()
        ]
        missed = await records.gaps(self._store, self._tenant_id, name)
        return sorted([*fired, *missed], key=lambda fire: fire.scheduled_for)

    async def verify(self) -> VerifySummary:
        """Asserts that nothing was missed, doubled or early since the test began; see `bellringer verify`."""
        end = self.clock.now() + MICROSECOND  # include what is due now
        summary, findings = await self._stage.verify(self._began, end)
        if not summary.clean:
            described = "".join(f"\n  {f.kind} {f.scheduled_for.isoformat()} {f.job}: {f.detail}" for f in findings)
            raise AssertionError(f"verify found differences:{described}")
        return summary

    async def dead(self) -> list[DeadLetterRow]:
        """Returns the dead letters, newest first."""
        return await runs.dead(self._store, self._tenant_id, None, None, MAX_DEAD_LETTERS)

    async def enqueued(self, task: AnyTask | str | None = None) -> list[Enqueued]:
        """Returns the waiting runs, ready or due later."""
        waiting = await records.enqueued(self._store, self._tenant_id)
        name = None if task is None else await self._name(task)
        return [entry for entry in waiting if name is None or name in (entry.task, entry.job)]

    async def assert_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> Enqueued:
        """Asserts that a run of the task waits with these arguments (others are ignored), due within the given time."""
        waiting = await self.enqueued(task)
        found = await self._matching(task, waiting, within, kwargs)
        if not found:
            wanted = describe(task, within, kwargs)
            raise AssertionError(f"no {wanted} is enqueued; waiting are {_format_waiting(waiting)}")
        return found[0]

    async def refute_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> None:
        """Asserts that no such run waits."""
        found = await self._matching(task, await self.enqueued(task), within, kwargs)
        if found:
            raise AssertionError(f"{describe(task, within, kwargs)} is enqueued: {_format_waiting(found)}")

    async def _matching(
        self, task: AnyTask | str, waiting: Sequence[Enqueued], within: Length | None, kwargs: dict[str, Any]
    ) -> list[Enqueued]:
        known = task.task if isinstance(task, TaskHandle) else self._app.registry.get(await self._name(task))
        if known is None and kwargs:
            raise NotFound(f"the app has no task {task!r}")
        until = None if within is None else self.clock.now() + parse_duration(within, what="within")
        return [
            entry
            for entry in waiting
            if (until is None or entry.due_at <= until) and (known is None or matches(known, entry, kwargs))
        ]

    async def _name(self, of: TaskOrName) -> str:
        if isinstance(of, TaskHandle):
            return of.name
        if isinstance(of, WorkflowHandle):
            return of.job.name
        return await records.whole_name(self._store, self._tenant_id, of)


def _format_waiting(entries: Sequence[Enqueued]) -> str:
    lines = [f"\n  {e.task} args={list(e.args)} kwargs={dict(e.kwargs)} due {e.due_at.isoformat()}" for e in entries]
    return "".join(lines) or "none"


_ABSENT: Final = object()


def matches(task: Task, entry: Enqueued, wanted: Mapping[str, Any]) -> bool:
    """Whether the run has these arguments. An omitted argument counts as its default."""
    _check_names(task, wanted)
    given = arguments(task, entry)
    return all(given.get(name, _ABSENT) == to_plain(value, what=name) for name, value in wanted.items())


def arguments(task: Task, entry: Enqueued) -> dict[str, Any]:
    """Returns all arguments by name, as they are stored."""
    properties = task.schema.get("properties", {})
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    placed = zip((parameter.name for parameter in task.signature.by_position), entry.args, strict=False)
    return {**defaults, **dict(placed), **entry.kwargs}


def describe(
    task: TaskHandle[..., Any] | str, within: str | float | timedelta | None, wanted: Mapping[str, Any]
) -> str:
    """Describes the expectation for the message of a failed assertion."""
    name = task if isinstance(task, str) else task.name
    shown = ", ".join(f"{key}={value!r}" for key, value in wanted.items())
    due = "" if within is None else f" within {format_duration(parse_duration(within))}"
    return f"{name}({shown}){due}"


def _check_names(task: Task, wanted: Mapping[str, Any]) -> None:
    """Raises InvalidInput for an unknown argument name: a misspelt name would make a refutation pass."""
    signature = task.signature
    known = {*signature.by_name, *(parameter.name for parameter in signature.by_position)}
    for name in wanted:
        if name not in known and signature.others is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(known)) or 'none'}"
            raise InvalidInput(f"{task.name} has no argument {name!r}", hint=hint, code="unexpected_argument")
