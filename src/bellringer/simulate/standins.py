"""What stands for the results of nodes whose handlers are not called, so that maps and branches go their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def stand_ins(workflows: Iterable[Document]) -> dict[str, Any]:
    """By the name of a node: a list of one element where a map is over its result, else what its first branch wants."""
    found: dict[str, Any] = {}
    for workflow in workflows:
        for parent, value in _branches(workflow):
            found.setdefault(parent, value)
    for workflow in workflows:
        for ref in _lists(workflow):
            if "node" in ref:
                found[ref["node"]] = _placed(found.get(ref["node"]), ref.get("path", ()))
    return found


def node_names(workflow: Document) -> Iterator[str]:
    """The nodes of a workflow, and of those inside of it."""
    for node in workflow["nodes"]:
        yield node["name"]
        for inner in _inner(node):
            yield from node_names(inner)


def _inner(node: Document) -> list[Document]:
    inner = node.get("workflow")
    return [inner] if isinstance(inner, Mapping) else []


def _branches(workflow: Document) -> Iterator[tuple[str, Any]]:
    for node in workflow["nodes"]:
        for edge in node.get("after", ()):
            if isinstance(edge, Mapping) and "is" in edge:
                yield edge["node"], edge["is"]
        for inner in _inner(node):
            yield from _branches(inner)


def _lists(workflow: Document) -> Iterator[Document]:
    """What maps are over; a param of an inner workflow is what the node that runs it takes for it."""
    for node in workflow["nodes"]:
        if "over" in node:
            yield node["over"]
        takes = node.get("takes", {})
        for inner in _inner(node):
            for ref in _lists(inner):
                outer = takes.get(ref.get("param"), ref)
                yield outer if outer is ref else {**outer, "path": [*outer.get("path", ()), *ref.get("path", ())]}


def _placed(value: Any, path: Sequence[str | int]) -> Any:
    """The value, with a list of one element at the end of a path into it."""
    if not path:
        return [None]
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        known = value if isinstance(value, dict) else {}
        return {**known, step: _placed(known.get(step), rest)}
    return [_placed(None, rest)] * (abs(step) + 1)
