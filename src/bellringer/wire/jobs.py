"""Jobs: their definitions, pauses, skips, revisions, and bulk creation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.core.policies import AfterCompletion, Misfire, Overlap
from bellringer.wire.models import Count, RequestModel, RequestWarning, ResponseModel
from bellringer.wire.problems import Fault


class JobRequest(RequestModel, frozen=True):
    """The definition of a job. `schedule` is short for a list of one schedule, `payload` is a synonym of kwargs.

    A job runs a `task`, calls a URL, or is a workflow. `http` has the fields url, method, headers, body, timeout,
    expect, sign and secret.

    `workflow` has the fields nodes, params, max_parallel and output; kwargs are its params. A node has a name, and a
    task, workflow, wait or signal. Its other fields are kwargs, takes, over, max_items, max_parallel, after, when,
    undoes, and, as for a job, pool, priority, timeout, heartbeat, retry and delivery.

    If omitted, pool, expected_duration, priority, timeout, heartbeat, retry, delivery, expires_in and keep_result are
    those of the task. Without a pool, a job runs in `long` if it is expected to take more than a minute, else in
    `short`; without an expected duration, the pool is learned from its runs.

    `retry` has the fields attempts, base, cap, delays, jitter, never_on, only_on and max_elapsed. A run that has not
    started `expires_in` after its scheduled time is skipped. `pause_after_failures` is the number of dead runs in a row
    after which the job is paused. With `keep_result`, the next run can read the result of this one.

    `after_completion` (keep or delete) says what happens to the job when its schedules have no further occurrence and
    its runs have ended.

    `after` starts the job, besides its schedules or without any, when a run of another job ends: {"job": name, "on":
    "success", "failure" or "any"}, or the name alone.

    `redact` lists paths of arguments, results and progress whose values are shown as `***`, such as card.number or
    items[].token. `{"$secret": name}` in the arguments stands for a secret, which the worker looks up.
    """

    name: str
    task: str | None = None
    http: dict[str, Any] | None = None
    workflow: dict[str, Any] | None = None
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    schedule: dict[str, Any] | None = None
    schedules: list[dict[str, Any]] | None = None
    pool: str | None = None
    priority: int | None = None
    timeout: str | int | float | None = None
    heartbeat: str | int | float | None = None
    retry: int | dict[str, Any] | None = None
    delivery: str | None = None
    keep_result: bool | None = None
    misfire: str = Misfire.FIRE_ONCE
    max_catchup: int | None = None
    catchup_window: str | int | float | None = None
    catchup_rate: int | float | None = None
    overlap: str = Overlap.SKIP
    max_concurrency: int | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    jitter: str | int | float | None = None
    late_after: str | int | float | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    enabled: bool = True
    tags: list[str] = field(default_factory=list)
    expected_duration: str | int | float | None = None
    after_completion: str = AfterCompletion.KEEP
    expires_in: str | int | float | None = None
    pause_after_failures: int | None = None
    after: str | dict[str, Any] | None = None
    region: str | None = None
    redact: list[str] | None = None


class JobGraph(ResponseModel, frozen=True):
    """The graph of a workflow: its version and number of nodes."""

    version: int
    nodes: int


class Pause(ResponseModel, frozen=True):
    """The pause of a job: since when, by whom, why, and until when."""

    at: datetime
    by: str | None = None
    reason: str | None = None
    until: datetime | None = None


class DriftedField(ResponseModel, frozen=True):
    """A field that an operator changed: its value in the code of the app, and its current value."""

    field: str
    declared: Any
    current: Any


class Drift(ResponseModel, frozen=True):
    """The fields that differ from the last declaration of the app, which made `revision`.

    `by` and `at` are those of the latest change. The next start of the app overrides the fields, except `enabled`.
    """

    revision: int
    by: str | None
    at: datetime | None
    fields: list[DriftedField]


class Job(ResponseModel, frozen=True):
    """A job: its definition and current state.

    `routed`: the pool was not given, but chosen by the expected or learned duration. `app` is the app whose code
    declares the job, and `app_version` the last version that did; `orphaned_at` is set if its code no longer does.
    """

    job_id: str
    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    schedules: list[dict[str, Any]]
    description: str
    pool: str
    routed: bool
    expected_duration: str | None
    priority: int
    timeout: str | None
    heartbeat: str | None
    retry: dict[str, Any]
    delivery: str
    keep_result: bool
    misfire: str
    max_catchup: int | None
    catchup_window: str | None
    catchup_rate: float | None
    overlap: str
    max_concurrency: int | None
    concurrency_key: str | None
    concurrency_limit: int | None
    jitter: str | None
    jitter_by: str | None
    late_after: str | None
    expires_in: str | None
    pause_after_failures: int | None
    starts_at: datetime | None
    ends_at: datetime | None
    enabled: bool
    after_completion: str
    after: dict[str, str] | None  # the job starts when a run of this other job ends
    followers: list[str]  # jobs that start after this one
    paused: Pause | None
    owner: str
    tags: list[str]
    region: str | None  # the region of its shard
    revision: int
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None
    done_at: datetime | None  # when its schedules ended; such a job does not count against quotas
    app: str | None = None
    app_version: str | None = None
    orphaned_at: datetime | None = None
    redact: list[str] = field(default_factory=list)  # paths of values that are shown as ***
    drift: Drift | UnsetType = UNSET  # in `GET /jobs/{id}`, if there is one
    arguments_left_out: bool | UnsetType = UNSET  # true in lists, if the arguments are large
    http: dict[str, Any] | UnsetType = UNSET  # the target, if the task is http
    workflow: JobGraph | UnsetType = UNSET  # if the task is workflow
    warnings: list[RequestWarning] | UnsetType = UNSET  # in responses to requests that created or changed it


class JobPage(ResponseModel, frozen=True):
    """A page of jobs. Large arguments are left out."""

    items: list[Job]
    next_cursor: str | None = None
    count: Count | UnsetType = UNSET


class PauseRequest(RequestModel, frozen=True):
    """The reason, and the end of the pause: an instant, or a duration from now."""

    reason: str | None = None
    until: str | int | float | None = None


class ResumeRequest(RequestModel, frozen=True):
    """Which of the missed occurrences run: skip (none), latest or all."""

    missed: str = "skip"


class Resumed(ResponseModel, frozen=True):
    """A resumed job. `missed` counts the occurrences during the pause; `what` says which of them run.

    `since` is when the job was paused; null if it was not paused.
    """

    job: Job
    missed: int
    since: datetime | None
    what: str


class TriggerRequest(RequestModel, frozen=True):
    """Arguments for this run only."""

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None


class SkipRequest(RequestModel, frozen=True):
    """The future occurrence to skip, as an instant with an offset, and the reason."""

    at: str
    reason: str | None = None


class Skip(ResponseModel, frozen=True):
    """A skipped future occurrence, who skipped it, and why."""

    job_id: str
    at: datetime
    by: str
    reason: str | None
    made_at: datetime


class SkipPage(ResponseModel, frozen=True):
    """Skipped future occurrences, the next first."""

    items: list[Skip]
    next_cursor: str | None = None


class RevisionItem(ResponseModel, frozen=True):
    """A change of a job: when, what (created, changed, paused, resumed or deleted), by whom, and why."""

    revision: int
    at: datetime
    what: str
    by: str
    why: str | None


class RevisionPage(ResponseModel, frozen=True):
    """The revisions of a job, newest first."""

    items: list[RevisionItem]
    next_cursor: str | None = None


class FieldChange(ResponseModel, frozen=True):
    """A field that differs between two revisions."""

    field: str
    before: Any
    after: Any


class Revision(RevisionItem, frozen=True):
    """A revision of a job, and its differences from the revision `against`."""

    job: Job
    against: int | None
    changes: list[FieldChange]


class RollbackRequest(RequestModel, frozen=True):
    """The revision to restore."""

    revision: int


class BulkRequest(RequestModel, frozen=True):
    """Up to 10,000 jobs to create. With `atomic`, one invalid job rejects all."""

    items: list[JobRequest]
    atomic: bool = True


class BulkItem(ResponseModel, frozen=True):
    """The outcome for one job: its index in the request, and its id or its errors."""

    index: int
    status: int
    job_id: str | UnsetType = UNSET
    job: Job | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    errors: list[Fault] | UnsetType = UNSET


class BulkCreated(ResponseModel, frozen=True):
    """The outcome of a bulk creation. With `Prefer: return=minimal`, jobs are returned as ids."""

    created: int
    failed: int
    items: list[BulkItem] | UnsetType = UNSET
    job_ids: list[str] | UnsetType = UNSET
    warnings: list[RequestWarning] | UnsetType = UNSET  # one per task, at its first job
