"""Pauses and resumes a task for a tenant: all of its runs, whatever created them.

See `store/functions/tasks/pause.sql` for the guarantee, and docs/decisions/027 for the reasons.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from bellringer.errors import Conflict, NotFound
from bellringer.store import task_pauses
from bellringer.store.connection_pool import Store

MAX_RUNS_PER_REQUEST: Final = 20_000  # that a pause holds, or a resume releases, before it returns
MAX_RUNS_PER_PASS: Final = 2_000  # of a scheduler
MAX_PASSES: Final = 10


async def pause(
    store: Store, name: str, *, tenant_id: int, who: str, reason: str | None = None, until: datetime | None = None
) -> int:
    """Pauses a task; returns its id. When it returns, no further run of the task starts.

    The two calls must be two transactions: the second waits for claims that began before the first committed.
    """
    task_id = await find(store, name, tenant_id=tenant_id)
    await task_pauses.pause(store, tenant_id, task_id, who=who, reason=reason, until=until)
    await task_pauses.hold_runs(store, tenant_id, task_id, scan=None, limit=MAX_RUNS_PER_REQUEST)
    return task_id


async def resume(store: Store, name: str, *, tenant_id: int, who: str, rate: float | None = None) -> int:
    """Resumes a task; returns its id. With a rate, schedulers release the held runs at so many a second."""
    task_id = await find(store, name, tenant_id=tenant_id)
    if not await task_pauses.resume(store, tenant_id, task_id, who=who, rate=rate):
        raise Conflict(f"task {name} is not paused", hint="`bellringer tasks list` shows paused tasks")
    await task_pauses.release_runs(store, tenant_id, task_id, limit=MAX_RUNS_PER_REQUEST)
    return task_id


async def find(store: Store, name: str, *, tenant_id: int) -> int:
    """Returns the id of a task. Raises NotFound if the tenant does not know it."""
    task_id = None if "\0" in name else await task_pauses.find_task(store, tenant_id, name)
    if task_id is None:
        raise NotFound("there is no such task", hint="`bellringer tasks list` shows them")
    return task_id


async def sweep(store: Store) -> int:
    """Ends pauses whose time is over, holds new runs of paused tasks, and releases runs of others; returns the number
    of released runs.
    """
    await task_pauses.end_expired(store)
    await task_pauses.hold_runs(store, None, None, scan=MAX_RUNS_PER_PASS, limit=MAX_RUNS_PER_PASS)
    released = 0
    for _ in range(MAX_PASSES):
        freed = await task_pauses.release_runs(store, None, None, limit=MAX_RUNS_PER_PASS)
        released += freed
        if freed < MAX_RUNS_PER_PASS:
            break
    return released
