"""The graph of a workflow: its nodes and references as the author declared them, its edges, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, Final

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.errors import InvalidInput

MAX_NODES: Final = 2000
MAX_EDGES: Final = 20_000
MAX_MAP_ITEMS: Final = 100_000
DEFAULT_MAP_ITEMS: Final = 10_000  # limit of a map without max_items
MAX_WORKFLOW_NESTING: Final = 5  # levels below the outermost workflow
MAX_WAIT: Final = timedelta(days=365)
MIN_NODE_TIMEOUT: Final = timedelta(milliseconds=1)
MAX_NODE_TIMEOUT: Final = timedelta(days=30)


class NodeKind(StrEnum):
    """The kind of a node. The value is also the field of the document that declares it."""

    TASK = "task"
    WORKFLOW = "workflow"
    WAIT = "wait"
    SIGNAL = "signal"


class RunRule(StrEnum):
    """The rule by which a node runs once its parents have ended."""

    ALL_SUCCESS = "all_success"
    NONE_FAILED = "none_failed"
    ALL_DONE = "all_done"
    ONE_FAILED = "one_failed"  # runs at the first failure, without waiting for the other parents


class ValueSource(StrEnum):
    """The source of a value. The value is also the field of the reference."""

    NODE = "node"
    PARAM = "param"
    RUN = "run"
    ITEM = "item"
    INDEX = "index"
    VALUE = "value"


class WorkflowFact(StrEnum):
    """A property of the workflow run that nodes can refer to."""

    SCHEDULED_FOR = "scheduled_for"
    DATE = "date"
    ID = "id"


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a value that is known when the workflow runs. `name` is the name of the node, the param or the
    fact.
    """

    source: ValueSource
    name: str = ""
    path: tuple[str | int, ...] = ()  # steps into the value
    value: Any = None


@dataclass(frozen=True, slots=True)
class Edge:
    """The child waits for the parent. With `equals` (JSON text), the edge is satisfied only if the parent's result
    is equal.
    """

    parent: str
    child: str
    equals: str | None = None


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Waits for a duration, or until the instant that a reference gives."""

    length: timedelta | None = None
    until: Ref | None = None


@dataclass(frozen=True, slots=True)
class SignalNode:
    """Waits for a signal to the workflow run. After the timeout the node returns the default, or fails without one."""

    name: str | None = None  # None: the name of the node
    timeout: timedelta | None = None
    default: Ref | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node. Exactly one of `task`, `workflow`, `wait` and `signal` is set. With `over` the node is a map."""

    name: str
    task: str | None = None
    workflow: WorkflowGraph | str | None = None  # a nested graph, or the name of a workflow job
    wait: WaitNode | None = None
    signal: SignalNode | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    takes: Mapping[str, Ref] = field(default_factory=dict)
    over: Ref | None = None
    max_items: int | None = None
    max_parallel: int | None = None
    after: tuple[Edge, ...] = ()
    when: RunRule = RunRule.ALL_SUCCESS
    undoes: str | None = None
    pool: str | None = None
    priority: int | None = None
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry | None = None
    delivery: Delivery | None = None

    @property
    def kind(self) -> NodeKind:
        return next(kind for kind in NodeKind if getattr(self, kind) is not None)

    def refs(self) -> Iterator[tuple[str, Ref]]:
        """Yields the references of the node, each with its JSON pointer."""
        for name, ref in self.takes.items():
            yield child_pointer("/takes", name), ref
        if self.over is not None:
            yield "/over", self.over
        if self.wait is not None and self.wait.until is not None:
            yield "/wait/until", self.wait.until
        if self.signal is not None and self.signal.default is not None:
            yield "/signal/default", self.signal.default


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowGraph:
    """A workflow as declared, with the nodes in their declared order. A param without a default is required."""

    nodes: tuple[NodeSpec, ...]
    params: Mapping[str, Ref | None] = field(default_factory=dict)
    max_parallel: int | None = None
    output: str | None = None


def child_pointer(pointer: str, name: str) -> str:
    """Returns the JSON pointer of a field of the object at `pointer`."""
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"


_MAX_CYCLE_NODES_SHOWN: Final = 12


def edges_of(graph: WorkflowGraph) -> tuple[Edge, ...]:
    """Returns all edges, one for each pair of nodes: those declared with `after` and those that references imply.

    A node with `undoes` has no edges: it runs after all other nodes have ended.
    """
    found: dict[tuple[str, str], Edge] = {}
    for node in graph.nodes:
        if node.undoes is not None:
            continue
        referred = [Edge(ref.name, node.name) for _, ref in node.refs() if ref.source is ValueSource.NODE]
        for edge in (*node.after, *referred):
            known = found.get((edge.parent, edge.child))
            if known is None or known.equals is None:
                found[edge.parent, edge.child] = edge
    return tuple(found.values())


def topological_order(graph: WorkflowGraph, *, pointer: str = "/workflow") -> tuple[NodeSpec, ...]:
    """Returns the nodes so that each comes after its parents, otherwise in declared order.

    Nodes with `undoes` come last, in the order of the nodes that they undo; they run in reverse. Raises InvalidInput on
    a cycle.
    """
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    try:
        forward = _sort_nodes(graph, places)
    except CycleError as error:
        raise _cycle_error(graph, error.args[1], pointer) from None
    rank = {graph.nodes[place].name: number for number, place in enumerate(forward)}
    undoing = [node for node in graph.nodes if node.undoes is not None]
    undoing.sort(key=lambda node: rank[node.undoes or ""])
    return (*(graph.nodes[place] for place in forward), *undoing)


def _sort_nodes(graph: WorkflowGraph, places: Mapping[str, int]) -> list[int]:
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
        order.append(heappop(ready))  # of the ready nodes, the one declared first
        sorter.done(order[-1])
    return order


def _cycle_error(graph: WorkflowGraph, cycle: Sequence[int], pointer: str) -> InvalidInput:
    """Names the nodes of the cycle, starting with the one that was declared first."""
    ring = list(cycle[:-1])
    start = ring.index(min(ring))
    ring = [*ring[start:], *ring[:start], ring[start]]
    names = [graph.nodes[place].name for place in ring]
    if len(names) > _MAX_CYCLE_NODES_SHOWN:
        names = [*names[: _MAX_CYCLE_NODES_SHOWN - 2], "…", names[-2], names[-1]]
    return InvalidInput(
        f"the nodes form a cycle: {' → '.join(names)}",
        hint="remove one of these edges",
        pointer=f"{pointer}/nodes/{ring[0]}",
        code="cycle",
    )
