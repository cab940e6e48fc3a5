"""Renders rows of workflows as response models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from bellringer.core.runs import FINAL_STATES, RunKey
from bellringer.store import runs
from bellringer.store.workflows import GraphNodeRow, GraphRows, WorkflowNodeRow, WorkflowRunRow, node_label
from bellringer.wire.workflows import (
    CriticalPath,
    FlowNode,
    Graph,
    GraphDifference,
    GraphEdge,
    GraphNode,
    MapCounts,
    NodeChange,
    NodeItem,
    RunGraph,
)
from bellringer.workflow import Edge, GraphDiff, NodeKind, NodeTiming, find_critical_path

_BEGUN = {"queued": "running"}  # the states of map elements that are counted


def graph(found: GraphRows, revision: int) -> Graph:
    names, jobs = {node.node: node.name for node in found.nodes}, _inner_jobs(found)
    return Graph(
        version=found.graph_id,
        revision=revision,
        document=found.document,
        nodes=[_node(node, names, jobs) for node in found.nodes],
        edges=edges(found),
        params=found.document.get("params", {}),
        max_parallel=found.max_parallel,
        output=None if found.output is None else names[found.output],
    )


def _node(node: GraphNodeRow, names: Mapping[int, str], jobs: Mapping[str, str]) -> GraphNode:
    return GraphNode(
        name=node.name,
        kind=node.kind,
        task=node.task or jobs.get(node.name),
        map=node.is_map,
        when=node.rule,
        undoes=None if node.undoes is None else names[node.undoes],
        max_items=node.max_elements if node.is_map else None,
        max_parallel=node.map_parallelism if node.is_map else None,
        pool=node.pool,
    )


def _inner_jobs(found: GraphRows) -> dict[str, str]:
    """Returns the names of the jobs that nodes of type workflow refer to."""
    inner = ((node["name"], node.get("workflow")) for node in found.document["nodes"])
    return {name: job for name, job in inner if isinstance(job, str)}


def edges(found: GraphRows) -> list[GraphEdge]:
    names = {node.node: node.name for node in found.nodes}
    return [
        GraphEdge(parent=names[edge.parent], child=names[edge.child], equals=_equals(edge.equals))
        for edge in found.edges
    ]


def _equals(text: str | None) -> Any:
    return UNSET if text is None else msgspec.json.decode(text)


def difference(before: int, after: int, found: GraphDiff) -> GraphDifference:
    return GraphDifference(
        before=before,
        after=after,
        added=list(found.added),
        removed=list(found.removed),
        changed=[NodeChange(name=name, fields=list(fields)) for name, fields in found.changed.items()],
        edges_added=[_edge(edge) for edge in found.added_edges],
        edges_removed=[_edge(edge) for edge in found.removed_edges],
        fields=list(found.fields),
    )


def _edge(edge: Edge) -> GraphEdge:
    return GraphEdge(parent=edge.parent, child=edge.child, equals=_equals(edge.equals))


def run_graph(
    run: runs.RunRow,
    flow: WorkflowRunRow | None,
    found: GraphRows,
    rows: Sequence[WorkflowNodeRow],
    counts: Mapping[int, Mapping[str, int]],
) -> RunGraph:
    """Renders a workflow run with its nodes; if it has not been opened, no node has begun."""
    parents: dict[int, list[str]] = defaultdict(list)
    names = {node.node: node.name for node in found.nodes}
    for edge in found.edges:
        parents[edge.child].append(names[edge.parent])
    jobs, of = _inner_jobs(found), {row.node: row for row in rows}
    nodes: dict[str, FlowNode] = {}
    for node in found.nodes:
        row = of.get(node.node) or _unopened(node.node, run)
        shown = _flow_node(node, row, parents[node.node], names, flow)
        start = _waited_since(shown, nodes, flow)
        task = node.task or jobs.get(node.name)
        nodes[node.name] = msgspec.structs.replace(
            shown, started_at=start, task=task, map=_map(row, counts.get(node.node, {}))
        )
    path, seconds = find_critical_path([_timed(node) for node in nodes.values() if node.undoes is None])
    critical = set(path)
    return RunGraph(
        run_id=run.key.id,
        job_id=str(flow.top_job if flow else run.key.job_id),
        job=flow.job if flow else run.job,
        version=found.graph_id,
        state=run.state.value,
        started_at=flow.started_at if flow else None,
        finished_at=flow.finished_at if flow else run.finished_at,
        undoing=flow.undoing if flow else False,
        stopped=flow.stopped if flow else None,
        nodes=[msgspec.structs.replace(node, critical=node.name in critical) for node in nodes.values()],
        edges=edges(found),
        critical_path=CriticalPath(nodes=path, seconds=seconds),
    )


def _unopened(node: int, run: runs.RunRow) -> WorkflowNodeRow:
    state, reason = ("skipped", "stopped") if run.state in FINAL_STATES else ("blocked", None)
    return WorkflowNodeRow(node=node, graph_node=node, state=state, reason=reason)


def _flow_node(
    node: GraphNodeRow, row: WorkflowNodeRow, parents: list[str], names: Mapping[int, str], flow: WorkflowRunRow | None
) -> FlowNode:
    return FlowNode(
        name=node.name,
        kind=node.kind,
        task=node.task,
        when=node.rule,
        undoes=None if node.undoes is None else names[node.undoes],
        state=row.state,
        reason=row.reason,
        run_id=_run_id(flow, row),
        attempt=row.attempt,
        started_at=row.started_at,
        finished_at=row.finished_at,
        parents=parents,
        map=None,
        signal=node.signal,
        due_at=row.due_at,
        critical=False,
    )


def _run_id(flow: WorkflowRunRow | None, row: WorkflowNodeRow) -> str | None:
    return RunKey(flow.flow_id, flow.key.scheduled_for, row.node).id if flow and row.has_run else None


def _waited_since(node: FlowNode, before: Mapping[str, FlowNode], flow: WorkflowRunRow | None) -> datetime | None:
    """Returns when a node started; for a wait or a signal, when its predecessors had ended."""
    if node.kind not in (NodeKind.WAIT, NodeKind.SIGNAL) or not (node.finished_at or node.state == "waiting"):
        return node.started_at
    ended = [end for name in node.parents if (end := before[name].finished_at) is not None]
    return max(ended, default=flow.started_at if flow else None)


def _map(row: WorkflowNodeRow, counts: Mapping[str, int]) -> MapCounts | None:
    if row.size is None:
        return None
    return MapCounts(size=row.size, **{_BEGUN.get(state, state): count for state, count in counts.items()})


def _timed(node: FlowNode) -> NodeTiming:
    return NodeTiming(node.name, node.parents, node.started_at, node.finished_at)


def item(flow: WorkflowRunRow, name: str, row: WorkflowNodeRow) -> NodeItem:
    return NodeItem(
        name=node_label(name, row.index),
        index=row.index,
        state=row.state,
        reason=row.reason,
        run_id=_run_id(flow, row),
        attempt=row.attempt,
        started_at=row.started_at,
        finished_at=row.finished_at,
        item=row.item,
    )
