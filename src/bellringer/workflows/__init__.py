"""A workflow in words: the graph of its nodes, whether it makes sense, and what it is made into. All pure."""

from __future__ import annotations

from bellringer.workflows.checking import bound_params, check, check_inner
from bellringer.workflows.compiling import Compiled, Numbered, compiled
from bellringer.workflows.differing import Difference, difference
from bellringer.workflows.graph import (
    MOST_EDGES,
    MOST_ITEMS,
    MOST_NESTED,
    MOST_NODES,
    USUAL_ITEMS,
    Edge,
    Graph,
    Kind,
    Node,
    Ref,
    Signal,
    Source,
    Wait,
    When,
)
from bellringer.workflows.ordering import edges_of, in_order
from bellringer.workflows.path import Timed, critical_path
from bellringer.workflows.reading import read_graph
from bellringer.workflows.writing import digest, to_document

__all__ = [
    "MOST_EDGES",
    "MOST_ITEMS",
    "MOST_NESTED",
    "MOST_NODES",
    "USUAL_ITEMS",
    "Compiled",
    "Difference",
    "Edge",
    "Graph",
    "Kind",
    "Node",
    "Numbered",
    "Ref",
    "Signal",
    "Source",
    "Timed",
    "Wait",
    "When",
    "bound_params",
    "check",
    "check_inner",
    "compiled",
    "critical_path",
    "difference",
    "digest",
    "edges_of",
    "in_order",
    "read_graph",
    "to_document",
]
