"""Flow: what is done to a workflow run from outside: try nodes again, say how one ended, send a signal, stop it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from bellringer.errors import Conflict, InvalidInput, NotFound
from bellringer.jobs import check_name
from bellringer.runs import RunKey, State
from bellringer.store import flows
from bellringer.store.pool import AWAY, FAILURES, Store
from bellringer.telemetry import log

_NODE: Final = re.compile(r"(?P<name>.+?)(\[(?P<place>\d{1,9})\])?")
_IN_THE_WAY: Final = {
    "running": ("the node, or one after it, is running", "cancel it, or wait until it has ended"),
    "undone": ("what this workflow run had done was taken back", "run the workflow anew"),
    "inner": ("this workflow run is a node of another that has ended", "retry that node of the other"),
    "stopping": ("the workflow run is being stopped", "wait until it has ended"),
    "nothing": ("no node of it has failed", "name the nodes that are to run again"),
    "map": ("a map ends by its elements", "mark one of them: name[3]"),
    "late": ("nobody waits for that signal any more", "look at its nodes with `bellringer workflows graph RUN`"),
}

Place = tuple[str, int | None]


def read_node(text: str, *, pointer: str = "/node") -> Place:
    """A node by its name, or one element of a map: `transform`, `transform[3]`."""
    found = _NODE.fullmatch(text)
    name = check_name(found["name"] if found else text, what="node", pointer=pointer)
    return name, int(found["place"]) if found and found["place"] else None


async def retry_nodes(store: Store, key: RunKey, nodes: Sequence[Place] | None, *, tenant_id: int) -> None:
    """Run nodes again, and all that comes after them; None: all that did not go well."""
    _heed(await flows.retry(store, key, tenant_id, nodes))


async def mark(
    store: Store, key: RunKey, node: Place, state: State, *, tenant_id: int, result: Any = None, reason: str
) -> None:
    """Say how a node has ended; what comes after it goes on from there."""
    if state not in (State.SUCCEEDED, State.DEAD):
        raise InvalidInput("a node is marked succeeded or dead", pointer="/state", code="unknown_word")
    _heed(await flows.mark(store, key, tenant_id, node, state, result=result, reason=reason))


async def signal(store: Store, key: RunKey, name: str, payload: Any, *, tenant_id: int) -> bool:
    """Tell a workflow run of something; True: a node had waited for it, False: it is kept until one does."""
    answer = await flows.signal(store, key, tenant_id, name, payload)
    if answer == "again":  # it was opened this very moment
        answer = await flows.signal(store, key, tenant_id, name, payload)
    if answer == "unknown_signal":
        known = await flows.signals(store, key, tenant_id)
        hint = f"it waits for {', '.join(known)}" if known else "none of its nodes waits for one"
        raise NotFound(f"the workflow run has no signal {name[:200]!r}", hint=hint)
    _heed(None if answer == "kept" else answer)
    return answer is None


async def stop_flows(store: Store, most: int = 100) -> int:
    """Stop what was cancelled and what has had its time: each in a transaction of its own; answers how many."""
    stopped = 0
    for flow in await flows.to_stop(store, most):
        try:
            stopped += await flows.stop(store, flow)
        except AWAY:
            raise
        except FAILURES as error:  # one that cannot be stopped now keeps no other from it
            log.error("a workflow run cannot be stopped", flow_id=str(flow.flow_id), error=str(error))
    return stopped


def _heed(trouble: str | None) -> None:
    if trouble is None:
        return
    if trouble == "unknown":
        raise NotFound("there is no such workflow run", hint="a run of a workflow has nodes once it has started")
    if trouble == "unknown_node":
        raise NotFound("the workflow run has no such node", hint="list them with `bellringer workflows graph RUN`")
    message, hint = _IN_THE_WAY[trouble]
    raise Conflict(message, hint=hint)
