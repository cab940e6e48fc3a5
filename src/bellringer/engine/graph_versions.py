"""Validates workflow graphs and interns them: equal graphs share one stored version, and jobs and runs refer to its
id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any, Final

import msgspec

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK, Definition, pool_for
from bellringer.core.messages import GRAPH_KEPT
from bellringer.core.payload import check_payload
from bellringer.core.runs import Spec
from bellringer.errors import InvalidInput
from bellringer.store import workflows
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workflows import StoredGraph
from bellringer.workflow import (
    MAX_WORKFLOW_NESTING,
    CompiledNode,
    NodeKind,
    WorkflowGraph,
    bind_params,
    compile_graph,
    parse_graph,
    to_document,
    validate_graph,
    validate_nested_arguments,
)

_BUILT_IN_TASKS: Final = {NodeKind.WORKFLOW: WORKFLOW_TASK, NodeKind.WAIT: WAIT_TASK, NodeKind.SIGNAL: SIGNAL_TASK}
DEFAULT_MAP_PARALLELISM: Final = 1_000  # keeps the opening of a map short

InternedGraph = tuple[WorkflowGraph, int]  # a stored graph and its id


async def intern_workflow(
    store: Store, catalog: Catalog, d: Definition, *, tenant_id: int, seen: dict[int, InternedGraph] | None = None
) -> Definition:
    """Returns the definition with the id of its stored graph in place of the graph; raises InvalidInput if it is
    invalid.

    `seen` caches graphs by the identity of their documents while these are alive: many jobs of a bulk request share
    one.
    """
    if d.task != WORKFLOW_TASK:
        return d
    _refuse_args(d.args)
    if d.workflow is None:
        stored = await load_graph(store, tenant_id, d.graph)
        _check_bound_params(stored, d)
        return replace(d, nodes=len(stored.nodes))
    seen, place = {} if seen is None else seen, id(d.workflow)
    graph = seen[place][0] if place in seen else await _read_and_check(store, catalog, tenant_id, d.workflow)
    _check_bound_params(graph, d)
    if place not in seen:
        seen[place] = (graph, await _intern_graph(store, catalog, graph, tenant_id))
    return replace(d, graph=seen[place][1], nodes=len(graph.nodes), workflow=None)


async def _read_and_check(store: Store, catalog: Catalog, tenant_id: int, document: Mapping[str, Any]) -> WorkflowGraph:
    graph = parse_graph(document)
    _check_payloads(graph, await catalog.payload_limit(tenant_id))
    known = await workflows.known_tasks(store, set(_task_names(graph))) if catalog.is_for_callers else None
    validate_graph(graph, known_tasks=known)
    await _check_named_workflows(store, tenant_id, graph)
    return graph


def _check_payloads(graph: WorkflowGraph, limit: int, *, pointer: str = "/workflow") -> None:
    """Checks that the constants of nodes and parameters are within the payload limit of job arguments."""
    defaults = {name: ref.value for name, ref in graph.params.items() if ref is not None}
    check_payload(defaults, pointer=f"{pointer}/params", limit=limit)
    for place, node in enumerate(graph.nodes):
        here = f"{pointer}/nodes/{place}"
        constants = [ref.value for _, ref in node.refs() if ref.value is not None]
        check_payload({"kwargs": dict(node.kwargs), "constants": constants}, pointer=here, limit=limit)
        if isinstance(node.workflow, WorkflowGraph):
            _check_payloads(node.workflow, limit, pointer=f"{here}/workflow")


def _check_bound_params(graph: WorkflowGraph, d: Definition) -> None:
    """Checks the workflow's parameters. A job without a schedule may lack some: each trigger must then pass them."""
    given = d.kwargs if d.schedules else {**dict.fromkeys(graph.params), **d.kwargs}
    bind_params(graph, given)


