"""Which node comes before which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Final

from bellringer.errors import InvalidInput
from bellringer.workflows.graph import Edge, Graph, Node, Source

_MOST_SHOWN: Final = 12


def edges_of(graph: Graph) -> tuple[Edge, ...]:
    """All edges, one for each pair: those that `after` declares, and those that references make.

    A node that undoes another has none, whatever it refers to: it runs when all others have ended.
    """
    found: dict[tuple[str, str], Edge] = {}
    for node in graph.nodes:
        if node.undoes is not None:
            continue
        referred = [Edge(ref.name, node.name) for _, ref in node.refs() if ref.source is Source.NODE]
        for edge in (*node.after, *referred):
            known = found.get((edge.parent, edge.child))
            if known is None or known.equals is None:
                found[edge.parent, edge.child] = edge
    return tuple(found.values())


def in_order(graph: Graph, *, pointer: str = "/workflow") -> tuple[Node, ...]:
    """The nodes so that each stands behind those it waits for, else as they were declared.

    Those that undo others come last, in the order of what they undo: the last one is to run first.
    """
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    try:
        forward = _sorted(graph, places)
    except CycleError as error:
        raise _refusal(graph, error.args[1], pointer) from None
    rank = {graph.nodes[place].name: number for number, place in enumerate(forward)}
    undoing = [node for node in graph.nodes if node.undoes is not None]
    undoing.sort(key=lambda node: rank[node.undoes or ""])
    return (*(graph.nodes[place] for place in forward), *undoing)


def _sorted(graph: Graph, places: Mapping[str, int]) -> list[int]:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for node in graph.nodes:
        if node.undoes is None:
            sorter.add(places[node.name])
    for edge in edges_of(graph):
        sorter.add(places[edge.child], places[edge.parent])
    sorter.prepare()
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for place in sorter.get_ready():
            heappush(ready, place)
        order.append(heappop(ready))  # the first declared of those that nothing holds back
        sorter.done(order[-1])
    return order


def _refusal(graph: Graph, cycle: Sequence[int], pointer: str) -> InvalidInput:
    """The cycle by its names, from the one that was declared first."""
    ring = list(cycle[:-1])
    start = ring.index(min(ring))
    ring = [*ring[start:], *ring[:start], ring[start]]
    names = [graph.nodes[place].name for place in ring]
    if len(names) > _MOST_SHOWN:
        names = [*names[: _MOST_SHOWN - 2], "…", names[-2], names[-1]]
    return InvalidInput(
        f"nodes wait for each other: {' → '.join(names)}",
        hint="take one of these edges away",
        pointer=f"{pointer}/nodes/{ring[0]}",
        code="cycle",
    )
