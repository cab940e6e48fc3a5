"""Renders rows of jobs, runs, nodes, workers and pools as response models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from bellringer import tracing
from bellringer.access import Caller, Role
from bellringer.core.jobs import HTTP_TASK, WORKFLOW_TASK
from bellringer.core.policies import Misfire
from bellringer.core.redaction import PROGRESS_PATHS_FIELD, redact_arguments, redact_document
from bellringer.core.retry_policy import Retry
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.run_traces import trace_id_of
from bellringer.core.runs import Cause, RunKey, Spec, UpstreamRun
from bellringer.durations import format_duration
from bellringer.egress.targets import hide_target_secrets
from bellringer.engine import drift as drifts
from bellringer.schedule import At, Delay, to_document
from bellringer.store import dead_letters, jobs, leases, pools, runs, workers
from bellringer.store.load import ShardLoad
from bellringer.store.workflows import NodePlacement
from bellringer.tracing.span_refs import format_trace_id
from bellringer.wire.cluster import Lag, Lease, LeaseMove, PoolLag, SchedulerNode, Shard, ShardLag
from bellringer.wire.dead_letters import DeadLetter, DiscardedLetter, LetterGroup
from bellringer.wire.definitions import render_fields
from bellringer.wire.jobs import Drift, DriftedField, Job, JobGraph, Pause
from bellringer.wire.models import Count
from bellringer.wire.operations import encode_operation
from bellringer.wire.runs import Attempt, Line, NodeOf, Result, Run, RunItem, RunUpstream
from bellringer.wire.workers import WorkerInfo

_MICROSECOND: Final = timedelta(microseconds=1)
_BLOCKED_REASONS: Final = (
    (Blocked.PAUSED, "job_paused"),
    (Blocked.PREDECESSOR, "predecessor"),
    (Blocked.TASK_UNKNOWN, "task_unknown"),
    (Blocked.FROZEN, "freeze"),
    (Blocked.TASK_PAUSED, "task_paused"),
)


def render_job(stored: jobs.JobRow, drift: drifts.Drift | None = None, *, also_hidden: Sequence[str] = ()) -> Job:
    """Renders a job. Values at its `redact` paths, and at the paths in `also_hidden`, are hidden."""
    spec = stored.spec
    is_http = stored.task == HTTP_TASK
    args, kwargs = _shown_arguments(spec, is_http=is_http, paths=[*spec.redact, *also_hidden])
    fire_all = stored.misfire == Misfire.FIRE_ALL
    return Job(
        **render_fields(stored),
        job_id=str(stored.job_id),
        name=stored.name,
        task=stored.task,
        args=args,
        kwargs={} if is_http else kwargs,
        http=kwargs if is_http else UNSET,
        redact=spec.redact,
        workflow=UNSET if spec.graph is None else JobGraph(version=spec.graph, nodes=stored.nodes),
        schedules=[to_document(s) for s in stored.schedules],
        description=_describe_start(stored),
        followers=list(stored.followers),
        pool=stored.pool,
        timeout=_format_seconds(spec.timeout),
        heartbeat=_format_seconds(spec.heartbeat),
        retry=Retry.parse(spec.retry).to_document(),
        delivery=spec.delivery,
        keep_result=spec.keep_result,
        misfire=stored.misfire,
        max_catchup=stored.catchup.most if fire_all else None,
        catchup_window=format_duration(stored.catchup.window) if fire_all else None,
        catchup_rate=stored.catchup.rate if fire_all else None,
        overlap=stored.overlap,
        max_concurrency=stored.cap,
        concurrency_key=stored.limit.key if stored.limit else None,
        concurrency_limit=stored.limit.most if stored.limit else None,
        jitter_by=format_duration(stored.jitter_by) if stored.jitter else None,
        paused=_pause(stored),
        region=stored.region,
        revision=stored.revision,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
        next_at=next_at(stored),
        done_at=stored.done_at,
        app=stored.app,
        app_version=stored.app_version,
        orphaned_at=stored.orphaned_at,
        drift=UNSET if drift is None else _drift(drift),
    )


def _shown_arguments(spec: Spec, *, is_http: bool, paths: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments without hidden values. For an HTTP target, the paths apply to its body."""
    if not is_http:
        return redact_arguments(spec.args, spec.kwargs, paths) if paths else (spec.args, spec.kwargs)
    shown = hide_target_secrets(spec.kwargs)
    if paths and "body" in shown:
        shown["body"] = redact_document(shown["body"], paths)
    return spec.args, shown


def _drift(found: drifts.Drift) -> Drift:
    fields = [DriftedField(field=one.field, declared=one.declared, current=one.current) for one in found.fields]
    return Drift(revision=found.revision, by=found.by, at=found.at, fields=fields)


