"""Control: what operators do to jobs and runs. Each is one guarded call; repeating it changes nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from bellringer.errors import Conflict, NotFound
from bellringer.runs import FINAL, Cause, RunKey, State
from bellringer.store import jobs, runs
from bellringer.store.pool import Store


async def pause(
    store: Store,
    job_id: UUID,
    *,
    tenant_id: int,
    who: str,
    reason: str | None = None,
    until: datetime | None = None,
) -> int:
    """Fire nothing more, and hold what waits; answers the job's new revision."""
    revision = await jobs.pause(store, job_id, tenant_id, who, reason, until)
    if revision is None:
        raise NotFound("there is no such job")
    return revision


async def retire(store: Store, job_id: UUID, *, tenant_id: int, who: str) -> None:
    """Delete a job: its future ends, what runs now finishes, its history stays."""
    if await jobs.retire(store, job_id, tenant_id, who) is None:
        raise NotFound("there is no such job")


async def cancel(store: Store, key: RunKey, *, tenant_id: int, reason: str) -> State:
    """Cancel a run; answers `cancelled`, or `running` while it is being asked to stop."""
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
    """Try again now: a dead run is redriven, one that waits for its backoff waits no longer."""
    if await runs.redrive(store, tenant_id, [key]) or await runs.hasten(store, tenant_id, key):
        return
    run = await runs.get(store, key, tenant_id)
    if run is None:
        raise NotFound("there is no such run")
    hint = "only a dead run, or one that waits for its next attempt, can be retried"
    if run.cause == Cause.WORKFLOW and run.state in FINAL:
        hint = "this is the run of a node; retry the node: `bellringer workflows retry RUN NODE`"
    raise Conflict(f"the run is {run.state}", hint=hint)


async def redrive(store: Store, keys: Sequence[RunKey], *, tenant_id: int) -> int:
    """Revive dead letters: the same runs and keys, attempts count on; answers how many."""
    return await runs.redrive(store, tenant_id, keys)


async def discard(store: Store, keys: Sequence[RunKey], *, tenant_id: int) -> int:
    """Take runs off the dead letters for good; they stay dead in history."""
    return await runs.discard(store, tenant_id, keys)
