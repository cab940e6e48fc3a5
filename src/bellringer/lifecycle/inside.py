"""Inside: gather what is known of a workflow run and of one of its nodes, for reasons. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from bellringer.errors import NotFound
from bellringer.reasons import Before, Flow, Member, Node, Room
from bellringer.runs import FINAL, RunKey
from bellringer.store import flow_reads, flow_reasons
from bellringer.store.flow_reads import FlowNodeRow, GraphRows, NodeRow, place_name
from bellringer.store.flow_reasons import MapRow
from bellringer.store.pool import Store

SHOWN: Final = 4  # elements of a map that run: more than are named
MAPS: Final = 3  # maps whose elements are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A workflow run from inside: the rows, and what reasons are found from."""

    flow_id: UUID
    key: RunKey
    top_job: UUID
    job: str | None
    graph: GraphRows
    rows: Mapping[int, FlowNodeRow]
    facts: Flow


@dataclass(frozen=True, slots=True)
class Found:
    """One of its nodes, by its number, and its run where it has one that says where it is."""

    number: int
    node: Node
    run: RunKey | None


async def look(store: Store, key: RunKey, job: Member | None, *, tenant_id: int) -> Inside | None:
    """A workflow run from inside, once it has been opened; `job` is the one at the top."""
    flow = await flow_reads.flow(store, tenant_id, key)
    graph = None if flow is None else await flow_reads.graph(store, tenant_id, flow.graph_id)
    if flow is None or graph is None:
        return None
    rows = await flow_reads.nodes(store, tenant_id, flow.flow_id, last=len(graph.nodes))
    maps = await flow_reasons.maps(store, flow.flow_id, flow.graph_id) if any(n.is_map for n in graph.nodes) else {}
    by_number = {row.node: row for row in rows}
    inside = Inside(
        flow_id=flow.flow_id,
        key=key,
        top_job=flow.top_job,
        job=flow.job,
        graph=graph,
        rows=by_number,
        facts=Flow(
            run_id=key.id,
            job=job,
            stopped=flow.stopped,
            undoing=flow.undoing and flow.finished_at is None,
            nodes=tuple(_node(n, graph, by_number[n.node], maps.get(n.node)) for n in graph.nodes),
        ),
    )
    running = [n for n in graph.nodes if n.node in maps and by_number[n.node].state == "running"]
    elements = [e for n in running[:MAPS] for e in await _running(store, inside, n, tenant_id)]
    return replace(inside, facts=replace(inside.facts, elements=tuple(elements)))


async def node(store: Store, inside: Inside, name: str, place: int | None, *, tenant_id: int) -> Found:
    """One node, or one element of a map, with what it waits for."""
    own = next((n for n in inside.graph.nodes if n.name == name), None)
    numbers = await flow_reads.elements(store, inside.flow_id, own.node) if own else range(0)
    is_opened = own is not None and numbers.start != own.node  # a map, whose elements have numbers of their own
    if own is None or (place is not None and (not is_opened or place >= len(numbers))):
        raise NotFound("the workflow run has no such node", hint="list them with `bellringer workflows graph RUN`")
    number = own.node if place is None else numbers[place]
    standing = await flow_reasons.standing(store, tenant_id, inside.flow_id, number)
    [row] = await flow_reads.nodes(store, tenant_id, inside.flow_id, first=number, last=number)
    if place is None:
        found = next(n for n in inside.facts.nodes if n.name == name)
        found = replace(found, before=await _before(store, inside, own, tenant_id))
    else:
        found = _element(own, row)
    is_ready = standing is not None and standing.is_ready
    found = replace(found, room=_room(inside, own, found, standing.busy if standing else 0))
    speaks = row.has_run and row.size is None and not is_ready and row.state not in {"blocked", "waiting", "skipped"}
    key = RunKey(inside.flow_id, inside.key.scheduled_for, number)
    return Found(number, found, key if speaks else None)


def _room(inside: Inside, own: NodeRow, found: Node, busy: int) -> Room | None:
    """What it waits for room in: an element first in its map, then all in the workflow run."""
    if found.size is not None:
        return Room(own.abreast, 0)
    if found.place is not None and found.state == "blocked":
        return Room(own.abreast, own.abreast)  # as many as may have had their time
    most = inside.graph.max_parallel
    return None if most is None else Room(most, busy)


def _node(node: NodeRow, graph: GraphRows, row: FlowNodeRow, opened: MapRow | None) -> Node:
    undoes = None if node.undoes is None else graph.nodes[node.undoes - 1].name
    return Node(
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
        ended=opened.size - opened.unended if opened else 0,
        broken=opened.broken if opened else 0,
    )


def _element(own: NodeRow, row: FlowNodeRow) -> Node:
    return Node(
        name=place_name(own.name, row.place),
        state=row.state,
        kind=own.kind,
        reason=row.reason,
        of=own.name,
        place=row.place,
        since=row.started_at,
        finished_at=row.finished_at,
    )


async def _running(store: Store, inside: Inside, own: NodeRow, tenant_id: int) -> list[Node]:
    """Some elements of a map that run."""
    numbers = await flow_reads.elements(store, inside.flow_id, own.node)
    rows = await flow_reads.nodes(
        store, tenant_id, inside.flow_id, first=numbers.start, last=numbers.stop - 1, state="running", most=SHOWN
    )
    return [_element(own, row) for row in rows]


async def _before(store: Store, inside: Inside, own: NodeRow, tenant_id: int) -> tuple[Before, ...]:
    edges = [edge for edge in inside.graph.edges if edge.child == own.node]
    wants = any(edge.equals is not None for edge in edges)
    met = await flow_reasons.met(store, tenant_id, inside.flow_id, own.node) if wants else set()
    names = {n.node: n.name for n in inside.graph.nodes}
    rows = inside.rows
    return tuple(
        Before(
            name=names[edge.parent],
            state=rows[edge.parent].state,
            reason=rows[edge.parent].reason,
            since=rows[edge.parent].started_at if rows[edge.parent].state not in FINAL else None,
            equals=edge.equals,
            is_met=edge.equals is None or edge.parent in met,
        )
        for edge in edges
    )
