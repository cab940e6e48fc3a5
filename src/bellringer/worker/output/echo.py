"""Settings of the capture of output, and the echo of captured lines to the worker's own log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bellringer.telemetry import log
from bellringer.worker.attempt import LogLine, Work
from bellringer.worker.output.attempt_output import log_fields

Echo = Callable[[Work, LogLine], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """`level` is the lowest level of `logging` that is stored where the app has set no level."""

    level: str = "info"


def echo_to_log(work: Work, line: LogLine) -> None:
    """Write a captured line to the worker's log, with the fields of its attempt. Lines of `ctx.log` are only stored."""
    if line.source is not None:
        fields = {"source": line.source, **log_fields(work), **(line.fields or {})}
        getattr(log, line.level)(line.message, **{name: value for name, value in fields.items() if name != "event"})