async def check_params(store: Store, spec: Spec, *, tenant_id: int) -> None:
    """Checks the arguments of a run against its workflow's parameters. Runs of ordinary tasks are not checked."""
    if spec.graph is not None:
        _refuse_args(spec.args)
        bind_params(await load_graph(store, tenant_id, spec.graph), spec.kwargs)


def _refuse_args(args: Sequence[Any]) -> None:
    if args:
        raise InvalidInput("a workflow takes keyword arguments only", hint="give kwargs", pointer="/args", code="type")


async def load_graph(store: Store, tenant_id: int, number: int | None) -> WorkflowGraph:
    document = None if number is None else await workflows.graph_document(store, tenant_id, number)
    if document is None:
        hint = "pass the graph as `workflow`"
        raise InvalidInput("the workflow's graph is missing", hint=hint, pointer="/workflow", code="missing_field")
    return parse_graph(document)


def _task_names(graph: WorkflowGraph) -> Iterator[str]:
    for node in graph.nodes:
        if node.task is not None:
            yield node.task
        if isinstance(node.workflow, WorkflowGraph):
            yield from _task_names(node.workflow)


MAX_CACHED_GRAPHS: Final = 256
GRAPH_CACHE_SECONDS: Final = 60.0  # defaults of tasks are part of a version, and may change


async def intern_sent_graph(
    store: Store, catalog: Catalog, document: Mapping[str, Any], *, tenant_id: int, is_pruned: bool
) -> InternedGraph:
    """Returns the stored graph of a run without a job. With `is_pruned`, the graph is deleted some time after its last
    run; such graphs are stored apart from those of jobs. Recent graphs are cached in this process."""
    place = (tenant_id, is_pruned, msgspec.json.encode(document, order="sorted"))
    cached = catalog.sent_graphs.get(place)
    if cached is not None and monotonic() - cached[0] < GRAPH_CACHE_SECONDS:
        return cached[1], cached[2]
    graph = await _read_and_check(store, catalog, tenant_id, document)
    keep_until = await store.now() + 2 * GRAPH_KEPT if is_pruned else None
    number = await _intern_graph(store, catalog, graph, tenant_id, keep_until)
    while len(catalog.sent_graphs) >= MAX_CACHED_GRAPHS:
        del catalog.sent_graphs[next(iter(catalog.sent_graphs))]
    catalog.sent_graphs[place] = (monotonic(), graph, number)
    return graph, number


async def load_named_graph(store: Store, tenant_id: int, name: str, *, pointer: str) -> InternedGraph:
    """Returns the present graph of a workflow job."""
    number = await workflows.current_version(store, tenant_id, name)
    if number is None:
        hint = "`bellringer workflows list` shows them"
        raise InvalidInput(f"there is no workflow {name!r}", hint=hint, pointer=pointer, code="unknown_workflow")
    return await load_graph(store, tenant_id, number), number


async def _intern_graph(
    store: Store, catalog: Catalog, graph: WorkflowGraph, tenant_id: int, keep_until: datetime | None = None
) -> int:
    made = compile_graph(graph)
    tasks = sorted({_BUILT_IN_TASKS.get(node.kind) or str(node.task) for node in made.nodes})
    defaults = {task: await catalog.task_defaults(task) for task in tasks}
    pools = {node.number: pool for node in made.nodes if (pool := _pool_of(node, defaults)) is not None}
    pool_ids, task_ids = await catalog.pool_ids(pools.values()), await catalog.task_ids(tasks, tenant_id)
    rows = [
        {
            "node": node.number,
            "name": node.name,
            "kind": node.kind,
            "task_id": task_ids[_BUILT_IN_TASKS.get(node.kind) or str(node.task)],
            "pool_id": pool_ids[pools[node.number]] if node.number in pools else None,
            "priority": node.priority
            if node.priority is not None
            else defaults.get(str(node.task), {}).get("priority"),
            "spec": await _node_spec(store, catalog, node, defaults.get(str(node.task), {}), tenant_id),
            "takes": node.takes if node.signal is None else _signal_default(node.signal),
            "over": node.over,
            "most": node.most or 0,
            "max_concurrent": node.window or DEFAULT_MAP_PARALLELISM,
            "rule": node.rule,
            "parents": node.parents,
            "undoes": node.undoes,
            "waits": node.wait or node.signal,
        }
        for node in made.nodes
    ]
    edges = [{"parent": parent, "child": child, "equals": equals} for parent, child, equals in made.edges]
    document = to_document(graph)
    # The digest covers the compiled rows: a changed pool or timeout in a task's code makes a new version.
    content = msgspec.json.encode([document, rows], order="sorted")
    version = StoredGraph(
        digest=("" if keep_until is None else "sent ") + hashlib.sha256(content).hexdigest()[:32],
        keep_until=keep_until,
        document=document,
        params=made.params,
        output=made.output,
        max_parallel=made.max_parallel,
        nodes=rows,
        edges=edges,
    )
    return await workflows.intern_graph(store, tenant_id, version)


