"""Which nodes determined how long a workflow run took."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Timed:
    """A node of a workflow run, when it started and when it ended; None where it did not, or not yet."""

    name: str
    parents: Collection[str]
    started: datetime | None
    finished: datetime | None


def critical_path(nodes: Sequence[Timed]) -> tuple[list[str], float]:
    """The chain of nodes that determined the end, first to last, and its seconds from start to end.

    From the node that ended last it goes back to the parent that ended last before it started: a node that starts at
    the first failure does not wait for its other parents. Nodes that have not ended are passed over.
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
