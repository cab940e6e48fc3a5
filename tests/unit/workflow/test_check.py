"""What a graph must keep to, and what is said of one that does not."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from bellringer.errors import InvalidInput
from bellringer.workflow import MAX_EDGES, MAX_MAP_ITEMS, MAX_NODES, bind_params, parse_graph, validate_graph


def task(name: str, *after: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": "t", **({"after": list(after)} if after else {}), **more}


def refusal(*nodes: dict[str, Any], tasks: set[str] | None = None, **more: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        validate_graph(parse_graph({"nodes": list(nodes), **more}), known_tasks=tasks)
    return refused.value


def accept(*nodes: dict[str, Any], **more: Any) -> None:
    validate_graph(parse_graph({"nodes": list(nodes), **more}))


A = task("a")
WRONG: list[tuple[list[dict[str, Any]], dict[str, Any], str, str]] = [
    ([], {}, "/nodes", "limit"),
    ([A, task("b"), task("a")], {}, "/nodes/2/name", "name_taken"),
    ([A], {"output": "b"}, "/output", "unknown_node"),
    ([A], {"max_parallel": 0}, "/max_parallel", "limit"),
    ([A, task("b", "a", "c")], {}, "/nodes/1/after/1", "unknown_node"),
    ([A, task("b", takes={"x": {"node": "c"}})], {}, "/nodes/1/takes/x", "unknown_node"),
    ([A, task("b", over={"node": "c"})], {}, "/nodes/1/over", "unknown_node"),
    ([A, {"name": "b", "wait": {"until": {"node": "c"}}}], {}, "/nodes/1/wait/until", "unknown_node"),
    ([A, task("b", takes={"x": {"param": "p"}})], {}, "/nodes/1/takes/x", "unknown_param"),
    (
        [A, {"name": "b", "signal": {"timeout": 9, "default": {"param": "p"}}}],
        {},
        "/nodes/1/signal/default",
        "unknown_param",
    ),
    ([task("a", takes={"x": {"item": True}})], {}, "/nodes/0/takes/x", "missing_field"),
    ([task("a", takes={"x": {"index": True}})], {}, "/nodes/0/takes/x", "missing_field"),
    ([task("a", kwargs={"x": 1}, takes={"x": {"value": 1}})], {}, "/nodes/0/takes/x", "conflicting_fields"),
    ([task("a", over={"value": []}, max_items=MAX_MAP_ITEMS + 1)], {}, "/nodes/0/max_items", "limit"),
    ([task("a", over={"value": []}, max_items=0)], {}, "/nodes/0/max_items", "limit"),
    ([task("a", over={"value": []}, max_parallel=0)], {}, "/nodes/0/max_parallel", "limit"),
    ([task("a", max_items=5)], {}, "/nodes/0/over", "missing_field"),
    ([task("a", over={"value": "list"})], {}, "/nodes/0/over/value", "type"),
    ([task("a", over={"value": [1, 2]}, max_items=1)], {}, "/nodes/0/over/value", "limit"),
    ([task("a", priority=10)], {}, "/nodes/0/priority", "limit"),
    ([task("a", timeout=0)], {}, "/nodes/0/timeout", "limit"),
    ([task("a", heartbeat="31d")], {}, "/nodes/0/heartbeat", "limit"),
    ([{"name": "a", "wait": {"for": 0}}], {}, "/nodes/0/wait/for", "limit"),
    ([{"name": "a", "wait": {"for": "366d"}}], {}, "/nodes/0/wait/for", "limit"),
    ([{"name": "a", "signal": {"timeout": "366d"}}], {}, "/nodes/0/signal/timeout", "limit"),
    ([{"name": "a", "task": "http"}], {}, "/nodes/0/task", "name_reserved"),
    ([{"name": "a", "task": "workflow"}], {}, "/nodes/0/task", "name_reserved"),
    ([{"name": "a", "task": "wait"}], {}, "/nodes/0/task", "name_reserved"),
    ([A, task("b", undoes="c")], {}, "/nodes/1/undoes", "unknown_node"),
    ([A, task("b", undoes="a"), task("c", undoes="b")], {}, "/nodes/2/undoes", "undoes_invalid"),
    ([{"name": "a", "wait": {"for": 1}}, task("b", undoes="a")], {}, "/nodes/1/undoes", "undoes_invalid"),
    ([{"name": "a", "signal": {}}, task("b", undoes="a")], {}, "/nodes/1/undoes", "undoes_invalid"),
    ([A, task("b", "a", undoes="a")], {}, "/nodes/1/after", "conflicting_fields"),
    ([A, task("b", undoes="a", over={"node": "a"})], {}, "/nodes/1/over", "conflicting_fields"),
    ([A, task("b", undoes="a", when="all_done")], {}, "/nodes/1/when", "conflicting_fields"),
    ([A, task("b", undoes="a"), task("c", "b")], {}, "/nodes/2/after/0", "undoes_invalid"),
    ([A, task("b", undoes="a")], {"output": "b"}, "/output", "undoes_invalid"),
    ([{"name": "w", "workflow": {"nodes": [A, A]}}], {}, "/nodes/0/workflow/nodes/1/name", "name_taken"),
    ([task("a", when="one_failed")], {}, "/nodes/0/when", "unreachable"),
    ([A, task("b", {"node": "a", "is": 1}, {"node": "a", "is": 2})], {}, "/nodes/1/after/1", "unreachable"),
]


@pytest.mark.parametrize(("nodes", "more", "pointer", "code"), WRONG)
def test_what_makes_no_sense_is_refused_with_its_place(nodes: Any, more: Any, pointer: str, code: str) -> None:
    refused = refusal(*nodes, **more)
    assert (refused.pointer, refused.code) == ("/workflow" + pointer, code)


def test_too_many_nodes_are_refused_with_a_way_out() -> None:
    nodes = [task(f"n{number}") for number in range(MAX_NODES + 1)]
    accept(*nodes[1:])
    assert "use a map" in refusal(*nodes).hint


def test_too_many_edges_are_refused() -> None:
    left = [f"l{number}" for number in range(200)]
    refused = refusal(*map(task, left), *(task(f"r{number}", *left) for number in range(101)))
    assert (refused.code, refused.pointer) == ("limit", "/workflow/nodes")
    assert f"20200 edges; the maximum is {MAX_EDGES}" in refused.message


def test_a_cycle_is_named() -> None:
    extract = task("extract", takes={"x": {"node": "transform"}})
    refused = refusal(task("first"), extract, task("transform", "extract", "first"))
    assert (refused.code, refused.pointer) == ("cycle", "/workflow/nodes/1")
    assert "extract → transform → extract" in refused.message


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    assert "a → a" in refusal(task("a", "a")).message


def test_a_long_cycle_is_shown_in_short() -> None:
    refused = refusal(*(task(f"n{number}", f"n{(number - 1) % 500}") for number in range(500)))
    assert refused.message.endswith("n8 → n9 → … → n499 → n0")


def test_an_unknown_task_is_refused_where_tasks_are_known() -> None:
    node = {"name": "w", "workflow": {"nodes": [{"name": "a", "task": "reports.bild"}]}}
    accept(node)
    refused = refusal(node, tasks={"reports.build", "mail.send"})
    assert (refused.code, refused.pointer) == ("unknown_task", "/workflow/nodes/0/workflow/nodes/0/task")
    assert refused.hint == "did you mean reports.build?"


@pytest.mark.parametrize(
    ("node", "hint"),
    [
        (task("b", "extrct"), "did you mean extract?"),
        (task("b", takes={"x": {"param": "reigon"}}), "did you mean region?"),
        (task("b", undoes="extracts"), "did you mean extract?"),
    ],
)
def test_a_misspelt_reference_is_answered_with_what_was_meant(node: dict[str, Any], hint: str) -> None:
    assert refusal(task("extract"), node, params={"region": {}}).hint == hint


def branch(join: dict[str, Any]) -> list[dict[str, Any]]:
    """pick, then left or right, then what joins them."""
    left, right = task("left", {"node": "pick", "is": "l"}), task("right", {"node": "pick", "is": "r"})
    return [task("pick"), left, task("lefter", "left"), right, join]


@pytest.mark.parametrize("when", ["none_failed", "all_done", "one_failed"])
def test_arms_of_a_branch_may_be_joined_by_a_rule_that_does_not_need_them_all(when: str) -> None:
    accept(*branch(task("join", "lefter", "right", when=when)), task("end", "join", "left"))


def test_arms_of_a_branch_never_all_succeed() -> None:
    refused = refusal(*branch(task("join", "lefter", "right")))
    assert (refused.code, refused.pointer) == ("unreachable", "/workflow/nodes/4/when")
    assert "it requires 'pick' to return \"l\" and also another result" in refused.message
    assert "none_failed" in refused.hint


def test_what_every_arm_wants_is_wanted_behind_their_join() -> None:
    arms = [task("a", {"node": "pick", "is": 1}), task("b", {"node": "pick", "is": 1})]
    other, join = task("c", {"node": "pick", "is": 2}), task("join", "a", "b", when="none_failed")
    accept(task("pick"), *arms, other, join, task("end", "join", "a"))
    assert refusal(task("pick"), *arms, other, join, task("end", "join", "c")).code == "unreachable"


def test_what_no_arm_allows_is_excluded_behind_their_join() -> None:
    third = task("third", {"node": "pick", "is": "t"})
    join = task("join", "lefter", "right", when="none_failed")
    accept(*branch(join), third, task("end", "join", "third", when="none_failed"))
    refused = refusal(*branch(join), third, task("end", "join", "third"))
    assert (refused.code, refused.pointer) == ("unreachable", "/workflow/nodes/6/when")


def test_the_same_condition_twice_or_beside_a_plain_edge_is_one_edge() -> None:
    wanted = {"node": "a", "is": {"x": 1, "y": 2}}
    accept(A, task("b", wanted, "a", {"node": "a", "is": {"y": 2, "x": 1}}, takes={"v": {"node": "a"}}))


def test_what_undoes_a_node_may_take_the_results_of_any() -> None:
    accept(A, task("b", "a"), task("undo", undoes="a", takes={"x": {"node": "b"}, "y": {"node": "a"}}), output="b")


INNER = {"params": {"n": {}, "m": {"default": {"value": 1}}}, "nodes": [A]}


@pytest.mark.parametrize(
    ("given", "pointer", "code"),
    [
        ({}, "/takes/n", "missing_argument"),
        ({"kwargs": {"n": 1, "k": 2}}, "/kwargs/k", "unexpected_argument"),
        ({"kwargs": {"n": 1}, "takes": {"k": {"value": 2}}}, "/takes/k", "unexpected_argument"),
    ],
)
def test_a_nested_workflow_gets_the_params_that_it_declares(given: dict[str, Any], pointer: str, code: str) -> None:
    accept({"name": "sub", "workflow": INNER, "takes": {"n": {"value": 1}}, "kwargs": {"m": 2}})
    refused = refusal({"name": "sub", "workflow": INNER, **given})
    assert (refused.pointer, refused.code) == ("/workflow/nodes/0" + pointer, code)


def test_a_run_gets_the_params_that_the_workflow_declares() -> None:
    graph = parse_graph(INNER)
    assert bind_params(graph, {"n": None}) == {"n": None}
    assert bind_params(graph, {"m": 2, "n": 3}) == {"m": 2, "n": 3}
    with pytest.raises(InvalidInput, match="the required param 'n' is missing") as missing:
        bind_params(graph, {"m": 2})
    with pytest.raises(InvalidInput, match="no param 'nn'; did you mean n") as surplus:
        bind_params(graph, {"n": 1, "nn": 2})
    assert [(e.value.pointer, e.value.code) for e in (missing, surplus)] == [
        ("/kwargs/n", "missing_argument"),
        ("/kwargs/nn", "unexpected_argument"),
    ]


def test_the_worst_graph_is_checked_in_bearable_time() -> None:
    """Hundreds of branches in a row, and behind them almost as many edges as may be, each with all their conditions."""
    chain = [task("n0"), *(task(f"n{n}", {"node": f"n{n - 1}", "is": n}) for n in range(1, 600))]
    other = [task(f"o{n}", {"node": f"n{n - 1}", "is": -n}) for n in range(1, 600)]
    wide = [task(f"w{n}", *(f"n{599 - back}" for back in range(23))) for n in range(800)]
    graph = parse_graph({"nodes": [*chain, *other, *wide]})
    began = perf_counter()
    validate_graph(graph)
    assert perf_counter() - began < 30  # half a second, but other tests may run beside it
