"""The worker of the test engine: claims, executes and settles with the real code, one attempt at a time."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from msgspec.structs import replace as replace_fields
from uuid_utils.compat import uuid7

from bellringer.clock import SystemClock
from bellringer.core.runs import Ending, RunKey
from bellringer.core.secret_references import SECRET_VARIABLE_PREFIX
from bellringer.core.tasks import Registry, Task
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.reap import reap
from bellringer.engine.settle import decide, load_retry_windows, settle
from bellringer.sdk.app import App
from bellringer.sdk.task_handle import definition_of
from bellringer.store import queue, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun
from bellringer.store.workers import WorkerRegistration
from bellringer.store.workflows import load_node_arguments
from bellringer.testing import records
from bellringer.testing.records import Performed
from bellringer.worker import results
from bellringer.worker.attempt import LogLine, Work
from bellringer.worker.built_in_tasks import RegistryWithBuiltIns
from bellringer.worker.executor import Executor
from bellringer.worker.payload_preparation import PayloadPreparer
from bellringer.worker.secret_sources import EnvironmentSource
from bellringer.worker.work_source import load_last_results

CrashMoment = Literal["before", "after"]

FAR_FUTURE: Final = datetime(9999, 1, 1, tzinfo=UTC)
CANCEL_POLL_SECONDS: Final = 0.05  # seconds between looks for cancels while a handler runs
CRASH_BATCH_SIZE: Final = 1_000  # maximum number of runs that a crashing worker holds


class _InProcessRegistry(Registry):
    """The app's tasks, all executed in this process: a child process could not import an app that a test defines."""

    def __init__(self, app: App) -> None:
        super().__init__()
        self._app = app

    def get(self, name: str) -> Task | None:
        task = RegistryWithBuiltIns(self._app.registry).get(name)
        return task and replace(task, isolation="auto")

    def names(self) -> list[str]:
        return RegistryWithBuiltIns(self._app.registry).names()


class TestWorker:
    """One worker that serves every pool."""

    __test__ = False  # not a test case

    def __init__(self, app: App, store: Store, catalog: Catalog, now: Callable[[], datetime]) -> None:
        self._app = app
        self._store = store
        self._catalog = catalog
        self._now = now
        self._registry = _InProcessRegistry(app)
        self._lines: list[LogLine] = []
        self._failures: defaultdict[str, list[BaseException]] = defaultdict(list)
        self._crash: CrashMoment | None = None
        self.worker_id = 0  # before it has joined

    async def open(self) -> None:
        self._executor = Executor(
            self._registry,
            clock=SystemClock(),
            database_now=self._now,
            log=self._lines.append,
            own_loop=False,  # handlers share what fixtures have made on the test's loop
            codec=self._app.codec,
        )
        await self._join()

    async def close(self) -> None:
        await self._executor.close()

    def fail_next(self, task: str, error: BaseException) -> None:
        self._failures[task].append(error)

    def crash_next(self, when: CrashMoment) -> None:
        self._crash = when

    async def step(self) -> bool:
        """Makes one attempt, or crashes. Returns False if nothing is ready."""
        if self._crash is not None:
            return await self._die(self._crash)
        for pool_id, pool in (await records.pool_ids(self._store)).items():
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
            pool=task.effective_pool,
        )
        self._lines.clear()
        ending = await self._prepare_and_execute(work)
        logs, reports = tuple(self._lines), self._executor.progress()
        self._lines.clear()
        return Performed(ending=ending, logs=logs, progress=reports[-1][2] if reports else None)

    async def claim(self, pool_id: int, most: int) -> list[ClaimedRun]:
        """Claims at most `most` ready runs of a pool."""
        known = await self._catalog.task_ids(self._registry.names())
        self._tasks = {number: name for name, number in known.items()}
        seat = ClaimSpec(
            worker_id=self.worker_id,
            pool_id=pool_id,
            task_ids=[known[name] for name in self._registry.names()],
        )
        taken, _ = await claim(self._store, seat, most, TenantCursor())
        if recorded := [claimed for claimed in taken if claimed.records_start]:
            begun = await load_retry_windows(
                self._store, await queue.begin_attempts(self._store, self.worker_id, recorded)
            )
            taken = [claimed for claimed in taken if not claimed.records_start] + begun
        return await load_node_arguments(self._store, await load_last_results(self._store, SystemClock(), taken))

    async def execute(self, claimed: ClaimedRun, pool: str) -> Ending:
        """Calls the handler of a claimed run."""
        return await self._execute(await self._work(claimed, pool))

    async def replace(self) -> int:
        """Reaps the runs of this worker as lost and joins as a new worker. Returns the number of lost runs."""
        lost = await reap(self._store, self._catalog, silence=timedelta(0))
        await self._join()
        return lost

    async def _work(self, claimed: ClaimedRun, pool: str) -> Work:
        tenants = await self._catalog.tenant_names([claimed.tenant_id])
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
            resume_from=claimed.resume_from,
            last_result=claimed.last_result,
        )

    async def _execute(self, work: Work) -> Ending:
        if planned := self._failures[work.task]:
            return results.ending_of_error(planned.pop(0))
        execution = asyncio.ensure_future(self._prepare_and_execute(work))
        while not (await asyncio.wait({execution}, timeout=CANCEL_POLL_SECONDS))[0]:
            await self._report()
            for key, attempt in await queue.cancel_requests(self._store, self.worker_id):
                self._executor.cancel(key, attempt, "cancelled while running")
        await self._report()
        return execution.result()

    async def _prepare_and_execute(self, work: Work) -> Ending:
        """Executes an attempt. Secrets come from environment variables BELLRINGER_SECRET_…"""
        sources = [EnvironmentSource(SECRET_VARIABLE_PREFIX, work.tenant)]
        preparer = PayloadPreparer(sources, self._app.codec, SystemClock(), {work.tenant_id: work.tenant})
        prepared = await preparer.prepare(work)
        if isinstance(prepared, Ending):
            return prepared
        return await self._executor.execute(prepared.work, prepared.secrets)

    async def _report(self) -> None:
        """Stores the progress and the logs of the running handlers."""
        if news := self._executor.progress():
            await queue.record_progress(self._store, self.worker_id, news)
        lines, self._lines[:] = list(self._lines), []
        if lines:
            await queue.add_log_lines(self._store, [line.row for line in lines])

    async def _die(self, when: CrashMoment) -> bool:
        """Claims all ready runs and then stops without a word, as a killed worker does, and is reaped."""
        held = 0
        for pool_id, pool in (await records.pool_ids(self._store)).items():
            for claimed in await self.claim(pool_id, CRASH_BATCH_SIZE):
                held += 1
                if when == "after":
                    await self.execute(claimed, pool)
        if not held:
            return False  # it will die when it has something to lose
        self._crash = None
        await self.replace()
        return True

    async def introduce(self) -> None:
        """Joins again if the app has other tasks by now."""
        if self._registry.names() != self._joined_with:
            await self._join()

    async def _join(self) -> None:
        self._joined_with = known = self._registry.names()
        task_ids = await self._catalog.task_ids(known)
        self.worker_id = await workers.join(
            self._store,
            WorkerRegistration(
                name="test",
                host="test",
                pid=os.getpid(),
                version="test",
                pools=dict.fromkeys((await records.pool_ids(self._store)).values(), 1),
                task_ids=[task_ids[name] for name in known],
            ),
        )
        await workers.record_heartbeat(self._store, self.worker_id, 0, "live", FAR_FUTURE)  # it knows whatever it holds
