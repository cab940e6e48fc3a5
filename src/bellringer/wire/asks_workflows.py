"""Calls about workflows: their graphs, and workflow runs from inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bellringer.wire import workflows as told
from bellringer.wire.asks import PREFIX, Ask, _at, _get, _post
from bellringer.wire.reasons import Explanation


def workflows(*, q: str | None = None, limit: int | None = None, cursor: str | None = None) -> Ask[told.WorkflowPage]:
    """Jobs that are workflows, by their names; `q` is text in the name."""
    return _get(told.WorkflowPage, "/workflows", q=q, limit=limit, cursor=cursor)


def job_graph(job: str, *, version: int | None = None, revision: int | None = None) -> Ask[told.Graph]:
    """The graph of a workflow: the present one, that of a version, or that of a revision of its job."""
    return _get(told.Graph, _at("jobs", job, "graph"), version=version, revision=revision)


def graph_versions(job: str) -> Ask[told.GraphVersions]:
    """The versions of a workflow, newest first."""
    return _get(told.GraphVersions, _at("jobs", job, "graph", "versions"))


def graph_difference(job: str, *, before: int | None = None, after: int | None = None) -> Ask[told.GraphDifference]:
    """What differs between two versions of a workflow; without them, between the present one and the one before it."""
    return _get(told.GraphDifference, _at("jobs", job, "graph", "difference"), **{"from": before, "to": after})


def run_graph(run_id: str) -> Ask[told.RunGraph]:
    """A workflow run from inside: its nodes, where each of them is, and what took the time."""
    return _get(told.RunGraph, _at("runs", run_id, "graph"))


def run_nodes(
    run_id: str,
    *,
    node: str | None = None,
    state: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Ask[told.NodePage]:
    """The nodes of a workflow run, or the elements of one that is a map; those in a state, if one is given."""
    return _get(told.NodePage, _at("runs", run_id, "nodes"), node=node, state=state, limit=limit, cursor=cursor)


def node_why(run_id: str, node: str) -> Ask[Explanation]:
    """Why a node of a workflow run does not start, or is where it is."""
    return _get(Explanation, _at("runs", run_id, "nodes", "why"), node=node)


def retry_nodes(run_id: str, nodes: Sequence[str] | None = None) -> Ask[told.NodesChanged]:
    """Run nodes again, and all that comes after them; without names, all that did not go well."""
    return _post(told.NodesChanged, _at("runs", run_id, "nodes", "retry"), {"nodes": nodes})


def mark_node(run_id: str, node: str, state: str, *, reason: str, result: Any = None) -> Ask[told.NodesChanged]:
    """Say how a node has ended, succeeded or dead; what comes after it goes on from there."""
    body = {"node": node, "state": state, "reason": reason, "result": result}
    return _post(told.NodesChanged, _at("runs", run_id, "nodes", "mark"), body)


def signal(run_id: str, name: str, payload: Any = None) -> Ask[told.Signalled]:
    """Tell a workflow run of something that a node waits for, or will."""
    path = PREFIX + _at("runs", run_id, "signals", name)
    return Ask(method="POST", path=path, shape=told.Signalled, body={"payload": payload})
