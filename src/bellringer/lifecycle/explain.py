"""Explain: gather the facts of a run, a job or an instant, and tell the reasons. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from bellringer.egress.urls import origin_of
from bellringer.errors import NotFound
from bellringer.jobs import HTTP, SIGNAL, WAIT
from bellringer.lifecycle import inside
from bellringer.policies import Retry
from bellringer.reasons import (
    Circuit,
    Facts,
    Flow,
    Held,
    Member,
    Pause,
    Reason,
    Then,
    instant_near,
    next_of,
    of_its_run,
    ordered,
    part_of,
    read_time,
    reasons_for_job,
    reasons_for_node,
    reasons_for_occurrence,
    reasons_for_run,
)
from bellringer.runs import FINAL, Cause, RunKey, State
from bellringer.store import egress, flow_reads, jobs, reasons, runs
from bellringer.store.flow_reads import Placed
from bellringer.store.jobs import Job
from bellringer.store.pool import Store
from bellringer.store.reasons import Around
from bellringer.store.runs import NODES, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The reasons, and what they are about; the decisive one first."""

    job_id: UUID
    job: str | None
    task: str | None
    run: Run | None
    at: datetime | None
    next_at: datetime | None
    reasons: list[Reason]
    placed: Placed | None = None  # of a node's run: which node it is


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExplained:
    """The reasons of a node of a workflow run; `run` is its own, where it has one that says where it is."""

    at: inside.Inside
    node: str
    state: str
    run: Run | None
    reasons: list[Reason]


async def run(store: Store, key: RunKey, *, tenant_id: int) -> Explained:
    """Why a run is where it is."""
    found = await runs.get(store, key, tenant_id)
    if found is None:
        raise NotFound("there is no such run")
    if found.cause == Cause.WORKFLOW:
        return await _run_of_node(store, found, tenant_id)
    job = await jobs.get(store, key.job_id, tenant_id)
    facts, here = await _known(store, found, job, tenant_id)
    return _explained(facts, job, found, key.job_id, key.scheduled_for, here.now, reasons_for_run(facts, here.now))


async def node(store: Store, key: RunKey, place: tuple[str, int | None], *, tenant_id: int) -> NodeExplained:
    """Why a node of a workflow run does not start, or is where it is."""
    root = await runs.get(store, key, tenant_id)
    if root is None:
        raise NotFound("there is no such run")
    top = await _top(store, root, tenant_id)
    opened = await inside.look(store, key, _member(top) if top else None, tenant_id=tenant_id)
    if opened is None:
        raise NotFound("there is no such workflow run", hint="a run of a workflow has nodes once it has started")
    found = await inside.node(store, opened, *place, tenant_id=tenant_id)
    its_run = await runs.get(store, found.run, tenant_id) if found.run else None
    if its_run is None:
        told = reasons_for_node(opened.facts, found.node, await store.now())
    else:
        facts, here = await _known(store, its_run, top, tenant_id)
        told = of_its_run(reasons_for_run(facts, here.now), key.id, found.node.name)
    return NodeExplained(at=opened, node=found.node.name, state=found.node.state, run=its_run, reasons=told)


async def _run_of_node(store: Store, found: Run, tenant_id: int) -> Explained:
    """The run of a node has no job of its own: what holds the workflow holds it."""
    placed = (await flow_reads.placed(store, tenant_id, [found.key])).get(found.key)
    top = await jobs.get(store, placed.top_job, tenant_id) if placed else None
    facts, here = await _known(store, found, top, tenant_id)
    told = None
    if placed is not None and found.state not in FINAL and found.task in (WAIT, SIGNAL):  # nobody executes it yet
        opened = await inside.look(store, placed.key, facts.job, tenant_id=tenant_id)
        if opened is not None and placed.name is not None:
            own = await inside.node(store, opened, placed.name, placed.place, tenant_id=tenant_id)
            told = reasons_for_node(opened.facts, own.node, here.now)
    told = reasons_for_run(facts, here.now) if told is None else told
    if placed is not None:
        name = placed.shown(found.spec.node if found.spec else None)
        told = ordered([*of_its_run(told, placed.key.id, name), part_of(placed.key.id, placed.job, name)])
    made = _explained(facts, None, found, found.key.job_id, found.key.scheduled_for, here.now, told)
    return replace(made, next_at=None, placed=placed)


async def _top(store: Store, found: Run, tenant_id: int) -> Job | None:
    """The job of a run; of the run of a node, the job at the top."""
    if found.cause != Cause.WORKFLOW:
        return await jobs.get(store, found.key.job_id, tenant_id)
    placed = (await flow_reads.placed(store, tenant_id, [found.key])).get(found.key)
    return await jobs.get(store, placed.top_job, tenant_id) if placed else None


async def _known(store: Store, found: Run, job: Job | None, tenant_id: int) -> tuple[Facts, Around]:
    here = await reasons.around(store, found.key.job_id, found.key, tenant_id)
    facts = replace(
        _facts(here, job, found),
        circuit=await _circuit(store, job, found, tenant_id),
        flow=await _flow(store, job, found, tenant_id),
    )
    return facts, here


async def _flow(store: Store, job: Job | None, found: Run | None, tenant_id: int) -> Flow | None:
    """A workflow run whose nodes are under way, from inside."""
    if found is None or not found.blocked & NODES:
        return None
    opened = await inside.look(store, found.key, _member(job) if job else None, tenant_id=tenant_id)
    return opened.facts if opened else None


