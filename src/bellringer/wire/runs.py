"""What is asked of runs beyond reading one, and what comes back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer, Attempt
from bellringer.wire.requests import Request, TriggerRequest


class RunsFilter(Request, frozen=True, rename={"from_at": "from", "to_at": "to"}):
    """Which runs; `from` is in it, `to` is not, and both mean the time that a run was scheduled for.

    `state` is one or several of queued, blocked, running, retrying, succeeded, dead, cancelled, skipped, and waiting:
    those whose time has not come. `q` are words of the name of the job or task.
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


class ReplayRequest(TriggerRequest, frozen=True):
    """Arguments that the new run gets in place of those of the old one, and why."""

    reason: str | None = None


class Result(Answer, frozen=True):
    """What an ended run gave back; of one that did not succeed, its error."""

    run_id: str
    state: str
    finished_at: datetime | None
    result: Any
    error: Any


class Attempts(Answer, frozen=True):
    """All tries at a run, oldest first."""

    items: list[Attempt]
    next_cursor: str | None = None
