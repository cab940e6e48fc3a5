"""Versions: the graph of a workflow is read, checked and stored once; a job, and a run of it, keep its number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from bellringer.errors import InvalidInput
from bellringer.jobs import SIGNAL, WAIT, WORKFLOW, Definition, pool_for
from bellringer.runs import Spec
from bellringer.store import flows
from bellringer.store.flows import Version
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.workflows import (
    MOST_NESTED,
    Graph,
    Kind,
    Numbered,
    bound_params,
    check,
    check_inner,
    compiled,
    read_graph,
    to_document,
)

_TASKS: Final = {Kind.WORKFLOW: WORKFLOW, Kind.WAIT: WAIT, Kind.SIGNAL: SIGNAL}
ABREAST: Final = 1_000  # runs of a map under way at once, where nobody says: so its start stays short

Seen = tuple[Graph, int]  # a graph that was checked and stored, and its number


async def versioned(
    store: Store, names: Names, d: Definition, *, tenant_id: int, seen: dict[int, Seen] | None = None
) -> Definition:
    """A workflow with the number of its graph in place of the graph; whatever is wrong with it is said here.

    `seen` keeps graphs by the identity of their documents, for as long as these live: a bulk has one in many jobs.
    """
    if d.task != WORKFLOW:
        return d
    _refuse_args(d.args)
    if d.workflow is None:
        stored = await stored_graph(store, tenant_id, d.graph)
        _bind(stored, d)
        return replace(d, nodes=len(stored.nodes))
    seen, place = {} if seen is None else seen, id(d.workflow)
    graph = seen[place][0] if place in seen else await _checked(store, names, tenant_id, d.workflow)
    _bind(graph, d)
    if place not in seen:
        seen[place] = (graph, await _intern(store, names, graph, tenant_id))
    return replace(d, graph=seen[place][1], nodes=len(graph.nodes), workflow=None)


async def _checked(store: Store, names: Names, tenant_id: int, document: Mapping[str, Any]) -> Graph:
    graph = read_graph(document)
    known = await flows.known_tasks(store, set(_tasks(graph))) if names.are_for_callers else None
    check(graph, known_tasks=known)
    await _check_named(store, tenant_id, graph)
    return graph


def _bind(graph: Graph, d: Definition) -> None:
    """What no schedule fires may lack params: who triggers it gives them."""
    given = d.kwargs if d.schedules else {**dict.fromkeys(graph.params), **d.kwargs}
    bound_params(graph, given)


async def check_params(store: Store, spec: Spec, *, tenant_id: int) -> None:
    """Whether a run of a workflow may have these arguments; one of anything else may have any."""
    if spec.graph is not None:
        _refuse_args(spec.args)
        bound_params(await stored_graph(store, tenant_id, spec.graph), spec.kwargs)


def _refuse_args(args: Sequence[Any]) -> None:
    if args:
        raise InvalidInput("a workflow takes its params by name", hint="give kwargs", pointer="/args", code="type")


async def stored_graph(store: Store, tenant_id: int, number: int | None) -> Graph:
    document = None if number is None else await flows.document(store, tenant_id, number)
    if document is None:
        hint = "give it as `workflow`"
        raise InvalidInput("the workflow's graph is missing", hint=hint, pointer="/workflow", code="missing_field")
    return read_graph(document)


def _tasks(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.task is not None:
            yield node.task
        if isinstance(node.workflow, Graph):
            yield from _tasks(node.workflow)


async def _intern(store: Store, names: Names, graph: Graph, tenant_id: int) -> int:
    made = compiled(graph)
    tasks = sorted({_TASKS.get(node.kind) or str(node.task) for node in made.nodes})
    defaults = {task: await names.task_defaults(task) for task in tasks}
    pools = {node.number: pool for node in made.nodes if (pool := _pool(node, defaults)) is not None}
    pool_ids, task_ids = await names.pool_ids(pools.values()), await names.task_ids(tasks, tenant_id)
    rows = [
        {
            "node": node.number,
            "name": node.name,
            "kind": node.kind,
            "task_id": task_ids[_TASKS.get(node.kind) or str(node.task)],
            "pool_id": pool_ids[pools[node.number]] if node.number in pools else None,
            "priority": node.priority
            if node.priority is not None
            else defaults.get(str(node.task), {}).get("priority"),
            "spec": await _spec(store, names, node, defaults.get(str(node.task), {}), tenant_id),
            "takes": node.takes if node.signal is None else _default(node.signal),
            "over": node.over,
            "most": node.most or 0,
            "abreast": node.window or ABREAST,
            "rule": node.rule,
            "parents": node.parents,
            "undoes": node.undoes,
            "waits": node.wait or node.signal,
        }
        for node in made.nodes
    ]
    edges = [{"parent": parent, "child": child, "equals": equals} for parent, child, equals in made.edges]
    document = to_document(graph)
    # By what it is made into: when a task's code comes to want another pool or timeout, that is a new version.
    content = msgspec.json.encode([document, rows], order="sorted")
    version = Version(
        digest=hashlib.sha256(content).hexdigest()[:32],
        document=document,
        params=made.params,
        output=made.output,
        max_parallel=made.max_parallel,
        nodes=rows,
        edges=edges,
    )
    return await flows.intern(store, tenant_id, version)


def _pool(node: Numbered, defaults: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The pool of a node; None: that of the workflow run."""
    if node.kind is not Kind.TASK:
        return node.pool
    task = str(node.task)
    return node.pool or defaults[task].get("pool") or pool_for(task)


