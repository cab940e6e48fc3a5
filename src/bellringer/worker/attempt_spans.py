"""The span of each attempt: `run TASK`, a consumer span with the run's key, its lateness and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from bellringer import tracing
from bellringer.core.run_traces import trace_attempt
from bellringer.core.runs import Ending, Outcome
from bellringer.worker.attempt import Work

if TYPE_CHECKING:
    from bellringer.tracing.opentelemetry_tracer import AttemptSpan


def start(work: Work, database_now: Callable[[], datetime]) -> AttemptSpan | None:
    """Start the span of an attempt, if tracing is on."""
    tracer = tracing.active()
    if tracer is None:
        return None
    due = work.due_at or work.key.scheduled_for
    attributes: dict[str, str | int | float | bool] = {
        "messaging.destination.name": work.task,
        "messaging.message.id": work.key.id,
        "bellringer.run_id": work.key.id,
        "bellringer.task": work.task,
        "bellringer.tenant": work.tenant,
        "bellringer.pool": work.pool,
        "bellringer.attempt": work.attempt,
        "bellringer.scheduled_for": work.key.scheduled_for.isoformat(),
        "bellringer.lateness_ms": round(max((database_now() - due).total_seconds(), 0.0) * 1000, 1),
    }
    if work.job is not None:
        attributes["bellringer.job"] = work.job
    if work.spec.node is not None:
        attributes["bellringer.node"] = work.spec.node
    place = trace_attempt(work.key, work.attempt, work.spec)
    return tracer.start_attempt(f"run {work.task}", place, attributes, claimed_at=work.claimed_at)


def end(span: AttemptSpan, ending: Ending) -> None:
    """End the span with the outcome of the attempt."""
    span.end(ending.outcome.value, ending.error, is_success=ending.outcome is Outcome.OK)
