"""Validates the meaning of a graph: referenced names exist, values are within limits, every node can run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bellringer.core.jobs import BUILT_IN_TASKS, GATHER_TASK, HTTP_TASK, PRIORITIES
from bellringer.core.policies import check_limit
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.workflow.graph import (
    DEFAULT_MAP_ITEMS,
    MAX_EDGES,
    MAX_MAP_ITEMS,
    MAX_NODE_TIMEOUT,
    MAX_NODES,
    MAX_WAIT,
    MIN_NODE_TIMEOUT,
    Edge,
    NodeKind,
    NodeSpec,
    RunRule,
    ValueSource,
    WorkflowGraph,
    child_pointer,
    edges_of,
    topological_order,
)
from bellringer.workflow.parser import suggest

_MIN_DURATION: Final = timedelta(microseconds=1)


def validate_graph(
    graph: WorkflowGraph, *, known_tasks: Collection[str] | None = None, pointer: str = "/workflow"
) -> None:
    """Raises InvalidInput for the first error, with its JSON pointer. Nested workflows are validated recursively.

    Nodes that can never run are errors too; see `check_reach`.
    """
    nodes = _nodes_by_name(graph.nodes, pointer)
    if graph.max_parallel is not None:
        _check_parallel(graph.max_parallel, pointer)
    if graph.output is not None:
        _check_node_exists(nodes, graph.output, f"{pointer}/output")
    for place, node in enumerate(graph.nodes):
        here = f"{pointer}/nodes/{place}"
        _check_numbers(node, here)
        _check_map(node, here)
        _check_task(node, known_tasks, here)
        _check_arguments(graph, node, here)
        for where, name in _referenced_nodes(node):
            _check_node_exists(nodes, name, here + where)
        _check_undo(nodes, node, here)
        if isinstance(node.workflow, WorkflowGraph):
            validate_graph(node.workflow, known_tasks=known_tasks, pointer=f"{here}/workflow")
            validate_nested_arguments(node.workflow, node.kwargs, node.takes, pointer=here)
    if (count := len(edges_of(graph))) > MAX_EDGES:
        hint = "add an intermediate node that collects the results of many nodes"
        message = f"the workflow has {count} edges; the maximum is {MAX_EDGES}"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/nodes", code="limit")
    check_reach(graph, pointer)


def bind_params(graph: WorkflowGraph, kwargs: Mapping[str, Any], *, pointer: str = "/kwargs") -> dict[str, Any]:
    """Validates the arguments of a workflow run and returns them: each must be a param, and required params must be
    given.
    """
    _check_unexpected(graph, kwargs, pointer)
    _check_missing(graph, kwargs, pointer)
    return dict(kwargs)


def _check_unexpected(graph: WorkflowGraph, names: Collection[str], pointer: str) -> None:
    for name in names:
        if name not in graph.params:
            shown = name[:40]
            hint = suggest(shown, graph.params) or f"the params are: {', '.join(graph.params) or 'none'}"
            message, place = f"the workflow has no param {shown!r}", child_pointer(pointer, shown)
            raise InvalidInput(message, hint=hint, pointer=place, code="unexpected_argument")


def _check_missing(graph: WorkflowGraph, names: Collection[str], pointer: str) -> None:
    for name, default in graph.params.items():
        if default is None and name not in names:
            hint = "pass it, or declare a default"
            message, place = f"the required param {name!r} is missing", child_pointer(pointer, name)
            raise InvalidInput(message, hint=hint, pointer=place, code="missing_argument")


def validate_nested_arguments(
    inner: WorkflowGraph, kwargs: Collection[str], takes: Collection[str], *, pointer: str
) -> None:
    """Checks that a nested workflow gets all the arguments that it requires, and no others."""
    _check_unexpected(inner, kwargs, f"{pointer}/kwargs")
    _check_unexpected(inner, takes, f"{pointer}/takes")
    _check_missing(inner, {*kwargs, *takes}, f"{pointer}/takes")


def _nodes_by_name(nodes: tuple[NodeSpec, ...], pointer: str) -> Mapping[str, NodeSpec]:
    if not 0 < len(nodes) <= MAX_NODES:
        message = f"a workflow must have 1 to {MAX_NODES} nodes, not {len(nodes)}"
        hint = "for many runs of one task, use a map with `over`" if nodes else "add a node"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/nodes", code="limit")
    found: dict[str, NodeSpec] = {}
    for place, node in enumerate(nodes):
        if node.name in found:
            where, message = f"{pointer}/nodes/{place}/name", f"two nodes have the name {node.name!r}"
            raise InvalidInput(message, hint="rename one of them", pointer=where, code="name_taken")
        found[node.name] = node
    return found


def _check_parallel(number: int, pointer: str) -> None:
    try:
        check_limit(number, "max_parallel")
    except InvalidInput as fault:
        fault.pointer = pointer + fault.pointer
        raise


def _check_numbers(node: NodeSpec, pointer: str) -> None:
    if node.priority is not None and node.priority not in PRIORITIES:
        message = f"priority must be 0 to 9, not {node.priority} (higher runs first)"
        raise InvalidInput(message, pointer=f"{pointer}/priority", code="limit")
    _check_duration(node.timeout, MIN_NODE_TIMEOUT, MAX_NODE_TIMEOUT, f"{pointer}/timeout")
    _check_duration(node.heartbeat, MIN_NODE_TIMEOUT, MAX_NODE_TIMEOUT, f"{pointer}/heartbeat")
    if node.wait is not None:
        _check_duration(node.wait.length, _MIN_DURATION, MAX_WAIT, f"{pointer}/wait/for")
    if node.signal is not None:
        _check_duration(node.signal.timeout, _MIN_DURATION, MAX_WAIT, f"{pointer}/signal/timeout")


def _check_duration(length: timedelta | None, least: timedelta, most: timedelta, pointer: str) -> None:
    if length is not None and not least <= length <= most:
        what, low = pointer.rpartition("/")[2], "more than 0s" if least == _MIN_DURATION else format_duration(least)
        hint = f"use {low} and at most {format_duration(most)}"
        raise InvalidInput(f"{what} is {format_duration(length)}", hint=hint, pointer=pointer, code="limit")


def _check_map(node: NodeSpec, pointer: str) -> None:
    over, most = node.over, DEFAULT_MAP_ITEMS if node.max_items is None else node.max_items
    if over is None:
        if node.max_items is not None or node.max_parallel is not None:
            message, hint = "max_items and max_parallel of a node require over", "add over to make the node a map"
            raise InvalidInput(message, hint=hint, pointer=f"{pointer}/over", code="missing_field")
        return
    if not 1 <= most <= MAX_MAP_ITEMS:
        message = f"max_items must be a whole number from 1 to {MAX_MAP_ITEMS}, not {most}"
        raise InvalidInput(message, pointer=f"{pointer}/max_items", code="limit")
    if node.max_parallel is not None:
        _check_parallel(node.max_parallel, pointer)
    if over.source is ValueSource.VALUE:
        if not isinstance(over.value, list):
            raise InvalidInput("over must be a list", pointer=f"{pointer}/over/value", code="type")
        if len(over.value) > most:
            message = f"the list has {len(over.value)} elements; the maximum is {most} (max_items)"
            raise InvalidInput(message, pointer=f"{pointer}/over/value", code="limit")


def _check_task(node: NodeSpec, known_tasks: Collection[str] | None, pointer: str) -> None:
    task, place = node.task, f"{pointer}/task"
    if task is None or task == GATHER_TASK:
        return
    if task in BUILT_IN_TASKS:
        hint = "call the URL from one of your tasks" if task == HTTP_TASK else f"use `{task}` instead of `task`"
        raise InvalidInput(f"{task} is a built-in task", hint=hint, pointer=place, code="name_reserved")
    if known_tasks is not None and task not in known_tasks:
        hint = suggest(task, known_tasks) or "check the name, or start a worker that registers the task"
        raise InvalidInput(f"unknown task {task!r}", hint=hint, pointer=place, code="unknown_task")


def _check_arguments(graph: WorkflowGraph, node: NodeSpec, pointer: str) -> None:
    if both := node.kwargs.keys() & node.takes.keys():
        name = min(both)
        message, place = f"argument {name!r} is both in kwargs and in takes", child_pointer(f"{pointer}/takes", name)
        raise InvalidInput(message, hint="remove one of them", pointer=place, code="conflicting_fields")
    for where, ref in node.refs():
        if ref.source is ValueSource.PARAM and ref.name not in graph.params:
            hint = suggest(ref.name, graph.params) or "declare it in params"
            message = f"unknown param {ref.name!r}"
            raise InvalidInput(message, hint=hint, pointer=pointer + where, code="unknown_param")
        if ref.source in (ValueSource.ITEM, ValueSource.INDEX) and node.over is None:
            message = f"`{ref.source}` requires a map, but {node.name!r} is not a map"
            raise InvalidInput(
                message, hint="add over to make the node a map", pointer=pointer + where, code="missing_field"
            )


def _referenced_nodes(node: NodeSpec) -> Iterator[tuple[str, str]]:
    """Yields the nodes that a node refers to, except the one that it undoes, each with its pointer."""
    for place, edge in enumerate(node.after):
        yield f"/after/{place}", edge.parent
    for where, ref in node.refs():
        if ref.source is ValueSource.NODE:
            yield where, ref.name


def _check_node_exists(nodes: Mapping[str, NodeSpec], name: str, pointer: str) -> NodeSpec:
    """Returns the node if other nodes may wait for it or use its result. Raises InvalidInput."""
    node = nodes.get(name)
    if node is None:
        hint = suggest(name, nodes) or "use the name of a node of this workflow"
        raise InvalidInput(f"unknown node {name!r}", hint=hint, pointer=pointer, code="unknown_node")
    if node.undoes is not None:
        message = f"{name!r} undoes {node.undoes!r}, so other nodes cannot refer to it"
        raise InvalidInput(message, hint="refer to another node", pointer=pointer, code="undoes_invalid")
    return node


def _check_undo(nodes: Mapping[str, NodeSpec], node: NodeSpec, pointer: str) -> None:
    if node.undoes is None:
        return
    done = _check_node_exists(nodes, node.undoes, f"{pointer}/undoes")
    if done.kind in (NodeKind.WAIT, NodeKind.SIGNAL):
        message = f"{done.name!r} is a {done.kind} and cannot be undone"
        raise InvalidInput(
            message, hint="refer to a task or a workflow", pointer=f"{pointer}/undoes", code="undoes_invalid"
        )
    given = {"after": node.after, "over": node.over, "when": node.when is not RunRule.ALL_SUCCESS}
    if wrong := next((field for field, value in given.items() if value), None):
        message, hint = f"{wrong} and undoes exclude each other", "a node with undoes runs after all others have ended"
        raise InvalidInput(message, hint=hint, pointer=f"{pointer}/{wrong}", code="conflicting_fields")


_MAX_QUOTE_LENGTH: Final = 40


def check_reach(graph: WorkflowGraph, pointer: str) -> None:
    """Raises InvalidInput for a cycle, and for a node that can never run:

    - a node that waits for a failure (`one_failed`) and has no parents;
    - a node that requires two different results of the same parent;
    - a node with `all_success` whose parents, directly or through their own parents, require two different results of
      one node: the branches exclude each other, so the node that joins them needs another rule.

    For `none_failed` one branch is enough, so only requirements that all branches share are passed on.
    """
    places = {node.name: f"{pointer}/nodes/{place}" for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        _check_conditions(node, places[node.name])
    edges = edges_of(graph)
    before: dict[str, list[Edge]] = {node.name: [] for node in graph.nodes}
    for edge in edges:
        before[edge.child].append(edge)
    demands = _requirements_by_condition(edges)
    needs: dict[str, _Requirement] = {}
    for node in topological_order(graph, pointer=pointer):
        if node.when is RunRule.ONE_FAILED and not before[node.name]:
            message, hint = f"{node.name!r} waits for a failure but has no parents", "add after"
            raise InvalidInput(message, hint=hint, pointer=f"{places[node.name]}/when", code="unreachable")
        arms = [
            needs[edge.parent] | demands.get((edge.parent, edge.equals), _NO_REQUIREMENT) for edge in before[node.name]
        ]
        needs[node.name] = need = _combine(node.when, arms)
        if need.wants & need.excludes:
            raise _unreachable_error(node, need, demands, places[node.name])


def _check_conditions(node: NodeSpec, pointer: str) -> None:
    wanted: dict[str, str] = {}
    for place, edge in enumerate(node.after):
        if edge.equals is not None and wanted.setdefault(edge.parent, edge.equals) != edge.equals:
            both = f"{_shorten(wanted[edge.parent])} and {_shorten(edge.equals)}"
            message = f"{node.name!r} can never run: it requires the result of {edge.parent!r} to be {both}"
            raise InvalidInput(
                message, hint="use a separate node for each", pointer=f"{pointer}/after/{place}", code="unreachable"
            )


@dataclass(frozen=True, slots=True)
class _Requirement:
    """The results that other nodes must have, and must not have, if a node has succeeded.

    Each pair of a node and a result is one bit, so a graph with thousands of conditions is checked quickly.
    """

    wants: int = 0
    excludes: int = 0

    def __or__(self, other: _Requirement) -> _Requirement:
        return _Requirement(self.wants | other.wants, self.excludes | other.excludes)

    def __and__(self, other: _Requirement) -> _Requirement:
        return _Requirement(self.wants & other.wants, self.excludes & other.excludes)


_NO_REQUIREMENT: Final = _Requirement()


def _requirements_by_condition(edges: Sequence[Edge]) -> Mapping[tuple[str, str | None], _Requirement]:
    """Returns the requirement of each condition: a node that has one result does not have another."""
    pairs = dict.fromkeys((edge.parent, edge.equals) for edge in edges if edge.equals is not None)
    bits = {pair: 1 << number for number, pair in enumerate(pairs)}
    groups: dict[str, int] = {}
    for (parent, _), bit in bits.items():
        groups[parent] = groups.get(parent, 0) | bit
    return {(parent, equals): _Requirement(bit, groups[parent] ^ bit) for (parent, equals), bit in bits.items()}


def _combine(when: RunRule, arms: Sequence[_Requirement]) -> _Requirement:
    if not arms or when in (RunRule.ALL_DONE, RunRule.ONE_FAILED):
        return _NO_REQUIREMENT
    need = arms[0]
    for arm in arms[1:]:
        need = need | arm if when is RunRule.ALL_SUCCESS else need & arm
    return need


def _unreachable_error(
    node: NodeSpec, need: _Requirement, demands: Mapping[tuple[str, str | None], _Requirement], pointer: str
) -> InvalidInput:
    of, result = next(pair for pair, demand in demands.items() if demand.wants & need.wants & need.excludes)
    return InvalidInput(
        f"{node.name!r} can never run: it requires {of!r} to return {_shorten(result or '')} and also another result",
        hint="to join the branches, use when: none_failed",
        pointer=f"{pointer}/when",
        code="unreachable",
    )


def _shorten(result: str) -> str:
    return result if len(result) <= _MAX_QUOTE_LENGTH else result[:_MAX_QUOTE_LENGTH] + "…"