def next_at(stored: jobs.JobRow) -> datetime | None:
    """Returns when the job is due next. The cohort's next instant is shared by all its jobs; starts_at and ends_at are
    this job's.
    """
    moment = stored.next_fire
    if moment is not None and stored.starts_at is not None and moment < stored.starts_at:
        hands = [s for s in stored.schedules if not isinstance(s, At | Delay)]
        coming = [s.next_after(stored.starts_at - _MICROSECOND) for s in hands]
        moment = min((c for c in coming if c is not None), default=None)
    if moment is not None and stored.ends_at is not None and moment > stored.ends_at:
        return None
    return moment


def _pause(stored: jobs.JobRow) -> Pause | None:
    if stored.paused_at is None:
        return None
    return Pause(at=stored.paused_at, by=stored.paused_by, reason=stored.paused_reason, until=stored.paused_until)


def _describe_start(stored: jobs.JobRow) -> str:
    """Describes when a job starts, such as "Every hour; after extract has succeeded"."""
    parts = [s.describe() for s in stored.schedules]
    if stored.after is not None:
        parts.append(stored.after.describe())
    text = "; ".join(parts) or "Only by hand"
    return text[0].upper() + text[1:]


def render_run_item(
    stored: runs.RunRow, placed: NodePlacement | None = None, *, worker: str | UnsetType = UNSET
) -> RunItem:
    values = _run(stored)
    if placed is not None:
        values["workflow"] = node_of(placed)
    return RunItem(**values, worker=worker)


def render_run(
    stored: runs.RunRow,
    tries: Sequence[runs.AttemptRow],
    *,
    created: bool | None = None,
    placed: NodePlacement | None = None,
) -> Run:
    """Renders a run with its attempts. `placed` is set for workflow nodes."""
    values = _run(stored)
    if placed is not None:
        values["workflow"] = node_of(placed, stored.spec)
    spec = stored.spec or Spec()
    args, kwargs = _shown_arguments(spec, is_http=stored.task == HTTP_TASK, paths=spec.redact)
    return Run(
        **values,
        args=args,
        kwargs=kwargs,
        result=redact_document(stored.result, spec.redact),
        attempts=[render_attempt(t, spec.redact) for t in tries],
        replay_of=None if stored.of_slot is None else replace(stored.key, slot=stored.of_slot).id,
        replays=[replace(stored.key, slot=slot).id for slot in stored.replays],
        created=UNSET if created is None else created,
        upstream=UNSET if spec.upstream is None else _upstream(stored.key, spec.upstream),
        trace_id=_trace_id(stored.key, spec),
    )


def _trace_id(key: RunKey, spec: Spec) -> str | UnsetType:
    """Returns the trace of the run: that of its caller, or its own if this server traces."""
    if spec.trace is None and tracing.active() is None:
        return UNSET
    return format_trace_id(trace_id_of(key, spec))


def _upstream(key: RunKey, upstream: UpstreamRun) -> RunUpstream:
    return RunUpstream(run_id=upstream.key(key.scheduled_for).id, job=upstream.job, state=upstream.state)


def node_of(placed: NodePlacement, spec: Spec | None = None) -> NodeOf:
    node = placed.label(None if spec is None else spec.node)
    return NodeOf(run_id=placed.key.id, job_id=str(placed.top_job), job=placed.job, node=node)


def render_attempt(stored: runs.AttemptRow, hidden: Sequence[str] = ()) -> Attempt:
    """Renders an attempt; values of its result at the paths in `hidden` are hidden."""
    return Attempt(**{**asdict(stored), "result": redact_document(stored.result, hidden)})


def render_result(stored: runs.RunRow) -> Result:
    return Result(
        run_id=stored.key.id,
        state=stored.state.value,
        finished_at=stored.finished_at,
        result=redact_document(stored.result, stored.spec.redact if stored.spec else ()),
        error=stored.error,
    )


def _shown_progress(progress: Any) -> Any:
    """Returns reported progress without hidden values. The worker stores the paths with the report."""
    if not isinstance(progress, Mapping) or PROGRESS_PATHS_FIELD not in progress:
        return progress
    shown = {name: value for name, value in progress.items() if name != PROGRESS_PATHS_FIELD}
    if "details" in shown:
        shown["details"] = redact_document(shown["details"], progress[PROGRESS_PATHS_FIELD])
    return shown


def _run(stored: runs.RunRow) -> dict[str, Any]:
    key, first_start = stored.key, stored.first_started_at
    due = key.scheduled_for + (stored.jitter_by or timedelta(0))
    late = None if first_start is None else (first_start - due) / timedelta(milliseconds=1)
    if (
        stored.cause == Cause.WORKFLOW
    ):  # the scheduled time is the workflow run's; a node starts when its predecessors have ended
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
        "progress": _shown_progress(stored.progress),
        "revision": stored.revision,
        "token": stored.token,
        "reason": stored.reason,
        "error": stored.error,
        "cancel_requested": stored.cancel_requested,
        "blocked": blocked(stored.blocked),
        "has_nodes": True if stored.task == WORKFLOW_TASK else UNSET,
    }


