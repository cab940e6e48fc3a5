"""Compiles a graph to the form that the engine executes: numbered nodes, all edges, and defaults filled in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bellringer.workflow.graph import (
    DEFAULT_MAP_ITEMS,
    NodeKind,
    NodeSpec,
    RunRule,
    SignalNode,
    WaitNode,
    WorkflowGraph,
    edges_of,
    topological_order,
)
from bellringer.workflow.serializer import write_ref

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNode:
    """A node with its number, which is larger than the numbers of its parents. References use numbers too."""

    number: int
    name: str
    kind: NodeKind
    is_map: bool
    task: str | None
    workflow: WorkflowGraph | str | None
    kwargs: Mapping[str, Any]
    takes: Mapping[str, Document]
    over: Document | None
    rule: RunRule
    parents: int  # number of parents
    most: int | None  # maximum number of elements of a map
    window: int | None  # maximum number of concurrent runs of a map
    undoes: int | None
    wait: Document | None  # `seconds`, or `until` with a reference
    signal: Document | None  # `signal` (name), `seconds` and `default` (or null)
    pool: str | None
    priority: int | None
    terms: Document  # timeout and heartbeat in seconds, retry, delivery; null: the default of the task


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGraph:
    """A graph with numbered nodes. Nodes with `undoes` are last, in the order of the nodes that they undo."""

    nodes: tuple[CompiledNode, ...]
    edges: tuple[tuple[int, int, str | None], ...]  # parent, child, and the required result as JSON text
    output: int | None
    params: Mapping[str, Document | None]  # the default of each, or null if it is required
    max_parallel: int | None


def compile_graph(graph: WorkflowGraph) -> CompiledGraph:
    """Compiles a validated graph: numbers its nodes 1, 2, 3 … in topological order."""
    order = topological_order(graph)
    numbers = {node.name: number for number, node in enumerate(order, 1)}
    edges = sorted((numbers[e.parent], numbers[e.child], e.equals) for e in edges_of(graph))
    parents = Counter(child for _, child, _ in edges)
    return CompiledGraph(
        nodes=tuple(_compile_node(node, numbers, parents[numbers[node.name]]) for node in order),
        edges=tuple(edges),
        output=None if graph.output is None else numbers[graph.output],
        params={name: None if default is None else write_ref(default) for name, default in graph.params.items()},
        max_parallel=graph.max_parallel,
    )


def _compile_node(node: NodeSpec, numbers: Mapping[str, int], parents: int) -> CompiledNode:
    is_map = node.over is not None
    return CompiledNode(
        number=numbers[node.name],
        name=node.name,
        kind=node.kind,
        is_map=is_map,
        task=node.task,
        workflow=node.workflow,
        kwargs=node.kwargs,
        takes={name: write_ref(ref, numbers) for name, ref in node.takes.items()},
        over=write_ref(node.over, numbers) if node.over else None,
        rule=node.when,
        parents=parents,
        most=(node.max_items or DEFAULT_MAP_ITEMS) if is_map else None,
        window=node.max_parallel,
        undoes=None if node.undoes is None else numbers[node.undoes],
        wait=_compile_wait(node.wait, numbers) if node.wait else None,
        signal=_compile_signal(node.signal, node.name) if node.signal else None,
        pool=node.pool,
        priority=node.priority,
        terms={
            "timeout": _seconds(node.timeout),
            "heartbeat": _seconds(node.heartbeat),
            "retry": node.retry.to_document() if node.retry else None,
            "delivery": node.delivery.value if node.delivery else None,
        },
    )


def _compile_wait(wait: WaitNode, numbers: Mapping[str, int]) -> Document:
    return {"seconds": _seconds(wait.length)} if wait.until is None else {"until": write_ref(wait.until, numbers)}


def _compile_signal(signal: SignalNode, node: str) -> Document:
    default = write_ref(signal.default) if signal.default else None
    return {"signal": signal.name or node, "seconds": _seconds(signal.timeout), "default": default}


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
