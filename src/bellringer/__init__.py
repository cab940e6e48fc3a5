"""Bellringer, a distributed job scheduler over PostgreSQL.

    from bellringer import App, cron

    app = App()

    @app.schedule(cron("30 2 * * *", tz="Europe/Paris"))
    @app.task(retry=5)
    def nightly_report() -> None: ...

Start a worker with `bellringer worker app.py`. The module `bellringer.client` has clients for the REST API.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bellringer.codecs import PayloadCodec
    from bellringer.core.messages import Message
    from bellringer.core.retry_policy import Retry
    from bellringer.core.tasks import Discard, Snooze
    from bellringer.errors import (
        BellringerError,
        Cancelled,
        ConfigError,
        Conflict,
        InvalidInput,
        InvalidItems,
        InvalidSchedule,
        NotFound,
        PayloadTooLarge,
        RunFailed,
        SchemaMismatch,
        Unavailable,
    )
    from bellringer.schedule import at, cron, delay, every, rrule
    from bellringer.sdk.app import App
    from bellringer.sdk.composition import chain, group
    from bellringer.sdk.handles import JobHandle, RunHandle
    from bellringer.sdk.policies import after
    from bellringer.sdk.secrets import secret
    from bellringer.sdk.task_handle import TaskHandle
    from bellringer.sdk.workflow_values import RUN_AT, RUN_DATE, RUN_ID
    from bellringer.sdk.workflows import Workflow, WorkflowHandle
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
    "InvalidItems",
    "InvalidSchedule",
    "JobHandle",
    "Message",
    "NotFound",
    "PayloadCodec",
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
    "after",
    "at",
    "chain",
    "cron",
    "delay",
    "every",
    "group",
    "rrule",
    "secret",
]

_MODULES: Final = {
    "RUN_AT": "sdk.workflow_values",
    "RUN_DATE": "sdk.workflow_values",
    "RUN_ID": "sdk.workflow_values",
    "App": "sdk.app",
    "Context": "worker.context",
    "Discard": "core.tasks",
    "JobHandle": "sdk.handles",
    "Message": "core.messages",
    "PayloadCodec": "codecs",
    "Retry": "core.retry_policy",
    "RunHandle": "sdk.handles",
    "Snooze": "core.tasks",
    "TaskHandle": "sdk.task_handle",
    "Workflow": "sdk.workflows",
    "WorkflowHandle": "sdk.workflows",
    "after": "sdk.policies",
    "at": "schedule",
    "chain": "sdk.composition",
    "group": "sdk.composition",
    "cron": "schedule",
    "delay": "schedule",
    "every": "schedule",
    "rrule": "schedule",
    "secret": "sdk.secrets",
}


if not TYPE_CHECKING:  # type checkers would accept any attribute otherwise

    def __getattr__(name: str) -> Any:
        """Import public names on first use, which keeps `import bellringer` fast."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
