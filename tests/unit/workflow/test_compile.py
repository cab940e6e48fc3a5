"""What the engine gets of a graph; what two versions differ in; what a run's time went to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bellringer.workflow import (
    DEFAULT_MAP_ITEMS,
    Edge,
    GraphDiff,
    NodeKind,
    NodeTiming,
    RunRule,
    WorkflowGraph,
    compile_graph,
    diff_graphs,
    find_critical_path,
    parse_graph,
)

START = datetime(2026, 3, 1, tzinfo=UTC)


def task(name: str, *after: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": "t", **({"after": list(after)} if after else {}), **more}


def graph(*nodes: dict[str, Any], **more: Any) -> WorkflowGraph:
    return parse_graph({"nodes": list(nodes), **more})


def test_nodes_are_numbered_as_they_wait_and_else_as_declared() -> None:
    made = compile_graph(graph(task("d", "b"), task("c"), task("b", "a"), task("a"), task("e"), output="b"))
    assert [(node.number, node.name) for node in made.nodes] == [(1, "c"), (2, "a"), (3, "b"), (4, "d"), (5, "e")]
    assert made.edges == ((2, 3, None), (3, 4, None))
    assert [node.parents for node in made.nodes] == [0, 0, 1, 1, 0]
    assert made.output == 3


def test_an_order_that_is_right_already_is_kept() -> None:
    made = compile_graph(graph(task("z"), task("y", "z"), task("x"), task("w", "x", "y"), task("v", "z")))
    assert [node.name for node in made.nodes] == ["z", "y", "x", "w", "v"]


def test_what_undoes_comes_last_in_the_order_of_what_it_undoes() -> None:
    undo = [task("undo-b", undoes="b", takes={"x": {"node": "c"}}), task("undo-a", undoes="a")]
    made = compile_graph(graph(*undo, task("b", "a"), task("a"), task("c", "b")))
    assert [node.name for node in made.nodes] == ["a", "b", "c", "undo-a", "undo-b"]
    assert [(node.undoes, node.parents) for node in made.nodes[3:]] == [(1, 0), (2, 0)]
    assert made.nodes[4].takes == {"x": {"node": 3}}
    assert made.edges == ((1, 2, None), (2, 3, None))


def test_references_and_conditions_make_one_edge_for_each_pair() -> None:
    more = {"takes": {"x": {"node": "a", "path": ["k", 0]}, "y": {"node": "a"}}, "over": {"node": "b"}}
    made = compile_graph(graph(task("a"), task("b"), task("c", {"node": "a", "is": {"z": 1, "k": None}}, "a", **more)))
    assert made.edges == ((1, 3, '{"k":null,"z":1}'), (2, 3, None))
    assert made.nodes[2].takes == {"x": {"node": 1, "path": ["k", 0]}, "y": {"node": 1}}
    assert (made.nodes[2].over, made.nodes[2].is_map, made.nodes[2].parents) == ({"node": 2}, True, 2)


def test_an_instant_that_a_node_gives_makes_an_edge() -> None:
    made = compile_graph(graph({"name": "w", "wait": {"until": {"node": "a", "path": ["at"]}}}, task("a")))
    assert made.edges == ((1, 2, None),)
    assert made.nodes[1].wait == {"until": {"node": 1, "path": ["at"]}}


def test_params_keep_their_defaults() -> None:
    params = {"day": {"default": {"run": "date"}}, "region": {"default": {"value": None}}, "n": {}}
    made = compile_graph(graph(task("a"), params=params, max_parallel=7))
    assert made.params == {"day": {"run": "date"}, "region": {"value": None}, "n": None}
    assert made.max_parallel == 7


def test_a_node_keeps_what_was_said_of_it() -> None:
    said = {"pool": "long", "priority": 0, "timeout": "1m", "heartbeat": 2, "retry": 5, "delivery": "at_most_once"}
    plain, full = compile_graph(graph(task("a"), task("b", kwargs={"x": 1}, when="all_done", **said))).nodes
    assert plain.terms == {"timeout": None, "heartbeat": None, "retry": None, "delivery": None}
    assert (plain.task, plain.pool, plain.priority, plain.rule) == ("t", None, None, RunRule.ALL_SUCCESS)
    assert (plain.most, plain.window, plain.is_map) == (None, None, False)
    assert full.terms == {"timeout": 60, "heartbeat": 2, "retry": {"attempts": 5}, "delivery": "at_most_once"}
    assert (full.kwargs, full.pool, full.priority, full.rule) == ({"x": 1}, "long", 0, RunRule.ALL_DONE)


def test_a_map_has_bounds() -> None:
    usual, own = compile_graph(
        graph(task("a", over={"value": [1]}), task("b", over={"value": []}, max_items=5, max_parallel=2))
    ).nodes
    assert (usual.most, usual.window, own.most, own.window) == (DEFAULT_MAP_ITEMS, None, 5, 2)


def test_waits_signals_and_workflows() -> None:
    inner = graph(task("x"))
    made = compile_graph(
        graph(
            {"name": "for", "wait": {"for": "2h"}},
            {"name": "until", "wait": {"until": "2030-01-01T00:00:00Z"}},
            {"name": "plain", "signal": {}},
            {"name": "named", "signal": {"name": "yes", "timeout": "1d", "default": {"value": None}}},
            {"name": "inner", "workflow": {"nodes": [task("x")]}},
            {"name": "other", "workflow": "job"},
        )
    ).nodes
    assert [node.wait for node in made[:2]] == [{"seconds": 7200}, {"until": {"value": "2030-01-01T00:00:00Z"}}]
    assert [node.signal for node in made[2:4]] == [
        {"signal": "plain", "seconds": None, "default": None},
        {"signal": "yes", "seconds": 86400, "default": {"value": None}},
    ]
    assert [node.workflow for node in made[4:]] == [inner, "job"]
    assert [node.kind for node in made] == [*[NodeKind.WAIT] * 2, *[NodeKind.SIGNAL] * 2, *[NodeKind.WORKFLOW] * 2]


def test_versions_are_compared_node_by_node() -> None:
    before = graph(task("a"), task("b", "a"), task("c", {"node": "b", "is": 1}), task("gone", "a"), output="b")
    after = graph(
        task("new", takes={"x": {"node": "c"}}),
        task("a", kwargs={"x": 1}, pool="long"),
        task("b", "a"),
        task("c", {"node": "b", "is": True}),
        output="c",
        max_parallel=3,
    )
    assert diff_graphs(before, after) == GraphDiff(
        added=("new",),
        removed=("gone",),
        changed={"a": ("kwargs", "pool"), "c": ("after",)},
        added_edges=(Edge("c", "new"), Edge("b", "c", "true")),
        removed_edges=(Edge("b", "c", "1"), Edge("a", "gone")),
        fields=("output", "max_parallel"),
    )


def test_a_version_does_not_differ_from_itself() -> None:
    same = graph(task("a", kwargs={"x": 1}), task("b", "a"), max_parallel=2)
    assert diff_graphs(same, same) == GraphDiff(
        added=(), removed=(), changed={}, added_edges=(), removed_edges=(), fields=()
    )


def timed(name: str, *parents: str, started: float | None, finished: float | None) -> NodeTiming:
    def instant(seconds: float | None) -> datetime | None:
        return None if seconds is None else START + timedelta(seconds=seconds)

    return NodeTiming(name, parents, instant(started), instant(finished))


def test_the_critical_path_goes_back_by_the_parent_that_ended_last() -> None:
    nodes = [
        timed("a", started=1, finished=3),
        timed("short", "a", started=3, finished=4),
        timed("long", "a", started=3.5, finished=9),
        timed("aside", started=0, finished=10),
        timed("join", "short", "long", started=9, finished=12),
    ]
    assert find_critical_path(nodes) == (["a", "long", "join"], 11)


def test_what_starts_at_a_failure_did_not_wait_for_the_rest() -> None:
    nodes = [
        timed("fails", started=0, finished=2),
        timed("goes on", started=0, finished=8),
        timed("alarm", "fails", "goes on", started=2, finished=9),
    ]
    assert find_critical_path(nodes) == (["fails", "alarm"], 9)


def test_what_has_not_ended_is_passed_over() -> None:
    nodes = [
        timed("a", started=0, finished=2),
        timed("skipped", "a", started=None, finished=2),
        timed("b", "skipped", started=4, finished=5),
        timed("c", "b", started=5, finished=None),
    ]
    assert find_critical_path(nodes) == (["a", "skipped", "b"], 5)
    assert find_critical_path([timed("only", started=None, finished=None)]) == ([], 0)
