"""References to spans, without OpenTelemetry: their ids, and the W3C form that is stored and sent in headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED: Final = 0x01

Attributes = Mapping[str, str | int | float | bool]


class SpanRef(NamedTuple):
    """A span in any process. `is_sampled` is None if only the sampler can say it."""

    trace_id: int
    span_id: int
    is_sampled: bool | None = None
    state: str | None = None


class AttemptTrace(NamedTuple):
    """The ids of the span of one attempt. Without a parent, the span is a root of its trace."""

    trace_id: int
    span_id: int
    parent: SpanRef | None
    links: tuple[SpanRef, ...]

    def log_fields(self) -> dict[str, str]:
        return {"trace_id": format_trace_id(self.trace_id), "span_id": f"{self.span_id:016x}"}


def parse_traceparent(header: str | None, state: str | None = None) -> SpanRef | None:
    """Returns the span that a W3C traceparent header names, or None if the header is missing or invalid."""
    found = _TRACEPARENT.fullmatch(header) if header else None
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return SpanRef(trace_id, span_id, bool(flags & _SAMPLED), state) if trace_id and span_id else None


def format_trace_id(trace_id: int) -> str:
    return f"{trace_id:032x}"


def traceparent_log_fields(traceparent: str) -> dict[str, str]:
    """Returns the ids in a valid traceparent header as fields of a log line."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return {"trace_id": trace_id, "span_id": span_id}
