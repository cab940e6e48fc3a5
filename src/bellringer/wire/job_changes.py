"""Changes that a bulk operation makes to many jobs: a few fields, each set to one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from bellringer.core.jobs import Definition
from bellringer.durations import format_duration
from bellringer.errors import InvalidInput
from bellringer.schedule.instants import EPOCH
from bellringer.wire.decode import Gathering, duration, read
from bellringer.wire.definitions import LONGEST_TIMEOUT, SHORTEST_TIMEOUT, merge, retry_of
from bellringer.wire.models import RequestModel


class JobChanges(RequestModel, frozen=True):
    """The fields to set; omitted fields are not changed.

    `retry` is merged with the present policy, so that {"attempts": 1} keeps the delays; null sets the default policy.
    null clears `timeout` and `max_concurrency`. `tags` replaces all tags, `add_tags` and `remove_tags` change some.
    """

    retry: int | dict[str, Any] | UnsetType | None = UNSET
    timeout: str | int | float | UnsetType | None = UNSET
    pool: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    max_concurrency: int | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    add_tags: list[str] | UnsetType = UNSET
    remove_tags: list[str] | UnsetType = UNSET


# The fields of a definition that each change sets. A job whose pool is set is not moved by its duration any more.
_TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "pool": ("pool", "routed"),
    "add_tags": ("tags",),
    "remove_tags": ("tags",),
}


def read_changes(document: Mapping[str, Any]) -> JobChanges:
    """Reads and checks the changes of a request. Raises InvalidInput for values that no job can have."""
    changes = read(JobChanges, document)
    if not changed_fields(changes):
        fields = ", ".join(JobChanges.__struct_fields__)
        raise InvalidInput("no field is set", hint=f"give one of {fields}", code="required")
    try:
        changed = apply_changes(Definition(name="job", task="task"), changes)
        changed.validate(EPOCH)
    except InvalidInput as error:
        for fault in getattr(error, "faults", (error,)):
            fault.pointer = fault.pointer or "/"
        raise
    return changes


def decode_changes(document: str) -> JobChanges:
    """Decodes stored changes, which were checked when the operation was created."""
    return msgspec.json.decode(document, type=JobChanges)


def changed_fields(changes: JobChanges) -> Sequence[str]:
    """The fields of a definition that the changes set."""
    given = [name for name in JobChanges.__struct_fields__ if getattr(changes, name) is not UNSET]
    return list(dict.fromkeys(field for name in given for field in _TARGETS.get(name, (name,))))


def apply_changes(definition: Definition, changes: JobChanges) -> Definition:
    """Returns the changed definition."""
    g = Gathering()
    values: dict[str, Any] = {}
    if changes.retry is not UNSET:
        merged = merge(definition.retry.to_document(), changes.retry)
        values["retry"] = g.take("/retry", lambda: retry_of(merged), definition.retry)
    if changes.timeout is not UNSET:
        values["timeout"] = g.take("/timeout", lambda: _timeout(changes.timeout), None)
    if changes.pool is not UNSET:
        values |= {"pool": changes.pool, "routed": False}
    for name in ("priority", "max_concurrency", "enabled"):
        if (value := getattr(changes, name)) is not UNSET:
            values[name] = value
    g.done()
    return replace(definition, **values, tags=_tags(definition.tags, changes))


def _timeout(value: Any) -> timedelta | None:
    return duration(value, what="timeout", least=SHORTEST_TIMEOUT, most=LONGEST_TIMEOUT)


def _tags(present: Sequence[str], changes: JobChanges) -> tuple[str, ...]:
    tags = present if changes.tags is UNSET else changes.tags
    added = () if changes.add_tags is UNSET else changes.add_tags
    removed = () if changes.remove_tags is UNSET else changes.remove_tags
    return tuple(tag for tag in dict.fromkeys((*tags, *added)) if tag not in removed)


def restore_fields(current: Definition, before: Definition, after: Definition, fields: Sequence[str]) -> Definition:
    """Sets those fields back to `before` that still have the value that the change gave them in `after`."""
    kept = [name for name in fields if getattr(current, name) == getattr(after, name)]
    if "pool" in fields and not {"pool", "routed"} <= set(kept):
        kept = [name for name in kept if name not in ("pool", "routed")]
    return replace(current, **{name: getattr(before, name) for name in kept})


def differences(before: Definition, after: Definition) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, each with both values as JSON has them."""
    found = {}
    for name in ("retry", "timeout", "pool", "priority", "max_concurrency", "enabled", "tags"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            found[name] = (_shown(old), _shown(new))
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if hasattr(value, "to_document"):
        return value.to_document()
    return list(value) if isinstance(value, tuple) else value
