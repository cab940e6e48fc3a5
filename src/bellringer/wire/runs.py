"""Runs: executions, attempts, results, logs, and explanations of their state."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from bellringer.wire.jobs import TriggerRequest
from bellringer.wire.models import Count, RequestModel, RequestWarning, ResponseModel
from bellringer.wire.problems import Fault


class ExecuteRequest(RequestModel, frozen=True):
    """A task to run or a URL to call without a job: now, at an instant, or after a delay.

    A run that has not started `expires_in` after its time is skipped. `redact` lists paths of values that are hidden.
    """

    task: str | None = None
    http: dict[str, Any] | None = None
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    at: str | None = None
    delay: str | int | float | None = None
    pool: str | None = None
    priority: int | None = None
    timeout: str | int | float | None = None
    heartbeat: str | int | float | None = None
    retry: int | dict[str, Any] | None = None
    delivery: str | None = None
    key: str | None = None
    expected_duration: str | int | float | None = None
    expires_in: str | int | float | None = None
    redact: list[str] | None = None


class BulkSendRequest(RequestModel, frozen=True):
    """Up to 10,000 tasks to run. With `atomic`, one invalid item rejects all."""

    items: list[ExecuteRequest]
    atomic: bool = True


class SentItem(ResponseModel, frozen=True):
    """The outcome for one item: its index in the request, and its run or its errors.

    `status` is 202 for a new run, 200 for the run that its key had already, 422 for an invalid item.
    """

    index: int
    status: int
    run_id: str | UnsetType = UNSET
    scheduled_for: datetime | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    errors: list[Fault] | UnsetType = UNSET


class BulkSent(ResponseModel, frozen=True):
    """The outcome of a bulk send. `existing` counts items whose key had a run already. With `Prefer: return=minimal`,
    runs are returned as ids.
    """

    created: int
    existing: int
    failed: int
    items: list[SentItem] | UnsetType = UNSET
    run_ids: list[str] | UnsetType = UNSET
    warnings: list[RequestWarning] | UnsetType = UNSET  # one per task, at its first item


class CancelRequest(RequestModel, frozen=True):
    """The reason."""

    reason: str | None = None


class ReplayRequest(TriggerRequest, frozen=True):
    """Arguments that override those of the original run, and the reason."""

    reason: str | None = None


class Attempt(ResponseModel, frozen=True):
    """An attempt of a run. Attempt 0 is an end without an attempt, such as a cancellation."""

    attempt: int
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime
    worker_id: int | None
    worker: str | None
    revision: int | None
    error: Any
    result: Any


class NodeOf(ResponseModel, frozen=True):
    """The workflow run and node that a run belongs to: `transform`, or `transform[3]` for a map."""

    run_id: str
    job_id: str
    job: str | None
    node: str


class RunItem(ResponseModel, frozen=True):
    """A run in a list, without its large fields.

    `worker_id` is the worker that executes the run or that executed its last attempt; lists add its name as `worker`.
    Runs of workflow nodes have `workflow`; runs of workflows have `has_nodes`.
    """

    run_id: str
    job_id: str
    job: str | None
    task: str
    state: str
    cause: str
    scheduled_for: datetime
    slot: int
    attempt: int
    fired_at: datetime | None
    available_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: int | None
    pool: str
    priority: int
    worker_id: int | None
    progress: Any
    revision: int | None
    token: int | None
    reason: str
    error: Any
    cancel_requested: bool
    blocked: list[str]
    workflow: NodeOf | UnsetType = UNSET
    has_nodes: bool | UnsetType = UNSET
    worker: str | UnsetType = UNSET


class RunUpstream(ResponseModel, frozen=True):
    """The run of another job whose end started a run, and the state in which it ended."""

    run_id: str
    job: str
    state: str


class Run(RunItem, frozen=True, kw_only=True):
    """A run with all its fields. `created` is only set if the run was requested with a key.

    `replay_of` is the run that it repeats, `replays` are the runs that repeat it.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    attempts: list[Attempt]
    replay_of: str | None = None
    replays: list[str] = field(default_factory=list)
    upstream: RunUpstream | UnsetType = UNSET  # of a run with the cause `after`
    trace_id: str | UnsetType = UNSET  # the OpenTelemetry trace of its attempts, if tracing is on
    created: bool | UnsetType = UNSET
    warnings: list[RequestWarning] | UnsetType = UNSET  # of the request that created it


class RunPage(ResponseModel, frozen=True):
    """A page of runs, newest first. If few runs match the filters, a page may be short and still have a cursor.

    `scanned` is the number of runs that were read for the page.
    """

    items: list[RunItem]
    next_cursor: str | None = None
    scanned: int | UnsetType = UNSET
    count: Count | UnsetType = UNSET


class WaitRequest(RequestModel, frozen=True):
    """Up to 1,000 runs to wait for: until all have ended, or with `any`, until one has; at most `timeout` seconds."""

    ids: list[str]
    any: bool = False
    timeout: int = 30


class Waited(ResponseModel, frozen=True):
    """The runs in the order of the request, and how many of them have ended."""

    items: list[RunItem]
    ended: int


class RunCounts(ResponseModel, frozen=True):
    """The number of runs by state, counted up to a limit."""

    states: dict[str, Count]


class RunsFilter(RequestModel, frozen=True, rename={"from_at": "from", "to_at": "to"}):
    """A filter of runs. `from` (inclusive) and `to` (exclusive) bound the scheduled time.

    `state` is one or several of queued, blocked, running, retrying, succeeded, dead, cancelled, skipped and waiting
    (not due yet). `q` are words of the name of the job or task.
    """

    state: str | list[str] | None = None
    job: str | None = None
    task: str | None = None
    pool: str | None = None
    cause: str | None = None
    tag: str | None = None
    worker: int | None = None
    q: str | None = None
    from_at: str | None = None
    to_at: str | None = None


class Result(ResponseModel, frozen=True):
    """The result of a finished run, or its error if it did not succeed."""

    run_id: str
    state: str
    finished_at: datetime | None
    result: Any
    error: Any


class Attempts(ResponseModel, frozen=True):
    """The attempts of a run, oldest first."""

    items: list[Attempt]
    next_cursor: str | None = None


class Line(ResponseModel, frozen=True):
    """A line of a handler. `source` is ctx for `ctx.log`, or stdout, stderr, warnings or logging:NAME."""

    attempt: int
    line: int
    at: datetime
    level: str
    message: str
    fields: Any
    source: str = "ctx"


class Lines(ResponseModel, frozen=True):
    items: list[Line]
    next_cursor: str | None = None


class Reason(ResponseModel, frozen=True):
    """A reason. `holds` is true if it blocks, false if it informs, "ok" for a passed check. `fix` is a command."""

    code: str
    holds: bool | Literal["ok"]
    text: str
    fix: str


class Explanation(ResponseModel, frozen=True):
    """The reasons for a state, the decisive one first. `at` is the explained instant, `state` that of its run.

    For a workflow node, `workflow` identifies the node, and `state` is its state.
    """

    job_id: str
    job: str | None
    task: str | None
    run_id: str | None
    state: str | None
    at: datetime | None
    next_at: datetime | None
    reasons: list[Reason]
    workflow: NodeOf | UnsetType = UNSET
