"""The spans of steps that create runs on request. They yield the trace context to store; None if tracing is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Final

import msgspec

from bellringer import tracing
from bellringer.clock import SystemClock
from bellringer.core.messages import Message
from bellringer.core.run_traces import RunTrace
from bellringer.core.runs import Cause, RunKey
from bellringer.tracing.span_refs import Attributes

# A run that is due later begins a trace of its own, linked to the caller's: backends assume that traces are short.
NEW_TRACE_AFTER: Final = timedelta(minutes=1)
_NO_SPAN: Final[AbstractContextManager[None]] = nullcontext()


def open_for_message(message: Message, tenant_id: int) -> AbstractContextManager[RunTrace | None]:
    """Opens the span `send TASK`. Deliveries of webhooks have no caller, and get no span."""
    if tracing.active() is None or message.kind.cause is Cause.WEBHOOK:
        return _NO_SPAN
    return _open_for_message(message, tenant_id)


@contextmanager
def _open_for_message(message: Message, tenant_id: int) -> Iterator[RunTrace | None]:
    with open_for_task(message.task, tenant_id) as trace:
        yield trace_for(message, trace, SystemClock().now())


def open_for_task(task: str, tenant_id: int) -> AbstractContextManager[RunTrace | None]:
    """Opens the span `send TASK` of a run that is due now."""
    return _open(f"send {task}", {"messaging.destination.name": task, "bellringer.tenant_id": tenant_id})


def open_for_bulk(tenant_id: int) -> AbstractContextManager[RunTrace | None]:
    """Opens the span `send many`, which all runs of a bulk have as their parent."""
    return _open("send many", {"bellringer.tenant_id": tenant_id})


def _open(name: str, attributes: Attributes) -> AbstractContextManager[RunTrace | None]:
    return _NO_SPAN if tracing.active() is None else _record(name, attributes)


@contextmanager
def _record(name: str, attributes: Attributes) -> Iterator[RunTrace | None]:
    tracer = tracing.active()
    assert tracer is not None
    with tracer.sending(name, attributes) as caller:
        yield None if caller is None else RunTrace(parent=caller.traceparent, state=caller.tracestate)


def trace_for(message: Message, trace: RunTrace | None, now: datetime) -> RunTrace | None:
    """Returns the trace context that the run of a message stores."""
    if trace is None or message.due(now) <= now + NEW_TRACE_AFTER:
        return trace
    return msgspec.structs.replace(trace, linked=True)


def record_run(trace: RunTrace | None, key: RunKey) -> None:
    """Adds the id of the created run to the open span."""
    if trace is not None and (tracer := tracing.active()) is not None:
        tracer.annotate({"messaging.message.id": key.id})


def record_count(trace: RunTrace | None, runs: int) -> None:
    """Adds the number of created runs to the open span."""
    if trace is not None and (tracer := tracing.active()) is not None:
        tracer.annotate({"messaging.batch.message_count": runs})
