"""Rows of the store as answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import UNSET

from bellringer.durations import format_duration
from bellringer.policies import Misfire, Retry
from bellringer.runs import Spec, State
from bellringer.schedule import At, Delay, to_document
from bellringer.store import jobs, leases, runs, workers
from bellringer.wire import Attempt, DeadLetter, Job, Lease, Line, Node, Pause, Run, RunItem, Worker

_MOMENT: Final = timedelta(microseconds=1)
_BLOCKED: Final = ((1, "job_paused"), (2, "predecessor"), (4, "task_unknown"), (8, "freeze"))


def job(stored: jobs.Job) -> Job:
    spec = stored.spec
    fire_all = stored.misfire == Misfire.FIRE_ALL
    return Job(
        job_id=str(stored.job_id),
        name=stored.name,
        task=stored.task,
        args=spec.args,
        kwargs=spec.kwargs,
        schedules=[to_document(s) for s in stored.schedules],
        description="; ".join(s.describe() for s in stored.schedules) or "Only by hand",
        pool=stored.pool,
        priority=stored.priority,
        timeout=_shown(spec.timeout),
        heartbeat=_shown(spec.heartbeat),
        retry=Retry.parse(spec.retry).to_document(),
        delivery=spec.delivery,
        misfire=stored.misfire,
        max_catchup=stored.catchup.most if fire_all else None,
        catchup_window=format_duration(stored.catchup.window) if fire_all else None,
        catchup_rate=stored.catchup.rate if fire_all else None,
        overlap=stored.overlap,
        max_concurrency=stored.cap,
        concurrency_key=stored.limit.key if stored.limit else None,
        concurrency_limit=stored.limit.most if stored.limit else None,
        jitter=format_duration(stored.jitter) if stored.jitter else None,
        jitter_by=format_duration(stored.jitter_by) if stored.jitter else None,
        late_after=format_duration(stored.late_after) if stored.late_after else None,
        starts_at=stored.starts_at,
        ends_at=stored.ends_at,
        enabled=stored.enabled,
        paused=_pause(stored),
        owner=stored.owner,
        tags=list(stored.tags),
        revision=stored.revision,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        next_at=next_at(stored),
    )


def next_at(stored: jobs.Job) -> datetime | None:
    """When it is due next: the hand belongs to all jobs of its schedule, the bounds to this one."""
    moment = stored.next_fire
    if moment is not None and stored.starts_at is not None and moment < stored.starts_at:
        hands = [s for s in stored.schedules if not isinstance(s, At | Delay)]
        coming = [s.next_after(stored.starts_at - _MOMENT) for s in hands]
        moment = min((c for c in coming if c is not None), default=None)
    if moment is not None and stored.ends_at is not None and moment > stored.ends_at:
        return None
    return moment


def _pause(stored: jobs.Job) -> Pause | None:
    if stored.paused_at is None:
        return None
    return Pause(at=stored.paused_at, by=stored.paused_by, reason=stored.paused_reason, until=stored.paused_until)


def run_item(stored: runs.Run) -> RunItem:
    return RunItem(**_run(stored))


def run(stored: runs.Run, tries: Sequence[runs.AttemptRow], *, created: bool | None = None) -> Run:
    """A run with its tries; an ended one was executed by the worker of its last."""
    values = _run(stored)
    if tries and stored.state is not State.RUNNING:
        values["worker_id"] = tries[-1].worker_id
    spec = stored.spec or Spec()
    return Run(
        **values,
        args=spec.args,
        kwargs=spec.kwargs,
        result=stored.result,
        attempts=[Attempt(**_fields(t)) for t in tries],
        created=UNSET if created is None else created,
    )


def _run(stored: runs.Run) -> dict[str, Any]:
    key, first_start = stored.key, stored.first_started_at
    due = key.scheduled_for + (stored.jitter_by or timedelta(0))
    late = None if first_start is None else (first_start - due) / timedelta(milliseconds=1)
    return {
        "run_id": key.id,
        "job_id": str(key.job_id),
        "job": stored.job,
        "task": stored.task,
        "state": stored.state.value,
        "cause": stored.cause,
        "scheduled_for": key.scheduled_for,
        "slot": key.slot,
        "attempt": stored.attempt,
        "fired_at": stored.fired_at,
        "available_at": stored.available_at,
        "started_at": stored.started_at,
        "finished_at": stored.finished_at,
        "lateness_ms": None if late is None else round(late),
        "pool": stored.pool,
        "priority": stored.priority,
        "worker_id": stored.worker_id,
        "progress": stored.progress,
        "revision": stored.revision,
        "token": stored.token,
        "reason": stored.reason,
        "error": stored.error,
        "cancel_requested": stored.cancel_requested,
        "blocked": blocked(stored.blocked),
    }


def blocked(bits: int) -> list[str]:
    """What holds a run, in words."""
    return [word for bit, word in _BLOCKED if bits & bit]


def line(stored: runs.LogRow) -> Line:
    return Line(**_fields(stored))


def dead_letter(stored: runs.DeadLetter) -> DeadLetter:
    return DeadLetter(
        run_id=stored.key.id,
        job_id=str(stored.key.job_id),
        job=stored.job,
        task=stored.task,
        attempt=stored.attempt,
        scheduled_for=stored.key.scheduled_for,
        died_at=stored.died_at,
        reason=stored.reason,
        error=stored.error,
        fingerprint=stored.fingerprint,
    )


def worker(stored: workers.WorkerRow) -> Worker:
    return Worker(**{**_fields(stored), "pools": dict(stored.pools), "tasks": list(stored.tasks)})


def node(stored: leases.Node) -> Node:
    return Node(**{**_fields(stored), "node_id": str(stored.node_id)})


def lease(stored: leases.LeaseRow) -> Lease:
    """A lease that has run out is nobody's, whoever held it last."""
    left = max(stored.seconds_left, 0.0)
    holder = str(stored.holder) if stored.holder and left else None
    return Lease(
        shard=stored.shard,
        holder=holder,
        node=stored.node if holder else None,
        token=stored.token,
        seconds_left=left,
    )


def _fields(record: Any) -> dict[str, Any]:
    """A record's own fields; its values may be any JSON and are not looked into."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _shown(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(timedelta(seconds=seconds))
