"""What callers send. Fields that are not named here are refused, never ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from bellringer.policies import Misfire, Overlap


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lengths of time are "90s", "1h30m", ISO 8601 or seconds; instants are RFC 3339 with an offset."""


class Empty(Request, frozen=True):
    """A request that says everything by its path."""


class JobRequest(Request, frozen=True):
    """A job as its author writes it; `schedule` stands for a list of one, `payload` for kwargs.

    It runs a `task`, or calls what `http` says: url, method, headers, body, timeout, expect, sign and secret.

    Or it is a `workflow`: nodes, params, max_parallel and output; kwargs are its params. A node has a name, and a task,
    workflow, wait or signal; with kwargs, takes, over, max_items, max_parallel, after, when, undoes, and as a job pool,
    priority, timeout, heartbeat, retry and delivery.

    What is left out of pool, expected_duration, priority, timeout, heartbeat, retry and delivery is as the task's code
    wants it. Without a pool, a job goes to `long` if it is expected to take more than a minute, else to `short`; where
    nothing is expected, its own runs teach where it belongs.
    """

    name: str
    task: str | None = None
    http: dict[str, Any] | None = None
    workflow: dict[str, Any] | None = None
    args: list[Any] = []
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
    tags: list[str] = []
    expected_duration: str | int | float | None = None
    region: str | None = None


class ResumeRequest(Request, frozen=True):
    """What to do with what was missed meanwhile: skip, latest or all."""

    missed: str = "skip"


class PauseRequest(Request, frozen=True):
    """Why, and until when: an instant, or a length of time from now."""

    reason: str | None = None
    until: str | int | float | None = None


class TriggerRequest(Request, frozen=True):
    """Arguments that hold for this run alone."""

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None


class ExecuteRequest(Request, frozen=True):
    """A task to run, or a URL to call, without a job: now, at an instant, or after a delay."""

    task: str | None = None
    http: dict[str, Any] | None = None
    args: list[Any] = []
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


class CancelRequest(Request, frozen=True):
    """Why."""

    reason: str | None = None


class LettersRequest(Request, frozen=True):
    """Which dead letters: these runs, those with one fingerprint, or all; and how many a minute at most."""

    runs: list[str] | None = None
    all: bool = False
    fingerprint: str | None = None
    rate: int | float | None = None


class PreviewRequest(Request, frozen=True, rename={"after": "from"}):
    """A schedule to look ahead with, as it would be for the job of that name; `from` is now where it is not given."""

    schedule: dict[str, Any]
    n: int = 5
    after: str | None = None
    job: str | None = None
