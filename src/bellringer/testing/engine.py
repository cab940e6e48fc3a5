"""The real engine in a test's hand: it ticks when the test advances it, and works when the test drains it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from bellringer.durations import parse_duration
from bellringer.errors import Conflict, NotFound
from bellringer.leases import Holding
from bellringer.lifecycle import register
from bellringer.lifecycle.tick import Pace, ring, tick
from bellringer.runs import Cause
from bellringer.sdk.app import App
from bellringer.sdk.sending import TaskHandle
from bellringer.store import cohorts, jobs, runs
from bellringer.store.leases import PostgresLeases
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.runs import AttemptRow, DeadLetter, Run
from bellringer.testing import reads
from bellringer.testing.clock import TestClock
from bellringer.testing.matching import describe, matches
from bellringer.testing.records import Enqueued, Fire, Performed
from bellringer.testing.workshop import Crash, Workshop

START: Final = "2026-01-05T12:00:00Z"  # the noon of a Monday
LEASE: Final = timedelta(days=1)  # real time; a test has no loop that renews
PACE: Final = Pace(lead=timedelta(0))  # everything at its own instant
MOST_HANDS: Final = 1_000
MOST_ATTEMPTS: Final = 10_000
EVERYTHING: Final = 10_000

Length = str | float | timedelta
AnyTask = TaskHandle[..., Any]


class Engine:
    """One app on one test database, in async. `TestEngine` is the same for plain tests.

    While it is open, the app uses this database, and holds it for the app's own.
    """

    clock: TestClock

    def __init__(self, app: App, dsn: str, *, at: datetime | str = START) -> None:
        self._app = app
        self._dsn = dsn
        self._start = at

    async def open(self) -> Self:
        self._store = await Store.open(self._dsn, size=4, name="bellringer test")
        self._names = Names(self._store)
        self.clock = TestClock(self._store)
        await self.clock.install(self._start)
        await reads.add_tenant(self._store, self._app.tenant)
        self._tenant_id = await self._names.tenant_id(self._app.tenant)
        self._shards = list(range(await self._names.shards()))
        holder = uuid4()
        tokens = await PostgresLeases(self._store, LEASE).acquire(holder, len(self._shards))
        self._holding = Holding(holder, tokens)
        self._workshop = Workshop(self._app, self._store, self._names, self.clock.now)
        await self._workshop.open()
        self._was = await self._app.connection.move(self._dsn)
        await self._app.adeclare()
        return self

    async def close(self) -> None:
        await self._app.connection.move(self._was)
        await self._workshop.close()
        await self._store.close()

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

    async def _until(self, target: datetime, *, drain: bool) -> None:
        while True:
            if drain:
                await self.drain()
            moment = await self._next(drain=drain)
            if moment is None or moment > target:
                break
            await self.clock.set(max(moment, self.clock.now()))
            await self._tick()
        await self.clock.set(target)

    async def _next(self, *, drain: bool) -> datetime | None:
        moments = [await reads.next_due(self._store), await reads.next_retry(self._store) if drain else None]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _tick(self) -> None:
        """What schedulers do at one instant."""
        now = self.clock.now()
        for job_id, tenant_id in await jobs.lapsed(self._store, EVERYTHING):
            await register.resume(self._store, self._names, job_id, tenant_id=tenant_id, who="the end of its pause")
        while hands := await cohorts.coming(self._store, self._shards, now, MOST_HANDS):
            ticked = await tick(self._store, self._names, self._holding, hands, now, PACE)
            if not (ticked.fired.moved or ticked.fired.cut):
                raise Conflict("the test's engine lost its shards", hint="let no other scheduler use this database")
        while (await ring(self._store, self._holding, self._shards, PACE)).fired:
            pass

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

    async def runs(self, of: AnyTask | str) -> list[Run]:
        """The runs of a job or a task, in the order of their times."""
        keys = await reads.run_keys(self._store, self._tenant_id, await self._name(of))
        found = [await runs.get(self._store, key, self._tenant_id) for key in keys]
        return [run for run in found if run is not None]

    async def attempts(self, run: Run) -> list[AttemptRow]:
        return await runs.attempts(self._store, run.key)

    async def fires(self, job: AnyTask | str) -> list[Fire]:
        """The occurrences of a job up to now, fired and missed, in the order of their times."""
        name = await self._name(job)
        fired = [
            Fire(
                scheduled_for=run.key.scheduled_for,
                outcome="fired",
                state=run.state,
                reason=run.reason,
                run=run,
            )
            for run in await self.runs(name)
            if run.cause == Cause.SCHEDULE and (run.job or "").lower() == name.lower()
        ]
        missed = await reads.gaps(self._store, self._tenant_id, name)
        return sorted([*fired, *missed], key=lambda fire: fire.scheduled_for)

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

    async def _name(self, of: AnyTask | str) -> str:
        if isinstance(of, TaskHandle):
            return of.name
        return await reads.whole_name(self._store, self._tenant_id, of)


def _shown(entries: Sequence[Enqueued]) -> str:
    lines = [f"\n  {e.task} args={list(e.args)} kwargs={dict(e.kwargs)} due {e.due_at.isoformat()}" for e in entries]
    return "".join(lines) or "none"
