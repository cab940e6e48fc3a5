"""Workflows: their graphs, and the runs of their nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.job_history import no_revision
from bellringer.api.http.error_responses import Refused
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, choice, number, operation, string
from bellringer.api.http.request import RequestContext, no_job, no_run, reply
from bellringer.api.render import documents, workflows
from bellringer.core.jobs import WORKFLOW_TASK, check_name
from bellringer.core.payload import check_payload
from bellringer.core.runs import RunKey, Spec, State
from bellringer.engine import workflow_commands as steer
from bellringer.engine.workflow_commands import NodeRef, parse_node
from bellringer.errors import InvalidInput, NotFound
from bellringer.store import job_history, jobs, revisions, runs
from bellringer.store import workflows as workflow_store
from bellringer.store.job_history import PastRun
from bellringer.store.wakeups import WORK_CHANNEL
from bellringer.store.workflows import GraphNodeRow, GraphRows, VersionRow, WorkflowRunRow
from bellringer.wire.decode import Gathering, note
from bellringer.wire.definitions import word
from bellringer.wire.models import Count
from bellringer.wire.routes import Routes
from bellringer.wire.workflows import (
    GraphVersion,
    GraphVersions,
    LastRun,
    MarkNodeRequest,
    NodePage,
    NodesChanged,
    RetryNodesRequest,
    Signalled,
    SignalRequest,
    WorkflowItem,
    WorkflowPage,
)
from bellringer.workflow import diff_graphs as compared
from bellringer.workflow import parse_graph

STATES: Final = (
    "blocked", "queued", "running", "retrying", "waiting", "succeeded", "dead", "cancelled", "skipped",
)  # fmt: skip
MAX_NODES: Final = 10_000


def no_such_part(message: str, hint: str) -> Refused:
    """Returns a NotFound error with a hint, for a missing part of an object that the caller may see."""
    return Refused(404, NotFound.code, message, hint=hint)


@asynccontextmanager
async def _own_workflow_run(call: RequestContext, key: RunKey) -> AsyncIterator[None]:
    """Raises NotFound unless the workflow run belongs to the caller's tenant."""
    if await workflow_store.load_run(call.store, call.tenant_id, key) is None:
        raise NotFound("there is no such workflow run")
    try:
        yield
    except NotFound as error:
        raise no_such_part(error.message, error.hint) from None


class NodeMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a node in a list."""

    node: int

    def __post_init__(self) -> None:
        if not 0 < self.node < workflow_store.MAX_NODE_NUMBER:
            raise ValueError("not a cursor of this list")


@operation(Routes.run_graph, role=Role.VIEWER)
async def run_graph(call: RequestContext) -> Response:
    """Returns a workflow run's graph: each node with its predecessors, state and durations.

    Elements of a map are counted; `GET …/nodes?node=NAME` lists them.
    """
    call.query()
    key = call.run_key()
    run, flow = await _run(call, key), await workflow_store.load_run(call.store, call.tenant_id, key)
    found = await _find_run_graph(call, run, flow)
    if flow is None:
        return reply(workflows.run_graph(run, None, found, (), {}))
    rows = await workflow_store.load_run_nodes(call.store, call.tenant_id, flow.flow_id, last=len(found.nodes))
    is_counted = any(row.size for row in rows)
    counts = await workflow_store.count_map_elements(call.store, call.tenant_id, flow.flow_id) if is_counted else {}
    return reply(workflows.run_graph(run, flow, found, rows, counts))


@operation(
    Routes.run_nodes,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        string("node", "the elements of this map; or one node or element: `transform[3]`"),
        choice("state", "only nodes in this state", STATES),
    ),
)
async def nodes(call: RequestContext) -> Response:
    """Lists the nodes of a workflow run, or the elements of a map."""
    query, limit, key = call.query(), call.limit(), call.run_key()
    state = query.get("state")
    if state is not None and state not in STATES:
        raise InvalidInput("unknown state", hint=f"use {', '.join(STATES)}", code="choice")
    wanted = parse_node(query["node"], pointer="") if "node" in query else None
    of = f"nodes of {key.id} {wanted} {state}"
    mark = call.cursor(of, NodeMark)
    await _run(call, key)
    flow = await workflow_store.load_run(call.store, call.tenant_id, key)
    if flow is None:
        return reply(NodePage(items=[]))
    known = await workflow_store.load_graph_nodes(call.store, call.tenant_id, flow.graph_id)
    names = {node.node: node.name for node in known}
    numbers = await _numbers(call, flow, known, wanted)
    rows = await workflow_store.load_run_nodes(
        call.store,
        call.tenant_id,
        flow.flow_id,
        first=max(numbers.start, mark.node + 1) if mark else numbers.start,
        last=numbers.stop - 1,
        state=state,
        limit=limit + 1,
    )
    following = call.cursor_to(of, NodeMark(rows[limit - 1].node)) if len(rows) > limit else None
    items = [workflows.item(flow, names[row.graph_node], row) for row in rows[:limit]]
    return reply(NodePage(items=items, next_cursor=following))


async def _numbers(
    call: RequestContext, flow: WorkflowRunRow, known: Sequence[GraphNodeRow], wanted: NodeRef | None
) -> range:
    """Returns the numbers of the selected nodes."""
    if wanted is None:
        return range(1, workflow_store.MAX_NODE_NUMBER + 1)
    name, place = wanted
    node = next((node for node in known if node.name == name), None)
    elements = await workflow_store.map_element_numbers(call.store, flow.flow_id, node.node) if node else range(0)
    is_opened = node is not None and elements.start != node.node  # elements of a map have their own numbers
    if node is None or (place is not None and (not is_opened or place >= len(elements))):
        raise no_such_part("the workflow run has no such node", "list them with `bellringer workflows graph RUN`")
    return elements if place is None else elements[place : place + 1]


async def _run(call: RequestContext, key: RunKey) -> runs.RunRow:
    run = await runs.get(call.store, key, call.tenant_id)
    if run is None:
        raise no_run()
    if run.task != WORKFLOW_TASK:
        raise no_such_part("this run is not a workflow run", "only runs of jobs with a `workflow` have nodes")
    return run


async def _find_run_graph(call: RequestContext, run: runs.RunRow, flow: WorkflowRunRow | None) -> GraphRows:
    """Returns the graph of a workflow run; if it has not been opened, the graph that it would have now."""
    spec = run.spec or Spec()
    version = flow.graph_id if flow else spec.graph
    found = None if version is None else await workflow_store.load_graph(call.store, call.tenant_id, version)
    if found is None:
        raise no_such_part("the graph of this run is no longer stored", "its job is no longer a workflow")
    return found


@operation(Routes.retry_nodes, role=Role.OPERATOR, problems=(409,))
async def retry(call: RequestContext) -> Response:
    """Runs nodes and everything after them again; without names, all nodes that did not succeed."""
    request = await call.body(RetryNodesRequest)
    named = request.nodes
    if named is not None and not 1 <= len(named) <= MAX_NODES:
        raise InvalidInput(f"give 1 to {MAX_NODES:,} nodes, or omit the field", pointer="/nodes", code="limit")
    places = None if named is None else [parse_node(text, pointer=f"/nodes/{n}") for n, text in enumerate(named)]
    key = call.run_key()
    async with _own_workflow_run(call, key):
        await steer.retry_nodes(call.store, key, places, tenant_id=call.tenant_id)
    return await _changed(call, key, 202)


@operation(Routes.mark_node, role=Role.OPERATOR, problems=(409,))
async def mark(call: RequestContext) -> Response:
    """Sets the result of a node, and continues after it. A running node must be cancelled first."""
    request = await call.body(MarkNodeRequest)
    limit = await call.catalog.payload_limit(call.tenant_id)
    g = Gathering()
    nowhere: NodeRef = ("", None)
    place = g.take("/node", lambda: parse_node(request.node), nowhere)
    state = g.take("/state", lambda: word(State, request.state, "state"), State.DEAD)
    reason = g.take("/reason", lambda: note(request.reason, what="reason"), None)
    g.take("/result", lambda: check_payload(request.result, pointer="/result", limit=limit, what="the result"), b"")
    g.done()
    key = call.run_key()
    async with _own_workflow_run(call, key):
        await steer.mark_node(
            call.store, key, place, state, tenant_id=call.tenant_id, result=request.result, reason=reason or ""
        )
    return await _changed(call, key, 200)


@operation(Routes.signal, role=Role.OPERATOR, problems=(409,))
async def signal(call: RequestContext) -> Response:
    """Sends a signal to a workflow run; it is stored until a node waits for it."""
    request = await call.body(SignalRequest)
    limit = await call.catalog.payload_limit(call.tenant_id)
    check_payload(request.payload, pointer="/payload", limit=limit, what="the payload")
    name = check_name(call.part("name"), what="signal", pointer="")
    key = call.run_key()
    async with _own_workflow_run(call, key):
        taken = await steer.send_signal(call.store, key, name, request.payload, tenant_id=call.tenant_id)
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    return reply(Signalled(taken=taken))


async def _changed(call: RequestContext, key: RunKey, status: int) -> Response:
    await call.service.wake(WORK_CHANNEL, (await call.store.now()).isoformat())
    run = await _run(call, key)
    return reply(NodesChanged(run_id=key.id, state=run.state.value), status)


_MAX_INT32: Final = (1 << 31) - 1


class WorkflowMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a workflow in a list: its name in sort order."""

    name: str


