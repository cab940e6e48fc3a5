"""The worker of a test engine: it claims, executes and settles by the real code, one attempt at a time."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from msgspec.structs import replace as replace_fields
from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.lifecycle.fill import fill
from bellringer.lifecycle.reap import reap
from bellringer.lifecycle.settle import decide, settle
from bellringer.runs import Ending, RunKey
from bellringer.sdk.app import App
from bellringer.sdk.sending import definition_of
from bellringer.store import queue, workers
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed
from bellringer.store.workers import Introduction
from bellringer.tasks import Registry, Task
from bellringer.testing import reads
from bellringer.testing.records import Performed
from bellringer.worker import endings
from bellringer.worker.builtin import WithBuiltIns
from bellringer.worker.executor import Executor
from bellringer.worker.work import LogLine, Work

Crash = Literal["before", "after"]

LOOK: Final = 0.05  # seconds between looks for cancels while a handler runs
BATCH: Final = 1_000  # what a worker that is about to crash holds


class _Here(Registry):
    """The app's tasks, all executed in this process: a child could not import an app that a test has made."""

    def __init__(self, app: App) -> None:
        super().__init__()
        self._app = app

    def get(self, name: str) -> Task | None:
        task = WithBuiltIns(self._app.registry).get(name)
        return task and replace(task, isolation="auto")

    def names(self) -> list[str]:
        return WithBuiltIns(self._app.registry).names()


class Workshop:
    """One worker that serves every pool."""

    def __init__(self, app: App, store: Store, names: Names, now: Callable[[], datetime]) -> None:
        self._app = app
        self._store = store
        self._names = names
        self._now = now
        self._registry = _Here(app)
        self._lines: list[LogLine] = []
        self._failures: defaultdict[str, list[BaseException]] = defaultdict(list)
        self._crash: Crash | None = None
        self.worker_id = 0  # before it has joined

    async def open(self) -> None:
        self._executor = Executor(self._registry, clock=SystemClock(), database_now=self._now, log=self._lines.append)
        await self._join()

    async def close(self) -> None:
        await self._executor.close()

    def fail_next(self, task: str, error: BaseException) -> None:
        self._failures[task].append(error)

    def crash_next(self, when: Crash) -> None:
        self._crash = when

    async def step(self) -> bool:
        """Make one attempt, or crash; False: there is nothing to do."""
        if self._crash is not None:
            return await self._die(self._crash)
        for pool_id, pool in (await reads.pool_ids(self._store)).items():
            for claimed in await self.claim(pool_id, 1):
                ending = replace_fields(await self.execute(claimed, pool), ran=0.0)  # the test's clock stood still
                await settle(self._store, self.worker_id, [decide(claimed, ending)])
                return True
        return False

    async def perform(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], attempt: int) -> Performed:
        placed, named = task.bind(args, kwargs)
        now = self._now()
        work = Work(
            key=RunKey(uuid7(), now),
            attempt=attempt,
            spent=attempt,
            task=task.name,
            spec=definition_of(task, name=task.name, args=placed, kwargs=named).spec(),
            claimed_at=now,
            tenant=self._app.tenant,
            pool=task.goes_to,
        )
        self._lines.clear()
        ending = await self._executor.execute(work)
        logs, reports = tuple(self._lines), self._executor.progress()
        self._lines.clear()
        return Performed(ending=ending, logs=logs, progress=reports[-1][2] if reports else None)

    async def claim(self, pool_id: int, most: int) -> list[Claimed]:
        """Take at most so many ready runs of a pool."""
        known = await self._names.task_ids(self._registry.names())
        self._tasks = {number: name for name, number in known.items()}
        seat = Seat(
            worker_id=self.worker_id,
            pool_id=pool_id,
            task_ids=[known[name] for name in self._registry.names()],
        )
        taken, _ = await claim(self._store, seat, most, Turn())
        return await fill(self._store, taken)

    async def execute(self, claimed: Claimed, pool: str) -> Ending:
        """Call the handler of what was claimed."""
        return await self._execute(await self._work(claimed, pool))

    async def replace(self) -> int:
        """Another worker comes in place of this one, which vanished: what it held is lost. Answers how much."""
        lost = await reap(self._store, self._names, silence=timedelta(0))
        await self._join()
        return lost

    async def _work(self, claimed: Claimed, pool: str) -> Work:
        tenants = await self._names.tenant_names([claimed.tenant_id])
        return Work(
            key=claimed.key,
            attempt=claimed.attempt,
            spent=claimed.spent,
            task=self._tasks[claimed.task_id],
            spec=claimed.spec,
            claimed_at=claimed.claimed_at,
            tenant=tenants[claimed.tenant_id],
            pool=pool,
            job=claimed.name,
        )

    async def _execute(self, work: Work) -> Ending:
        if planned := self._failures[work.task]:
            return endings.raised(planned.pop(0))
        execution = asyncio.ensure_future(self._executor.execute(work))
        while not (await asyncio.wait({execution}, timeout=LOOK))[0]:
            await self._report()
            for key, attempt in await queue.cancels(self._store, self.worker_id):
                self._executor.cancel(key, attempt, "cancelled while it ran")
        await self._report()
        return execution.result()

    async def _report(self) -> None:
        """Keep what handlers have said so far."""
        if news := self._executor.progress():
            await queue.report(self._store, self.worker_id, news)
        lines, self._lines[:] = list(self._lines), []
        if lines:
            await queue.log(self._store, [(n.key, n.attempt, n.at, n.level, n.message, n.fields) for n in lines])

    async def _die(self, when: Crash) -> bool:
        """Fall silent while holding all that is ready, as a killed worker does, and be reaped."""
        held = 0
        for pool_id, pool in (await reads.pool_ids(self._store)).items():
            for claimed in await self.claim(pool_id, BATCH):
                held += 1
                if when == "after":
                    await self.execute(claimed, pool)
        if not held:
            return False  # it will die when it has something to lose
        self._crash = None
        await self.replace()
        return True

    async def introduce(self) -> None:
        """Join anew if the app has other tasks by now."""
        if self._registry.names() != self._joined_with:
            await self._join()

    async def _join(self) -> None:
        self._joined_with = known = self._registry.names()
        task_ids = await self._names.task_ids(known)
        self.worker_id = await workers.join(
            self._store,
            Introduction(
                name="test",
                host="test",
                pid=os.getpid(),
                version="test",
                pools=dict.fromkeys((await reads.pool_ids(self._store)).values(), 1),
                task_ids=[task_ids[name] for name in known],
            ),
        )
