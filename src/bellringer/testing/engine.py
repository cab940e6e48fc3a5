"""The real engine in a test's hand: it ticks when the test advances it, and works when the test drains it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from bellringer.durations import parse_duration
from bellringer.errors import Conflict, NotFound
from bellringer.runs import Cause, State
from bellringer.sdk.app import App
from bellringer.sdk.sending import TaskHandle
from bellringer.sdk.workflows import WorkflowHandle
from bellringer.store import runs
from bellringer.store.runs import AttemptRow, DeadLetter, Run
from bellringer.testing import reads
from bellringer.testing.clock import TestClock
from bellringer.testing.matching import describe, matches
from bellringer.testing.records import Enqueued, Fire, Performed
from bellringer.testing.stage import Stage
from bellringer.testing.workshop import Crash
from bellringer.verify import Summary
from bellringer.verify.expected import INSTANT

START: Final = "2026-01-05T12:00:00Z"  # the noon of a Monday
MOST_ATTEMPTS: Final = 10_000
EVERYTHING: Final = 10_000

Length = str | float | timedelta
AnyTask = TaskHandle[..., Any]
Named = AnyTask | WorkflowHandle | str


class Engine:
    """One app on one test database, in async. `TestEngine` is the same for plain tests.

    While it is open, the app uses this database, and holds it for the app's own.
    """

    clock: TestClock

    def __init__(self, app: App, dsn: str, *, at: datetime | str = START) -> None:
        self._app = app
        self._stage = Stage(app, dsn)
        self._start = at

    async def open(self) -> Self:
        await self._stage.open(self._start)
        self.clock = self._stage.clock
        self._began = self.clock.now()
        self._store = self._stage.store
        self._tenant_id = self._stage.tenant_id
        self._workshop = self._stage.workshop
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
        """Live through this much time: everything that falls due happens at its own instant.

        Nothing is executed unless `drain` says so; then workers are always there, and retries, snoozes and
        fixed delays take their course as well.
        """
        await self._until(self.clock.now() + parse_duration(by, what="advance"), drain=drain)
        return self

    async def outage(self, by: Length) -> Self:
        """Let this much time pass with nobody there to tick; the next `advance` finds what was left undone."""
        await self.clock.advance(by)
        return self

    async def _until(self, target: datetime, *, drain: bool) -> None:
        while True:
            if drain:
                await self.drain()
            due = await self.clock.leap(target, workers=drain)
            born = await self._stage.do_chores(due)
            if due.now >= target and not due.presses and not born:
                break
        if drain:
            await self.drain()

    # Work

    async def drain(self, *, with_retries: bool = False) -> Self:
        """Execute what is ready, one after the other, until nothing is.

        So a handler that waits for a run that it has sent waits for ever; let it look with a timeout.
        Retries and snoozes that fall due later are left for `advance`; `with_retries` advances to them.
        """
        for _ in range(MOST_ATTEMPTS):
            if await self._workshop.step():
                continue
            moment = await reads.next_retry(self._store) if with_retries else None
            if moment is None:
                return self
            await self._until(moment, drain=False)
        raise Conflict(
            f"the queue is not empty after {MOST_ATTEMPTS:,} attempts",
            hint="a handler sends itself, or snoozes, for ever",
        )

    async def perform(self, task: AnyTask, /, *args: Any, attempt: int = 1, **kwargs: Any) -> Performed:
        """Make one attempt without the queue, with the context that a worker would give it."""
        return await self._workshop.perform(task.task, args, kwargs, attempt)

    def fail_next(self, task: AnyTask, error: BaseException) -> Self:
        """Let the next attempt of a task fail with this error instead of being executed."""
        self._workshop.fail_next(task.name, error)
        return self

    def crash_worker(self, when: Crash = "before") -> Self:
        """Let the worker be killed when it next holds work: `before` its handlers, or `after` them."""
        self._workshop.crash_next(when)
        return self

    # What became of it

    async def runs(self, of: Named) -> list[Run]:
        """The runs of a job, a task or a workflow, in the order of their times."""
        keys = await reads.run_keys(self._store, self._tenant_id, await self._name(of))
        found = [await runs.get(self._store, key, self._tenant_id) for key in keys]
        return [run for run in found if run is not None]

    async def attempts(self, run: Run) -> list[AttemptRow]:
        return await runs.attempts(self._store, run.key)

    async def fires(self, job: Named) -> list[Fire]:
        """The occurrences of a job up to now, fired and missed, in the order of their times."""
        name = await self._name(job)
        fired = [
            Fire(
                scheduled_for=run.key.scheduled_for,
                outcome="skipped" if run.state is State.SKIPPED else "fired",
                state=run.state,
                reason=run.reason,
                run=run,
            )
            for run in await self.runs(name)
            if run.cause == Cause.SCHEDULE and (run.job or "").lower() == name.lower()
        ]
        missed = await reads.gaps(self._store, self._tenant_id, name)
        return sorted([*fired, *missed], key=lambda fire: fire.scheduled_for)

    async def verify(self) -> Summary:
        """Nothing was missed, doubled or early since the test began; see `bellringer verify`."""
        end = self.clock.now() + INSTANT  # what is due now counts
        summary, findings = await self._stage.verify(self._began, end)
        if not summary.clean:
            told = "".join(f"\n  {f.kind} {f.scheduled_for.isoformat()} {f.job}: {f.detail}" for f in findings)
            raise AssertionError(f"verify found what should not be:{told}")
        return summary

    async def dead(self) -> list[DeadLetter]:
        """The dead letters, the newest first."""
        return await runs.dead(self._store, self._tenant_id, None, None, EVERYTHING)

    async def enqueued(self, task: AnyTask | str | None = None) -> list[Enqueued]:
        """What waits to be run, now or later."""
        waiting = await reads.enqueued(self._store, self._tenant_id)
        name = None if task is None else await self._name(task)
        return [entry for entry in waiting if name is None or name in (entry.task, entry.job)]

    async def assert_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> Enqueued:
        """Some run of the task waits with these arguments (others do not matter), due within that long."""
        waiting = await self.enqueued(task)
        found = await self._matching(task, waiting, within, kwargs)
        if not found:
            wanted = describe(task, within, kwargs)
            raise AssertionError(f"no {wanted} is enqueued; waiting are {_shown(waiting)}")
        return found[0]

    async def refute_enqueued(self, task: AnyTask | str, /, *, within: Length | None = None, **kwargs: Any) -> None:
        """No such run waits."""
        found = await self._matching(task, await self.enqueued(task), within, kwargs)
        if found:
            raise AssertionError(f"{describe(task, within, kwargs)} is enqueued: {_shown(found)}")

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

    async def _name(self, of: Named) -> str:
        if isinstance(of, TaskHandle):
            return of.name
        if isinstance(of, WorkflowHandle):
            return of.job.name
        return await reads.whole_name(self._store, self._tenant_id, of)


def _shown(entries: Sequence[Enqueued]) -> str:
    lines = [f"\n  {e.task} args={list(e.args)} kwargs={dict(e.kwargs)} due {e.due_at.isoformat()}" for e in entries]
    return "".join(lines) or "none"
