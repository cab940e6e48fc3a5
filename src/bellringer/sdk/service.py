"""The asynchronous operations behind the SDK. Imported when an app first needs its database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from bellringer import tracing
from bellringer.clock import SystemClock
from bellringer.codecs import PayloadCodec
from bellringer.core.apps import AppVersion
from bellringer.core.jobs import Definition
from bellringer.core.messages import Message, MessageKind
from bellringer.core.policies import Missed
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.core.tasks import Registry
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register, workflow_commands
from bellringer.engine import send as sending
from bellringer.engine.declare import AppDeclaration, declare_app
from bellringer.engine.known_tasks import KnownTasks
from bellringer.engine.send import BulkSend, SendOutcome, WorkflowSend
from bellringer.errors import Conflict, InvalidInput, NotFound, RunFailed
from bellringer.sdk.declaration_log import MAX_LOGGED_NAMES, log_declaration
from bellringer.sdk.payload_edge import PayloadEdge
from bellringer.sdk.records import NodeState
from bellringer.store import apps, jobs, run_lists, runs, workflows
from bellringer.store.connection_pool import UNREACHABLE_ERRORS, Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow
from bellringer.store.migrate import require_current
from bellringer.store.runs import RunRow, SendResult
from bellringer.store.wakeups import CANCELS_CHANNEL, COHORTS_CHANNEL, RUNS_CHANNEL, WORK_CHANNEL, Wakeups
from bellringer.store.workflows import WorkflowNodeRow, node_label
from bellringer.telemetry import log

T = TypeVar("T")

FIRST_POLL_SECONDS: Final = 0.02
LONGEST_POLL_SECONDS: Final = 1.0
MAX_KEYS_PER_POLL: Final = 5_000  # of one query for runs that have not ended
WARNING_INTERVAL_SECONDS: Final = 60.0
SEND_RETRY_SECONDS: Final = (0.1, 0.3, 1.0, 2.0)  # delays between retries while the database is unreachable


class Service:
    """The operations of one tenant on an open database."""

    def __init__(
        self, store: Store, catalog: Catalog, tenant_id: int, who: str, edge: PayloadEdge | None = None
    ) -> None:
        self._edge = edge
        self._store = store
        self._catalog = catalog
        self._tenant_id = tenant_id
        self._who = who
        self._clock = SystemClock()
        self._wakeups = Wakeups(store, self._clock)
        self._known_tasks = KnownTasks(store)
        self._warned: dict[tuple[str, str], float] = {}
        self._superseded_by: str | None = None

    @classmethod
    async def open(cls, dsn: str, *, tenant: str, who: str, codec: PayloadCodec | None = None) -> Service:
        tracing.enable_from_environment(who)
        store = await Store.open(dsn, name=who)
        try:
            async with store.pool.acquire() as connection:
                await require_current(connection)
            catalog = Catalog(store)
            edge = None if codec is None else PayloadEdge(codec, tenant)
            return cls(store, catalog, await catalog.tenant_id(tenant), who, edge)
        except BaseException:
            await store.close()
            raise

    @property
    def dsn(self) -> str:
        return self._store.dsn

    async def close(self) -> None:
        await self._wakeups.close()
        await self._store.close()

    def terminate(self) -> None:
        """Drop the connections without a goodbye, because their loop does not run any more."""
        self._store.pool.terminate()

    async def now(self) -> datetime:
        return await self._store.now()

    # Runs

    async def send(self, message: Message) -> SendResult:
        if self._edge is not None:
            message = self._edge.message(message)
        sent = await self._send(message)
        if sent.created:
            await self._warn(message.kind)
        return sent

    async def send_many(
        self, items: Iterable[tuple[int, Message | InvalidInput]], *, atomic: bool
    ) -> list[SendOutcome]:
        """Send many messages; see `BulkSend`."""
        if self._edge is not None:
            edge = self._edge
            items = ((index, edge.message(item) if isinstance(item, Message) else item) for index, item in items)
        bulk = BulkSend(self._catalog, items, tenant_id=self._tenant_id, atomic=atomic)
        notify = self._wakeups.may_notify()
        sent = await self._repeat(lambda repeated: bulk.write(self._store, repeated=repeated, notify=notify))
        if not notify:
            created = [result for result in sent if isinstance(result, SendResult) and result.created]
            for now, group in groupby(created, key=lambda result: result.now):
                self._wakeups.announce(now, {result.key.scheduled_for for result in group})
        for kind in bulk.kinds:
            await self._warn(kind)
        return sent

    async def _warn(self, of: MessageKind | Definition) -> None:
        """Log that no live worker knows a task: once a minute for each, in this process."""
        task, pool = of.task, of.pool
        with suppress(*UNREACHABLE_ERRORS):
            found = await self._known_tasks.check(task, pool)
            if (
                found is not None
                and monotonic() - self._warned.get((task, pool), float("-inf")) >= WARNING_INTERVAL_SECONDS
            ):
                self._warned[task, pool] = monotonic()
                log.warning(found.detail, hint=found.hint)

    async def _send(self, message: Message) -> SendResult:
        job_id = uuid7()
        notify = message.may_be_soon(self._clock.now()) and self._wakeups.may_notify()
        sent = await self._repeat(
            lambda repeated: sending.send(
                self._store,
                self._catalog,
                message,
                tenant_id=self._tenant_id,
                job_id=job_id,
                repeated=repeated,
                notify=notify,
            )
        )
        if sent.created and not notify:
            self._wakeups.announce(sent.now, [sent.key.scheduled_for])
        return sent

    async def send_workflow(self, request: WorkflowSend) -> SendResult:
        if self._edge is not None:
            request = self._edge.workflow(request)
        job_id, notify = uuid7(), self._wakeups.may_notify()
        sent = await self._repeat(
            lambda repeated: sending.send_workflow(
                self._store,
                self._catalog,
                request,
                tenant_id=self._tenant_id,
                job_id=job_id,
                repeated=repeated,
                notify=notify,
            )
        )
        if sent.created and not notify:
            self._wakeups.announce(sent.now, [sent.key.scheduled_for])
        return sent

    async def _repeat(self, act: Callable[[bool], Awaitable[T]]) -> T:
        """Repeat a send while the database is unreachable. Fixed run ids prevent a second run."""
        repeated, pauses = False, iter(SEND_RETRY_SECONDS)
        while True:
            try:
                return await act(repeated)
            except UNREACHABLE_ERRORS:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
                repeated = True

    async def run(self, key: RunKey) -> RunRow:
        run = await runs.get(self._store, key, self._tenant_id)
        if run is None:
            raise NotFound(f"there is no run {key.id}")
        return run

    async def end(self, key: RunKey, timeout: float | None) -> RunRow:
        """Poll until the run has ended, at growing intervals."""
        pause = FIRST_POLL_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while (run := await self.run(key)).state not in FINAL_STATES:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"run {key.id} has not ended after {timeout:g} s") from None
        return run

    async def ended_of(self, keys: Sequence[RunKey], timeout: float | None, *, wait_for_all: bool) -> list[RunRow]:
        """Poll until one of the runs has ended, or all have; one query for all of them, at growing intervals.

        Returns the ended runs in the given order.
        """
        pause = FIRST_POLL_SECONDS
        pending = list(dict.fromkeys(keys))
        try:
            async with asyncio.timeout(timeout):
                while True:
                    lasting = await self._unfinished(pending)
                    if not lasting or (len(lasting) < len(set(keys)) and not wait_for_all):
                        break
                    pending = [key for key in pending if key in lasting] if wait_for_all else pending
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{len(pending)} of {len(set(keys))} runs have not ended after {timeout:g} s") from None
        ended = [key for key in dict.fromkeys(keys) if key not in lasting]
        found = await runs.get_all(self._store, self._tenant_id, ended)
        if missing := [key for key in ended if key not in found]:
            raise NotFound(f"there is no run {missing[0].id}")
        return [found[key] for key in ended]

    async def _unfinished(self, keys: Sequence[RunKey]) -> set[RunKey]:
        lasting: set[RunKey] = set()
        for start in range(0, len(keys), MAX_KEYS_PER_POLL):
            lasting |= await run_lists.unfinished(self._store, keys[start : start + MAX_KEYS_PER_POLL])
        return lasting

    async def result(self, key: RunKey, timeout: float | None) -> Any:
        return self.result_of(await self.end(key, timeout))

    def result_of(self, run: RunRow) -> Any:
        """The decrypted result of an ended run. Raises RunFailed if it did not succeed."""
        result = result_of(run)
        return result if self._edge is None else self._edge.result(result)

    async def cancel(self, key: RunKey, reason: str) -> State:
        state = await commands.cancel(self._store, key, tenant_id=self._tenant_id, reason=reason)
        if state is State.RUNNING:
            await self._wakeups.send(CANCELS_CHANNEL)
        await self._invalidate()
        return state

    # Workflow runs

    async def nodes(self, key: RunKey, of: str | None) -> list[NodeState]:
        """The nodes in order of dependency, or the elements of a map node."""
        inside = await workflows.load_run(self._store, self._tenant_id, key)
        graph = None if inside is None else await workflows.load_graph(self._store, self._tenant_id, inside.graph_id)
        if inside is None or graph is None:
            raise NotFound(f"{key.id} has no nodes", hint="workflow runs have nodes once they have started")
        names = {node.node: node.name for node in graph.nodes}
        wanted = range(1, len(names) + 1)
        if of is not None:
            number = next((number for number, name in names.items() if name == of), None)
            if number is None:
                raise NotFound(f"the workflow run has no node {of!r}", hint=f"it has {', '.join(names.values())}")
            wanted = await workflows.map_element_numbers(self._store, inside.flow_id, number)
        rows = await workflows.load_run_nodes(
            self._store, self._tenant_id, inside.flow_id, first=wanted.start, last=wanted.stop - 1
        )
        return [_node(row, names[row.graph_node], RunKey(inside.flow_id, key.scheduled_for, row.node)) for row in rows]

    async def signal(self, key: RunKey, name: str, payload: Any) -> bool:
        taken = await workflow_commands.send_signal(self._store, key, name, payload, tenant_id=self._tenant_id)
        await self._changed()
        return taken

    async def retry_nodes(self, key: RunKey, nodes: Sequence[str]) -> None:
        places = [workflow_commands.parse_node(node) for node in nodes] or None
        await workflow_commands.retry_nodes(self._store, key, places, tenant_id=self._tenant_id)
        await self._changed()

    async def mark(self, key: RunKey, node: str, state: State, result: Any, reason: str) -> None:
        place = workflow_commands.parse_node(node)
        await workflow_commands.mark_node(
            self._store, key, place, state, tenant_id=self._tenant_id, result=result, reason=reason
        )
        await self._changed()

    # Jobs

    async def declare(self, app: AppVersion, definitions: Sequence[Definition], tasks: Sequence[str]) -> AppDeclaration:
        """Apply the declaration of an app, and log jobs that its code no longer declares; see `declare_app`."""
        if self._edge is not None:
            definitions = [self._edge.definition(definition) for definition in definitions]
        done = await declare_app(self._store, self._catalog, app, definitions, tasks, tenant_id=self._tenant_id)
        if done.changed or done.resumed:
            await self._wakeups.send(COHORTS_CHANNEL)
        if done.resumed:
            await self._wakeups.send(WORK_CHANNEL)  # runs that the pause of an orphan held back
        if done.is_written:
            await self._invalidate()
        if done.superseded_by is None or done.superseded_by != self._superseded_by:  # workers declare again and again
            firing = await apps.firing_orphans(self._store, self._tenant_id, app.name, MAX_LOGGED_NAMES)
            log_declaration(app, done, firing)
        self._superseded_by = done.superseded_by
        return done

    async def schedule(self, definition: Definition) -> None:
        if self._edge is not None:
            definition = self._edge.definition(definition)
        changed = await register.declare(
            self._store, self._catalog, [definition], tenant_id=self._tenant_id, who=self._who
        )
        if changed:
            await self._wakeups.send(COHORTS_CHANNEL)
            await self._invalidate()
        await self._warn(definition)

    async def find(self, name: str, declared: Sequence[str] = ()) -> UUID:
        """The id of the job with that name, or of the only declared job in `declared`."""
        known = await jobs.find_many(self._store, self._tenant_id, [name, *declared])
        if (found := known.get(name)) is not None:
            return found[0]
        if len(known) > 1:
            raise Conflict(f"{name!r} is ambiguous: {', '.join(declared)}", hint="use the full name")
        if not known:
            raise NotFound(
                f"there is no job {name!r}", hint="jobs of @app.schedule are registered when a worker starts"
            )
        return next(iter(known.values()))[0]

    async def job(self, job_id: UUID) -> JobRow:
        job = await jobs.get(self._store, job_id, self._tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        return job

    async def jobs(self, limit: int) -> list[JobRow]:
        return await jobs.list_by_id(self._store, self._tenant_id, None, limit)

    async def runs_of(self, job_id: UUID, limit: int) -> list[RunRow]:
        return await runs.of_job(self._store, job_id, self._tenant_id, None, limit)

    async def pause(self, job_id: UUID, reason: str | None, until: timedelta | datetime | None) -> None:
        end = await self._store.now() + until if isinstance(until, timedelta) else until
        await commands.pause(self._store, job_id, tenant_id=self._tenant_id, who=self._who, reason=reason, until=end)
        await self._invalidate()

    async def resume(self, job_id: UUID, missed: Missed) -> int:
        """Resume the job, and return how many occurrences the pause covered."""
        resumed = await register.resume(
            self._store, self._catalog, job_id, tenant_id=self._tenant_id, who=self._who, missed=missed
        )
        await self._wakeups.send(COHORTS_CHANNEL)
        await self._wakeups.send(WORK_CHANNEL)  # runs that the pause held back
        await self._invalidate()
        return resumed.missed

    async def delete(self, job_id: UUID) -> None:
        await commands.delete_job(self._store, job_id, tenant_id=self._tenant_id, who=self._who)
        await self._invalidate()

    async def trigger(self, job_id: UUID, kwargs: Mapping[str, Any], registry: Registry) -> RunKey:
        """Run a job now. Arguments are checked if this program knows the task."""
        stored: Mapping[str, Any] | None = None
        if kwargs:
            job = await self.job(job_id)
            task = registry.get(job.task)
            args, merged = job.spec.args, {**job.spec.kwargs, **kwargs}
            if self._edge is not None:
                args, merged = self._edge.result(args), self._edge.result(merged)
            stored = task.bind(args, merged)[1] if task else merged
            if self._edge is not None:
                stored = self._edge.arguments(stored, job.task)
        key = await sending.trigger(self._store, job_id, tenant_id=self._tenant_id, kwargs=stored)
        await self._wakeups.send(WORK_CHANNEL)
        await self._invalidate()
        return key

    async def _changed(self) -> None:
        """Wake up workers and invalidate caches: nodes may have become ready."""
        await self._wakeups.send(WORK_CHANNEL)
        await self._invalidate()

    async def _invalidate(self) -> None:
        """Invalidate what API servers have cached of this tenant."""
        await self._wakeups.send(RUNS_CHANNEL, str(self._tenant_id))


def _node(row: WorkflowNodeRow, name: str, key: RunKey) -> NodeState:
    return NodeState(
        name=node_label(name, row.index),
        state=row.state,
        reason=row.reason,
        run_id=key.id if row.has_run else None,
        attempt=row.attempt,
        started_at=row.started_at,
        finished_at=row.finished_at,
        size=row.size,
    )


def result_of(run: RunRow) -> Any:
    """Return the result of an ended run. Raises RunFailed if it did not succeed."""
    if run.state is State.SUCCEEDED:
        return run.result
    raise RunFailed(f"{run.task} ended as {run.state}{_cause(run)}", state=run.state, error=run.error)


def _cause(run: RunRow) -> str:
    error = run.error or {}
    text = error.get("message") or error.get("reason")
    kind = error.get("type")
    return f": {kind}: {text}" if kind and text else f": {text}" if text else ""
