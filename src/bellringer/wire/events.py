"""Events that people or webhooks are notified of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.models import ResponseModel


class Event(ResponseModel, frozen=True):
    """An event: a failed, dead, late, missed or slow run, a blocked event loop, an outgrown or recovered job, or a job
    that the code of its app no longer declares (orphaned), declares again (adopted) or changed back (overridden).

    `data` has further fields that depend on `kind`. `run_id` is null if there is no run: for missed occurrences, late
    occurrences without a run, and outgrown, orphaned, adopted and overridden jobs.
    """

    event_id: int
    at: datetime
    kind: str
    job_id: str
    job: str | None
    run_id: str | None
    scheduled_for: datetime
    attempt: int
    data: dict[str, Any]


class EventPage(ResponseModel, frozen=True):
    """Events, newest first."""

    items: list[Event]
    next_cursor: str | None = None
