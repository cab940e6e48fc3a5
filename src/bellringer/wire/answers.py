"""What the API answers. Clients read over fields that they do not know yet: servers may be newer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Instants are RFC 3339 in UTC with Z; lengths of time are written like "1h30m"."""


class Pause(Answer, frozen=True):
    """What an operator did to a job."""

    at: datetime
    by: str | None = None
    reason: str | None = None
    until: datetime | None = None


class JobGraph(Answer, frozen=True):
    """Of a workflow: the version of its graph, and how many nodes that has."""

    version: int
    nodes: int


class Job(Answer, frozen=True):
    """A job: what its author wrote, and what became of it.

    `routed`: nobody named its pool; it goes by how long its runs take, as expected or as learned.
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
    starts_at: datetime | None
    ends_at: datetime | None
    enabled: bool
    paused: Pause | None
    owner: str
    tags: list[str]
    region: str | None  # of the shard that it lives in
    revision: int
    created_at: datetime
    updated_at: datetime
    next_at: datetime | None
    arguments_left_out: bool | msgspec.UnsetType = msgspec.UNSET  # in a list, where they are large
    http: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET  # what it calls, where its task is http
    workflow: JobGraph | msgspec.UnsetType = msgspec.UNSET  # where its task is workflow


class Resumed(Answer, frozen=True):
    """A job that goes on; its pause covered so many occurrences, and `what` says what becomes of them.

    `since` is when it was paused; none, where it was not.
    """

    job: Job
    missed: int
    since: datetime | None
    what: str


class Attempt(Answer, frozen=True):
    """One try at a run; attempt 0 is an end without a try."""

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


class NodeOf(Answer, frozen=True):
    """Which node of which workflow run a run is: `transform`, or `transform[3]` of a map; and the job at the top."""

    run_id: str
    job_id: str
    job: str | None
    node: str


class RunItem(Answer, frozen=True):
    """A run as lists show it: without what may be large.

    `workflow` is told of the run of a node, `has_nodes` of the run of a workflow.
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
    workflow: NodeOf | msgspec.UnsetType = msgspec.UNSET
    has_nodes: bool | msgspec.UnsetType = msgspec.UNSET


class Run(RunItem, frozen=True, kw_only=True):
    """A run with all that is known of it; `created` is told only where a run was asked for by a key.

    `replay_of` is the run that it repeats, `replays` are those that repeat it.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    attempts: list[Attempt]
    replay_of: str | None = None
    replays: list[str] = []
    created: bool | msgspec.UnsetType = msgspec.UNSET


class Line(Answer, frozen=True):
    """One line that a handler logged."""

    attempt: int
    line: int
    at: datetime
    level: str
    message: str
    fields: Any


class DeadLetter(Answer, frozen=True):
    """A run that gave up, until somebody redrives or discards it."""

    run_id: str
    job_id: str
    job: str | None
    task: str
    attempt: int
    scheduled_for: datetime
    died_at: datetime
    reason: str
    error: Any
    fingerprint: str


class Bulk(Answer, frozen=True):
    """How many were changed. Where they are many, an operation changes them, and this is its id."""

    count: int = 0
    more: bool = False
    operation_id: str | msgspec.UnsetType = msgspec.UNSET


class Worker(Answer, frozen=True):
    """One worker, and how long ago it was heard of."""

    worker_id: int
    name: str
    host: str | None  # and its process: only callers of the whole installation are told
    pid: int | None
    version: str
    pools: dict[str, int]
    state: str
    busy: int
    started_at: datetime
    seen_at: datetime
    age: float
    tasks: list[str]
    asked: str | None = None  # quiet or stop: what an operator wants of it


class Occurrence(Answer, frozen=True):
    """One instant that a schedule names; `local` is the same in the schedule's zone."""

    at: datetime
    local: datetime
    flags: list[str]


class Remark(Answer, frozen=True):
    """Something that is allowed, and may surprise."""

    code: str
    text: str


class Preview(Answer, frozen=True):
    """What a schedule means; how often it fires is an average over thirty days, and of a delay not known."""

    schedule: dict[str, Any]
    description: str
    fires: list[Occurrence]
    fires_per_day: float | None
    warnings: list[Remark]


class Version(Answer, frozen=True):
    """Which program answers, and which API it speaks."""

    version: str
    api: str = "v1"


class Index(Answer, frozen=True):
    """What is to be found here."""

    name: str
    version: str
    paths: list[str]


class Readiness(Answer, frozen=True):
    """Whether this process can serve; `checks` says what stands in the way."""

    status: str
    checks: dict[str, str] = {}


class Count(Answer, frozen=True):
    """How many there are; with the relation "gte" there may be more, which were not counted."""

    value: int
    relation: str


class JobPage(Answer, frozen=True):
    """Jobs; a list leaves out large arguments."""

    items: list[Job]
    next_cursor: str | None = None
    count: Count | msgspec.UnsetType = msgspec.UNSET


class RunPage(Answer, frozen=True):
    """Runs, the newest first. Where few fit a filter, a page may be short and still have a cursor.

    `scanned` is how many runs were looked at for it.
    """

    items: list[RunItem]
    next_cursor: str | None = None
    scanned: int | msgspec.UnsetType = msgspec.UNSET
    count: Count | msgspec.UnsetType = msgspec.UNSET


class Lines(Answer, frozen=True):
    items: list[Line]
    next_cursor: str | None = None


class Letters(Answer, frozen=True):
    items: list[DeadLetter]
    next_cursor: str | None = None


class Workers(Answer, frozen=True):
    items: list[Worker]
    next_cursor: str | None = None
