"""Commands on workflow runs: retry nodes, mark a node, send a signal, and stop runs that were cancelled or timed
out.

SQL functions decide and write; they return a refusal code that `_raise_for` turns into an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from bellringer.core.jobs import check_name
from bellringer.core.runs import RunKey, State
from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.store import workflows
from bellringer.store.connection_pool import DATABASE_ERRORS, UNREACHABLE_ERRORS, Store
from bellringer.telemetry import log

_NODE_PATTERN: Final = re.compile(r"(?P<name>.+?)(\[(?P<place>\d{1,9})\])?")
_CONFLICTS: Final = {
    "running": ("the node, or one after it, is running", "cancel it, or wait until it ends"),
    "undone": ("this workflow run was compensated", "run the workflow again"),
    "inner": ("this workflow run is a node of another workflow run that has ended", "retry that node instead"),
    "stopping": ("the workflow run is being stopped", "wait until it has ended"),
    "nothing": ("no node of the workflow run has failed", "name the nodes to run again"),
    "map": ("a map cannot be marked as a whole", "mark an element: name[3]"),
    "late": ("no node waits for that signal any more", "look at its nodes with `bellringer workflows graph RUN`"),
}

NodeRef = tuple[str, int | None]


def parse_node(text: str, *, pointer: str = "/node") -> NodeRef:
    """Parses the name of a node, or of one element of a map: `transform`, `transform[3]`."""
    found = _NODE_PATTERN.fullmatch(text)
    name = check_name(found["name"] if found else text, what="node", pointer=pointer)
    return name, int(found["place"]) if found and found["place"] else None


async def retry_nodes(store: Store, key: RunKey, nodes: Sequence[NodeRef] | None, *, tenant_id: int) -> None:
    """Runs nodes and all their successors again; None retries all nodes that failed or were skipped."""
    _raise_for(await workflows.retry_nodes(store, key, tenant_id, nodes))


async def mark_node(
    store: Store, key: RunKey, node: NodeRef, state: State, *, tenant_id: int, result: Any = None, reason: str
) -> None:
    """Sets the final state of a node; its successors continue from there."""
    if state not in (State.SUCCEEDED, State.DEAD):
        raise InvalidInput("a node is marked succeeded or dead", pointer="/state", code="unknown_word")
    _raise_for(await workflows.mark_node(store, key, tenant_id, node, state, result=result, reason=reason))


async def send_signal(store: Store, key: RunKey, name: str, payload: Any, *, tenant_id: int) -> bool:
    """Sends a signal to a workflow run. Returns True if a node was waiting for it, False if it is stored until one
    does.
    """
    refusal = await workflows.send_signal(store, key, tenant_id, name, payload)
    if refusal == "again":  # the run was opened at the same moment
        refusal = await workflows.send_signal(store, key, tenant_id, name, payload)
    if refusal == "unknown_signal":
        known = await workflows.signal_names(store, key, tenant_id)
        hint = f"it waits for {', '.join(known)}" if known else "none of its nodes waits for one"
        raise NotFound(f"the workflow run has no signal {name[:200]!r}", hint=hint)
    _raise_for(None if refusal == "kept" else refusal)
    return refusal is None


async def stop_workflow_runs(store: Store, limit: int = 100) -> int:
    """Stops cancelled and timed-out workflow runs, each in its own transaction; returns how many."""
    stopped = 0
    for flow in await workflows.runs_to_stop(store, limit):
        try:
            stopped += await workflows.stop_run(store, flow)
        except UNREACHABLE_ERRORS:
            raise
        except DATABASE_ERRORS as error:  # a run that cannot be stopped must not block the others
            log.error("workflow run not stopped", flow_id=str(flow.flow_id), error=str(error))
    return stopped


def _raise_for(refusal: str | None) -> None:
    if refusal is None:
        return
    if refusal == "unknown":
        raise NotFound("there is no such workflow run", hint="a run of a workflow has nodes once it has started")
    if refusal == "unknown_node":
        raise NotFound("the workflow run has no such node", hint="list them with `bellringer workflows graph RUN`")
    message, hint = _CONFLICTS[refusal]
    raise Conflict(message, hint=hint)
