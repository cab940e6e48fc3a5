"""Drift: the fields of a job that differ from the last declaration of its app, because an operator changed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.core.jobs import HTTP_TASK, WORKFLOW_TASK, Definition
from bellringer.core.redaction import redact_arguments, redact_document
from bellringer.egress.targets import hide_target_secrets
from bellringer.errors import InvalidInput
from bellringer.store import revisions
from bellringer.store.connection_pool import Store
from bellringer.store.jobs import JobRow
from bellringer.store.revisions import DeclaredRevision
from bellringer.wire.definitions import definition_document

MAX_VALUE_BYTES: Final = 2048  # longer values are replaced by a short text
_NOT_COMPARED: Final = frozenset({"region"})  # it follows from the shard, and cannot be changed


@dataclass(frozen=True, slots=True)
class DriftedField:
    """A field of a job: its value in the code, and its current value."""

    field: str
    declared: Any
    current: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The drift of a job since the revision that its app declared last, and the latest change of its definition."""

    revision: int
    by: str | None
    at: datetime | None
    fields: Sequence[DriftedField]


async def load_drifts(store: Store, found: Sequence[JobRow], tenant_id: int) -> dict[UUID, Drift]:
    """Returns the drift of those jobs that have one. Only jobs that changed after their declaration are compared."""
    changed = [job for job in found if job.declared_revision not in {None, job.revision}]
    changed += [job for job in found if job.declared_revision == job.revision and _is_toggled(job)]
    if not changed:
        return {}
    try:
        declared = await revisions.declared(store, tenant_id, changed)
    except (InvalidInput, ValueError):  # a revision that another release wrote, and this one cannot read
        return {}
    drifts = {job.job_id: _compare(declared[job.job_id], job) for job in changed if job.job_id in declared}
    return {job_id: drift for job_id, drift in drifts.items() if drift.fields}


def differing_fields(declared: Definition, current: Definition) -> list[DriftedField]:
    """Returns the fields that differ, with values as requests have them."""
    old, new = document(declared), document(current)
    paths = [*declared.redact, *current.redact]
    shown_old, shown_new = redact_definition(old, paths), redact_definition(new, paths)
    return [
        DriftedField(name, shown_old.get(name), shown_new.get(name))
        for name in {**old, **new}
        if name not in _NOT_COMPARED and old.get(name) != new.get(name)
    ]


def document(definition: Definition) -> Mapping[str, Any]:
    """Returns a definition as a request document without secrets; a workflow is shown by the version of its graph."""
    if definition.task == HTTP_TASK:
        definition = replace(definition, kwargs=hide_target_secrets(definition.kwargs))
    shown = definition_document(definition)
    if definition.task == WORKFLOW_TASK:
        shown["workflow"] = {"version": definition.graph}
    return shown


def redact_definition(shown: Mapping[str, Any], paths: Sequence[str]) -> Mapping[str, Any]:
    """Returns a request document with the values at the paths hidden."""
    if not paths:
        return shown
    args, kwargs = redact_arguments(shown.get("args") or (), shown.get("kwargs") or {}, paths)
    hidden: dict[str, Any] = {"args": args, "kwargs": kwargs}
    if isinstance(target := shown.get("http"), Mapping) and "body" in target:
        hidden["http"] = {**target, "body": redact_document(target["body"], paths)}
    return {**shown, **{name: value for name, value in hidden.items() if name in shown}}


def shorten(value: Any) -> Any:
    """Returns a value for an event or a log line: large values are not repeated there."""
    size = len(msgspec.json.encode(value))
    return value if size <= MAX_VALUE_BYTES else f"({size:,} bytes)"


def _is_toggled(job: JobRow) -> bool:
    return job.declared_enabled is not None and job.declared_enabled != job.enabled


def _compare(declared: DeclaredRevision, job: JobRow) -> Drift:
    before = declared.job.definition()
    if job.declared_enabled is not None:
        before = replace(before, enabled=job.declared_enabled)
    return Drift(
        revision=declared.job.revision,
        by=declared.edited_by,
        at=declared.edited_at,
        fields=differing_fields(before, job.definition()),
    )
