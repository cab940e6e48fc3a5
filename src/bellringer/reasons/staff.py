"""Whether somebody can do the work: serves the pool, knows the task, has a free slot; and whether who is called can."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from shlex import quote

from bellringer.reasons.facts import TASK_UNKNOWN, Facts, Pause, Reason
from bellringer.reasons.words import before_it, counted, fine, from_now, holds, short, shown


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
    who = f"{counted(len(knowing), 'live worker')} of pool {facts.pool}"
    if due and facts.taken >= slots:
        text = f"all {counted(slots, 'slot')} of the {who} are busy, and {before_it(facts.ahead)} wait before it"
        return [holds("pool_busy", text, _more(facts.pool))]
    if facts.run is not None and facts.run.blocked & TASK_UNKNOWN:
        text = f"it was set aside while nobody knew its task; {who} can do it now, so it comes back in a moment"
        return [holds("set_aside", text)]
    busy = f"{min(facts.taken, slots)} of {counted(slots, 'slot')} busy"
    return [fine("staffed", f"{who} know{'s' if len(knowing) == 1 else ''} the task, {busy}")]


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
