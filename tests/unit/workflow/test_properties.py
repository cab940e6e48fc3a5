"""What holds for every workflow, whatever it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bellringer.errors import InvalidInput
from bellringer.workflow import (
    RunRule,
    WorkflowGraph,
    compile_graph,
    edges_of,
    graph_digest,
    parse_graph,
    to_document,
    validate_graph,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab~/é"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/"), inner, max_size=3),
    max_leaves=6,
)
lengths = st.sampled_from(["1ms", "90s", "1h30m", 5, 0.25, "PT1H"])
results = st.sampled_from(["a", "b"])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """One that makes sense: edges go from earlier to later names, and then the nodes are shuffled."""
    nodes: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 8))):
        before = [node["name"] for node in nodes]
        node = {"name": f"n{number}"} | draw(
            st.sampled_from([task_node, task_node, wait_node, signal_node, workflow_node])
        )(draw, before)
        if before:
            node["after"] = draw(st.lists(st.sampled_from(before), max_size=3))
            node["when"] = draw(st.sampled_from(["all_success", "all_done", "none_failed"]))
        nodes.append(node)
    undoable = [node["name"] for node in nodes if "task" in node or "workflow" in node]
    if undoable:
        nodes += [
            {"name": f"undo {number}", "task": "u", "undoes": name, "takes": {"x": {"node": name}}}
            for number, name in enumerate(draw(st.lists(st.sampled_from(undoable), max_size=3)))
        ]
    return {
        "nodes": draw(st.permutations(nodes)),
        "params": {"p": {"default": {"value": draw(plain)}}, "q": {}},
        "max_parallel": draw(st.none() | st.integers(1, 9)),
        "output": draw(st.none() | st.just("n0")),
    }


def refs(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    kinds = [{"param": "p"}, {"run": "date"}, {"value": draw(plain)}, *({"node": name} for name in names)]
    ref: dict[str, Any] = draw(st.sampled_from(kinds))
    return ref | ({"path": ["a", 0]} if "node" in ref or "param" in ref else {})


def task_node(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    node: dict[str, Any] = {"task": "t", "kwargs": {"k": draw(plain)}, "takes": {"x/y": refs(draw, names)}}
    if draw(st.booleans()):
        node |= {"over": {"param": "q"}, "max_items": draw(st.integers(1, 100))}
        node["takes"] |= {"i": {"item": True, "path": ["b"]}, "j": {"index": True}}
    terms = {"timeout": lengths, "heartbeat": lengths, "priority": st.integers(0, 9), "retry": st.integers(1, 9)}
    return node | {name: draw(values) for name, values in terms.items() if draw(st.booleans())}


def wait_node(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    until = [{"param": "q"}, "2030-01-01T00:00:00.5+01:00", *({"node": name} for name in names)]
    return {"wait": draw(st.sampled_from([{"for": draw(lengths)}, {"until": draw(st.sampled_from(until))}]))}


def signal_node(draw: st.DrawFn, _names: list[str]) -> dict[str, Any]:
    return {"signal": draw(st.sampled_from([{}, {"timeout": 3}, {"timeout": 3, "default": {"value": draw(plain)}}]))}


def workflow_node(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    inner = {"params": {"x": {}}, "nodes": [{"name": "a", "task": "t", "takes": {"x": {"param": "x"}}}]}
    return {"workflow": draw(st.sampled_from([inner, "job"])), "takes": {"x": refs(draw, names)}}


@given(documents())
def test_a_graph_is_the_same_after_it_was_written_and_read(document: dict[str, Any]) -> None:
    graph = parse_graph(document)
    validate_graph(graph, known_tasks={"t", "u"})
    written = json.loads(json.dumps(to_document(graph)))
    assert parse_graph(written) == graph
    assert to_document(parse_graph(written)) == written
    assert graph_digest(parse_graph(written)) == graph_digest(graph)


@given(documents())
def test_numbers_follow_the_edges_and_what_was_declared(document: dict[str, Any]) -> None:
    graph = parse_graph(document)
    made = compile_graph(graph)
    numbers = {node.name: node.number for node in made.nodes}
    assert sorted(numbers.values()) == list(range(1, len(graph.nodes) + 1))
    assert {(numbers[e.parent], numbers[e.child], e.equals) for e in edges_of(graph)} == set(made.edges)
    assert all(parent < child for parent, child, _ in made.edges)
    assert len({(parent, child) for parent, child, _ in made.edges}) == len(made.edges)
    for node in made.nodes:
        assert node.parents == sum(child == node.number for _, child, _ in made.edges)
    first_declared(graph, numbers, {(parent, child) for parent, child, _ in made.edges})


def first_declared(graph: WorkflowGraph, numbers: Mapping[str, int], edges: set[tuple[int, int]]) -> None:
    """Each number went to the first declared of those whose parents had theirs."""
    declared = [numbers[node.name] for node in graph.nodes if node.undoes is None]
    for number in range(1, len(declared) + 1):
        free = [n for n in declared if n >= number and all(p < number for p, c in edges if c == n)]
        assert free[0] == number
    undoing = [node for node in sorted(graph.nodes, key=lambda n: numbers[n.name]) if node.undoes is not None]
    assert [numbers[node.undoes or ""] for node in undoing] == sorted(numbers[node.undoes or ""] for node in undoing)


@st.composite
def branches(draw: st.DrawFn) -> dict[str, Any]:
    """Small graphs with many conditions."""
    nodes: list[dict[str, Any]] = []
    for number in range(draw(st.integers(2, 5))):
        before = [node["name"] for node in nodes if draw(st.booleans())]
        edges = [{"node": name, "is": draw(results)} if draw(st.booleans()) else name for name in before]
        nodes.append({"name": f"n{number}", "task": "t", "after": edges, "when": draw(st.sampled_from(list(RunRule)))})
    return {"nodes": nodes}


@given(branches())
def test_a_node_that_is_refused_as_unreachable_runs_in_no_history(document: dict[str, Any]) -> None:
    graph = parse_graph(document)
    refused = refusal(graph)
    if refused is not None:
        assert refused.code == "unreachable"
        name = graph.nodes[int(refused.pointer.split("/")[3])].name
        histories = product(["dead", "a", "b"], repeat=len(graph.nodes))
        assert not any(name in ran(graph, dict(zip([n.name for n in graph.nodes], h, strict=True))) for h in histories)


def refusal(graph: WorkflowGraph) -> InvalidInput | None:
    try:
        validate_graph(graph)
    except InvalidInput as fault:
        return fault
    return None


def ran(graph: WorkflowGraph, would: Mapping[str, str]) -> set[str]:
    """The nodes that run where each would die or have a result, by the rules as they are told to people."""
    ends: dict[str, str] = {}
    for node in graph.nodes:  # declared in order
        seen = [ends[e.parent] if e.equals in (None, json.dumps(ends[e.parent])) else "" for e in node.after]
        kinds = [
            "failed" if ends[e.parent] in ("dead", "upstream") else s for e, s in zip(node.after, seen, strict=True)
        ]
        ok, failed = [k for k in kinds if k in ("a", "b")], "failed" in kinds
        runs = {
            RunRule.ALL_SUCCESS: len(ok) == len(kinds),
            RunRule.NONE_FAILED: not failed and (bool(ok) or not kinds),
            RunRule.ALL_DONE: True,
            RunRule.ONE_FAILED: failed,
        }[node.when]
        ends[node.name] = would[node.name] if runs else "upstream" if failed else "condition"
    return {name for name, end in ends.items() if end in ("dead", "a", "b")}


WORDS = (
    "nodes params name task workflow wait signal takes over after retry kwargs until for timeout default value node"
    " param path is run item when undoes x"
)
fields = st.sampled_from([*WORDS.split(), ""])
anything = st.recursive(
    plain | st.sampled_from(["a", "1s", "all_done", "\ud800", "\0"]) | fields,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=5),
    max_leaves=25,
)


@given(
    anything,
    st.lists(st.dictionaries(fields, anything, max_size=4).map(lambda more: {"name": "a", "task": "t"} | more)),
)
def test_whatever_is_sent_is_read_or_refused(document: Any, nodes: list[Any]) -> None:
    for sent in (document, {"nodes": nodes}, {"nodes": nodes, "params": document}):
        with suppress(InvalidInput):
            graph = parse_graph(sent)
            assert parse_graph(to_document(graph)) == graph
            validate_graph(graph)
            assert len(compile_graph(graph).nodes) == len(graph.nodes)
