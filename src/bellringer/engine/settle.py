"""Decides how ended attempts are settled (success, retry, dead) and writes the decisions.

`decide` applies the run's retry and delivery policies in Python. The SQL function `bellringer.settle` only writes
the decision, and refuses it if the worker no longer holds the attempt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from bellringer import tracing
from bellringer.core.retry_policy import Retry
from bellringer.core.run_traces import trace_attempt
from bellringer.core.runs import (
    Ending,
    Outcome,
    RetryWindow,
    RunEvent,
    SettleDecision,
    Spec,
    State,
    decide_next_step,
)
from bellringer.store import queue
from bellringer.store.connection_pool import Store
from bellringer.store.queue import ClaimedRun, EndedRun, Settlement
from bellringer.telemetry import (
    ATTEMPTS,
    DEAD,
    DUPLICATES,
    EXPIRED,
    RETRIES,
    RUN_SECONDS,
    level_of_succeeded_attempts,
    log,
    with_labels,
)

_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)
_RETRY_UNCOUNTED = SettleDecision(event=RunEvent.GIVEN_BACK, wait=timedelta(0), counted=False)
_SUCCESS = decide_next_step(Ending(outcome=Outcome.OK), 1, Retry(), "")


def decide(claimed: ClaimedRun, ending: Ending, ended_at: float | None = None, now: datetime | None = None) -> EndedRun:
    """Decides the next state of a run from the outcome of its attempt and the run's own policies.

    `now` is the database's time; without it, the attempt is taken to have begun when it was claimed.
    """
    spec = claimed.spec
    if spec.graph is not None and ending.outcome is Outcome.LOST:  # opening a workflow run is idempotent
        return EndedRun(claimed.key, claimed.attempt, ending, _RETRY_UNCOUNTED, None, ended_at, spec.is_in_workflow)
    if ending.outcome is Outcome.OK and ending.snooze is None and ending.discard is None and not ending.opened:
        return EndedRun(claimed.key, claimed.attempt, ending, _SUCCESS, None, ended_at, spec.is_in_workflow)
    retry = retry_policy(spec)
    window = None
    if spec.expires_at is not None or retry.max_elapsed is not None:
        window = RetryWindow(
            now=now or claimed.claimed_at + timedelta(seconds=ending.ran),
            first_started_at=claimed.first_started_at or claimed.claimed_at,
            expires_at=claimed.expires_at,
        )
    decision = decide_next_step(ending, claimed.spent, retry, spec.delivery, claimed.lost, window)
    mark = error_fingerprint(ending) if decision.ends_as is State.DEAD else None
    return EndedRun(claimed.key, claimed.attempt, ending, decision, mark, ended_at, spec.is_in_workflow)


async def settle(
    store: Store, worker_id: int, batch: Sequence[EndedRun], moment: float | None = None, *, reaping: bool = False
) -> Settlement:
    """Writes the decisions about a worker's attempts; `reaping` writes on behalf of a worker that is lost or
    stopped.
    """
    return await queue.settle(store, worker_id, batch, moment, reaping=reaping)


def decide_not_started(claimed: ClaimedRun, ending: Ending) -> EndedRun:
    """Settles an attempt that was claimed and never started: the run is retried and the attempt does not count."""
    unused = msgspec.structs.replace(ending, ran=0.0, started=False)
    return EndedRun(claimed.key, claimed.attempt, unused, _RETRY_UNCOUNTED, None, None, claimed.spec.is_in_workflow)


async def load_retry_windows(store: Store, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
    """Reads the start of the first attempt of runs that need it to decide about a retry."""
    needing = [c for c in claimed if c.attempt > 1 and "max_elapsed" in c.spec.retry]
    if not needing:
        return list(claimed)
    found = {(c.key, c.attempt): c for c in await queue.load_first_starts(store, needing)}
    return [found.get((c.key, c.attempt), c) for c in claimed]


def retry_policy(spec: Spec) -> Retry:
    return _retry(msgspec.json.encode(spec.retry)) if spec.retry else _retry(b'{"attempts":3}')


@lru_cache(maxsize=4096)
def _retry(document: bytes) -> Retry:
    return Retry.parse(msgspec.json.decode(document))


def error_fingerprint(ending: Ending) -> str:
    """Returns a hash that is equal for errors of the same type and message, ignoring numbers and ids in the message."""
    error = ending.error or {}
    shape = _VARYING.sub("#", str(error.get("message", "")))[:200]
    return hashlib.sha256(f"{error.get('type', ending.outcome)} {shape}".encode()).hexdigest()[:16]


def record_outcome(claimed: ClaimedRun, task: str, settled: EndedRun, worker_id: int, tenant: str | None) -> None:
    """Updates the metrics for a settled attempt and logs it: failures at level info, successes at level debug, or at
    level info with the setting `log_attempts`."""
    ending, decision = settled.ending, settled.decision
    if ending.expired:
        EXPIRED.labels("worker").inc()
        log.info("run expired before its handler was called", **_log_fields(claimed, task, settled, worker_id, tenant))
        return
    with_labels(ATTEMPTS, task, ending.outcome.value).inc()
    with_labels(RUN_SECONDS, task).observe(ending.ran)
    if ending.outcome is not Outcome.OK:
        if decision.ends_as is None:
            RETRIES.labels(task).inc()
            DUPLICATES.labels(ending.outcome.value).inc()
        elif decision.ends_as is State.DEAD:
            DEAD.labels(task).inc()
        log.info("attempt finished", **_log_fields(claimed, task, settled, worker_id, tenant))
    elif (level := level_of_succeeded_attempts()) is not None:
        getattr(log, level)("attempt finished", **_log_fields(claimed, task, settled, worker_id, tenant))


def _log_fields(
    claimed: ClaimedRun, task: str, settled: EndedRun, worker_id: int, tenant: str | None
) -> dict[str, Any]:
    ending, decision = settled.ending, settled.decision
    error = ending.error or {}
    return {
        "run_id": claimed.key.id,
        "job_id": str(claimed.key.job_id),
        "job": claimed.name,
        "task": task,
        "tenant": tenant,
        "tenant_id": claimed.tenant_id,
        "scheduled_for": claimed.key.scheduled_for.isoformat(),
        "attempt": claimed.attempt,
        "worker_id": worker_id,
        "outcome": ending.outcome.value,
        "ends_as": decision.ends_as.value if decision.ends_as else None,
        "reason": decision.reason,
        "error": f"{error.get('type')}: {str(error.get('message', ''))[:200]}" if error else None,
        "duration_ms": round(ending.ran * 1000, 1),
        **_trace_fields(claimed),
    }


def _trace_fields(claimed: ClaimedRun) -> dict[str, str]:
    """Returns the ids of the attempt's span, if it has one."""
    tracer = tracing.active()
    if tracer is None or not tracer.derives_ids:
        return {}
    return trace_attempt(claimed.key, claimed.attempt, claimed.spec).log_fields()