NO_RUN: Final = "none"  # the state of a workflow without a run
LIST_STATES: Final = (*STATES, NO_RUN)
MAX_WORKFLOWS_SCANNED: Final = 1_000  # by one request with a state, and for the counts of states


@operation(
    Routes.workflows,
    role=Role.VIEWER,
    query=(
        LIMIT_PARAMETER,
        CURSOR_PARAMETER,
        string("q", "jobs with this text in their name"),
        string(
            "state", f"workflows whose last run has one of these states, separated by commas: {', '.join(LIST_STATES)}"
        ),
        choice("count", "also count the workflows by the state of their last run, up to a limit", ["bounded"]),
    ),
)
async def listing(call: RequestContext) -> Response:
    """Lists jobs that are workflows by name, each with its last run. With a state, a page may be short or empty and
    still have a next one.
    """
    query, limit = call.query(), call.limit()
    q, states = query.get("q"), _list_states(query.get("state"))
    if query.get("count", "bounded") != "bounded":
        raise InvalidInput("count must be bounded", code="choice")
    of = f"workflows {q}" if states is None else f"workflows {q} {sorted(states)}"
    mark = call.cursor(of, WorkflowMark)
    scan = limit + 1 if states is None else MAX_WORKFLOWS_SCANNED
    after = mark.name if mark else None
    found = await workflow_store.list_workflow_jobs(call.reads, call.tenant_id, after, q, scan)
    following, last = None, await _last_runs(call, [job_id for job_id, _ in found])
    shown = [(job_id, name) for job_id, name in found if states is None or _state(last.get(job_id)) in states]
    if len(shown) > limit:
        shown = shown[:limit]
        following = call.cursor_to(of, WorkflowMark(shown[-1][1]))
    elif states is not None and len(found) == scan:
        following = call.cursor_to(of, WorkflowMark(found[-1][1]))
    stored = await jobs.get_many(call.reads, [job_id for job_id, _ in shown], call.tenant_id)
    items = [_workflow(job, last.get(job.job_id)) for job in stored if job.spec.graph is not None]
    counts = await _count_states(call, q) if "count" in query else UNSET
    return reply(WorkflowPage(items=items, next_cursor=following, states=counts))


def _list_states(text: str | None) -> frozenset[str] | None:
    if not text:
        return None
    given = frozenset(text.split(","))
    if given - set(LIST_STATES):
        raise InvalidInput("unknown state", hint=f"use {', '.join(LIST_STATES)}", code="choice")
    return given


async def _last_runs(call: RequestContext, ids: Sequence[UUID]) -> dict[UUID, PastRun]:
    found = await job_history.last_runs(call.reads, call.tenant_id, ids, 1) if ids else []
    return {run.key.job_id: run for run in found}


def _state(last: PastRun | None) -> str:
    return NO_RUN if last is None else last.state


async def _count_states(call: RequestContext, q: str | None) -> dict[str, Count]:
    """Counts workflows by the state of their last run. If there are too many, all counts are lower bounds."""
    found = await workflow_store.list_workflow_jobs(call.reads, call.tenant_id, None, q, MAX_WORKFLOWS_SCANNED + 1)
    ids = [job_id for job_id, _ in found[:MAX_WORKFLOWS_SCANNED]]
    last = await _last_runs(call, ids)
    relation = "gte" if len(found) > len(ids) else "eq"
    sums = Counter(_state(last.get(job_id)) for job_id in ids)
    return {state: Count(value=sums[state], relation=relation) for state in LIST_STATES if sums[state]}


