"""Compares two graphs of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bellringer.workflow.graph import Edge, WorkflowGraph, edges_of
from bellringer.workflow.serializer import canonical_json, to_document, write_node


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDiff:
    """Nodes by name, in the order of their declaration; an edge whose condition changed is removed and added."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]  # of each node that is in both, the fields that differ
    added_edges: tuple[Edge, ...]
    removed_edges: tuple[Edge, ...]
    fields: tuple[str, ...]  # changed fields of the workflow itself: params, max_parallel, output


def diff_graphs(before: WorkflowGraph, after: WorkflowGraph) -> GraphDiff:
    old, new = ({node.name: write_node(node) for node in graph.nodes} for graph in (before, after))
    old_edges, new_edges = edges_of(before), edges_of(after)
    kept = {name: _changed_fields(old[name], node) for name, node in new.items() if name in old}
    return GraphDiff(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed={name: fields for name, fields in kept.items() if fields},
        added_edges=_edges_not_in(new_edges, old_edges),
        removed_edges=_edges_not_in(old_edges, new_edges),
        fields=tuple(f for f in _changed_fields(to_document(before), to_document(after)) if f != "nodes"),
    )


def _changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Compares as JSON, because in Python 1 equals True."""
    fields = dict.fromkeys((*old, *new))
    return tuple(f for f in fields if (f in old) != (f in new) or canonical_json(old[f]) != canonical_json(new[f]))


def _edges_not_in(edges: tuple[Edge, ...], others: tuple[Edge, ...]) -> tuple[Edge, ...]:
    known = set(others)
    return tuple(edge for edge in edges if edge not in known)
