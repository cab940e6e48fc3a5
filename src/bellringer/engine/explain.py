"""Explains why a run, a node, a job or an instant is in its state: loads the facts and applies
`bellringer.explain`. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from bellringer.core.jobs import HTTP_TASK, SIGNAL_TASK, WAIT_TASK
from bellringer.core.policies import After, AfterCompletion
from bellringer.core.retry_policy import Retry
from bellringer.core.run_blocked_flags import Blocked
from bellringer.core.runs import FINAL_STATES, Cause, RunKey, State
from bellringer.egress.urls import origin_of
from bellringer.engine import explain_workflow
from bellringer.errors import NotFound
from bellringer.explain import (
    ExplainFacts,
    ExplainReason,
    InstantFacts,
    JobFacts,
    LoopBlock,
    OpenBreaker,
    OrphanFacts,
    PauseFacts,
    QueuedRun,
    UpstreamFacts,
    WorkflowFacts,
    explain_job,
    explain_node,
    explain_occurrence,
    explain_run,
    explain_skipped_time,
    nearest_instant,
    next_instant,
    node_of_reason,
    parse_asked_time,
    restored_reason,
    sort_reasons,
    with_node_retry,
)
from bellringer.store import egress, events, explain, jobs, runs, workflows
from bellringer.store.connection_pool import Store
from bellringer.store.explain import WaitContext
from bellringer.store.jobs import JobRow
from bellringer.store.runs import RunRow
from bellringer.store.workflows import NodePlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainResult:
    """The reasons for the state of a run or a job, the decisive one first."""

    job_id: UUID
    job: str | None
    task: str | None
    run: RunRow | None
    at: datetime | None
    next_at: datetime | None
    reasons: list[ExplainReason]
    placed: NodePlacement | None = None  # for the run of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExplanation:
    """The reasons for the state of a workflow node; `run` is the node's run, if it has one that explains the state."""

    at: explain_workflow.WorkflowRunFacts
    node: str
    state: str
    run: RunRow | None
    reasons: list[ExplainReason]


async def load_run_explanation(store: Store, key: RunKey, *, tenant_id: int) -> ExplainResult:
    """Explains the state of a run."""
    found = await runs.get(store, key, tenant_id)
    if found is None:
        raise NotFound("there is no such run")
    if found.cause == Cause.WORKFLOW:
        return await _explain_node_run(store, found, tenant_id)
    job = await jobs.get(store, key.job_id, tenant_id)
    facts, context = await _load_facts(store, found, job, tenant_id)
    reasons = explain_run(facts, context.now)
    if (restore := await explain.find_restore(store, key)) is not None:
        reasons = sort_reasons([*reasons, restored_reason(restore)])
    return _result(facts, job, found, key.job_id, key.scheduled_for, context.now, reasons)


async def load_node_explanation(
    store: Store, key: RunKey, place: tuple[str, int | None], *, tenant_id: int
) -> NodeExplanation:
    """Explains the state of a node of a workflow run."""
    root = await runs.get(store, key, tenant_id)
    if root is None:
        raise NotFound("there is no such run")
    top = await _top_job(store, root, tenant_id)
    opened = await explain_workflow.load_workflow_facts(
        store, key, _job_facts(top) if top else None, tenant_id=tenant_id
    )
    if opened is None:
        raise NotFound("there is no such workflow run", hint="a run of a workflow has nodes once it has started")
    found = await explain_workflow.load_node_facts(store, opened, *place, tenant_id=tenant_id)
    its_run = await runs.get(store, found.run, tenant_id) if found.run else None
    if its_run is None:
        found_reasons = explain_node(opened.facts, found.node, await store.now())
    else:
        facts, context = await _load_facts(store, its_run, top, tenant_id)
        found_reasons = with_node_retry(explain_run(facts, context.now), key.id, found.node.name)
    return NodeExplanation(at=opened, node=found.node.name, state=found.node.state, run=its_run, reasons=found_reasons)


