"""What is asked and told of workflows: the graph of a job, and a workflow run from inside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from bellringer.wire.answers import Answer
from bellringer.wire.requests import Request


class LastRun(Answer, frozen=True):
    """The newest run of a workflow."""

    run_id: str
    state: str
    started_at: datetime | None
    finished_at: datetime | None


class Workflow(Answer, frozen=True):
    """A job that is a workflow, as a list shows it."""

    job_id: str
    name: str
    version: int
    nodes: int
    paused: bool
    next_at: datetime | None
    last: LastRun | None


class WorkflowPage(Answer, frozen=True):
    """Workflows by their names."""

    items: list[Workflow]
    next_cursor: str | None = None


class GraphNode(Answer, frozen=True):
    """A node of a graph. `task` of a workflow inside is the job that it is, if it was given by name.

    Only of a map: how many elements it may have, and how many of them may be under way. Without a pool it runs in that
    of the workflow run.
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


class GraphEdge(Answer, frozen=True, rename={"parent": "from", "child": "to", "equals": "is"}):
    """The one waits for the other; with `is` it counts only if the result of that is this."""

    parent: str
    child: str
    equals: Any | UnsetType = UNSET


class Graph(Answer, frozen=True):
    """A version of a workflow: what its author wrote, and what that means, nodes behind those they wait for."""

    version: int
    revision: int
    document: dict[str, Any]
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    params: dict[str, Any]
    max_parallel: int | None
    output: str | None


class GraphVersion(Answer, frozen=True):
    """A version of a workflow, and the first revision of its job that had it."""

    version: int
    revision: int
    effective_at: datetime
    who: str


class GraphVersions(Answer, frozen=True):
    """The versions of a workflow, newest first."""

    items: list[GraphVersion]
    next_cursor: str | None = None


class NodeChange(Answer, frozen=True):
    """A node that is in both versions, and the fields that differ."""

    name: str
    fields: list[str]


class GraphDifference(Answer, frozen=True, rename={"before": "from", "after": "to"}):
    """What differs between two versions; `fields` are those of the workflow itself."""

    before: int
    after: int
    added: list[str]
    removed: list[str]
    changed: list[NodeChange]
    edges_added: list[GraphEdge]
    edges_removed: list[GraphEdge]
    fields: list[str]


class MapCounts(Answer, frozen=True):
    """How many elements a map has, and how far they are; `running` are those that have begun."""

    size: int
    blocked: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0


class FlowNode(Answer, frozen=True):
    """A node of a workflow run.

    It is blocked (waits for others), queued, running, retrying, waiting (for a time or a signal, until `due_at`),
    succeeded, dead, cancelled, or skipped: `reason` is upstream, condition, stopped or not needed. Of a dead one it is
    the error.
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


class CriticalPath(Answer, frozen=True):
    """The nodes that determined how long it took, first to last, and their time from start to end."""

    nodes: list[str]
    seconds: float


class RunGraph(Answer, frozen=True):
    """A workflow run from inside. `stopped` says why no further node starts; `undoing`: what was done is taken back."""

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


class NodeItem(Answer, frozen=True):
    """A node, or an element of a map with its place and what it is for, as JSON text of 1,024 characters at most."""

    name: str
    index: int | None
    state: str
    reason: str | None
    run_id: str | None
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    item: str | None


class NodePage(Answer, frozen=True):
    """Nodes of a workflow run behind those they wait for, then the elements of maps."""

    items: list[NodeItem]
    next_cursor: str | None = None


class RetryNodesRequest(Request, frozen=True):
    """Nodes by their names, or elements of maps (`transform[3]`); without them, all that did not go well."""

    nodes: list[str] | None = None


class MarkNodeRequest(Request, frozen=True):
    """How a node has ended: succeeded, perhaps with a result, or dead; and why that is said by hand."""

    node: str
    state: str
    reason: str
    result: Any = None


class SignalRequest(Request, frozen=True):
    """What to tell; the node that waits for it has it as its result."""

    payload: Any = None


class NodesChanged(Answer, frozen=True):
    """A workflow run after its nodes were changed."""

    run_id: str
    state: str


class Signalled(Answer, frozen=True):
    """Whether a node has waited for it; if not, it is kept until one does."""

    taken: bool
