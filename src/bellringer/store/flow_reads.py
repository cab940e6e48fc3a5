"""What people see of workflows: graphs and their versions, and workflow runs from inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("flow_reads")
MOST_REVISIONS: Final = 10_000  # of a job, among which its versions are looked for
LAST: Final = (1 << 31) - 1  # no node has a higher number


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version of a workflow, and the first revision of its job that had it."""

    version: int
    revision: int
    effective_at: datetime
    who: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a graph by its number; what waits for it has a higher one."""

    node: int
    name: str
    kind: str
    task: str | None
    pool: str | None
    is_map: bool
    most: int
    abreast: int
    rule: str
    undoes: int | None
    signal: str | None


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """With `equals`, JSON text, it counts only if that is the result of the parent."""

    parent: int
    child: int
    equals: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRows:
    """A version of a graph."""

    graph_id: int
    document: dict[str, Any]
    output: int | None
    max_parallel: int | None
    nodes: Sequence[NodeRow]
    edges: Sequence[EdgeRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A workflow run from inside; `key` is the run that it is the inside of."""

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
class FlowNodeRow:
    """A node of a flow, or an element of a map: then `of` is the map's number, and `place` where it is in the list."""

    node: int
    of: int
    state: str
    reason: str | None
    place: int | None = None
    item: str | None = None
    size: int | None = None
    has_run: bool = False
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Which node of which workflow run a run is, and the job at the top."""

    key: RunKey
    top_job: UUID
    job: str | None
    name: str | None  # None: the map was opened anew since
    place: int | None

    def shown(self, name: str | None) -> str:
        """`transform`, or `transform[3]`; `name` is what the run itself says."""
        return place_name(self.name or name or "?", self.place)


def place_name(name: str, place: int | None) -> str:
    return name if place is None else f"{name}[{place}]"


async def workflows(
    store: Store, tenant_id: int, after: str | None, q: str | None, most: int
) -> list[tuple[UUID, str]]:
    """Jobs that are workflows by their names: those after one, as names are ordered, with this text in it."""
    rows = await store.pool.fetch(_SQL.workflows, tenant_id, after, None if q is None else q.lower(), most)
    return [(row["job_id"], row["name_key"]) for row in rows]


async def versions(store: Store, job_id: UUID) -> list[VersionRow]:
    """The versions of a workflow, newest first."""
    return [VersionRow(*row) for row in await store.pool.fetch(_SQL.versions, job_id, MOST_REVISIONS)]


async def graph(store: Store, tenant_id: int, number: int) -> GraphRows | None:
    row = await store.pool.fetchrow(_SQL.graph, number, tenant_id)
    if row is None:
        return None
    return GraphRows(
        graph_id=row["graph_id"],
        document=msgspec.json.decode(row["document"]),
        output=row["output"],
        max_parallel=row["max_parallel"],
        nodes=await graph_nodes(store, tenant_id, number),
        edges=[EdgeRow(*edge) for edge in await store.pool.fetch(_SQL.graph_edges, tenant_id, number)],
    )


async def graph_nodes(store: Store, tenant_id: int, number: int) -> list[NodeRow]:
    """The nodes of a version, behind those they wait for."""
    return [NodeRow(*node) for node in await store.pool.fetch(_SQL.graph_nodes, tenant_id, number)]


async def flow(store: Store, tenant_id: int, key: RunKey) -> Flow | None:
    """The inside of a workflow run, once it has been opened."""
    row = await store.pool.fetchrow(_SQL.flow, key.job_id, key.scheduled_for, key.slot, tenant_id)
    if row is None:
        return None
    names = ("flow_id", "top_job", "job", "graph_id", "started_at", "finished_at", "undoing", "stopped")
    return Flow(key=key, **{name: row[name] for name in names})


async def nodes(
    store: Store,
    tenant_id: int,
    flow_id: UUID,
    *,
    first: int = 1,
    last: int = LAST,
    state: str | None = None,
    most: int | None = None,
) -> list[FlowNodeRow]:
    """Nodes of a flow by their numbers, those in a state if one is given."""
    rows = await store.pool.fetch(_SQL.flow_nodes, tenant_id, flow_id, first, last, state, most)
    return [FlowNodeRow(*row) for row in rows]


async def counts(store: Store, tenant_id: int, flow_id: UUID) -> Mapping[int, Mapping[str, int]]:
    """Of each map, how many of its elements are in which state."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for row in await store.pool.fetch(_SQL.counts, tenant_id, flow_id):
        found[row["of"]][row["state"]] = row["count"]
    return found


async def elements(store: Store, flow_id: UUID, node: int) -> range:
    """The numbers of the elements of a map; of what is none, or has not been opened, its own."""
    row = await store.pool.fetchrow(_SQL.elements, flow_id, node)
    if row is None or row["size"] is None:
        return range(node, node + 1)
    return range(row["first"], row["first"] + row["size"])


async def placed(store: Store, tenant_id: int, keys: Sequence[RunKey]) -> Mapping[RunKey, Placed]:
    """Those of these runs that are nodes of workflow runs."""
    if not keys:
        return {}
    rows = await store.pool.fetch(_SQL.node_of, [k.job_id for k in keys], [k.slot for k in keys], tenant_id)
    found = {
        (row["flow_id"], row["node"]): Placed(
            RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
            row["top_job"],
            row["job"],
            row["name"],
            row["place"],
        )
        for row in rows
    }
    return {key: found[key.job_id, key.slot] for key in keys if (key.job_id, key.slot) in found}