async def _explain_node_run(store: Store, found: RunRow, tenant_id: int) -> ExplainResult:
    """Explains the run of a node. Such a run has no job; everything that blocks its workflow run blocks it."""
    placed = (await workflows.find_node_placements(store, tenant_id, [found.key])).get(found.key)
    top = await jobs.get(store, placed.top_job, tenant_id) if placed else None
    facts, context = await _load_facts(store, found, top, tenant_id)
    found_reasons = None
    if (
        placed is not None and found.state not in FINAL_STATES and found.task in (WAIT_TASK, SIGNAL_TASK)
    ):  # waits and signals have no worker
        opened = await explain_workflow.load_workflow_facts(store, placed.key, facts.job, tenant_id=tenant_id)
        if opened is not None and placed.name is not None:
            own = await explain_workflow.load_node_facts(store, opened, placed.name, placed.index, tenant_id=tenant_id)
            found_reasons = explain_node(opened.facts, own.node, context.now)
    found_reasons = explain_run(facts, context.now) if found_reasons is None else found_reasons
    if placed is not None:
        name = placed.label(found.spec.node if found.spec else None)
        found_reasons = sort_reasons(
            [*with_node_retry(found_reasons, placed.key.id, name), node_of_reason(placed.key.id, placed.job, name)]
        )
    made = _result(facts, None, found, found.key.job_id, found.key.scheduled_for, context.now, found_reasons)
    return replace(made, next_at=None, placed=placed)


async def _top_job(store: Store, found: RunRow, tenant_id: int) -> JobRow | None:
    """Returns the job of a run; for the run of a node, the job of the outermost workflow run."""
    if found.cause != Cause.WORKFLOW:
        return await jobs.get(store, found.key.job_id, tenant_id)
    placed = (await workflows.find_node_placements(store, tenant_id, [found.key])).get(found.key)
    return await jobs.get(store, placed.top_job, tenant_id) if placed else None


async def _load_facts(
    store: Store, found: RunRow, job: JobRow | None, tenant_id: int
) -> tuple[ExplainFacts, WaitContext]:
    context = await explain.load_wait_context(store, found.key.job_id, found.key, tenant_id)
    facts = replace(
        _build_facts(context, job, found),
        circuit=await _open_breaker(store, job, found, tenant_id),
        blocks=await _loop_blocks(store, found, tenant_id),
        flow=await _workflow_facts(store, job, found, tenant_id),
    )
    return facts, context


async def _loop_blocks(store: Store, found: RunRow | None, tenant_id: int) -> tuple[LoopBlock, ...]:
    """Returns the coroutines that blocked the event loop of a run."""
    found_reasons = [] if found is None else await events.loop_blocks(store, tenant_id, found.key)
    return tuple(
        LoopBlock(
            task=str(event.data.get("task")),
            run_id=event.key.id,
            length=timedelta(seconds=event.data.get("blocked_for") or 0),
            is_over=bool(event.data.get("over")),
        )
        for event in found_reasons
    )


async def _workflow_facts(
    store: Store, job: JobRow | None, found: RunRow | None, tenant_id: int
) -> WorkflowFacts | None:
    """Returns the facts of a workflow run whose nodes are running."""
    if found is None or not found.blocked & Blocked.OPEN_WORKFLOW:
        return None
    opened = await explain_workflow.load_workflow_facts(
        store, found.key, _job_facts(job) if job else None, tenant_id=tenant_id
    )
    return opened.facts if opened else None


