"""Bellringer: durable one-shot and recurring jobs, run at their time, over PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bellringer.errors import (
        BellringerError,
        Cancelled,
        ConfigError,
        Conflict,
        InvalidInput,
        InvalidSchedule,
        NotFound,
        PayloadTooLarge,
        RunFailed,
        SchemaMismatch,
        Unavailable,
    )
    from bellringer.policies import Retry
    from bellringer.schedule import at, cron, delay, every, rrule
    from bellringer.sdk.app import App
    from bellringer.sdk.handles import JobHandle, RunHandle
    from bellringer.sdk.sending import TaskHandle
    from bellringer.sdk.values import RUN_AT, RUN_DATE, RUN_ID
    from bellringer.sdk.workflows import Workflow, WorkflowHandle
    from bellringer.tasks import Discard, Snooze
    from bellringer.worker.context import Context

__all__ = [
    "RUN_AT",
    "RUN_DATE",
    "RUN_ID",
    "App",
    "BellringerError",
    "Cancelled",
    "ConfigError",
    "Conflict",
    "Context",
    "Discard",
    "InvalidInput",
    "InvalidSchedule",
    "JobHandle",
    "NotFound",
    "PayloadTooLarge",
    "Retry",
    "RunFailed",
    "RunHandle",
    "SchemaMismatch",
    "Snooze",
    "TaskHandle",
    "Unavailable",
    "Workflow",
    "WorkflowHandle",
    "at",
    "cron",
    "delay",
    "every",
    "rrule",
]

_ELSEWHERE: Final = {
    "RUN_AT": "sdk.values",
    "RUN_DATE": "sdk.values",
    "RUN_ID": "sdk.values",
    "App": "sdk.app",
    "Context": "worker.context",
    "Discard": "tasks",
    "JobHandle": "sdk.handles",
    "Retry": "policies",
    "RunHandle": "sdk.handles",
    "Snooze": "tasks",
    "TaskHandle": "sdk.sending",
    "Workflow": "sdk.workflows",
    "WorkflowHandle": "sdk.workflows",
    "at": "schedule",
    "cron": "schedule",
    "delay": "schedule",
    "every": "schedule",
    "rrule": "schedule",
}


if not TYPE_CHECKING:  # or every misspelt name would be of type Any

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is asked for: `import bellringer` alone costs next to nothing."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
