"""Rows of the store as answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import asdict, replace

from bellringer.access import Caller
from bellringer.durations import format_duration
from bellringer.egress.targets import shown_target
from bellringer.jobs import HTTP, WORKFLOW
from bellringer.policies import Misfire, Retry
from bellringer.runs import Cause, Spec, State
from bellringer.schedule import At, Delay, to_document
from bellringer.store import installation, jobs, leases, letters, runs, workers
from bellringer.store.flow_reads import Placed
from bellringer.wire import (
    Attempt,
    DeadLetter,
    Job,
    Lag,
    Lease,
    Line,
    Node,
    Pause,
    PoolLag,
    Run,
    RunItem,
    ShardLag,
    Worker,
)
from bellringer.wire.answers import Count, JobGraph, NodeOf
from bellringer.wire.installation import Shard
from bellringer.wire.letters import LetterGroup

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
        kwargs={} if stored.task == HTTP else spec.kwargs,
        http=shown_target(spec.kwargs) if stored.task == HTTP else UNSET,
        workflow=UNSET if spec.graph is None else JobGraph(version=spec.graph, nodes=stored.nodes),
        schedules=[to_document(s) for s in stored.schedules],
        description="; ".join(s.describe() for s in stored.schedules) or "Only by hand",
        pool=stored.pool,
        routed=stored.routed,
        expected_duration=format_duration(stored.expected_duration) if stored.expected_duration else None,
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
        region=stored.region,
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


def run_item(stored: runs.Run, placed: Placed | None = None) -> RunItem:
    values = _run(stored)
    if placed is not None:
        values["workflow"] = node_of(placed)
    return RunItem(**values)


def run(
    stored: runs.Run,
    tries: Sequence[runs.AttemptRow],
    *,
    created: bool | None = None,
    placed: Placed | None = None,
) -> Run:
    """A run with its tries; an ended one was executed by the worker of its last. `placed`: it is the run of a node."""
    values = _run(stored)
    if placed is not None:
        values["workflow"] = node_of(placed, stored.spec)
    if tries and stored.state is not State.RUNNING:
        values["worker_id"] = tries[-1].worker_id
    spec = stored.spec or Spec()
    return Run(
        **values,
        args=spec.args,
        kwargs=shown_target(spec.kwargs) if stored.task == HTTP else spec.kwargs,
        result=stored.result,
        attempts=[attempt(t) for t in tries],
        replay_of=None if stored.of_slot is None else replace(stored.key, slot=stored.of_slot).id,
        replays=[replace(stored.key, slot=slot).id for slot in stored.replays],
        created=UNSET if created is None else created,
    )


def node_of(placed: Placed, spec: Spec | None = None) -> NodeOf:
    node = placed.shown(None if spec is None else spec.node)
    return NodeOf(run_id=placed.key.id, job_id=str(placed.top_job), job=placed.job, node=node)


def attempt(stored: runs.AttemptRow) -> Attempt:
    return Attempt(**asdict(stored))


def _run(stored: runs.Run) -> dict[str, Any]:
    key, first_start = stored.key, stored.first_started_at
    due = key.scheduled_for + (stored.jitter_by or timedelta(0))
    late = None if first_start is None else (first_start - due) / timedelta(milliseconds=1)
    if stored.cause == Cause.WORKFLOW:  # the time is the workflow run's: a node starts when those before it have ended
        late = None
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
        "has_nodes": True if stored.task == WORKFLOW else UNSET,
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


def letter_group(stored: letters.Group) -> LetterGroup:
    error = stored.error if isinstance(stored.error, dict) else {}
    return LetterGroup(
        fingerprint=stored.fingerprint,
        count=Count(value=stored.count, relation="eq" if stored.is_whole else "gte"),
        type=_words(error.get("type"), 200),
        message=_words(error.get("message"), 500),
        reason=stored.reason[:500],
        first_died_at=stored.first_died,
        last_died_at=stored.last_died,
        jobs=list(stored.jobs[:5]),
        runs=[key.id for key in stored.keys[:5]],
    )


def _words(value: Any, most: int) -> str | None:
    return None if value is None else str(value)[:most]


# On which machines the installation runs is told only to callers of the whole of it. A node's name, where nobody chose
# one, tells it too; that of a worker stays, because runs name it.


def worker(stored: workers.WorkerRow, caller: Caller) -> Worker:
    shown = Worker(**{**_fields(stored), "pools": dict(stored.pools), "tasks": list(stored.tasks)})
    return shown if caller.everywhere else replace(shown, host=None, pid=None)


def node(stored: leases.Node, caller: Caller) -> Node:
    shown = Node(**{**_fields(stored), "node_id": str(stored.node_id)})
    if caller.everywhere:
        return shown
    waits_for = shown.waits_for and shown.waits_for.partition(" ")[0]  # for what, and not where that is
    return replace(shown, name=_short(shown.node_id), host=None, pid=None, waits_for=waits_for)


def lease(stored: leases.LeaseRow, caller: Caller) -> Lease:
    """A lease that has run out is nobody's, whoever held it last."""
    left = max(stored.seconds_left, 0.0)
    holder = str(stored.holder) if stored.holder and left else None
    return Lease(
        shard=stored.shard,
        holder=holder,
        node=_node(holder, stored.node, caller),
        token=stored.token,
        region=stored.region,
        seconds_left=left,
    )


def shard(stored: installation.ShardRow, caller: Caller) -> Shard:
    holder = str(stored.holder) if stored.holder else None
    return Shard(**{**_fields(stored), "holder": holder, "node": _node(holder, stored.node, caller)})


def lag(
    shards: Sequence[installation.ShardRow],
    signals: Sequence[installation.Signal],
    unread: Mapping[str, int],
    caller: Caller,
) -> Lag:
    """Pools that nobody works for have names that only their tenant may know."""
    late = [
        ShardLag(shard=s.shard, node=_node(str(s.holder) if s.holder else None, s.node, caller), late=s.late)
        for s in shards
        if s.late > 0
    ]
    pools = [
        PoolLag(pool=s.pool, ready=s.ready, sent=s.sent, running=s.busy, oldest=s.oldest, unread=unread.get(s.pool))
        for s in signals
        if s.workers or caller.everywhere
    ]
    return Lag(firing=max((s.late for s in late), default=0.0), shards=late, pools=pools)


def _node(holder: str | None, name: str | None, caller: Caller) -> str | None:
    if holder is None:
        return None
    return name if caller.everywhere else _short(holder)


def _short(node_id: str) -> str:
    return node_id[-8:]  # what comes first is the time, which those that started together share


def _fields(record: Any) -> dict[str, Any]:
    """A record's own fields; its values may be any JSON and are not looked into."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _shown(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(timedelta(seconds=seconds))
