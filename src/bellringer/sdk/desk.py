"""What an app may ask of the engine, in async only; imported when an app first needs its database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from bellringer.clock import SystemClock
from bellringer.errors import Conflict, NotFound, RunFailed
from bellringer.jobs import Definition
from bellringer.lifecycle import control, flow, register
from bellringer.lifecycle import send as sending
from bellringer.lifecycle.send import Order
from bellringer.policies import Missed
from bellringer.runs import FINAL, RunKey, State
from bellringer.sdk.records import NodeState
from bellringer.store import flow_reads, jobs, runs
from bellringer.store.flow_reads import FlowNodeRow, place_name
from bellringer.store.jobs import Job
from bellringer.store.migrate import require_current
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.runs import Run, Sent
from bellringer.store.wakeups import CANCELS, HANDS, RUNS, WORK, Wakeups
from bellringer.tasks import Registry

FIRST_LOOK: Final = 0.02
SLOWEST_LOOK: Final = 1.0
LATE: Final = timedelta(minutes=1)


class Desk:
    """One tenant's view of an open database."""

    def __init__(self, store: Store, names: Names, tenant_id: int, who: str) -> None:
        self._store = store
        self._names = names
        self._tenant_id = tenant_id
        self._who = who
        self._wakeups = Wakeups(store, SystemClock())

    @classmethod
    async def open(cls, dsn: str, *, tenant: str, who: str) -> Desk:
        store = await Store.open(dsn, name=who)
        try:
            async with store.pool.acquire() as connection:
                await require_current(connection)
            names = Names(store)
            return cls(store, names, await names.tenant_id(tenant), who)
        except BaseException:
            await store.close()
            raise

    @property
    def dsn(self) -> str:
        return self._store.dsn

    async def close(self) -> None:
        await self._store.close()

    async def now(self) -> datetime:
        return await self._store.now()

    # Runs

    async def send(self, order: Order, delay: timedelta | None = None) -> Sent:
        if delay:
            order = replace(order, at=await self._store.now() + delay)
        sent = await sending.send(self._store, self._names, order, tenant_id=self._tenant_id)
        if sent.created:
            await self._wakeups.send(HANDS if order.at else WORK)
        return sent

    async def run(self, key: RunKey) -> Run:
        run = await runs.get(self._store, key, self._tenant_id)
        if run is None:
            raise NotFound(f"there is no run {key.id}")
        return run

    async def end(self, key: RunKey, timeout: float | None) -> Run:
        """The run once it has ended; looks often at first, then ever less."""
        pause = FIRST_LOOK
        try:
            async with asyncio.timeout(timeout):
                while (run := await self.run(key)).state not in FINAL:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, SLOWEST_LOOK)
        except TimeoutError:
            raise TimeoutError(f"{key.id} has not ended after {timeout:g} s") from None
        return run

    async def result(self, key: RunKey, timeout: float | None) -> Any:
        run = await self.end(key, timeout)
        if run.state is State.SUCCEEDED:
            return run.result
        raise RunFailed(f"{run.task} ended as {run.state}{_because(run)}", state=run.state, error=run.error)

    async def cancel(self, key: RunKey, reason: str) -> State:
        state = await control.cancel(self._store, key, tenant_id=self._tenant_id, reason=reason)
        if state is State.RUNNING:
            await self._wakeups.send(CANCELS)
        await self._tell()
        return state

    # Workflow runs

    async def nodes(self, key: RunKey, of: str | None) -> list[NodeState]:
        """Nodes in the order in which they wait for each other, or the elements of a map."""
        inside = await flow_reads.flow(self._store, self._tenant_id, key)
        graph = None if inside is None else await flow_reads.graph(self._store, self._tenant_id, inside.graph_id)
        if inside is None or graph is None:
            raise NotFound(f"{key.id} has no nodes", hint="a run of a workflow has nodes once it has started")
        names = {node.node: node.name for node in graph.nodes}
        wanted = range(1, len(names) + 1)
        if of is not None:
            number = next((number for number, name in names.items() if name == of), None)
            if number is None:
                raise NotFound(f"the workflow run has no node {of!r}", hint=f"it has {', '.join(names.values())}")
            wanted = await flow_reads.elements(self._store, inside.flow_id, number)
        rows = await flow_reads.nodes(
            self._store, self._tenant_id, inside.flow_id, first=wanted.start, last=wanted.stop - 1
        )
        return [_node(row, names[row.of], RunKey(inside.flow_id, key.scheduled_for, row.node)) for row in rows]

    async def signal(self, key: RunKey, name: str, payload: Any) -> bool:
        taken = await flow.signal(self._store, key, name, payload, tenant_id=self._tenant_id)
        await self._changed()
        return taken

    async def retry_nodes(self, key: RunKey, nodes: Sequence[str]) -> None:
        places = [flow.read_node(node) for node in nodes] or None
        await flow.retry_nodes(self._store, key, places, tenant_id=self._tenant_id)
        await self._changed()

    async def mark(self, key: RunKey, node: str, state: State, result: Any, reason: str) -> None:
        place = flow.read_node(node)
        await flow.mark(self._store, key, place, state, tenant_id=self._tenant_id, result=result, reason=reason)
        await self._changed()

    # Jobs

    async def declare(self, definitions: Sequence[Definition]) -> int:
        """Make the jobs what the definitions say; answers how many had to change.

        A one-shot whose time is over is left as it is, for code outlives the instants that it names.
        """
        now = await self._store.now()
        wanted = [d for d in definitions if d.once_at is None or d.once_at > now - LATE]
        changed = await self._upsert(wanted)
        return len(changed)

    async def schedule(self, definition: Definition) -> None:
        await self._upsert([definition])

    async def find(self, name: str, declared: Sequence[str] = ()) -> UUID:
        """The id of the job of that name, or else of the one declared name that ends in it."""
        known = await jobs.find_many(self._store, self._tenant_id, [name, *declared])
        if (found := known.get(name)) is not None:
            return found[0]
        if len(known) > 1:
            raise Conflict(f"{name!r} may be any of {', '.join(declared)}", hint="say which, by its whole name")
        if not known:
            raise NotFound(f"there is no job {name!r}", hint="jobs of @app.schedule exist once a worker has started")
        return next(iter(known.values()))[0]

    async def job(self, job_id: UUID) -> Job:
        job = await jobs.get(self._store, job_id, self._tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        return job

    async def jobs(self, limit: int) -> list[Job]:
        return await jobs.listing(self._store, self._tenant_id, None, limit)

    async def runs_of(self, job_id: UUID, limit: int) -> list[Run]:
        return await runs.of_job(self._store, job_id, self._tenant_id, None, limit)

    async def pause(self, job_id: UUID, reason: str | None, until: timedelta | datetime | None) -> None:
        end = await self._store.now() + until if isinstance(until, timedelta) else until
        await control.pause(self._store, job_id, tenant_id=self._tenant_id, who=self._who, reason=reason, until=end)
        await self._tell()

    async def resume(self, job_id: UUID, missed: Missed) -> int:
        """Answers how many occurrences the pause covered."""
        resumed = await register.resume(
            self._store, self._names, job_id, tenant_id=self._tenant_id, who=self._who, missed=missed
        )
        await self._wakeups.send(HANDS)
        await self._tell()
        return resumed.missed

    async def delete(self, job_id: UUID) -> None:
        await control.retire(self._store, job_id, tenant_id=self._tenant_id, who=self._who)
        await self._tell()

    async def trigger(self, job_id: UUID, kwargs: Mapping[str, Any], registry: Registry) -> RunKey:
        """Run a job now; arguments are checked where this program knows the task."""
        stored: Mapping[str, Any] | None = None
        if kwargs:
            job = await self.job(job_id)
            task = registry.get(job.task)
            merged = {**job.spec.kwargs, **kwargs}
            stored = task.bind(job.spec.args, merged)[1] if task else merged
        key = await sending.trigger(self._store, job_id, tenant_id=self._tenant_id, kwargs=stored)
        await self._wakeups.send(WORK)
        await self._tell()
        return key

    async def _upsert(self, definitions: Sequence[Definition]) -> Sequence[object]:
        changed = await register.declare(
            self._store, self._names, definitions, tenant_id=self._tenant_id, who=self._who
        )
        if changed:
            await self._wakeups.send(HANDS)
            await self._tell()
        return changed

    async def _changed(self) -> None:
        """Nodes may have become ready."""
        await self._wakeups.send(WORK)
        await self._tell()

    async def _tell(self) -> None:
        """Let servers forget what they have kept of this tenant's jobs."""
        await self._wakeups.send(RUNS, str(self._tenant_id))


def _node(row: FlowNodeRow, name: str, key: RunKey) -> NodeState:
    return NodeState(
        name=place_name(name, row.place),
        state=row.state,
        reason=row.reason,
        run_id=key.id if row.has_run else None,
        attempt=row.attempt,
        started_at=row.started_at,
        finished_at=row.finished_at,
        size=row.size,
    )


def _because(run: Run) -> str:
    error = run.error or {}
    said = error.get("message") or error.get("reason")
    kind = error.get("type")
    return f": {kind}: {said}" if kind and said else f": {said}" if said else ""