def blocked(bits: int) -> list[str]:
    """Returns the reasons why a run is blocked."""
    return [word for bit, word in _BLOCKED_REASONS if bits & bit]


def render_log_line(stored: runs.LogRow) -> Line:
    return Line(**_fields(stored))


def render_dead_letter(stored: runs.DeadLetterRow) -> DeadLetter:
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


def render_discarded(stored: dead_letters.DiscardedRow) -> DiscardedLetter:
    letter = render_dead_letter(stored.letter)
    return DiscardedLetter(
        **{name: getattr(letter, name) for name in DeadLetter.__struct_fields__},
        discarded_at=stored.discarded_at,
        discarded_by=stored.discarded_by,
        operation_id=None if stored.operation_id is None else encode_operation(stored.operation_id),
        restorable_until=stored.discarded_at + dead_letters.DISCARDS_KEPT,
    )


def render_dead_letter_group(stored: dead_letters.DeadLetterGroup) -> LetterGroup:
    error = stored.error if isinstance(stored.error, dict) else {}
    return LetterGroup(
        fingerprint=stored.fingerprint,
        count=Count(value=stored.count, relation="eq" if stored.is_whole else "gte"),
        type=_describe_error(error.get("type"), 200),
        message=_describe_error(error.get("message"), 500),
        reason=stored.reason[:500],
        first_died_at=stored.first_died,
        last_died_at=stored.last_died,
        jobs=list(stored.jobs[:5]),
        runs=[key.id for key in stored.keys[:5]],
    )


def _describe_error(value: Any, most: int) -> str | None:
    return None if value is None else str(value)[:most]


# Hosts and process ids are shown only to operators of the installation. The default name of a node or worker contains
# both, so other callers get a name made of its id.


def render_worker(stored: workers.WorkerRow, caller: Caller) -> WorkerInfo:
    shown = WorkerInfo(**{**_fields(stored), "pools": dict(stored.pools), "tasks": list(stored.tasks)})
    name = worker_name(stored.worker_id, stored.name, caller)
    return shown if sees_machines(caller) else replace(shown, name=name, host=None, pid=None)


def worker_name(worker_id: int, name: str, caller: Caller) -> str:
    return name if sees_machines(caller) else f"worker-{worker_id}"


def sees_machines(caller: Caller) -> bool:
    """Returns whether the caller may see hosts, process ids and addresses."""
    return caller.everywhere and caller.role >= Role.OPERATOR


def render_node(stored: leases.SchedulerNodeRow, caller: Caller) -> SchedulerNode:
    shown = SchedulerNode(**{**_fields(stored), "node_id": str(stored.node_id)})
    if sees_machines(caller):
        return shown
    waits_for = shown.waits_for and shown.waits_for.partition(" ")[0]  # without the address
    return replace(shown, name=_short_id(shown.node_id), host=None, pid=None, waits_for=waits_for)


def render_lease(stored: leases.LeaseRow, caller: Caller) -> Lease:
    """Renders a lease; an expired one has no holder."""
    left = max(stored.seconds_left, 0.0)
    holder = str(stored.holder) if stored.holder and left else None
    return Lease(
        shard=stored.shard,
        holder=holder,
        node=_node(holder, stored.node, caller),
        token=stored.token,
        region=stored.region,
        seconds_left=left,
        held_seconds=stored.held_seconds if holder else None,
    )


def render_lease_move(stored: leases.LeaseMoveRow, caller: Caller) -> LeaseMove:
    holder, previous = (str(node_id) if node_id else None for node_id in (stored.holder, stored.previous))
    return LeaseMove(
        shard=stored.shard,
        at=stored.at,
        cause=stored.cause,
        holder=holder,
        node=_node(holder, stored.node, caller),
        previous=previous,
        previous_node=_node(previous, stored.previous_node, caller),
        token=stored.token,
    )


def render_shard(stored: leases.ShardRow, load: ShardLoad | None, caller: Caller) -> Shard:
    holder = str(stored.holder) if stored.holder else None
    busy = {"due_per_minute": round(load.due_per_minute, 3) if load else 0.0, "fired": load.fired if load else 0}
    return Shard(**{**_fields(stored), **busy, "holder": holder, "node": _node(holder, stored.node, caller)})


def render_lag(
    shards: Sequence[leases.ShardRow],
    signals: Sequence[pools.PoolSignal],
    unread: Mapping[str, int],
    caller: Caller,
) -> Lag:
    """Renders the lag of pools; names of pools without workers are visible to their tenant only."""
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
    return name if sees_machines(caller) else _short_id(holder)


def _short_id(node_id: str) -> str:
    return node_id[-8:]  # the first part is the time, which ids created together share


def _fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a record without converting its values, which may be any JSON."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _format_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(timedelta(seconds=seconds))
