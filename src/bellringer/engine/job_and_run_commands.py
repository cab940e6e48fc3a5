"""Commands of operators on jobs and runs. Each is one guarded SQL call and idempotent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from bellringer.core.jobs import WORKFLOW_TASK, check_run_arguments
from bellringer.core.payload import check_payload
from bellringer.core.runs import FINAL_STATES, Cause, RunKey, Spec, State
from bellringer.engine import graph_versions, producer_span
from bellringer.errors import Conflict, NotFound
from bellringer.store import jobs, runs, tenants
from bellringer.store.connection_pool import Store
from bellringer.store.dead_letters import DISCARDS_KEPT


async def pause(
    store: Store,
    job_id: UUID,
    *,
    tenant_id: int,
    who: str,
    reason: str | None = None,
    until: datetime | None = None,
) -> int:
    """Pauses a job: its schedules stop and its queued runs are held. Returns the job's new revision."""
    revision = await jobs.pause(store, job_id, tenant_id, who, reason, until)
    if revision is None:
        raise NotFound("there is no such job")
    return revision


async def delete_job(store: Store, job_id: UUID, *, tenant_id: int, who: str) -> None:
    """Deletes a job. Its schedules end, running runs finish, its history is kept."""
    if await jobs.delete(store, job_id, tenant_id, who) is None:
        raise NotFound("there is no such job")


async def cancel(store: Store, key: RunKey, *, tenant_id: int, reason: str) -> State:
    """Cancels a run. Returns `cancelled`, or `running` while the worker is being asked to stop."""
    state = await runs.cancel(store, key, tenant_id, reason)
    if state is not None:
        return State(state)
    run = await runs.get(store, key, tenant_id)
    if run is None:
        raise NotFound("there is no such run")
    if run.state is not State.CANCELLED:
        raise Conflict(f"the run has ended as {run.state} already")
    return run.state


async def retry(store: Store, key: RunKey, *, tenant_id: int) -> None:
    """Retries a run now: redrives a dead run, or ends the backoff of a run that waits for its next attempt."""
    if await runs.redrive(store, tenant_id, [key]) or await runs.retry_now(store, tenant_id, key):
        return
    run = await runs.get(store, key, tenant_id)
    if run is None:
        raise NotFound("there is no such run")
    hint = "only a dead run, or one that waits for its next attempt, can be retried"
    if run.cause == Cause.WORKFLOW and run.state in FINAL_STATES:
        hint = "this is the run of a node; retry the node: `bellringer workflows retry RUN NODE`"
    raise Conflict(f"the run is {run.state}", hint=hint)


async def redrive(store: Store, keys: Sequence[RunKey], *, tenant_id: int) -> int:
    """Requeues dead runs under the same keys, with increasing attempt numbers; returns how many."""
    return await runs.redrive(store, tenant_id, keys)


async def discard(store: Store, keys: Sequence[RunKey], *, tenant_id: int, operation_id: int | None = None) -> int:
    """Removes dead letters; the runs stay dead in the history. Returns how many. They can be restored for a day."""
    return await runs.discard(store, tenant_id, keys, operation_id)


async def restore_discarded(store: Store, keys: Sequence[RunKey], *, tenant_id: int) -> int:
    """Restores dead letters that were discarded within the last day; returns how many. Runs that were started again,
    or that are gone from the history, are left out.
    """
    return await runs.restore_discarded(store, tenant_id, keys, await store.now() - DISCARDS_KEPT)


async def replay(
    store: Store,
    key: RunKey,
    *,
    tenant_id: int,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> RunKey:
    """Creates a new run of the same occurrence; given kwargs override those of the original run."""
    run = await runs.get(store, key, tenant_id)
    if run is None:
        raise NotFound("there is no such run")
    check_run_arguments(run.task, args, kwargs)
    was = run.spec or Spec()
    if was.node is not None:
        raise Conflict("this is the run of a node", hint="retry the node: `bellringer workflows retry RUN NODE`")
    if run.task == WORKFLOW_TASK and was.graph is None:
        raise Conflict("the job of this run is no longer a workflow", hint="trigger the job instead")
    spec = msgspec.structs.replace(
        was,
        args=list(args) if args is not None else was.args,
        kwargs={**was.kwargs, **(kwargs or {})},
    )
    limit = await tenants.payload_limit(store, tenant_id)
    check_payload({"args": spec.args, "kwargs": spec.kwargs}, limit=limit)
    await graph_versions.check_params(store, spec, tenant_id=tenant_id)
    with producer_span.open_for_task(run.task, tenant_id) as trace:
        spec = msgspec.structs.replace(spec, trace=trace)  # a replay belongs to the trace of its own caller
        slot, state = await runs.replay(store, key, tenant_id, spec, reason)
    if slot is not None:
        return RunKey(key.job_id, key.scheduled_for, slot)
    if state == "deleted":
        raise Conflict("the job of this run was deleted", hint="send its task with `POST /jobs/execute`")
    raise Conflict(
        f"the run is {state or run.state}", hint="only a run that has ended can be replayed; wait or cancel it"
    )
