"""Workflow runs from inside: their nodes, to run some again, to say how one ended, and to send them signals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api import flow_documents
from bellringer.api.calls import Call, no_run, reply
from bellringer.api.operations import CURSOR, LIMIT, choice, operation, string
from bellringer.api.problems import Refused
from bellringer.errors import InvalidInput, NotFound
from bellringer.jobs import WORKFLOW, check_name
from bellringer.lifecycle import flow as steer
from bellringer.lifecycle.flow import Place, read_node
from bellringer.payload import check_payload
from bellringer.runs import RunKey, Spec, State
from bellringer.store import flow_reads, runs
from bellringer.store.flow_reads import Flow, GraphRows, NodeRow
from bellringer.store.wakeups import WORK
from bellringer.wire import note
from bellringer.wire.definitions import word
from bellringer.wire.reading import Gathering
from bellringer.wire.workflows import (
    MarkNodeRequest,
    NodePage,
    NodesChanged,
    RetryNodesRequest,
    RunGraph,
    Signalled,
    SignalRequest,
)

STATES: Final = (
    "blocked", "queued", "running", "retrying", "waiting", "succeeded", "dead", "cancelled", "skipped",
)  # fmt: skip
MOST_NAMED: Final = 10_000


def no_part(message: str, hint: str) -> Refused:
    """A part of something that is the caller's own is missing: only then a hint may tell what there is."""
    return Refused(404, NotFound.code, message, hint=hint)


@asynccontextmanager
async def _own_flow(call: Call, key: RunKey) -> AsyncIterator[None]:
    """Around what is done to a workflow run of the caller's own."""
    if await flow_reads.flow(call.store, call.tenant_id, key) is None:
        raise NotFound("there is no such workflow run")
    try:
        yield
    except NotFound as error:
        raise no_part(error.message, error.hint) from None


class NodeMark(msgspec.Struct, frozen=True, array_like=True):
    """The last node of a page."""

    node: int

    def __post_init__(self) -> None:
        if not 0 < self.node < flow_reads.LAST:
            raise ValueError("not a mark of ours")


@operation("runs", role=Role.VIEWER, answers={200: RunGraph})
async def graph(call: Call) -> Response:
    """A workflow run from inside: its nodes behind those they wait for, where each is, and what took the time.

    Of a map the elements are counted; `GET …/nodes?node=NAME` lists them.
    """
    call.query()
    key = call.run_key()
    run, flow = await _run(call, key), await flow_reads.flow(call.store, call.tenant_id, key)
    found = await _graph(call, run, flow)
    if flow is None:
        return reply(flow_documents.run_graph(run, None, found, (), {}))
    rows = await flow_reads.nodes(call.store, call.tenant_id, flow.flow_id, last=len(found.nodes))
    is_counted = any(row.size for row in rows)
    counts = await flow_reads.counts(call.store, call.tenant_id, flow.flow_id) if is_counted else {}
    return reply(flow_documents.run_graph(run, flow, found, rows, counts))


@operation(
    "runs",
    role=Role.VIEWER,
    answers={200: NodePage},
    query=(
        LIMIT,
        CURSOR,
        string("node", "the elements of this map; or one node or element: `transform[3]`"),
        choice("state", "those in this state", STATES),
    ),
)
async def nodes(call: Call) -> Response:
    """The nodes of a workflow run, or the elements of one that is a map."""
    query, limit, key = call.query(), call.limit(), call.run_key()
    state = query.get("state")
    if state is not None and state not in STATES:
        raise InvalidInput("state is not known", hint=f"use {', '.join(STATES)}", code="choice")
    wanted = read_node(query["node"], pointer="") if "node" in query else None
    of = f"nodes of {key.id} {wanted} {state}"
    mark = call.cursor(of, NodeMark)
    await _run(call, key)
    flow = await flow_reads.flow(call.store, call.tenant_id, key)
    if flow is None:
        return reply(NodePage(items=[]))
    known = await flow_reads.graph_nodes(call.store, call.tenant_id, flow.graph_id)
    names = {node.node: node.name for node in known}
    numbers = await _numbers(call, flow, known, wanted)
    rows = await flow_reads.nodes(
        call.store,
        call.tenant_id,
        flow.flow_id,
        first=max(numbers.start, mark.node + 1) if mark else numbers.start,
        last=numbers.stop - 1,
        state=state,
        most=limit + 1,
    )
    following = call.cursor_to(of, NodeMark(rows[limit - 1].node)) if len(rows) > limit else None
    items = [flow_documents.item(flow, names[row.of], row) for row in rows[:limit]]
    return reply(NodePage(items=items, next_cursor=following))


