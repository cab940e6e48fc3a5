"""Settle: what became of attempts, judged and written once. The only writer of endings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec

from bellringer.policies import Retry
from bellringer.runs import Ending, Event, Outcome, Spec, State, Verdict, judge
from bellringer.store import queue
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed, Settled
from bellringer.telemetry import ATTEMPTS, DEAD, DUPLICATES, RETRIES, RUN_SECONDS, log, one_of, tells_all

_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)
_AGAIN = Verdict(event=Event.GIVEN_BACK, wait=timedelta(0), counted=False)
_GOOD = judge(Ending(outcome=Outcome.OK), 1, Retry(), "")


def decide(claimed: Claimed, ending: Ending, ended_at: float | None = None) -> Settled:
    """Judge one ending by the run's own policies."""
    spec = claimed.spec
    if spec.graph is not None and ending.outcome is Outcome.LOST:  # to open a workflow run again does no harm
        return Settled(claimed.key, claimed.attempt, ending, _AGAIN, None, ended_at, spec.flows)
    if ending.outcome is Outcome.OK and ending.snooze is None and ending.discard is None and not ending.opened:
        return Settled(claimed.key, claimed.attempt, ending, _GOOD, None, ended_at, spec.flows)
    verdict = judge(ending, claimed.spent, retry_of(spec), spec.delivery, claimed.lost)
    mark = fingerprint(ending) if verdict.ends_as is State.DEAD else None
    return Settled(claimed.key, claimed.attempt, ending, verdict, mark, ended_at, spec.flows)


async def settle(store: Store, worker_id: int, batch: Sequence[Settled], moment: float | None = None) -> int:
    """Write them. Fewer than given: the others belong to someone else now, and their reports came too late."""
    return await queue.settle(store, worker_id, batch, moment)


def retry_of(spec: Spec) -> Retry:
    return _retry(msgspec.json.encode(spec.retry)) if spec.retry else _retry(b'{"attempts":3}')


@lru_cache(maxsize=4096)
def _retry(document: bytes) -> Retry:
    return Retry.parse(msgspec.json.decode(document))


def fingerprint(ending: Ending) -> str:
    """The same for errors of one kind: the type, and the message without the parts that vary."""
    error = ending.error or {}
    shape = _VARYING.sub("#", str(error.get("message", "")))[:200]
    return hashlib.sha256(f"{error.get('type', ending.outcome)} {shape}".encode()).hexdigest()[:16]


def account(claimed: Claimed, task: str, settled: Settled, worker_id: int) -> None:
    """Count an ending that is written, and tell of it: aloud where it is not the usual one."""
    ending, verdict = settled.ending, settled.verdict
    one_of(ATTEMPTS, task, ending.outcome.value).inc()
    one_of(RUN_SECONDS, task).observe(ending.ran)
    if ending.outcome is not Outcome.OK:
        if verdict.ends_as is None:
            RETRIES.labels(task).inc()
            DUPLICATES.labels(ending.outcome.value).inc()
        elif verdict.ends_as is State.DEAD:
            DEAD.labels(task).inc()
        log.info("attempt finished", **_told(claimed, task, settled, worker_id))
    elif tells_all():
        log.debug("attempt finished", **_told(claimed, task, settled, worker_id))


def _told(claimed: Claimed, task: str, settled: Settled, worker_id: int) -> dict[str, Any]:
    ending, verdict = settled.ending, settled.verdict
    error = ending.error or {}
    return {
        "run_id": claimed.key.id,
        "job_id": str(claimed.key.job_id),
        "job": claimed.name,
        "task": task,
        "tenant_id": claimed.tenant_id,
        "scheduled_for": claimed.key.scheduled_for.isoformat(),
        "attempt": claimed.attempt,
        "worker_id": worker_id,
        "outcome": ending.outcome.value,
        "ends_as": verdict.ends_as.value if verdict.ends_as else None,
        "reason": verdict.reason,
        "error": f"{error.get('type')}: {str(error.get('message', ''))[:200]}" if error else None,
        "duration_ms": round(ending.ran * 1000, 1),
    }
