"""The calls of the API about the audit; as those of `wire.asks`."""

from __future__ import annotations

from typing import Any

from bellringer.wire.asks import PREFIX, Ask
from bellringer.wire.audit import AuditEntry, AuditPage, AuditSeals


def audit(
    *, who: str | None = None, action: str | None = None, kind: str | None = None, target: str | None = None,
    start: str | None = None, end: str | None = None, installation: bool = False,
    limit: int | None = None, cursor: str | None = None,
) -> Ask[AuditPage]:  # fmt: skip
    """Changes, the newest first."""
    query = _filter(who, action, kind, target, start, end, installation)
    return _get(AuditPage, "/audit", **query, limit=limit, cursor=cursor)


def audit_export(
    *, who: str | None = None, action: str | None = None, kind: str | None = None, target: str | None = None,
    start: str | None = None, end: str | None = None, installation: bool = False,
) -> Ask[AuditEntry]:  # fmt: skip
    """All changes, oldest first: a line of JSON each."""
    return _get(AuditEntry, "/audit/export", **_filter(who, action, kind, target, start, end, installation))


def audit_seals(*, limit: int | None = None, cursor: str | None = None) -> Ask[AuditSeals]:
    """The seals of the audit, the newest first."""
    return _get(AuditSeals, "/audit/seals", limit=limit, cursor=cursor)


def _filter(
    who: str | None, action: str | None, kind: str | None, target: str | None, start: str | None, end: str | None,
    installation: bool,
) -> dict[str, Any]:  # fmt: skip
    given = {"who": who, "action": action, "kind": kind, "target": target, "from": start, "to": end}
    return {**given, "installation": "true" if installation else None}


def _get(shape: Any, path: str, **query: Any) -> Ask[Any]:
    given = {name: value for name, value in query.items() if value is not None}
    return Ask(method="GET", path=PREFIX + path, shape=shape, query=given)
