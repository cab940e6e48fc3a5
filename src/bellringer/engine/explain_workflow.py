"""Loads the facts about a workflow run and its nodes that explanations need. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from bellringer.core.runs import FINAL_STATES, RunKey
from bellringer.errors import NotFound
from bellringer.explain import Capacity, Dependency, JobFacts, NodeFacts, WorkflowFacts
from bellringer.store import workflows
from bellringer.store.connection_pool import Store
from bellringer.store.workflows import GraphNodeRow, GraphRows, MapRow, WorkflowNodeRow, node_label

MAX_SHOWN_ELEMENTS: Final = 4  # one more than explanations name
MAX_EXPANDED_MAPS: Final = 3  # maps whose running elements are loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRunFacts:
    """The rows of a workflow run, and the facts derived from them."""

    flow_id: UUID
    key: RunKey
    top_job: UUID
    job: str | None
    graph: GraphRows
    rows: Mapping[int, WorkflowNodeRow]
    facts: WorkflowFacts


@dataclass(frozen=True, slots=True)
class FoundNode:
    """One node by number, with the key of its run if that run explains the node's state."""

    number: int
    node: NodeFacts
    run: RunKey | None


async def load_workflow_facts(
    store: Store, key: RunKey, job: JobFacts | None, *, tenant_id: int
) -> WorkflowRunFacts | None:
    """Returns the facts of a workflow run, or None if it has not been opened; `job` is the outermost workflow's job."""
    flow = await workflows.load_run(store, tenant_id, key)
    graph = None if flow is None else await workflows.load_graph(store, tenant_id, flow.graph_id)
    if flow is None or graph is None:
        return None
    rows = await workflows.load_run_nodes(store, tenant_id, flow.flow_id, last=len(graph.nodes))
    maps = await workflows.opened_maps(store, flow.flow_id, flow.graph_id) if any(n.is_map for n in graph.nodes) else {}
    by_number = {row.node: row for row in rows}
    workflow = WorkflowRunFacts(
        flow_id=flow.flow_id,
        key=key,
        top_job=flow.top_job,
        job=flow.job,
        graph=graph,
        rows=by_number,
        facts=WorkflowFacts(
            run_id=key.id,
            job=job,
            stopped=flow.stopped,
            undoing=flow.undoing and flow.finished_at is None,
            nodes=tuple(_node_facts(n, graph, by_number[n.node], maps.get(n.node)) for n in graph.nodes),
        ),
    )
    running = [n for n in graph.nodes if n.node in maps and by_number[n.node].state == "running"]
    elements = [e for n in running[:MAX_EXPANDED_MAPS] for e in await _running_elements(store, workflow, n, tenant_id)]
    return replace(workflow, facts=replace(workflow.facts, elements=tuple(elements)))


async def load_node_facts(
    store: Store, workflow: WorkflowRunFacts, name: str, place: int | None, *, tenant_id: int
) -> FoundNode:
    """Returns the facts of one node, or of one element of a map."""
    own = next((n for n in workflow.graph.nodes if n.name == name), None)
    numbers = await workflows.map_element_numbers(store, workflow.flow_id, own.node) if own else range(0)
    is_opened = own is not None and numbers.start != own.node  # elements of an opened map have their own numbers
    if own is None or (place is not None and (not is_opened or place >= len(numbers))):
        raise NotFound("the workflow run has no such node", hint="list them with `bellringer workflows graph RUN`")
    number = own.node if place is None else numbers[place]
    capacity = await workflows.node_capacity(store, tenant_id, workflow.flow_id, number)
    [row] = await workflows.load_run_nodes(store, tenant_id, workflow.flow_id, first=number, last=number)
    if place is None:
        found = next(n for n in workflow.facts.nodes if n.name == name)
        found = replace(found, before=await _dependencies(store, workflow, own, tenant_id))
    else:
        found = _element_facts(own, row)
    is_ready = capacity is not None and capacity.is_ready
    found = replace(found, room=_capacity(workflow, own, found, capacity.busy if capacity else 0))
    explains_itself = (
        row.has_run and row.size is None and not is_ready and row.state not in {"blocked", "waiting", "skipped"}
    )
    key = RunKey(workflow.flow_id, workflow.key.scheduled_for, number)
    return FoundNode(number, found, key if explains_itself else None)


def _capacity(workflow: WorkflowRunFacts, own: GraphNodeRow, found: NodeFacts, busy: int) -> Capacity | None:
    """Returns the limit that a ready node waits for: the map's parallelism for an element, else that of the
    workflow run.
    """
    if found.size is not None:
        return Capacity(own.map_parallelism, 0)
    if found.place is not None and found.state == "blocked":
        return Capacity(
            own.map_parallelism, own.map_parallelism
        )  # an element is blocked only while the map is at its limit
    limit = workflow.graph.max_parallel
    return None if limit is None else Capacity(limit, busy)


def _node_facts(node: GraphNodeRow, graph: GraphRows, row: WorkflowNodeRow, opened: MapRow | None) -> NodeFacts:
    undoes = None if node.undoes is None else graph.nodes[node.undoes - 1].name
    return NodeFacts(
        name=node.name,
        state=row.state,
        kind=node.kind,
        reason=row.reason,
        rule=node.rule,
        undoes=undoes,
        signal=node.signal,
        since=row.started_at,
        until=row.due_at,
        finished_at=row.finished_at,
        size=opened.size if opened else None,
        ended=opened.size - opened.elements_left if opened else 0,
        elements_failed=opened.elements_failed if opened else 0,
    )


def _element_facts(own: GraphNodeRow, row: WorkflowNodeRow) -> NodeFacts:
    return NodeFacts(
        name=node_label(own.name, row.index),
        state=row.state,
        kind=own.kind,
        reason=row.reason,
        of=own.name,
        place=row.index,
        since=row.started_at,
        finished_at=row.finished_at,
    )


async def _running_elements(
    store: Store, workflow: WorkflowRunFacts, own: GraphNodeRow, tenant_id: int
) -> list[NodeFacts]:
    """Returns some running elements of a map."""
    numbers = await workflows.map_element_numbers(store, workflow.flow_id, own.node)
    rows = await workflows.load_run_nodes(
        store,
        tenant_id,
        workflow.flow_id,
        first=numbers.start,
        last=numbers.stop - 1,
        state="running",
        limit=MAX_SHOWN_ELEMENTS,
    )
    return [_element_facts(own, row) for row in rows]


async def _dependencies(
    store: Store, workflow: WorkflowRunFacts, own: GraphNodeRow, tenant_id: int
) -> tuple[Dependency, ...]:
    edges = [edge for edge in workflow.graph.edges if edge.child == own.node]
    wants = any(edge.equals is not None for edge in edges)
    met = await workflows.satisfied_parents(store, tenant_id, workflow.flow_id, own.node) if wants else set()
    names = {n.node: n.name for n in workflow.graph.nodes}
    rows = workflow.rows
    return tuple(
        Dependency(
            name=names[edge.parent],
            state=rows[edge.parent].state,
            reason=rows[edge.parent].reason,
            since=rows[edge.parent].started_at if rows[edge.parent].state not in FINAL_STATES else None,
            equals=edge.equals,
            is_met=edge.equals is None or edge.parent in met,
        )
        for edge in edges
    )
