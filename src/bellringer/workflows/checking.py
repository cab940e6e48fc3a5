"""Whether a graph makes sense: all that it names exists, is within bounds, and goes together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.jobs import BUILT_IN, HTTP, PRIORITIES
from bellringer.policies import check_limit
from bellringer.workflows.fields import nearest
from bellringer.workflows.graph import (
    LONGEST_TIMEOUT,
    LONGEST_WAIT,
    MOST_EDGES,
    MOST_ITEMS,
    MOST_NODES,
    SHORTEST_TIMEOUT,
    USUAL_ITEMS,
    Graph,
    Kind,
    Node,
    Source,
    When,
    at,
)
from bellringer.workflows.ordering import edges_of
from bellringer.workflows.reach import check_reach

_MOMENT: Final = timedelta(microseconds=1)


def check(graph: Graph, *, known_tasks: Collection[str] | None = None, pointer: str = "/workflow") -> None:
    """Refuse the first thing that makes no sense, with its place; a nested workflow is checked in the same way.

    Nodes that can never run are refused too; `check_reach` says which these are.
    """
    nodes = _by_name(graph.nodes, pointer)
    if graph.max_parallel is not None:
        _check_parallel(graph.max_parallel, pointer)
    if graph.output is not None:
        _check_named(nodes, graph.output, f"{pointer}/output")
    for place, node in enumerate(graph.nodes):
        here = f"{pointer}/nodes/{place}"
        _check_numbers(node, here)
        _check_map(node, here)
        _check_task(node, known_tasks, here)
        _check_arguments(graph, node, here)
        for where, name in _names(node):
            _check_named(nodes, name, here + where)
        _check_undoing(nodes, node, here)
        if isinstance(node.workflow, Graph):
            check(node.workflow, known_tasks=known_tasks, pointer=f"{here}/workflow")
            check_inner(node.workflow, node.kwargs, node.takes, pointer=here)
    if (count := len(edges_of(graph))) > MOST_EDGES:
        hint = "let a node between them gather what many wait for"
        message = f"a workflow has at most {MOST_EDGES} edges, not {count}"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/nodes", code="limit")
    check_reach(graph, pointer)


def bound_params(graph: Graph, kwargs: Mapping[str, Any], *, pointer: str = "/kwargs") -> dict[str, Any]:
    """The arguments of a workflow run, as given: each is a param, and each param without a default is among them."""
    _refuse_surplus(graph, kwargs, pointer)
    _refuse_missing(graph, kwargs, pointer)
    return dict(kwargs)


def _refuse_surplus(graph: Graph, names: Collection[str], pointer: str) -> None:
    for name in names:
        if name not in graph.params:
            shown = name[:40]
            hint = nearest(shown, graph.params) or f"its params are {', '.join(graph.params) or 'none'}"
            message, place = f"the workflow has no param {shown!r}", at(pointer, shown)
            raise InvalidInput(message, hint=hint, pointer=place, code="unexpected_argument")


def _refuse_missing(graph: Graph, names: Collection[str], pointer: str) -> None:
    for name, default in graph.params.items():
        if default is None and name not in names:
            hint = "give it, or declare a default"
            message, place = f"the workflow misses its param {name!r}", at(pointer, name)
            raise InvalidInput(message, hint=hint, pointer=place, code="missing_argument")


def check_inner(inner: Graph, kwargs: Collection[str], takes: Collection[str], *, pointer: str) -> None:
    """Whether a workflow inside of another is given what it takes."""
    _refuse_surplus(inner, kwargs, f"{pointer}/kwargs")
    _refuse_surplus(inner, takes, f"{pointer}/takes")
    _refuse_missing(inner, {*kwargs, *takes}, f"{pointer}/takes")


def _by_name(nodes: tuple[Node, ...], pointer: str) -> Mapping[str, Node]:
    if not 0 < len(nodes) <= MOST_NODES:
        message = f"a workflow has 1 to {MOST_NODES} nodes, not {len(nodes)}"
        hint = "for many runs of one task, make a map with `over`" if nodes else "give it a node"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/nodes", code="limit")
    found: dict[str, Node] = {}
    for place, node in enumerate(nodes):
        if node.name in found:
            where, message = f"{pointer}/nodes/{place}/name", f"two nodes are named {node.name!r}"
            raise InvalidInput(message, hint="rename one of them", pointer=where, code="name_taken")
        found[node.name] = node
    return found


def _check_parallel(number: int, pointer: str) -> None:
    try:
        check_limit(number, "max_parallel")
    except InvalidInput as fault:
        fault.pointer = pointer + fault.pointer
        raise


def _check_numbers(node: Node, pointer: str) -> None:
    if node.priority is not None and node.priority not in PRIORITIES:
        message = f"priority {node.priority} is out of range 0–9 (higher first)"
        raise InvalidInput(message, pointer=f"{pointer}/priority", code="limit")
    _check_length(node.timeout, SHORTEST_TIMEOUT, LONGEST_TIMEOUT, f"{pointer}/timeout")
    _check_length(node.heartbeat, SHORTEST_TIMEOUT, LONGEST_TIMEOUT, f"{pointer}/heartbeat")
    if node.wait is not None:
        _check_length(node.wait.length, _MOMENT, LONGEST_WAIT, f"{pointer}/wait/for")
    if node.signal is not None:
        _check_length(node.signal.timeout, _MOMENT, LONGEST_WAIT, f"{pointer}/signal/timeout")


def _check_length(length: timedelta | None, least: timedelta, most: timedelta, pointer: str) -> None:
    if length is not None and not least <= length <= most:
        what, low = pointer.rpartition("/")[2], "more than 0s" if least == _MOMENT else format_duration(least)
        hint = f"give {low} and at most {format_duration(most)}"
        raise InvalidInput(f"{what} is {format_duration(length)}", hint=hint, pointer=pointer, code="limit")


def _check_map(node: Node, pointer: str) -> None:
    over, most = node.over, USUAL_ITEMS if node.max_items is None else node.max_items
    if over is None:
        if node.max_items is not None or node.max_parallel is not None:
            message, hint = "max_items and max_parallel of a node go with over", "say what it is a map over"
            raise InvalidInput(message, hint=hint, pointer=f"{pointer}/over", code="missing_field")
        return
    if not 1 <= most <= MOST_ITEMS:
        message = f"max_items must be a whole number from 1 to {MOST_ITEMS}, not {most}"
        raise InvalidInput(message, pointer=f"{pointer}/max_items", code="limit")
    if node.max_parallel is not None:
        _check_parallel(node.max_parallel, pointer)
    if over.source is Source.VALUE:
        if not isinstance(over.value, list):
            raise InvalidInput("a map is over a list", pointer=f"{pointer}/over/value", code="type")
        if len(over.value) > most:
            message = f"the list has {len(over.value)} elements, more than the {most} of max_items"
            raise InvalidInput(message, pointer=f"{pointer}/over/value", code="limit")


def _check_task(node: Node, known_tasks: Collection[str] | None, pointer: str) -> None:
    task, place = node.task, f"{pointer}/task"
    if task is None:
        return
    if task in BUILT_IN:
        hint = "call the URL in a task of your own" if task == HTTP else f"give `{task}` instead of a task"
        raise InvalidInput(f"{task} is a built-in task", hint=hint, pointer=place, code="name_reserved")
    if known_tasks is not None and task not in known_tasks:
        hint = nearest(task, known_tasks) or "check its name, or start a worker that knows it"
        raise InvalidInput(f"there is no task {task!r}", hint=hint, pointer=place, code="unknown_task")


def _check_arguments(graph: Graph, node: Node, pointer: str) -> None:
    if both := node.kwargs.keys() & node.takes.keys():
        name = min(both)
        message, place = f"{name!r} is in kwargs and in takes", at(f"{pointer}/takes", name)
        raise InvalidInput(message, hint="give it once", pointer=place, code="conflicting_fields")
    for where, ref in node.refs():
        if ref.source is Source.PARAM and ref.name not in graph.params:
            hint = nearest(ref.name, graph.params) or "declare it in params"
            message = f"there is no param {ref.name!r}"
            raise InvalidInput(message, hint=hint, pointer=pointer + where, code="unknown_param")
        if ref.source in (Source.ITEM, Source.INDEX) and node.over is None:
            message = f"`{ref.source}` is of a map, and {node.name!r} is none"
            raise InvalidInput(
                message, hint="say with over what it maps", pointer=pointer + where, code="missing_field"
            )


def _names(node: Node) -> Iterator[tuple[str, str]]:
    """The nodes that a node names beside the one it undoes, and where."""
    for place, edge in enumerate(node.after):
        yield f"/after/{place}", edge.parent
    for where, ref in node.refs():
        if ref.source is Source.NODE:
            yield where, ref.name


def _check_named(nodes: Mapping[str, Node], name: str, pointer: str) -> Node:
    """A node that one can come after, or take the result of."""
    node = nodes.get(name)
    if node is None:
        hint = nearest(name, nodes) or "name one of its nodes"
        raise InvalidInput(f"there is no node {name!r}", hint=hint, pointer=pointer, code="unknown_node")
    if node.undoes is not None:
        message = f"{name!r} undoes {node.undoes!r}: it runs when all others have ended, if at all"
        raise InvalidInput(message, hint="name another node", pointer=pointer, code="undoes_invalid")
    return node


def _check_undoing(nodes: Mapping[str, Node], node: Node, pointer: str) -> None:
    if node.undoes is None:
        return
    done = _check_named(nodes, node.undoes, f"{pointer}/undoes")
    if done.kind in (Kind.WAIT, Kind.SIGNAL):
        message = f"{done.name!r} is a {done.kind}: there is nothing to undo"
        raise InvalidInput(message, hint="name a task", pointer=f"{pointer}/undoes", code="undoes_invalid")
    given = {"after": node.after, "over": node.over, "when": node.when is not When.ALL_SUCCESS}
    if wrong := next((field for field, value in given.items() if value), None):
        message, hint = f"{wrong} and undoes are both given", "what undoes a node runs when all others have ended"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/{wrong}", code="conflicting_fields")
