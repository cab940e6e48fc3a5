"""Workflow graphs, and commands on workflow runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.runs import RunKey, State
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load
from bellringer.store.queue import ClaimedRun

_SQL = load("workflows")
_JSON = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGraph:
    """A graph as stored: its document, and the rows that the SQL functions use."""

    digest: str
    document: Mapping[str, Any]
    params: Mapping[str, Any]
    output: int | None
    max_parallel: int | None
    nodes: Sequence[Mapping[str, Any]]
    edges: Sequence[Mapping[str, Any]]
    keep_until: datetime | None = None  # of a graph without a job


async def intern_graph(store: Store, tenant_id: int, version: StoredGraph) -> int:
    """Returns the id of a graph; equal graphs share one."""
    number: int = await store.pool.fetchval(
        _SQL.intern,
        tenant_id,
        version.digest,
        _JSON.encode(version.document).decode(),
        _JSON.encode(version.params).decode(),
        version.output,
        version.max_parallel,
        _JSON.encode(version.nodes).decode(),
        _JSON.encode(version.edges).decode(),
        version.keep_until,
    )
    return number


async def graph_document(store: Store, tenant_id: int, number: int) -> dict[str, Any] | None:
    """Returns the document of a graph as its author wrote it."""
    text = await store.pool.fetchval(_SQL.document, number, tenant_id)
    return None if text is None else msgspec.json.decode(text)


async def current_version(store: Store, tenant_id: int, job: str) -> int | None:
    """Returns the present graph of a workflow, by the name of its job."""
    number: int | None = await store.pool.fetchval(_SQL.version_of, tenant_id, job)
    return number


async def known_tasks(store: Store, names: Collection[str]) -> set[str]:
    return {row["name"] for row in await store.pool.fetch(_SQL.known_tasks, list(names))}


async def node_values(store: Store, wanted: Sequence[tuple[UUID, Mapping[str, Any]]]) -> list[Any]:
    """Returns results of nodes by reference. Each value is read once; each caller gets its own copy."""
    keys = [(flow_id, _JSON.encode(ref).decode()) for flow_id, ref in wanted]
    once = list(dict.fromkeys(keys))
    rows = await store.pool.fetch(_SQL.values, [flow_id for flow_id, _ in once], [ref for _, ref in once])
    texts = {key: row[0] for key, row in zip(once, rows, strict=True)}  # a deleted workflow run has no row
    return [None if texts[key] is None else msgspec.json.decode(texts[key]) for key in keys]


@dataclass(frozen=True, slots=True)
class WorkflowToStop:
    """A workflow run to stop, the reason, and the final state of its run."""

    flow_id: UUID
    reason: str
    ends_as: State


async def runs_to_stop(store: Store, limit: int) -> list[WorkflowToStop]:
    rows = await store.pool.fetch(_SQL.to_stop, limit)
    return [WorkflowToStop(row["flow_id"], row["reason"], State(row["ends_as"])) for row in rows]


async def stop_run(store: Store, flow: WorkflowToStop) -> bool:
    """Stops a workflow run: no further nodes start. Returns False if it had stopped already."""
    stopped: bool = await store.pool.fetchval(_SQL.stop, flow.flow_id, flow.reason, flow.ends_as)
    return stopped


async def retry_nodes(
    store: Store, key: RunKey, tenant_id: int, nodes: Sequence[tuple[str, int | None]] | None
) -> str | None:
    """Resets nodes and all their successors; returns a refusal code, or None."""
    named = ([name for name, _ in nodes], [place for _, place in nodes]) if nodes is not None else (None, None)
    refusal: str | None = await store.pool.fetchval(
        _SQL.retry, tenant_id, key.job_id, key.scheduled_for, key.slot, *named
    )
    return refusal


async def mark_node(
    store: Store,
    key: RunKey,
    tenant_id: int,
    node: tuple[str, int | None],
    state: State,
    *,
    result: Any = None,
    reason: str,
) -> str | None:
    """Sets the final state of a node; returns a refusal code, or None."""
    text = None if result is None else _JSON.encode(result).decode()
    refusal: str | None = await store.pool.fetchval(
        _SQL.mark, tenant_id, key.job_id, key.scheduled_for, key.slot, *node, state, text, reason
    )
    return refusal


async def send_signal(store: Store, key: RunKey, tenant_id: int, name: str, payload: Any) -> str | None:
    """Sends a signal; returns None if a node received it, `kept` if it is stored, or a refusal code."""
    text = _JSON.encode(payload).decode()
    outcome: str | None = await store.pool.fetchval(
        _SQL.signal, tenant_id, key.job_id, key.scheduled_for, key.slot, name, text
    )
    return outcome


async def signal_names(store: Store, key: RunKey, tenant_id: int) -> list[str]:
    """Returns the signals that the nodes of a workflow run wait for."""
    rows = await store.pool.fetch(_SQL.signals, key.job_id, key.scheduled_for, key.slot, tenant_id)
    return [row[0] for row in rows]


async def prune(store: Store, before: datetime, limit: int = 1_000) -> int:
    """Deletes workflow runs older than a time; returns how many."""
    gone = 0
    while forgotten := await store.pool.fetchval(_SQL.forget, before, limit):
        gone += forgotten
    return gone


async def prune_graphs(store: Store, limit: int = 1_000) -> int:
    """Deletes graphs of runs without a job that no run uses any more; returns how many."""
    gone: int = await store.pool.fetchval(_SQL.forget_graphs, limit)
    return gone


MAX_REVISIONS_SCANNED: Final = 10_000
MAX_NODE_NUMBER: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a workflow, and the first revision of its job that used it."""

    version: int
    revision: int
    effective_at: datetime
    who: str


