"""Whether somebody can do the work: serves the pool, knows the task, has a free slot; and whether who is called can."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from shlex import quote

from bellringer.durations import format_duration
from bellringer.reasons.facts import SENT, TASK_UNKNOWN, Bounds, Facts, Hand, Member, Pause, Reason
from bellringer.reasons.words import before_it, counted, fine, from_now, holds, short, shown, tells


def staff(facts: Facts, *, due: bool) -> list[Reason]:
    """Whether somebody serves its pool, knows its task, and has a free slot."""
    if facts.pool is None or facts.task is None:
        return []
    serving = [worker for worker in facts.workers if facts.pool in worker.pools]
    knowing = [worker for worker in serving if worker.knows]
    if (pause := facts.pool_pause) is not None or not serving:
        return [_no_worker(facts, facts.pool) if pause is None else _pool_paused(facts.pool, pause)]
    if not knowing:
        return [_task_unknown(facts, facts.task, facts.pool, len(serving))]
    slots = sum(worker.pools[facts.pool] for worker in knowing)
    if due and (in_the_way := _in_the_way(facts, facts.pool, knowing, slots)) is not None:
        return [in_the_way]
    who = _who(facts.pool, knowing)
    busy = f"{min(facts.taken, slots)} of {counted(slots, 'slot')} busy"
    return [fine("staffed", f"{who} know{'s' if len(knowing) == 1 else ''} the task, {busy}")]


def _in_the_way(facts: Facts, pool: str, knowing: Sequence[Hand], slots: int) -> Reason | None:
    """What keeps those who could from taking it now."""
    if (bound := _at_bounds(pool, facts.pool_bounds)) is not None:
        return bound
    who = _who(pool, knowing)
    if facts.taken >= slots:
        text = f"all {counted(slots, 'slot')} of the {who} are busy, and {before_it(facts.ahead)} wait before it"
        return holds("pool_busy", text, _more(pool))
    if (sent := _by_broker(facts, pool, knowing)) is not None:
        return sent
    if facts.run is not None and facts.run.blocked & TASK_UNKNOWN:
        text = f"it was set aside while nobody knew its task; {who} can do it now, so it comes back in a moment"
        return holds("set_aside", text)
    return None


def _who(pool: str, knowing: Sequence[Hand]) -> str:
    return f"{counted(len(knowing), 'live worker')} of pool {pool}"


def flight(facts: Facts) -> list[Reason]:
    """Whether its tenant may have one more run under way."""
    if facts.cap is None:
        return []
    text = f"{facts.in_flight:,} of the {counted(facts.cap, 'run')} that its tenant may have under way at once are"
    if facts.in_flight < facts.cap:
        return [fine("tenant_within_cap", text)]
    return [holds("tenant_in_flight", text)]


def _pool_paused(pool: str, pause: Pause) -> Reason:
    by = f" by {pause.by}" if pause.by else ""
    why = f": {short(pause.why)}" if pause.why else ""
    return holds(
        "pool_paused", f"pool {pool} was paused at {shown(pause.at)}{by}{why}", f"bellringer pools resume {quote(pool)}"
    )


def _by_broker(facts: Facts, pool: str, knowing: Sequence[Hand]) -> Reason | None:
    """A run that is with the broker, or cannot be sent there."""
    engine = next((worker.dispatch for worker in knowing if worker.dispatch != "postgresql"), None)
    if facts.run is not None and facts.run.blocked & SENT and facts.sent_at is not None:
        how = f"it was sent by {engine or 'a broker'} at {shown(facts.sent_at)}"
        return holds("sent", f"{how}; a worker of pool {pool} takes it when the message comes, or the next one")
    if engine is not None and facts.waits_for is not None:
        text = f"the workers of pool {pool} get their work by {engine}, and the scheduler waits for {facts.waits_for}"
        return holds("broker_away", text)
    return None


def _at_bounds(pool: str, bounds: Bounds | None) -> Reason | None:
    """A pool that has as many runs under way, or has started as many, as it may."""
    if bounds is None:
        return None
    if bounds.concurrency is not None and bounds.under_way >= bounds.concurrency:
        most = counted(bounds.concurrency, "run")
        text = f"{bounds.under_way:,} of the {most} that pool {pool} may have under way are"
        more = max(2 * bounds.concurrency, 1)
        return holds("pool_concurrency", text, f"bellringer pools set {quote(pool)} --concurrency {more}")
    if bounds.rate is not None and bounds.credit is not None and bounds.credit < 1:
        text = f"pool {pool} starts {bounds.rate:,g} runs a second at most, and has just started as many"
        return holds("pool_rate", text, f"bellringer pools set {quote(pool)} --rate {2 * bounds.rate:g}/s")
    return None


def routed(job: Member | None, pool: str | None) -> list[Reason]:
    """Why a job is in a pool that nobody named, where something is known of how long it takes."""
    if job is None or pool is None or not job.routed:
        return []
    if job.expected is not None:
        why = f"it is expected to take {format_duration(job.expected)}"
    elif job.learned_at is not None:
        why = f"its runs have shown to be long (learned at {shown(job.learned_at)})"
    else:
        return []
    return [tells("routed", f"nobody named its pool; it goes to {pool}, as {why}")]


def _no_worker(facts: Facts, pool: str) -> Reason:
    others = sorted({name for worker in facts.workers for name in worker.pools})
    there = (
        f"{counted(len(facts.workers), 'live worker')}, of {', '.join(others)}" if others else "there is none at all"
    )
    return holds("no_worker_for_pool", f"no live worker serves pool {pool} ({there})", _more(pool))


def _task_unknown(facts: Facts, task: str, pool: str, serving: int) -> Reason:
    elsewhere = sorted({name for worker in facts.workers if worker.knows for name in worker.pools})
    near = get_close_matches(task, facts.tasks, n=1)
    hint = ""
    if elsewhere:
        hint = f"; workers of {', '.join(elsewhere)} do"
    elif near:
        hint = f"; did you mean {near[0]}?"
    nobody = "the one live worker" if serving == 1 else f"none of the {serving} live workers"
    text = f"{nobody} of pool {pool} {'does not know' if serving == 1 else 'knows'} the task {task}{hint}"
    return holds("task_unknown", text, _more(pool) if elsewhere else "bellringer worker APP")


def _more(pool: str) -> str:
    return f"bellringer worker APP --pool {quote(pool)}=10"


def circuit(facts: Facts, now: datetime) -> list[Reason]:
    """Who is called has failed again and again, and is left alone for a while."""
    open_one = facts.circuit
    if open_one is None:
        return []
    since, again = f"{shown(open_one.since)}, {from_now(open_one.since, now)}", from_now(open_one.probe_at, now)
    tried = "one call tries it just now" if open_one.trying else f"one call tries it again {again}"
    why = short(open_one.why)
    return [holds("circuit_open", f"the circuit of {open_one.origin} is open since {since} ({why}); {tried}")]
