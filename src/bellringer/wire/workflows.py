"""Workflows: the graph of a job, and the nodes of a workflow run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.wire.models import Count, RequestModel, ResponseModel


class LastRun(ResponseModel, frozen=True):
    """The latest run of a workflow."""

    run_id: str
    state: str
    started_at: datetime | None
    finished_at: datetime | None


class WorkflowItem(ResponseModel, frozen=True):
    """A workflow in a list."""

    job_id: str
    name: str
    version: int
    nodes: int
    paused: bool
    next_at: datetime | None
    last: LastRun | None


class WorkflowPage(ResponseModel, frozen=True):
    """Workflows, ordered by name. `states` counts workflows by the state of their last run; `none`: no run yet."""

    items: list[WorkflowItem]
    next_cursor: str | None = None
    states: dict[str, Count] | UnsetType = UNSET


class GraphNode(ResponseModel, frozen=True):
    """A node of a graph. For a nested workflow given by name, `task` is the name of its job.

    `max_items` and `max_parallel` are limits of a map: its number of elements, and how many of them run at once.
    Without a pool, the node runs in the pool of the workflow run.
    """

    name: str
    kind: str
    task: str | None
    map: bool
    when: str
    undoes: str | None
    max_items: int | None
    max_parallel: int | None
    pool: str | None


class GraphEdge(ResponseModel, frozen=True, rename={"parent": "from", "child": "to", "equals": "is"}):
    """The child waits for the parent. With `is`, only if the result of the parent equals this value."""

    parent: str
    child: str
    equals: Any | UnsetType = UNSET


class Graph(ResponseModel, frozen=True):
    """A version of a workflow: the document of its author, and its nodes in order of dependency."""

    version: int
    revision: int
    document: dict[str, Any]
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    params: dict[str, Any]
    max_parallel: int | None
    output: str | None


class GraphVersion(ResponseModel, frozen=True):
    """A version of a workflow, and the first revision of the job with it."""

    version: int
    revision: int
    effective_at: datetime
    who: str


class GraphVersions(ResponseModel, frozen=True):
    """The versions of a workflow, newest first."""

    items: list[GraphVersion]
    next_cursor: str | None = None


class NodeChange(ResponseModel, frozen=True):
    """A node of both versions, and the fields that differ."""

    name: str
    fields: list[str]


class GraphDifference(ResponseModel, frozen=True, rename={"before": "from", "after": "to"}):
    """The differences between two versions; `fields` are changed fields of the workflow itself."""

    before: int
    after: int
    added: list[str]
    removed: list[str]
    changed: list[NodeChange]
    edges_added: list[GraphEdge]
    edges_removed: list[GraphEdge]
    fields: list[str]


class MapCounts(ResponseModel, frozen=True):
    """The number of elements of a map by state; `running` counts those that have started."""

    size: int
    blocked: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0


class FlowNode(ResponseModel, frozen=True):
    """A node of a workflow run.

    `state` is blocked (waits for other nodes), queued, running, retrying, waiting (for a time or a signal, until
    `due_at`), succeeded, dead, cancelled or skipped. `reason` of a skipped node is upstream, condition, stopped or not
    needed; of a dead node, it is the error.
    """

    name: str
    kind: str
    task: str | None
    when: str
    undoes: str | None
    state: str
    reason: str | None
    run_id: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    parents: list[str]
    map: MapCounts | None
    signal: str | None
    due_at: datetime | None
    critical: bool


class CriticalPath(ResponseModel, frozen=True):
    """The critical path: the nodes that determined the duration of the run, in order, and their total time."""

    nodes: list[str]
    seconds: float


class RunGraph(ResponseModel, frozen=True):
    """A workflow run with its nodes.

    `stopped` is the reason why no further node starts; with `undoing`, finished nodes are being compensated.
    """

    run_id: str
    job_id: str
    job: str | None
    version: int
    state: str
    started_at: datetime | None
    finished_at: datetime | None
    undoing: bool
    stopped: str | None
    nodes: list[FlowNode]
    edges: list[GraphEdge]
    critical_path: CriticalPath


class NodeItem(ResponseModel, frozen=True):
    """A node, or an element of a map with its index and its value, as JSON text of at most 1,024 characters."""

    name: str
    index: int | None
    state: str
    reason: str | None
    run_id: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    item: str | None


class NodePage(ResponseModel, frozen=True):
    """The nodes of a workflow run in order of dependency, then the elements of maps."""

    items: list[NodeItem]
    next_cursor: str | None = None


class RetryNodesRequest(RequestModel, frozen=True):
    """Names of nodes, or elements of maps (`transform[3]`); by default, all nodes that did not succeed."""

    nodes: list[str] | None = None


class MarkNodeRequest(RequestModel, frozen=True):
    """The final state of a node, succeeded (with an optional result) or dead, and the reason for the change."""

    node: str
    state: str
    reason: str
    result: Any = None


class StartWorkflowRequest(RequestModel, frozen=True):
    """A workflow to run without a job: `workflow` is its graph, as in a job; or `name` is a workflow job whose graph
    is used. `params` are its parameters. At most one run has a `key` within a day.
    """

    workflow: dict[str, Any] | None = None
    name: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    at: str | None = None
    delay: str | int | float | None = None
    pool: str | None = None
    priority: int | None = None
    timeout: str | int | float | None = None
    key: str | None = None


class SignalRequest(RequestModel, frozen=True):
    """The payload of a signal, which becomes the result of the node that waits for it."""

    payload: Any = None


class NodesChanged(ResponseModel, frozen=True):
    """The state of a workflow run after its nodes were changed."""

    run_id: str
    state: str


class Signalled(ResponseModel, frozen=True):
    """`taken`: a node waited for the signal. Otherwise it is kept until a node does."""

    taken: bool
