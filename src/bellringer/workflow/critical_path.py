"""Finds the chain of nodes that determined how long a workflow run took."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class NodeTiming:
    """The start and the end of a node in a workflow run; None if it has not started or ended."""

    name: str
    parents: Collection[str]
    started: datetime | None
    finished: datetime | None


def find_critical_path(nodes: Sequence[NodeTiming]) -> tuple[list[str], float]:
    """Returns the chain of nodes that determined the end of the run, first to last, and its duration in seconds.

    Starts at the node that ended last and follows, at each node, the parent that ended last before the node started: a
    node that starts at the first failure does not wait for its other parents. Nodes that have not ended are ignored.
    """
    ended = {node.name: (node, node.finished) for node in nodes if node.finished is not None}
    if not ended:
        return [], 0.0
    node, end = max(ended.values(), key=lambda pair: pair[1])
    chain, begin = [node.name], node.started or end
    while before := [ended[name] for name in node.parents if name in ended]:
        in_time = [pair for pair in before if pair[1] <= begin]
        node, finished = max(in_time or before, key=lambda pair: pair[1])
        chain.append(node.name)
        begin = node.started or finished
    return chain[::-1], (end - begin).total_seconds()
