"""Reasons about capacity: workers of the pool, the tenant's cap, the circuit breaker of a called URL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from shlex import quote

from bellringer.core.run_blocked_flags import Blocked
from bellringer.durations import format_duration
from bellringer.explain.facts import (
    ExplainFacts,
    ExplainReason,
    JobFacts,
    LiveWorker,
    PauseFacts,
    PoolLimits,
)
from bellringer.explain.text import (
    blocking_reason,
    format_ahead,
    format_count,
    format_instant,
    format_relative,
    info_reason,
    passed_check,
    shorten,
)


def explain_workers(facts: ExplainFacts, *, due: bool) -> list[ExplainReason]:
    """Reasons about the pool: a worker serves it, knows the task, and has a free slot."""
    if facts.pool is None or facts.task is None:
        return []
    if facts.task_pause is not None:
        return [_task_paused_reason(facts.task, facts.task_pause)]
    serving = [worker for worker in facts.workers if facts.pool in worker.pools]
    knowing = [worker for worker in serving if worker.knows]
    if (pause := facts.pool_pause) is not None or not serving:
        return [_no_worker_reason(facts, facts.pool) if pause is None else _pool_paused_reason(facts.pool, pause)]
    if not knowing:
        return [_task_unknown_reason(facts, facts.task, facts.pool, len(serving))]
    slots = sum(worker.pools[facts.pool] for worker in knowing)
    if due and (in_the_way := _capacity_reason(facts, facts.pool, knowing, slots)) is not None:
        return [in_the_way]
    who = _describe_workers(facts.pool, knowing)
    busy = f"{min(facts.taken, slots)} of {format_count(slots, 'slot')} busy"
    return [passed_check("staffed", f"{who} know{'s' if len(knowing) == 1 else ''} the task, {busy}")]


def _capacity_reason(facts: ExplainFacts, pool: str, knowing: Sequence[LiveWorker], slots: int) -> ExplainReason | None:
    """Returns the reason why workers that know the task do not take the run now, if there is one."""
    if (bound := _pool_limit_reason(pool, facts.pool_bounds)) is not None:
        return bound
    who = _describe_workers(pool, knowing)
    if facts.taken >= slots:
        ahead = format_ahead(facts.ahead)
        text = f"all {format_count(slots, 'slot')} of the {who} are busy, with {ahead} ahead in the queue"
        return blocking_reason("pool_busy", text, _add_worker_command(pool))
    if (sent := _broker_reason(facts, pool, knowing)) is not None:
        return sent
    if facts.run is not None and facts.run.blocked & Blocked.TASK_UNKNOWN:
        text = (
            f"the run was set aside while no worker knew its task; {who} can run it now, so it is queued again shortly"
        )
        return blocking_reason("set_aside", text)
    return None


def _describe_workers(pool: str, knowing: Sequence[LiveWorker]) -> str:
    return f"{format_count(len(knowing), 'live worker')} of pool {pool}"


def explain_tenant_cap(facts: ExplainFacts) -> list[ExplainReason]:
    """Whether the tenant may start one more run."""
    if facts.cap is None:
        return []
    text = f"the tenant has {facts.in_flight:,} of at most {format_count(facts.cap, 'run')} in flight"
    if facts.in_flight < facts.cap:
        return [passed_check("tenant_within_cap", text)]
    return [blocking_reason("tenant_in_flight", text)]


def _pool_paused_reason(pool: str, pause: PauseFacts) -> ExplainReason:
    by = f" by {pause.by}" if pause.by else ""
    why = f": {shorten(pause.why)}" if pause.why else ""
    return blocking_reason(
        "pool_paused",
        f"pool {pool} was paused at {format_instant(pause.at)}{by}{why}",
        f"bellringer pools resume {quote(pool)}",
    )


def _task_paused_reason(task: str, pause: PauseFacts) -> ExplainReason:
    if pause.release_rate is not None:
        text = f"task {task} was resumed, and its waiting runs are released at {pause.release_rate:g} per second"
        return blocking_reason("task_paused", text, f"bellringer tasks resume {quote(task)}")
    by = f" by {pause.by}" if pause.by else ""
    until = f" until {format_instant(pause.until)}" if pause.until else ""
    why = f": {shorten(pause.why)}" if pause.why else ""
    return blocking_reason(
        "task_paused",
        f"task {task} was paused at {format_instant(pause.at)}{by}{until}{why}",
        f"bellringer tasks resume {quote(task)}",
    )


def _broker_reason(facts: ExplainFacts, pool: str, knowing: Sequence[LiveWorker]) -> ExplainReason | None:
    """Returns a reason if the run was sent to a broker, or cannot be sent."""
    engine = next((worker.dispatch for worker in knowing if worker.dispatch != "postgresql"), None)
    if facts.run is not None and facts.run.blocked & Blocked.SENT and facts.sent_at is not None:
        how = f"the run was sent through {engine or 'a broker'} at {format_instant(facts.sent_at)}"
        return blocking_reason("sent", f"{how}; a worker of pool {pool} starts it when the message arrives")
    if engine is not None and facts.waits_for is not None:
        text = (
            f"the workers of pool {pool} get work through {engine}, but the scheduler is waiting for {facts.waits_for}"
        )
        return blocking_reason("broker_away", text)
    return None


def _pool_limit_reason(pool: str, bounds: PoolLimits | None) -> ExplainReason | None:
    """Returns a reason if the pool has reached its concurrency or its rate."""
    if bounds is None:
        return None
    if bounds.concurrency is not None and bounds.under_way >= bounds.concurrency:
        most = format_count(bounds.concurrency, "run")
        text = f"pool {pool} is running {bounds.under_way:,} of at most {most}"
        more = max(2 * bounds.concurrency, 1)
        return blocking_reason("pool_concurrency", text, f"bellringer pools set {quote(pool)} --concurrency {more}")
    if bounds.rate is not None and bounds.credit is not None and bounds.credit < 1:
        text = f"pool {pool} starts at most {bounds.rate:,g} runs per second, and has reached that rate"
        return blocking_reason("pool_rate", text, f"bellringer pools set {quote(pool)} --rate {2 * bounds.rate:g}/s")
    return None


def explain_pool_choice(job: JobFacts | None, pool: str | None) -> list[ExplainReason]:
    """Explains why a job without an explicit pool runs in this one."""
    if job is None or pool is None or not job.routed:
        return []
    if job.expected is not None:
        why = f"its runs are expected to take {format_duration(job.expected)}"
    elif job.learned_at is not None:
        why = f"its past runs were long (learned at {format_instant(job.learned_at)})"
    else:
        return []
    return [info_reason("routed", f"the job names no pool and runs in {pool}, because {why}")]


def _no_worker_reason(facts: ExplainFacts, pool: str) -> ExplainReason:
    others = sorted({name for worker in facts.workers for name in worker.pools})
    there = (
        f"{format_count(len(facts.workers), 'live worker')}, of {', '.join(others)}"
        if others
        else "there are no live workers"
    )
    return blocking_reason(
        "no_worker_for_pool", f"no live worker serves pool {pool} ({there})", _add_worker_command(pool)
    )


def _task_unknown_reason(facts: ExplainFacts, task: str, pool: str, serving: int) -> ExplainReason:
    elsewhere = sorted({name for worker in facts.workers if worker.knows for name in worker.pools})
    near = get_close_matches(task, facts.tasks, n=1)
    hint = ""
    if elsewhere:
        hint = f"; workers of {', '.join(elsewhere)} do"
    elif near:
        hint = f"; did you mean {near[0]}?"
    nobody = "the one live worker" if serving == 1 else f"none of the {serving} live workers"
    text = f"{nobody} of pool {pool} {'does not know' if serving == 1 else 'knows'} the task {task}{hint}"
    return blocking_reason("task_unknown", text, _add_worker_command(pool) if elsewhere else "bellringer worker APP")


def _add_worker_command(pool: str) -> str:
    return f"bellringer worker APP --pool {quote(pool)}=10"


def explain_circuit(facts: ExplainFacts, now: datetime) -> list[ExplainReason]:
    """Returns a reason if the circuit breaker of the called URL is open."""
    open_one = facts.circuit
    if open_one is None:
        return []
    since, again = (
        f"{format_instant(open_one.since)}, {format_relative(open_one.since, now)}",
        format_relative(open_one.probe_at, now),
    )
    tried = "a trial call is running" if open_one.trying else f"the next trial call is {again}"
    why = shorten(open_one.why)
    return [
        blocking_reason(
            "circuit_open", f"the circuit breaker of {open_one.origin} is open since {since} ({why}); {tried}"
        )
    ]
