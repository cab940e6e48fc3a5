"""Apps: the programs whose code declares jobs."""

from __future__ import annotations

from datetime import datetime

from bellringer.wire.models import Count, RequestModel, ResponseModel


class AppItem(ResponseModel, frozen=True):
    """An app: its current version, the time of its latest declaration (to the minute), and the numbers of its jobs.

    `policy` (keep, pause or delete) is the treatment of jobs that its code no longer declares; `orphans` counts them.
    """

    name: str
    version: str | None
    policy: str
    declared_at: datetime
    created_at: datetime
    jobs: Count
    orphans: Count


class AppPage(ResponseModel, frozen=True):
    """Apps, by name."""

    items: list[AppItem]
    next_cursor: str | None = None


class AppVersionItem(ResponseModel, frozen=True):
    """A version of an app: when it was first seen, and who activated it again. Only the `current` one declares jobs."""

    version: str | None
    current: bool
    first_seen_at: datetime
    activated_at: datetime | None
    activated_by: str | None


class AppDetails(AppItem, frozen=True):
    """An app with its latest versions, the current one first."""

    versions: list[AppVersionItem]


class ActivateRequest(RequestModel, frozen=True):
    """The version that becomes current again; null: processes without a version."""

    version: str | None
