"""Whether somebody can do the work: serves the pool, knows the task, has a free slot."""

from __future__ import annotations

from difflib import get_close_matches
from shlex import quote

from bellringer.reasons.facts import TASK_UNKNOWN, Facts, Reason
from bellringer.reasons.words import before_it, counted, fine, holds


def staff(facts: Facts, *, due: bool) -> list[Reason]:
    """Whether somebody serves its pool, knows its task, and has a free slot."""
    if facts.pool is None or facts.task is None:
        return []
    serving = [worker for worker in facts.workers if facts.pool in worker.pools]
    knowing = [worker for worker in serving if worker.knows]
    if not serving:
        return [_no_worker(facts, facts.pool)]
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