async def why(store: Store, job_id: UUID, time: str | None = None, *, tenant_id: int) -> Explained:
    """Why a job does not run now, or what became of it at a time; one without offset is in the job's zone."""
    job = await jobs.get(store, job_id, tenant_id)
    if job is None:
        raise NotFound("there is no such job")
    if time is not None:
        return await _at(store, job, read_time(time, job.schedules), tenant_id)
    newest = await runs.of_job(store, job_id, tenant_id, None, 1)
    key = newest[0].key if newest else None
    found = await runs.get(store, key, tenant_id) if key else None
    waiting = key if found is not None and found.state not in FINAL else None
    here = await reasons.around(store, job_id, waiting, tenant_id)
    facts = replace(
        _facts(here, job, found),
        circuit=await _circuit(store, job, found, tenant_id),
        flow=await _flow(store, job, found, tenant_id),
    )
    return _explained(facts, job, found, job_id, None, here.now, reasons_for_job(facts, here.now))


async def _at(store: Store, job: Job, at: datetime, tenant_id: int) -> Explained:
    asked = at
    then, near, again = await reasons.then(store, job.job_id, at, tenant_id)
    instant = instant_near(then.job.schedules if then.job else job.schedules, at)
    if instant is not None and instant != at:
        at = instant
        then, _, again = await reasons.then(store, job.job_id, at, tenant_id)
    key = near if instant is None else RunKey(job.job_id, at)
    found = await runs.get(store, key, tenant_id) if key else None
    if found is None and again is not None:  # the schedule's own is not there, but a backfill's is
        found = await runs.get(store, again, tenant_id)
    here = await reasons.around(store, job.job_id, found.key if found else None, tenant_id)
    facts = replace(_facts(here, job, found, then), flow=await _flow(store, job, found, tenant_id))
    at = found.key.scheduled_for if found else at
    told = reasons_for_occurrence(facts, at, here.now, asked)
    return _explained(facts, job, found, job.job_id, at, here.now, told)


def _explained(
    facts: Facts,
    job: Job | None,
    found: Run | None,
    job_id: UUID,
    at: datetime | None,
    now: datetime,
    told: list[Reason],
) -> Explained:
    return Explained(
        job_id=job_id,
        job=job.name if job else None,
        task=found.task if found else facts.task,
        run=found,
        at=at,
        next_at=next_of(facts.job, now) if facts.job and facts.job.enabled else None,
        reasons=told,
    )


def _facts(here: Around, job: Job | None, found: Run | None, then: Then | None = None) -> Facts:
    return Facts(
        job=_member(job) if job else None,
        run=_held(found, here) if found else None,
        then=then or Then(),
        task=here.task,
        pool=here.pool,
        pool_pause=here.pool_pause,
        pool_bounds=here.pool_bounds,
        shard=here.shard,
        scheduler=here.scheduler,
        sent_at=here.sent_at,
        waits_for=here.waits_for,
        workers=here.workers,
        tasks=here.tasks,
        taken=here.taken,
        ahead=here.ahead,
        freeze=here.freeze,
        suspended_at=here.suspended_at,
        cap=here.cap,
        in_flight=here.in_flight,
    )


async def _circuit(store: Store, job: Job | None, found: Run | None, tenant_id: int) -> Circuit | None:
    """The breaker of what is called, where it is open."""
    spec = found.spec if found is not None and found.task == HTTP else job.spec if job and job.task == HTTP else None
    if spec is None or not isinstance(spec.kwargs.get("url"), str):
        return None
    origin = origin_of(spec.kwargs["url"])
    seen = await egress.breaker(store, tenant_id, origin)
    if seen is None or seen.opened_at is None or seen.probe_at is None:
        return None
    trying = seen.state == "half_open"
    return Circuit(origin=origin, since=seen.opened_at, probe_at=seen.probe_at, why=seen.reason, trying=trying)


def _member(job: Job) -> Member:
    pause = None
    if job.paused_at is not None:
        pause = Pause(at=job.paused_at, by=job.paused_by, why=job.paused_reason, until=job.paused_until)
    return Member(
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
    )


def _held(found: Run, here: Around) -> Held:
    return Held(
        run_id=found.key.id,
        state=found.state,
        attempt=found.attempt,
        spent=found.attempt - here.attempt_floor,
        attempts=Retry.parse(found.spec.retry).attempts if found.spec else Retry().attempts,
        available_at=found.available_at,
        in_timer=here.in_timer,
        blocked=found.blocked,
        predecessor=here.predecessor.id if here.predecessor else None,
        limit=here.limit,
        behind=here.behind,
        worker=here.worker,
        worker_state=here.worker_state or "live",
        worker_age=here.worker_age or 0.0,
        since=found.claimed_at,
        progress=found.progress,
        cancel_requested=found.cancel_requested,
        finished_at=found.finished_at,
        error=found.error if found.error is not None else here.error,
        dead_letter=here.dead_letter,
        backfill=None if found.key.backfill is None else f"bf_{found.key.backfill}",
        replaced_by=_replaced_by(found, here),
    )


def _replaced_by(found: Run, here: Around) -> datetime | None:
    """The run that it had to make way for. Where it ran then, that follows from what came before its end."""
    error = found.error if isinstance(found.error, dict) else {}
    if error.get("reason") == "replaced":
        other = error.get("run") or {}
        return datetime.fromisoformat(other["scheduled_for"]) if "scheduled_for" in other else None
    was_asked = found.state is State.CANCELLED and error.get("type") == "Cancelled"
    if not (found.cancel_requested or was_asked) or here.successor_at is None:
        return None
    return here.successor_at if here.successor_at <= (found.finished_at or here.now) else None
