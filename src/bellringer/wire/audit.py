"""The audit, as the API tells it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bellringer.wire.answers import Answer


class AuditEntry(Answer, frozen=True):
    """One change: who made it, from where, by which request, and what was there before and after.

    `target` is the id or the name of what was changed, `name` what a job is called now. Lists keep to the fields that
    have `changed`, and tell only the size of large ones; the export has all.
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


class AuditPage(Answer, frozen=True):
    """Changes, the newest first; a page may hold few, or none, and still have one that follows it."""

    items: list[AuditEntry]
    next_cursor: str | None = None


class AuditSeal(Answer, frozen=True):
    """A hash, in hex, over the seal before it and `entries` changes of all tenants."""

    seal_id: int
    entries: int
    hash: str
    prev_hash: str
    sealed_at: datetime


class AuditSeals(Answer, frozen=True):
    """Seals, the newest first."""

    items: list[AuditSeal]
    next_cursor: str | None = None
