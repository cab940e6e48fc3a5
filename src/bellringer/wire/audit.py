"""The audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.models import ResponseModel


class AuditEntry(ResponseModel, frozen=True):
    """A change: its author, origin and request, and the changed fields before and after.

    `target` is the id or name of the changed object, `name` the current name of the job, for jobs and their runs. Lists
    contain only the `changed` fields, and only the size of large ones; the export contains all.
    """

    audit_id: int
    at: datetime
    who: str
    origin: str | None
    request_id: str | None
    action: str
    kind: str
    target: str
    name: str | None
    revision: int | None
    changed: list[str]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(ResponseModel, frozen=True):
    """Changes, newest first. A page may be short or empty and still have a cursor."""

    items: list[AuditEntry]
    next_cursor: str | None = None


class AuditSeal(ResponseModel, frozen=True):
    """A hash (in hex) over the previous seal and a number of changes of all tenants.

    `entries` is the number of changes; null for callers of one tenant.
    """

    seal_id: int
    entries: int | None
    hash: str
    prev_hash: str
    sealed_at: datetime


class AuditSeals(ResponseModel, frozen=True):
    """Seals, newest first."""

    items: list[AuditSeal]
    next_cursor: str | None = None
