"""Whether a run that waits is the one that a test means, by the arguments that it was sent with."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from bellringer.durations import format_duration, parse_duration
from bellringer.errors import InvalidInput
from bellringer.payload import to_plain
from bellringer.sdk.sending import TaskHandle
from bellringer.tasks import Task
from bellringer.testing.records import Enqueued

_ABSENT: Final = object()


def matches(task: Task, entry: Enqueued, wanted: Mapping[str, Any]) -> bool:
    """Whether it has these arguments; one that was left out counts as its default."""
    _check_names(task, wanted)
    given = arguments(task, entry)
    return all(given.get(name, _ABSENT) == to_plain(value, what=name) for name, value in wanted.items())


def arguments(task: Task, entry: Enqueued) -> dict[str, Any]:
    """All arguments by name, as they are stored."""
    properties = task.schema.get("properties", {})
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    placed = zip((parameter.name for parameter in task.signature.by_position), entry.args, strict=False)
    return {**defaults, **dict(placed), **entry.kwargs}


def describe(
    task: TaskHandle[..., Any] | str, within: str | float | timedelta | None, wanted: Mapping[str, Any]
) -> str:
    """The expectation in words, for a failed assertion."""
    name = task if isinstance(task, str) else task.name
    shown = ", ".join(f"{key}={value!r}" for key, value in wanted.items())
    due = "" if within is None else f" within {format_duration(parse_duration(within))}"
    return f"{name}({shown}){due}"


def _check_names(task: Task, wanted: Mapping[str, Any]) -> None:
    """A misspelt name would let a refutation pass for the wrong reason."""
    signature = task.signature
    known = {*signature.by_name, *(parameter.name for parameter in signature.by_position)}
    for name in wanted:
        if name not in known and signature.others is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(known)) or 'none'}"
            raise InvalidInput(f"{task.name} has no argument {name!r}", hint=hint, code="unexpected_argument")