def _pool_of(node: CompiledNode, defaults: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns the pool of a node; None means the pool of the workflow run."""
    if node.kind is not NodeKind.TASK:
        return node.pool
    task = str(node.task)
    return node.pool or defaults[task].get("pool") or pool_for(task)


def _signal_default(signal: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if signal["default"] is None else {"default": signal["default"]}


async def _node_spec(
    store: Store, catalog: Catalog, node: CompiledNode, defaults: Mapping[str, Any], tenant_id: int
) -> Mapping[str, Any]:
    terms = {name: node.terms[name] if node.terms[name] is not None else defaults.get(name) for name in node.terms}
    spec = Spec(
        kwargs=dict(node.kwargs) if node.signal is None else {"name": node.signal["signal"]},
        node=node.name,
        graph=await _inner_version(store, catalog, node, tenant_id),
        redact=list(defaults.get("redact") or ()),
        **{name: value for name, value in terms.items() if value is not None},
    )
    document: Mapping[str, Any] = msgspec.to_builtins(spec)
    return document


async def _inner_version(store: Store, catalog: Catalog, node: CompiledNode, tenant_id: int) -> int | None:
    """Returns the graph id of a nested workflow."""
    if isinstance(node.workflow, WorkflowGraph):
        return await _intern_graph(store, catalog, node.workflow, tenant_id)
    return None if node.workflow is None else await workflows.current_version(store, tenant_id, node.workflow)


async def _check_named_workflows(
    store: Store, tenant_id: int, graph: WorkflowGraph, *, pointer: str = "/workflow", left: int = MAX_WORKFLOW_NESTING
) -> None:
    """Checks that nested workflows exist, get the parameters they take, and are not nested too deep."""
    for place, node in enumerate(graph.nodes):
        inner, here = node.workflow, f"{pointer}/nodes/{place}"
        if inner is None:
            continue
        if not left:
            message, hint = (
                f"workflows are nested deeper than {MAX_WORKFLOW_NESTING}",
                "trigger the inner workflows from a task",
            )
            raise InvalidInput(message, hint=hint, pointer=f"{here}/workflow", code="limit")
        if isinstance(inner, str):
            inner = await _load_named(store, tenant_id, inner, f"{here}/workflow")
            validate_nested_arguments(inner, node.kwargs, node.takes, pointer=here)
        await _check_named_workflows(store, tenant_id, inner, pointer=f"{here}/workflow", left=left - 1)


async def _load_named(store: Store, tenant_id: int, name: str, pointer: str) -> WorkflowGraph:
    number = await workflows.current_version(store, tenant_id, name)
    if number is None:
        message, hint = f"there is no workflow {name!r}", "name a workflow job, or define its nodes here"
        raise InvalidInput(message, hint=hint, pointer=pointer, code="unknown_workflow")
    return await load_graph(store, tenant_id, number)
