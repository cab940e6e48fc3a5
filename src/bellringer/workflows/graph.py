"""A graph: nodes as their author declared them, what each takes, and what each comes after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from bellringer.policies import Delivery, Retry

MOST_NODES: Final = 2000
MOST_EDGES: Final = 20_000
MOST_ITEMS: Final = 100_000
USUAL_ITEMS: Final = 10_000  # the most elements of a map that names no number
MOST_NESTED: Final = 5  # workflows in each other, below the outermost
LONGEST_WAIT: Final = timedelta(days=365)
SHORTEST_TIMEOUT: Final = timedelta(milliseconds=1)
LONGEST_TIMEOUT: Final = timedelta(days=30)


class Kind(StrEnum):
    """What a node does; also the field that says it."""

    TASK = "task"
    WORKFLOW = "workflow"
    WAIT = "wait"
    SIGNAL = "signal"


class When(StrEnum):
    """By which rule a node runs, once the nodes before it have ended."""

    ALL_SUCCESS = "all_success"
    NONE_FAILED = "none_failed"
    ALL_DONE = "all_done"
    ONE_FAILED = "one_failed"  # at the first failure already


class Source(StrEnum):
    """Where a value comes from; also the field of a reference that says it."""

    NODE = "node"
    PARAM = "param"
    RUN = "run"
    ITEM = "item"
    INDEX = "index"
    VALUE = "value"


class Fact(StrEnum):
    """What a workflow run knows of itself."""

    SCHEDULED_FOR = "scheduled_for"
    DATE = "date"
    ID = "id"


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that is known when the workflow runs: `name` is the node's, the param's or the fact's."""

    source: Source
    name: str = ""
    path: tuple[str | int, ...] = ()  # into the value
    value: Any = None


@dataclass(frozen=True, slots=True)
class Edge:
    """The child waits for the parent; with `equals` (JSON text) it counts only if the parent's result is that."""

    parent: str
    child: str
    equals: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A length of time, or the instant that a reference gives."""

    length: timedelta | None = None
    until: Ref | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """What somebody tells the workflow run; after the timeout the default stands for it, and without one it fails."""

    name: str | None = None  # None: as the node
    timeout: timedelta | None = None
    default: Ref | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: just one of `task`, `workflow`, `wait` and `signal` is given. With `over` it is a map."""

    name: str
    task: str | None = None
    workflow: Graph | str | None = None  # a graph of its own, or the name of a job that has one
    wait: Wait | None = None
    signal: Signal | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    takes: Mapping[str, Ref] = field(default_factory=dict)
    over: Ref | None = None
    max_items: int | None = None
    max_parallel: int | None = None
    after: tuple[Edge, ...] = ()
    when: When = When.ALL_SUCCESS
    undoes: str | None = None
    pool: str | None = None
    priority: int | None = None
    timeout: timedelta | None = None
    heartbeat: timedelta | None = None
    retry: Retry | None = None
    delivery: Delivery | None = None

    @property
    def kind(self) -> Kind:
        return next(kind for kind in Kind if getattr(self, kind) is not None)

    def refs(self) -> Iterator[tuple[str, Ref]]:
        """What it refers to, and where in its document."""
        for name, ref in self.takes.items():
            yield at("/takes", name), ref
        if self.over is not None:
            yield "/over", self.over
        if self.wait is not None and self.wait.until is not None:
            yield "/wait/until", self.wait.until
        if self.signal is not None and self.signal.default is not None:
            yield "/signal/default", self.signal.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A workflow as it was declared: nodes in their author's order; a param without a default must be given."""

    nodes: tuple[Node, ...]
    params: Mapping[str, Ref | None] = field(default_factory=dict)
    max_parallel: int | None = None
    output: str | None = None


def at(pointer: str, name: str) -> str:
    """The JSON pointer of a field of what a pointer points to."""
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
