"""Replay: an occurrence that has ended is run once more, in another slot, perhaps with other arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bellringer.errors import Conflict, NotFound
from bellringer.jobs import WORKFLOW, check_others
from bellringer.lifecycle import versions
from bellringer.payload import check_payload
from bellringer.runs import RunKey, Spec
from bellringer.store import runs, tenants
from bellringer.store.pool import Store


async def replay(
    store: Store,
    key: RunKey,
    *,
    tenant_id: int,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> RunKey:
    """A new run of the same occurrence; kwargs that are given change those that it had."""
    run = await runs.get(store, key, tenant_id)
    if run is None:
        raise NotFound("there is no such run")
    check_others(run.task, args, kwargs)
    was = run.spec or Spec()
    if was.node is not None:
        raise Conflict("this is the run of a node", hint="retry the node: `bellringer workflows retry RUN NODE`")
    if run.task == WORKFLOW and was.graph is None:
        raise Conflict("the job of this run is no workflow any more", hint="trigger the job as it is now")
    spec = msgspec.structs.replace(
        was,
        args=list(args) if args is not None else was.args,
        kwargs={**was.kwargs, **(kwargs or {})},
    )
    limit = await tenants.payload_limit(store, tenant_id)
    check_payload({"args": spec.args, "kwargs": spec.kwargs}, limit=limit)
    await versions.check_params(store, spec, tenant_id=tenant_id)
    slot, state = await runs.replay(store, key, tenant_id, spec, reason)
    if slot is not None:
        return RunKey(key.job_id, key.scheduled_for, slot)
    if state == "deleted":
        raise Conflict("the job of this run was deleted", hint="send its task with `POST /jobs/execute`")
    raise Conflict(
        f"the run is {state or run.state}", hint="only a run that has ended can be replayed; wait or cancel it"
    )