@dataclass(frozen=True, slots=True)
class GraphNodeRow:
    """A node of a graph. Successors have higher numbers."""

    node: int
    name: str
    kind: str
    task: str | None
    pool: str | None
    is_map: bool
    max_elements: int
    map_parallelism: int
    rule: str
    undoes: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """An edge; with `equals` (JSON) it is taken only if the parent's result equals that value."""

    parent: int
    child: int
    equals: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRows:
    """A graph with its nodes and edges."""

    graph_id: int
    document: dict[str, Any]
    output: int | None
    max_parallel: int | None
    nodes: Sequence[GraphNodeRow]
    edges: Sequence[EdgeRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRunRow:
    """A workflow run; `key` is the key of its run."""

    flow_id: UUID
    key: RunKey
    top_job: UUID
    job: str | None
    graph_id: int
    started_at: datetime
    finished_at: datetime | None
    undoing: bool
    stopped: str | None


@dataclass(frozen=True, slots=True)
class WorkflowNodeRow:
    """A node of a workflow run, or an element of a map: then `graph_node` is the map and `index` the list position."""

    node: int
    graph_node: int
    state: str
    reason: str | None
    index: int | None = None
    item: str | None = None
    size: int | None = None
    has_run: bool = False
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The node that a run executes, the workflow run it belongs to, and the job of the outermost workflow."""

    key: RunKey
    top_job: UUID
    job: str | None
    name: str | None  # None: the map was opened again since
    index: int | None

    def label(self, name: str | None) -> str:
        """Returns `transform` or `transform[3]`; `name` is the fallback if the map was opened again since."""
        return node_label(self.name or name or "?", self.index)


def node_label(name: str, place: int | None) -> str:
    return name if place is None else f"{name}[{place}]"


async def list_workflow_jobs(
    store: Store, tenant_id: int, after: str | None, q: str | None, limit: int
) -> list[tuple[UUID, str]]:
    """Returns workflow jobs ordered by name, after a name, whose name contains `q`."""
    rows = await store.pool.fetch(_SQL.workflows, tenant_id, after, None if q is None else q.lower(), limit)
    return [(row["job_id"], row["name_key"]) for row in rows]


async def list_graph_versions(store: Store, job_id: UUID) -> list[VersionRow]:
    """Returns the versions of a workflow, newest first."""
    return [VersionRow(*row) for row in await store.pool.fetch(_SQL.versions, job_id, MAX_REVISIONS_SCANNED)]


async def load_graph(store: Store, tenant_id: int, number: int) -> GraphRows | None:
    row = await store.pool.fetchrow(_SQL.graph, number, tenant_id)
    if row is None:
        return None
    return GraphRows(
        graph_id=row["graph_id"],
        document=msgspec.json.decode(row["document"]),
        output=row["output"],
        max_parallel=row["max_parallel"],
        nodes=await load_graph_nodes(store, tenant_id, number),
        edges=[EdgeRow(*edge) for edge in await store.pool.fetch(_SQL.graph_edges, tenant_id, number)],
    )


async def load_graph_nodes(store: Store, tenant_id: int, number: int) -> list[GraphNodeRow]:
    """Returns the nodes of a graph in topological order."""
    return [GraphNodeRow(*node) for node in await store.pool.fetch(_SQL.graph_nodes, tenant_id, number)]


async def load_run(store: Store, tenant_id: int, key: RunKey) -> WorkflowRunRow | None:
    """Returns a workflow run; None if it has not been opened."""
    row = await store.pool.fetchrow(_SQL.flow, key.job_id, key.scheduled_for, key.slot, tenant_id)
    if row is None:
        return None
    names = ("flow_id", "top_job", "job", "graph_id", "started_at", "finished_at", "undoing", "stopped")
    return WorkflowRunRow(key=key, **{name: row[name] for name in names})


async def load_run_nodes(
    store: Store,
    tenant_id: int,
    flow_id: UUID,
    *,
    first: int = 1,
    last: int = MAX_NODE_NUMBER,
    state: str | None = None,
    limit: int | None = None,
) -> list[WorkflowNodeRow]:
    """Returns nodes of a workflow run by number, optionally in one state."""
    rows = await store.pool.fetch(_SQL.flow_nodes, tenant_id, flow_id, first, last, state, limit)
    return [WorkflowNodeRow(*row) for row in rows]


async def count_map_elements(store: Store, tenant_id: int, flow_id: UUID) -> Mapping[int, Mapping[str, int]]:
    """Returns the number of elements by state for each map."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for row in await store.pool.fetch(_SQL.counts, tenant_id, flow_id):
        found[row["of"]][row["state"]] = row["count"]
    return found


async def map_element_numbers(store: Store, flow_id: UUID, node: int) -> range:
    """Returns the node numbers of a map's elements; for another node, or an unopened map, its own number."""
    row = await store.pool.fetchrow(_SQL.elements, flow_id, node)
    if row is None or row["size"] is None:
        return range(node, node + 1)
    return range(row["first"], row["first"] + row["size"])


async def find_node_placements(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> Mapping[RunKey, NodePlacement]:
    """Returns the placement of those runs that execute workflow nodes."""
    if not keys:
        return {}
    rows = await store.pool.fetch(_SQL.node_of, [k.job_id for k in keys], [k.slot for k in keys], tenant_id)
    found = {
        (row["flow_id"], row["node"]): NodePlacement(
            RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
            row["top_job"],
            row["job"],
            row["name"],
            row["place"],
        )
        for row in rows
    }
    return {key: found[key.job_id, key.slot] for key in keys if (key.job_id, key.slot) in found}


@dataclass(frozen=True, slots=True)
class MapRow:
    """An opened map: its number of elements, those unfinished, and those that failed."""

    size: int
    elements_left: int
    elements_failed: int


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Whether a node is ready and waits for capacity, and how many node runs of its workflow run are running."""

    is_ready: bool
    busy: int


async def opened_maps(store: Store, flow_id: UUID, graph_id: int) -> Mapping[int, MapRow]:
    """Returns the opened maps of a workflow run by number."""
    rows = await store.pool.fetch(_SQL.maps, flow_id, graph_id)
    return {row["node"]: MapRow(row["size"], row["elements_left"], row["elements_failed"]) for row in rows}


async def node_capacity(store: Store, tenant_id: int, flow_id: UUID, node: int) -> NodeCapacity | None:
    row = await store.pool.fetchrow(_SQL.readiness, flow_id, node, tenant_id)
    return None if row is None else NodeCapacity(row["ready"], row["busy"])


async def satisfied_parents(store: Store, tenant_id: int, flow_id: UUID, node: int) -> set[int]:
    """Returns the predecessors whose result equals the condition of their edge to this node."""
    return {row["parent"] for row in await store.pool.fetch(_SQL.conditions_met, flow_id, node, tenant_id)}


async def load_node_arguments(store: Store, taken: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Returns the claimed runs with all values loaded: arguments of workflow nodes, and results of upstream runs."""
    if any(c.spec.upstream is not None and c.spec.upstream.large for c in taken):
        taken = await _load_upstream_results(store, taken)
    lacking = [(c.key.job_id, ref) for c in taken for ref in c.spec.refs.values()]
    if not lacking:
        return list(taken)
    values = iter(await node_values(store, lacking))
    return [_with_arguments(c, {name: next(values) for name in c.spec.refs}) if c.spec.refs else c for c in taken]


async def _load_upstream_results(store: Store, taken: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    loaded = []
    for claimed in taken:
        upstream = claimed.spec.upstream
        if upstream is not None and upstream.large:
            text = await store.pool.fetchval(
                _SQL.upstream_result, upstream.job_id, claimed.key.scheduled_for, upstream.slot
            )
            value = None if text is None else msgspec.json.decode(text)
            complete = msgspec.structs.replace(upstream, result=value, large=False)
            spec = msgspec.structs.replace(claimed.spec, upstream=complete)
            # The value was not searched for markers.
            claimed = msgspec.structs.replace(claimed, spec=spec, has_markers=True)  # noqa: PLW2901
        loaded.append(claimed)
    return loaded


def _with_arguments(claimed: ClaimedRun, values: dict[str, Any]) -> ClaimedRun:
    spec = msgspec.structs.replace(claimed.spec, kwargs={**claimed.spec.kwargs, **values}, refs={})
    return msgspec.structs.replace(claimed, spec=spec, has_markers=True)  # the values were not searched for markers
