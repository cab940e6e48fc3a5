"""Makes of a graph what the engine works with: nodes by number, every edge, and what was left out as it is usual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from bellringer.workflows.graph import USUAL_ITEMS, Graph, Kind, Node, Signal, Wait, When
from bellringer.workflows.ordering import edges_of, in_order
from bellringer.workflows.writing import write_ref

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A node by its number, which is larger than those of all before it. References name nodes by number too."""

    number: int
    name: str
    kind: Kind
    is_map: bool
    task: str | None
    workflow: Graph | str | None
    kwargs: Mapping[str, Any]
    takes: Mapping[str, Document]
    over: Document | None
    rule: When
    parents: int  # how many nodes it waits for
    most: int | None  # elements of a map
    window: int | None  # runs of a map that may be under way at once
    undoes: int | None
    wait: Document | None  # seconds, or until: a reference
    signal: Document | None  # signal: its name; seconds and default, or null
    pool: str | None
    priority: int | None
    terms: Document  # timeout and heartbeat in seconds, retry, delivery; null: as the task's code wants it


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A graph, numbered. Nodes that undo others are the last, in the order of what they undo."""

    nodes: tuple[Numbered, ...]
    edges: tuple[tuple[int, int, str | None], ...]  # parent, child, and the result that it wants as JSON text
    output: int | None
    params: Mapping[str, Document | None]  # the default of each, or null where it must be given
    max_parallel: int | None


def compiled(graph: Graph) -> Compiled:
    """Number a graph that was checked: 1, 2, 3 … behind each other as they wait, else as declared."""
    order = in_order(graph)
    numbers = {node.name: number for number, node in enumerate(order, 1)}
    edges = sorted((numbers[e.parent], numbers[e.child], e.equals) for e in edges_of(graph))
    parents = Counter(child for _, child, _ in edges)
    return Compiled(
        nodes=tuple(_numbered(node, numbers, parents[numbers[node.name]]) for node in order),
        edges=tuple(edges),
        output=None if graph.output is None else numbers[graph.output],
        params={name: None if default is None else write_ref(default) for name, default in graph.params.items()},
        max_parallel=graph.max_parallel,
    )


def _numbered(node: Node, numbers: Mapping[str, int], parents: int) -> Numbered:
    is_map = node.over is not None
    return Numbered(
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
        most=(node.max_items or USUAL_ITEMS) if is_map else None,
        window=node.max_parallel,
        undoes=None if node.undoes is None else numbers[node.undoes],
        wait=_wait(node.wait, numbers) if node.wait else None,
        signal=_signal(node.signal, node.name) if node.signal else None,
        pool=node.pool,
        priority=node.priority,
        terms={
            "timeout": _seconds(node.timeout),
            "heartbeat": _seconds(node.heartbeat),
            "retry": node.retry.to_document() if node.retry else None,
            "delivery": node.delivery.value if node.delivery else None,
        },
    )


def _wait(wait: Wait, numbers: Mapping[str, int]) -> Document:
    return {"seconds": _seconds(wait.length)} if wait.until is None else {"until": write_ref(wait.until, numbers)}


def _signal(signal: Signal, node: str) -> Document:
    default = write_ref(signal.default) if signal.default else None
    return {"signal": signal.name or node, "seconds": _seconds(signal.timeout), "default": default}


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
