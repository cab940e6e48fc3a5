"""Notification channels, routes, messages and incidents."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import field

from bellringer.errors import NotFound
from bellringer.wire.models import RequestModel, ResponseModel


class ChannelRequest(RequestModel, frozen=True):
    """A channel to create or replace.

    `slack`, `teams` and `webhook` need a `url`, `pagerduty` a `routing_key` (its `url` is that of the Events API; for
    service regions in Europe https://events.eu.pagerduty.com/v2/enqueue), `email` a list `to`. The URL and the key are
    stored encrypted and never shown; without one, the stored one is kept.
    """

    kind: str
    url: str | None = None
    routing_key: str | None = None
    to: list[str] = field(default_factory=list)
    enabled: bool = True


class Channel(ResponseModel, frozen=True):
    """A channel without its secret. `url` is shown without its path."""

    name: str
    kind: str
    url: str | None
    to: list[str]
    has_secret: bool
    enabled: bool
    created_at: datetime
    changed_at: datetime
    changed_by: str


class ChannelPage(ResponseModel, frozen=True):
    """Channels, ordered by name."""

    items: list[Channel]
    next_cursor: str | None = None


class RouteRequest(RequestModel, frozen=True):
    """A route to create or replace: which events go to a channel. Empty lists match everything.

    `severity` is the lowest that is sent, unless `kinds` are given. `jobs` are patterns of names, such as "billing-*".
    `tenants` needs a key of the whole installation: names of tenants, or "*"; empty means this tenant. `group_by` is
    job, task, owner, tenant or route. `wait` is the delay of the first message, `interval` the shortest time between
    two messages of an incident, `repeat` the time after which an open incident is reported again (null: never). `quiet`
    is {"from": "22:00", "to": "07:00", "tz": "Europe/Paris", "days": ["MON"], "critical": "send"}; with "hold",
    critical messages wait too.
    """

    channel: str
    enabled: bool = True
    tenants: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    severity: str = "warning"
    jobs: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    group_by: str = "job"
    wait: str | int | float = "10s"
    interval: str | int | float = "5m"
    repeat: str | int | float | None = "4h"
    quiet: dict[str, Any] | None = None
    recoveries: bool = True


class NotificationRoute(ResponseModel, frozen=True):
    """A route of events to a channel."""

    name: str
    channel: str
    enabled: bool
    tenants: list[str]
    kinds: list[str]
    severity: str
    jobs: list[str]
    tags: list[str]
    owners: list[str]
    group_by: str
    wait: str
    interval: str
    repeat: str | None
    quiet: dict[str, Any] | None
    recoveries: bool
    active_since: datetime
    created_at: datetime
    changed_at: datetime
    changed_by: str


class RoutePage(ResponseModel, frozen=True):
    """Routes, ordered by name."""

    items: list[NotificationRoute]
    next_cursor: str | None = None


class Notification(ResponseModel, frozen=True):
    """A message to a channel, and the run that delivers it.

    `reason` is opened, updated, repeated, resolved, digest or test. `run_id` is null until the run is created, `state`
    also if the run is past its retention.
    """

    notification_id: int
    channel: str
    route: str | None
    incidents: list[UUID]
    reason: str
    severity: str
    title: str
    message: dict[str, Any]
    made_at: datetime
    run_id: str | None
    state: str | None
    attempt: int | None
    error: str | None


class NotificationPage(ResponseModel, frozen=True):
    """Messages, newest first."""

    items: list[Notification]
    next_cursor: str | None = None


class NotificationIncident(ResponseModel, frozen=True):
    """The state of one group of a route. `held`: quiet hours delay the next message."""

    incident_id: UUID
    route: str
    group: str
    opened_at: datetime
    resolved_at: datetime | None
    last_at: datetime
    severity: str
    count: int
    subjects: list[dict[str, Any]]
    more: int
    messages: int
    sent_at: datetime | None
    next_at: datetime | None
    held: bool


class IncidentPage(ResponseModel, frozen=True):
    """Incidents, newest first."""

    items: list[NotificationIncident]
    next_cursor: str | None = None


def no_channel() -> NotFound:
    return NotFound("there is no such notification channel")


def no_route() -> NotFound:
    return NotFound("there is no such notification route")