def _workflow(job: jobs.JobRow, last: PastRun | None) -> WorkflowItem:
    assert job.spec.graph is not None
    return WorkflowItem(
        job_id=str(job.job_id),
        name=job.name,
        version=job.spec.graph,
        nodes=job.nodes,
        paused=job.paused_at is not None,
        next_at=documents.next_at(job),
        last=None if last is None else _last(last),
    )


def _last(run: PastRun) -> LastRun:
    return LastRun(run_id=run.key.id, state=run.state, started_at=run.started_at, finished_at=run.finished_at)


@operation(
    Routes.job_graph,
    role=Role.VIEWER,
    query=(
        number("version", "a version; the current one if omitted", 1, _MAX_INT32),
        number("revision", "the graph as of this revision of the job", 1, _MAX_INT32),
    ),
)
async def graph(call: RequestContext) -> Response:
    """Returns the graph of a workflow: its document, nodes and edges."""
    query = call.query()
    version, revision = _whole(query, "version"), _whole(query, "revision")
    if version and revision:
        raise InvalidInput("version and revision are both given", hint="give one", code="conflicting_fields")
    job = await _job(call)
    if version is not None:
        revision = (await _version(call, job, version)).revision
    elif revision is not None:
        found = await revisions.one(call.reads, job.job_id, call.tenant_id, revision)
        if found is None:
            raise no_revision()
        version = found[1].spec.graph
    else:
        version, revision = job.spec.graph, job.revision
    return reply(workflows.graph(await _find_graph(call, version), revision))


@operation(Routes.graph_versions, role=Role.VIEWER)
async def versions(call: RequestContext) -> Response:
    """Lists the versions of a workflow, the newest first, each with the first revision of the job that has it."""
    call.query()
    job = await _job(call)
    found = await workflow_store.list_graph_versions(call.reads, job.job_id)
    items = [
        GraphVersion(version=v.version, revision=v.revision, effective_at=v.effective_at, who=v.who) for v in found
    ]
    return reply(GraphVersions(items=items))


@operation(
    Routes.graph_difference,
    role=Role.VIEWER,
    query=(
        number("from", "a version; the one before `to` if omitted", 1, _MAX_INT32),
        number("to", "a version; the current one if omitted", 1, _MAX_INT32),
    ),
)
async def difference(call: RequestContext) -> Response:
    """Compares two versions of a workflow: nodes, their fields, and edges."""
    query = call.query()
    before, after = _whole(query, "from"), _whole(query, "to")
    job = await _job(call)
    newer = (await _version(call, job, after)) if after else None
    later = newer.version if newer else job.spec.graph
    earlier = (await _version(call, job, before)).version if before else await _before(call, job, later)
    old, new = await _find_graph(call, earlier), await _find_graph(call, later)
    found = compared(parse_graph(old.document), parse_graph(new.document))
    return reply(workflows.difference(old.graph_id, new.graph_id, found))


async def _job(call: RequestContext) -> jobs.JobRow:
    job = await jobs.get(call.store, await call.job_id(), call.tenant_id)
    if job is None:
        raise no_job()
    return job


async def _version(call: RequestContext, job: jobs.JobRow, number: int) -> VersionRow:
    found = next(
        (v for v in await workflow_store.list_graph_versions(call.reads, job.job_id) if v.version == number), None
    )
    if found is None:
        raise no_such_part("the job has no such version", "list them with `bellringer workflows versions JOB`")
    return found


async def _before(call: RequestContext, job: jobs.JobRow, version: int | None) -> int | None:
    """Returns the version before the given one; for the first version, itself."""
    known = [v.version for v in await workflow_store.list_graph_versions(call.reads, job.job_id)]
    behind = known[known.index(version) + 1 :] if version in known else []
    return behind[0] if behind else version


async def _find_graph(call: RequestContext, version: int | None) -> GraphRows:
    found = None if version is None else await workflow_store.load_graph(call.reads, call.tenant_id, version)
    if found is None:
        raise no_such_part(
            "the job is not a workflow", "workflows are jobs with a `workflow`; see `bellringer workflows list`"
        )
    return found


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    value = int(text) if re.fullmatch("[0-9]{1,10}", text, re.ASCII) else 0
    if not 1 <= value <= _MAX_INT32:
        raise InvalidInput(f"{name} must be a number from 1 on", code="limit_range")
    return value