def _default(signal: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if signal["default"] is None else {"default": signal["default"]}


async def _spec(
    store: Store, names: Names, node: Numbered, defaults: Mapping[str, Any], tenant_id: int
) -> Mapping[str, Any]:
    terms = {name: node.terms[name] if node.terms[name] is not None else defaults.get(name) for name in node.terms}
    spec = Spec(
        kwargs=dict(node.kwargs) if node.signal is None else {"name": node.signal["signal"]},
        node=node.name,
        graph=await _inner(store, names, node, tenant_id),
        **{name: value for name, value in terms.items() if value is not None},
    )
    document: Mapping[str, Any] = msgspec.to_builtins(spec)
    return document


async def _inner(store: Store, names: Names, node: Numbered, tenant_id: int) -> int | None:
    """The version of a workflow inside of another."""
    if isinstance(node.workflow, Graph):
        return await _intern(store, names, node.workflow, tenant_id)
    return None if node.workflow is None else await flows.version_of(store, tenant_id, node.workflow)


async def _check_named(
    store: Store, tenant_id: int, graph: Graph, *, pointer: str = "/workflow", left: int = MOST_NESTED
) -> None:
    """Whether the workflows that are named inside of another are there, get what they take, and are not too deep."""
    for place, node in enumerate(graph.nodes):
        inner, here = node.workflow, f"{pointer}/nodes/{place}"
        if inner is None:
            continue
        if not left:
            message, hint = f"workflows are nested deeper than {MOST_NESTED}", "trigger the inner ones by a task"
            raise InvalidInput(message, hint=hint, pointer=f"{here}/workflow", code="limit")
        if isinstance(inner, str):
            inner = await _named(store, tenant_id, inner, f"{here}/workflow")
            check_inner(inner, node.kwargs, node.takes, pointer=here)
        await _check_named(store, tenant_id, inner, pointer=f"{here}/workflow", left=left - 1)


async def _named(store: Store, tenant_id: int, name: str, pointer: str) -> Graph:
    number = await flows.version_of(store, tenant_id, name)
    if number is None:
        message, hint = f"there is no workflow {name!r}", "name a job that is a workflow, or give its nodes here"
        raise InvalidInput(message, hint=hint, pointer=pointer, code="unknown_workflow")
    return await stored_graph(store, tenant_id, number)
