"""Whether every node can come to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bellringer.errors import InvalidInput
from bellringer.workflows.graph import Edge, Graph, Node, When
from bellringer.workflows.ordering import edges_of, in_order

_ECHO: Final = 40


def check_reach(graph: Graph, pointer: str) -> None:
    """Refuse a cycle, and a node that can never run, whatever happens. Taken for such are:

    - one that waits for a failure (`one_failed`) and has nothing before it;
    - one that wants two different results of one node before it;
    - one that needs all before it to succeed (`all_success`) where that would take two different results of one node,
      directly or through those before them: arms of a branch exclude each other, so what joins them needs another rule.
      Of what `none_failed` joins, one is enough: only what they all want, and all exclude, goes on.
    """
    places = {node.name: f"{pointer}/nodes/{place}" for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        _check_conditions(node, places[node.name])
    edges = edges_of(graph)
    before: dict[str, list[Edge]] = {node.name: [] for node in graph.nodes}
    for edge in edges:
        before[edge.child].append(edge)
    demands = _demands_of(edges)
    needs: dict[str, _Demand] = {}
    for node in in_order(graph, pointer=pointer):
        if node.when is When.ONE_FAILED and not before[node.name]:
            message, hint = f"{node.name!r} waits for a failure, and nothing is before it", "give after"
            raise InvalidInput(message, hint=hint, pointer=f"{places[node.name]}/when", code="unreachable")
        arms = [needs[edge.parent] | demands.get((edge.parent, edge.equals), _NONE) for edge in before[node.name]]
        needs[node.name] = need = _need(node.when, arms)
        if need.wants & need.excludes:
            raise _excluded(node, need, demands, places[node.name])


def _check_conditions(node: Node, pointer: str) -> None:
    wanted: dict[str, str] = {}
    for place, edge in enumerate(node.after):
        if edge.equals is not None and wanted.setdefault(edge.parent, edge.equals) != edge.equals:
            both = f"{_short(wanted[edge.parent])} and {_short(edge.equals)}"
            message = f"{node.name!r} can never run: it wants the result of {edge.parent!r} to be {both}"
            raise InvalidInput(
                message, hint="make one node for each", pointer=f"{pointer}/after/{place}", code="unreachable"
            )


@dataclass(frozen=True, slots=True)
class _Demand:
    """What must be so where a node has succeeded: results that nodes have, and such that they do not have.

    Each pair of a node and a result is one bit, so that a graph with thousands of conditions is judged in no time.
    """

    wants: int = 0
    excludes: int = 0

    def __or__(self, other: _Demand) -> _Demand:
        return _Demand(self.wants | other.wants, self.excludes | other.excludes)

    def __and__(self, other: _Demand) -> _Demand:
        return _Demand(self.wants & other.wants, self.excludes & other.excludes)


_NONE: Final = _Demand()


def _demands_of(edges: Sequence[Edge]) -> Mapping[tuple[str, str | None], _Demand]:
    """What each condition means: who has one result has no other."""
    pairs = dict.fromkeys((edge.parent, edge.equals) for edge in edges if edge.equals is not None)
    bits = {pair: 1 << number for number, pair in enumerate(pairs)}
    groups: dict[str, int] = {}
    for (parent, _), bit in bits.items():
        groups[parent] = groups.get(parent, 0) | bit
    return {(parent, equals): _Demand(bit, groups[parent] ^ bit) for (parent, equals), bit in bits.items()}


def _need(when: When, arms: Sequence[_Demand]) -> _Demand:
    if not arms or when in (When.ALL_DONE, When.ONE_FAILED):
        return _NONE
    need = arms[0]
    for arm in arms[1:]:
        need = need | arm if when is When.ALL_SUCCESS else need & arm
    return need


def _excluded(
    node: Node, need: _Demand, demands: Mapping[tuple[str, str | None], _Demand], pointer: str
) -> InvalidInput:
    of, result = next(pair for pair, demand in demands.items() if demand.wants & need.wants & need.excludes)
    return InvalidInput(
        f"{node.name!r} can never run: it takes the result of {of!r} to be {_short(result or '')}, and also another",
        hint="to join the arms of a branch, give when: none_failed",
        pointer=f"{pointer}/when",
        code="unreachable",
    )


def _short(result: str) -> str:
    return result if len(result) <= _ECHO else result[:_ECHO] + "…"
