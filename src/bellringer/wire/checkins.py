"""Check-ins of jobs that run elsewhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType, field

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel


class CheckinRequest(RequestModel, frozen=True):
    """A check-in to create or replace: when a job that runs elsewhere is expected to report.

    `schedule` is {"cron": "0 3 * * *", "tz": "Europe/Paris"}, {"rrule": …} or {"every": "1h"}. A ping that is more than
    `grace` late is missed; a job that reports its start has `grace` to finish.
    """

    schedule: dict[str, Any]
    grace: str | int | float = "5m"
    description: str = ""
    tags: list[str] = field(default_factory=list)
    owner: str | None = None


class Checkin(ResponseModel, frozen=True):
    """A check-in. `state` is new (no ping yet), up, late (due, within the grace period), down or paused.

    Only the response to the request that created the token contains `ping_url`.
    """

    name: str
    description: str
    schedule: dict[str, Any]
    grace: str
    tags: list[str]
    owner: str
    state: str
    due_at: datetime | None
    deadline_at: datetime | None
    started_at: datetime | None
    pinged_at: datetime | None
    succeeded_at: datetime | None
    down_since: datetime | None
    duration_seconds: float | None
    pings: int
    created_at: datetime
    changed_at: datetime
    changed_by: str
    ping_url: str | UnsetType = UNSET


class CheckinPage(ResponseModel, frozen=True):
    """Check-ins, ordered by name."""

    items: list[Checkin]
    next_cursor: str | None = None


class Ping(ResponseModel, frozen=True):
    """A recorded ping: start, success or fail. `body` is the beginning of what the job sent."""

    ping_id: int
    at: datetime
    kind: str
    exit_code: int | None
    duration_seconds: float | None
    origin: str | None
    body: str | None


class PingPage(ResponseModel, frozen=True):
    """The last pings of a check-in, newest first."""

    items: list[Ping]
    next_cursor: str | None = None


class PingReceived(ResponseModel, frozen=True):
    """The response to a ping."""

    ok: bool
    state: str


def no_checkin() -> NotFound:
    return NotFound("there is no such check-in")