async def load_job_explanation(store: Store, job_id: UUID, time: str | None = None, *, tenant_id: int) -> ExplainResult:
    """Explains why a job does not run now, or its state at `time`; a time without offset is in the job's time zone."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    if time is not None:
        explained = await _explain_instant(store, job, parse_asked_time(time, job.schedules), tenant_id)
        skipped = explain_skipped_time(time, job.schedules)
        return replace(explained, reasons=[*explained.reasons, skipped]) if skipped else explained
    newest = await runs.of_job(store, job_id, tenant_id, None, 1)
    key = newest[0].key if newest else None
    found = await runs.get(store, key, tenant_id) if key else None
    # The reason of a skipped run depends on the run that it overlapped.
    waiting = key if found is not None and (found.state not in FINAL_STATES or found.state is State.SKIPPED) else None
    context = await explain.load_wait_context(store, job_id, waiting, tenant_id)
    facts = replace(
        _build_facts(context, job, found),
        circuit=await _open_breaker(store, job, found, tenant_id),
        blocks=await _loop_blocks(store, found, tenant_id),
        flow=await _workflow_facts(store, job, found, tenant_id),
        outage=await explain.find_last_outage(store, job_id),
    )
    if facts.job is not None and job.after is not None:
        facts = replace(facts, job=replace(facts.job, upstream=await _upstream_facts(store, job.after, tenant_id)))
    return _result(facts, job, found, job_id, None, context.now, explain_job(facts, context.now))


async def _upstream_facts(store: Store, after: After, tenant_id: int) -> UpstreamFacts | None:
    """Returns the last run of the job that another starts after; None if there is no such job."""
    upstream = await jobs.find(store, tenant_id, after.job)
    if upstream is None:
        return None
    newest = await runs.of_job(store, upstream[0], tenant_id, None, 1)
    return UpstreamFacts(newest[0].key.id, newest[0].state) if newest else UpstreamFacts()


def _describe_upstream(found: RunRow) -> str | None:
    upstream = found.spec.upstream if found.spec else None
    if upstream is None:
        return None
    return f"{upstream.key(found.key.scheduled_for).id} of {upstream.job}, which {upstream.state}"


async def _explain_instant(store: Store, job: JobRow, at: datetime, tenant_id: int) -> ExplainResult:
    asked = at
    then, near, again = await explain.load_instant_facts(store, job.job_id, at, tenant_id)
    instant = nearest_instant(then.job.schedules if then.job else job.schedules, at)
    if instant is not None and instant != at:
        at = instant
        then, _, again = await explain.load_instant_facts(store, job.job_id, at, tenant_id)
    key = near if instant is None else RunKey(job.job_id, at)
    found = await runs.get(store, key, tenant_id) if key else None
    if found is None and again is not None:  # the scheduled run does not exist, but a backfill created one
        found = await runs.get(store, again, tenant_id)
    context = await explain.load_wait_context(store, job.job_id, found.key if found else None, tenant_id)
    facts = replace(_build_facts(context, job, found, then), flow=await _workflow_facts(store, job, found, tenant_id))
    at = found.key.scheduled_for if found else at
    found_reasons = explain_occurrence(facts, at, context.now, asked)
    return _result(facts, job, found, job.job_id, at, context.now, found_reasons)


def _result(
    facts: ExplainFacts,
    job: JobRow | None,
    found: RunRow | None,
    job_id: UUID,
    at: datetime | None,
    now: datetime,
    found_reasons: list[ExplainReason],
) -> ExplainResult:
    return ExplainResult(
        job_id=job_id,
        job=job.name if job else None,
        task=found.task if found else facts.task,
        run=found,
        at=at,
        next_at=next_instant(facts.job, now) if facts.job and facts.job.enabled else None,
        reasons=found_reasons,
    )


def _build_facts(
    context: WaitContext, job: JobRow | None, found: RunRow | None, then: InstantFacts | None = None
) -> ExplainFacts:
    return ExplainFacts(
        job=_job_facts(job) if job else None,
        run=_run_facts(found, context) if found else None,
        then=then or InstantFacts(),
        task=context.task,
        pool=context.pool,
        pool_pause=context.pool_pause,
        task_pause=context.task_pause,
        pool_bounds=context.pool_bounds,
        shard=context.shard,
        scheduler=context.scheduler,
        sent_at=context.sent_at,
        waits_for=context.waits_for,
        workers=context.workers,
        tasks=context.tasks,
        taken=context.taken,
        ahead=context.ahead,
        freeze=context.freeze,
        suspended_at=context.suspended_at,
        cap=context.cap,
        in_flight=context.in_flight,
    )


async def _open_breaker(store: Store, job: JobRow | None, found: RunRow | None, tenant_id: int) -> OpenBreaker | None:
    """Returns the circuit breaker of the called origin, if it is open."""
    spec = (
        found.spec
        if found is not None and found.task == HTTP_TASK
        else job.spec
        if job and job.task == HTTP_TASK
        else None
    )
    if spec is None or not isinstance(spec.kwargs.get("url"), str):
        return None
    origin = origin_of(spec.kwargs["url"])
    seen = await egress.load_breaker(store, tenant_id, origin)
    if seen is None or seen.opened_at is None or seen.probe_at is None:
        return None
    trying = seen.state == "half_open"
    return OpenBreaker(origin=origin, since=seen.opened_at, probe_at=seen.probe_at, why=seen.reason, trying=trying)


def _job_facts(job: JobRow) -> JobFacts:
    pause = None
    if job.paused_at is not None:
        pause = PauseFacts(at=job.paused_at, by=job.paused_by, why=job.paused_reason, until=job.paused_until)
    orphan = None
    if job.orphaned_at is not None and job.app is not None:
        orphan = OrphanFacts(app=job.app, version=job.app_version, since=job.orphaned_at)
    return JobFacts(
        orphan=orphan,
        name=job.name,
        schedules=job.schedules,
        enabled=job.enabled,
        pause=pause,
        starts_at=job.starts_at,
        ends_at=job.ends_at,
        created_at=job.created_at,
        hand_at=job.next_at,
        timer_at=job.timer_at,
        routed=job.routed,
        expected=job.expected_duration,
        learned_at=job.learned_at,
        deleted_when_done=job.after_completion is AfterCompletion.DELETE,
        after=job.after,
    )


def _run_facts(found: RunRow, context: WaitContext) -> QueuedRun:
    return QueuedRun(
        run_id=found.key.id,
        state=found.state,
        attempt=found.attempt,
        spent=found.attempt - context.attempt_floor,
        attempts=Retry.parse(found.spec.retry).attempts if found.spec else Retry().attempts,
        available_at=found.available_at,
        expires_at=context.expires_at,
        in_timer=context.in_timer,
        blocked=found.blocked,
        predecessor=context.predecessor.id if context.predecessor else None,
        predecessor_waits=context.predecessor_waits,
        limit=context.limit,
        behind=context.background,
        worker=context.worker,
        worker_state=context.worker_state or "live",
        worker_age=context.worker_age or 0.0,
        unconfirmed=context.unconfirmed,
        since=found.claimed_at,
        progress=found.progress,
        cancel_requested=found.cancel_requested,
        finished_at=found.finished_at,
        error=found.error if found.error is not None else context.error,
        dead_letter=context.dead_letter,
        backfill=None if found.key.backfill is None else f"bf_{found.key.backfill}",
        replaced_by=_replaced_by(found, context),
        upstream=_describe_upstream(found),
    )


def _replaced_by(found: RunRow, context: WaitContext) -> datetime | None:
    """Returns when the run that replaced this one was scheduled, for jobs whose overlap policy is replace."""
    error = found.error if isinstance(found.error, dict) else {}
    if error.get("reason") == "replaced":
        other = error.get("run") or {}
        return datetime.fromisoformat(other["scheduled_for"]) if "scheduled_for" in other else None
    was_asked = found.state is State.CANCELLED and error.get("type") == "Cancelled"
    if not (found.cancel_requested or was_asked) or context.successor_at is None:
        return None
    return context.successor_at if context.successor_at <= (found.finished_at or context.now) else None