async def _numbers(call: Call, flow: Flow, known: Sequence[NodeRow], wanted: Place | None) -> range:
    """The numbers of the nodes that are meant."""
    if wanted is None:
        return range(1, flow_reads.LAST + 1)
    name, place = wanted
    node = next((node for node in known if node.name == name), None)
    elements = await flow_reads.elements(call.store, flow.flow_id, node.node) if node else range(0)
    is_opened = node is not None and elements.start != node.node  # a map, whose elements have numbers of their own
    if node is None or (place is not None and (not is_opened or place >= len(elements))):
        raise no_part("the workflow run has no such node", "list them with `bellringer workflows graph RUN`")
    return elements if place is None else elements[place : place + 1]


async def _run(call: Call, key: RunKey) -> runs.Run:
    run = await runs.get(call.store, key, call.tenant_id)
    if run is None:
        raise no_run()
    if run.task != WORKFLOW:
        raise no_part("this run is none of a workflow", "runs of jobs with a `workflow` have nodes")
    return run


async def _graph(call: Call, run: runs.Run, flow: Flow | None) -> GraphRows:
    """The version that a workflow run has; of one that was not opened, that which it would have now."""
    spec = run.spec or Spec()
    version = flow.graph_id if flow else spec.graph
    found = None if version is None else await flow_reads.graph(call.store, call.tenant_id, version)
    if found is None:
        raise no_part("the graph of this run is no longer known", "its job is no workflow any more")
    return found


@operation(
    "runs", role=Role.OPERATOR, answers={202: NodesChanged}, body=RetryNodesRequest, optional=True, problems=(409,)
)
async def retry(call: Call) -> Response:
    """Run nodes again, and all that comes after them; without names, all that did not go well."""
    request = await call.body(RetryNodesRequest)
    named = request.nodes
    if named is not None and not 1 <= len(named) <= MOST_NAMED:
        raise InvalidInput(f"name 1 to {MOST_NAMED:,} nodes, or leave it out", pointer="/nodes", code="limit")
    places = None if named is None else [read_node(text, pointer=f"/nodes/{n}") for n, text in enumerate(named)]
    key = call.run_key()
    async with _own_flow(call, key):
        await steer.retry_nodes(call.store, key, places, tenant_id=call.tenant_id)
    return await _changed(call, key, 202)


@operation("runs", role=Role.OPERATOR, answers={200: NodesChanged}, body=MarkNodeRequest, problems=(409,))
async def mark(call: Call) -> Response:
    """Say how a node has ended; what comes after it goes on from there. One that runs has to be cancelled first."""
    request = await call.body(MarkNodeRequest)
    limit = await call.names.payload_limit(call.tenant_id)
    g = Gathering()
    nowhere: Place = ("", None)
    place = g.take("/node", lambda: read_node(request.node), nowhere)
    state = g.take("/state", lambda: word(State, request.state, "state"), State.DEAD)
    reason = g.take("/reason", lambda: note(request.reason, what="reason"), None)
    g.take("/result", lambda: check_payload(request.result, pointer="/result", limit=limit, what="the result"), b"")
    g.done()
    key = call.run_key()
    async with _own_flow(call, key):
        await steer.mark(
            call.store, key, place, state, tenant_id=call.tenant_id, result=request.result, reason=reason or ""
        )
    return await _changed(call, key, 200)


@operation("runs", role=Role.OPERATOR, answers={200: Signalled}, body=SignalRequest, optional=True, problems=(409,))
async def signal(call: Call) -> Response:
    """Tell a workflow run of something; what nobody waits for yet is kept until a node does."""
    request = await call.body(SignalRequest)
    limit = await call.names.payload_limit(call.tenant_id)
    check_payload(request.payload, pointer="/payload", limit=limit, what="the payload")
    name = check_name(call.part("name"), what="signal", pointer="")
    key = call.run_key()
    async with _own_flow(call, key):
        taken = await steer.signal(call.store, key, name, request.payload, tenant_id=call.tenant_id)
    await call.service.wake(WORK, (await call.store.now()).isoformat())
    return reply(Signalled(taken=taken))


async def _changed(call: Call, key: RunKey, status: int) -> Response:
    await call.service.wake(WORK, (await call.store.now()).isoformat())
    run = await _run(call, key)
    return reply(NodesChanged(run_id=key.id, state=run.state.value), status)
