"""A workflow's document: what is read from it, how it is written again, and what cannot be read."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from bellringer.core.policies import Delivery
from bellringer.core.retry_policy import Retry
from bellringer.errors import InvalidInput
from bellringer.workflow import (
    MAX_WORKFLOW_NESTING,
    Edge,
    NodeKind,
    Ref,
    RunRule,
    ValueSource,
    graph_digest,
    parse_graph,
    to_document,
    validate_graph,
)

DOCUMENT: dict[str, Any] = {
    "params": {"day": {"default": {"run": "date"}}, "region": {"default": {"value": "eu"}}, "at": {}},
    "max_parallel": 50,
    "output": "load",
    "nodes": [
        {
            "name": "extract",
            "task": "extract",
            "kwargs": {"limit": 5},
            "takes": {"region": {"param": "region"}},
            "pool": "long",
            "priority": 0,
            "timeout": "5m",
            "heartbeat": "30s",
            "retry": {"attempts": 5, "base": "1m"},
            "delivery": "at_most_once",
        },
        {
            "name": "transform",
            "task": "transform",
            "takes": {"path": {"item": True, "path": ["name", 0]}, "place": {"index": True}},
            "over": {"node": "extract", "path": ["files"]},
            "max_items": 500,
            "max_parallel": 20,
        },
        {
            "name": "load",
            "task": "load",
            "takes": {"counts": {"node": "transform"}, "day": {"param": "day"}, "none": {"value": None}},
            "after": ["extract"],
            "when": "none_failed",
        },
        {"name": "weekday", "task": "a", "after": [{"node": "load", "is": None}]},
        {"name": "pause", "wait": {"for": "2h"}},
        {"name": "then", "wait": {"until": "2030-01-01T00:00:00Z"}},
        {"name": "until", "wait": {"until": {"param": "at"}}},
        {"name": "approved", "signal": {"name": "yes", "timeout": "1d", "default": {"value": None}}},
        {"name": "any", "signal": {}},
        {"name": "sub", "workflow": {"params": {"n": {}}, "nodes": [{"name": "x", "task": "x"}]}, "kwargs": {"n": 1}},
        {"name": "other", "workflow": "another job", "over": {"value": [1, 2]}, "takes": {"n": {"item": True}}},
        {"name": "undo", "task": "undo", "undoes": "extract", "takes": {"id": {"node": "extract"}}},
    ],
}


def test_what_is_written_is_what_was_read() -> None:
    graph = parse_graph(DOCUMENT)
    validate_graph(graph, known_tasks={"extract", "transform", "load", "a", "x", "undo"})
    assert to_document(graph) == DOCUMENT
    assert parse_graph(to_document(graph)) == graph


def test_a_document_is_read_into_words() -> None:
    nodes = {node.name: node for node in parse_graph(DOCUMENT).nodes}
    extract, transform, load = (nodes[name] for name in ("extract", "transform", "load"))
    assert (extract.timeout, extract.delivery) == (timedelta(minutes=5), Delivery.AT_MOST_ONCE)
    assert extract.retry == Retry(5, base="1m")
    assert transform.over == Ref(ValueSource.NODE, "extract", ("files",))
    assert transform.takes["path"] == Ref(ValueSource.ITEM, path=("name", 0))
    assert (load.when, load.after) == (RunRule.NONE_FAILED, (Edge("extract", "load"),))
    assert nodes["weekday"].after == (Edge("load", "weekday", "null"),)
    kinds = [node.kind for node in nodes.values()]
    assert kinds == [
        *[NodeKind.TASK] * 4,
        *[NodeKind.WAIT] * 3,
        *[NodeKind.SIGNAL] * 2,
        *[NodeKind.WORKFLOW] * 2,
        NodeKind.TASK,
    ]


def test_the_same_said_in_other_ways_is_the_same_version() -> None:
    other = deepcopy(DOCUMENT)
    extract = other["nodes"][0]
    extract |= {"timeout": 300, "priority": 0.0, "retry": {"base": 60, "attempts": 5}, "undoes": None, "after": []}
    other["nodes"][2]["after"] = [{"node": "extract"}]
    other["nodes"][5]["wait"] = {"until": {"value": "2030-01-01T01:00:00+01:00"}}
    assert graph_digest(parse_graph(other)) == graph_digest(parse_graph(DOCUMENT))
    assert len(graph_digest(parse_graph(DOCUMENT))) == 32


@pytest.mark.parametrize("change", [{"kwargs": {"limit": 6}}, {"kwargs": {"limit": True}}, {"pool": None}])
def test_another_content_is_another_version(change: dict[str, Any]) -> None:
    other = deepcopy(DOCUMENT)
    other["nodes"][0] |= change
    assert graph_digest(parse_graph(other)) != graph_digest(parse_graph(DOCUMENT))


def test_names_are_compared_in_their_normal_form() -> None:
    graph = parse_graph(
        {"nodes": [{"name": "caf\u00e9", "task": "a"}, {"name": "b", "task": "a", "after": ["cafe\u0301"]}]}
    )
    validate_graph(graph)
    assert graph.nodes[1].after[0].parent == graph.nodes[0].name


TASK = {"name": "a", "task": "t"}
UNREADABLE: list[tuple[Any, str, str]] = [
    ([], "", "type"),
    ({}, "/nodes", "missing_field"),
    ({"nodes": {}}, "/nodes", "type"),
    ({"nodes": [], "node": 1}, "/node", "unknown_field"),
    ({"nodes": ["a"]}, "/nodes/0", "type"),
    ({"nodes": [{1: "a"}]}, "/nodes/0", "type"),
    ({"nodes": [TASK], "max_parallel": "3"}, "/max_parallel", "type"),
    ({"nodes": [TASK], "max_parallel": True}, "/max_parallel", "type"),
    ({"nodes": [TASK], "params": {"p": {"defualt": 1}}}, "/params/p/defualt", "unknown_field"),
    ({"nodes": [TASK], "params": {"p": {"default": {"node": "a"}}}}, "/params/p/default", "choice"),
    ({"nodes": [TASK], "params": {" p": {}}}, "/params", "name_charset"),
    ({"nodes": [TASK], "output": 3}, "/output", "type"),
]
UNREADABLE_NODES: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "b"}, "", "missing_field"),
    ({"task": "t"}, "/name", "missing_field"),
    ({"name": "b\u200b", "task": "t"}, "/name", "name_charset"),
    ({"name": "b", "task": "t", "wait": {"for": 1}}, "/wait", "conflicting_fields"),
    ({"name": "b", "taks": "t"}, "/taks", "unknown_field"),
    ({"name": "b", "wait": {"for": 1}, "kwargs": {}}, "/kwargs", "conflicting_fields"),
    ({"name": "b", "signal": {}, "over": {"value": []}}, "/over", "conflicting_fields"),
    ({"name": "b", "workflow": "w", "heartbeat": "1s"}, "/heartbeat", "conflicting_fields"),
    ({"name": "b", "wait": {}}, "/wait", "missing_field"),
    ({"name": "b", "wait": {"for": 1, "until": {"param": "p"}}}, "/wait", "conflicting_fields"),
    ({"name": "b", "wait": {"for": "soon"}}, "/wait/for", "duration_invalid"),
    ({"name": "b", "wait": {"until": "2030-01-01T00:00:00"}}, "/wait/until", "offset_required"),
    ({"name": "b", "wait": {"until": {"value": 3}}}, "/wait/until/value", "datetime_invalid"),
    ({"name": "b", "signal": {"default": {"value": 1}}}, "/signal/timeout", "missing_field"),
    ({"name": "b", "signal": {"timeout": 1, "default": {"node": "a"}}}, "/signal/default", "choice"),
    ({"name": "b", "task": "t", "after": "a"}, "/after", "type"),
    ({"name": "b", "task": "t", "after": ["a", 1]}, "/after/1", "type"),
    ({"name": "b", "task": "t", "after": [{"node": "a", "equals": 1}]}, "/after/0/equals", "unknown_field"),
    ({"name": "b", "task": "t", "when": "one_succeeded"}, "/when", "unknown_word"),
    ({"name": "b", "task": "t", "when": ["all_done"]}, "/when", "unknown_word"),
    ({"name": "b", "task": "t", "takes": {"x/y": {}}}, "/takes/x~1y", "choice"),
    ({"name": "b", "task": "t", "takes": {"x": {"node": "a", "param": "p"}}}, "/takes/x", "choice"),
    ({"name": "b", "task": "t", "takes": {"x": {"run": "day"}}}, "/takes/x/run", "unknown_word"),
    ({"name": "b", "task": "t", "takes": {"x": {"item": 1}}}, "/takes/x/item", "type"),
    ({"name": "b", "task": "t", "takes": {"x": {"run": "id", "path": [1]}}}, "/takes/x/path", "conflicting_fields"),
    ({"name": "b", "task": "t", "takes": {"x": {"node": "a", "path": [1.5]}}}, "/takes/x/path/0", "type"),
    ({"name": "b", "task": "t", "takes": {"x": {"node": "a", "path": ["y"] * 33}}}, "/takes/x/path", "limit"),
    ({"name": "b", "task": "t", "over": {"run": "id"}}, "/over", "choice"),
    ({"name": "b", "task": "t", "over": {"item": True}}, "/over", "choice"),
    ({"name": "b", "task": "t", "kwargs": [1]}, "/kwargs", "type"),
    ({"name": "b", "task": "t", "kwargs": {"x": {"y": "\0"}}}, "/kwargs/x/y", "nul_character"),
    ({"name": "b", "task": "t", "retry": {"attempts": 0}}, "/retry/attempts", "limit"),
    ({"name": "b", "task": "t", "retry": {"base": "x"}}, "/retry", "duration_invalid"),
    ({"name": "b", "task": "t", "delivery": "twice"}, "/delivery", "unknown_word"),
    ({"name": "b", "task": "t", "priority": 1.5}, "/priority", "type"),
    ({"name": "b", "workflow": {"nodes": [{"name": "c"}]}}, "/workflow/nodes/0", "missing_field"),
    ({"name": "b", "workflow": 3}, "/workflow", "type"),
]


@pytest.mark.parametrize(("document", "pointer", "code"), UNREADABLE)
def test_what_cannot_be_read_is_refused_with_its_place(document: Any, pointer: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_graph(document)
    assert (refused.value.pointer, refused.value.code) == ("/workflow" + pointer, code)


@pytest.mark.parametrize(("node", "pointer", "code"), UNREADABLE_NODES)
def test_a_node_that_cannot_be_read_is_refused_with_its_place(node: Any, pointer: str, code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_graph({"nodes": [TASK, node]}, pointer="/w")
    assert (refused.value.pointer, refused.value.code) == ("/w/nodes/1" + pointer, code)


def test_a_misspelt_field_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidInput, match="did you mean takes"):
        parse_graph({"nodes": [TASK | {"take": {}}]})


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {"nodes": [TASK]}
    for _ in range(depth):
        document = {"nodes": [{"name": "inner", "workflow": document}]}
    return document


def test_workflows_are_nested_only_so_deep() -> None:
    validate_graph(parse_graph(nested(MAX_WORKFLOW_NESTING)))
    with pytest.raises(InvalidInput, match="more than 5 levels deep") as refused:
        parse_graph(nested(400))
    assert refused.value.pointer == "/workflow" + "/nodes/0/workflow" * (MAX_WORKFLOW_NESTING + 1)
