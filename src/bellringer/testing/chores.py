"""What schedulers do at one instant: the chores of `bellringer.scheduler.service` that change what runs, each once.

A chore that is added there is added here, or tests and simulations live in a world without it. Reaping is not
among them: silence is measured in real time, so whoever lets a worker vanish also says when it is noticed. Nor is
what only tells or tidies, nor are operations, which only the API begins.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from bellringer.errors import Conflict
from bellringer.leases import Holding
from bellringer.lifecycle import register
from bellringer.lifecycle.backfill import backfill
from bellringer.lifecycle.flow import stop_flows
from bellringer.lifecycle.tick import Pace, ring, tick
from bellringer.schedule.instants import EPOCH
from bellringer.store import jobs, queue
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.testing.clock import Due

PACE: Final = Pace(lead=timedelta(0))  # everything at its own instant
MOST: Final = 10_000


async def do_chores(store: Store, names: Names, holding: Holding, due: Due) -> int:
    """One pass over what is due; answers how many runs were born or came back. What is left is due again."""
    born = 0
    if due.pauses:
        for job_id, tenant_id in await jobs.lapsed(store, MOST):
            await register.resume(store, names, job_id, tenant_id=tenant_id, who="the end of its pause")
    if due.hands:
        ticked = await tick(store, names, holding, due.hands, due.now, PACE)
        if not (ticked.fired.moved or ticked.fired.cut):
            raise _robbed()
        born += ticked.fired.fired
    if due.timers:
        rung = await ring(store, holding, sorted(holding.tokens), PACE)
        if rung.refused:
            raise _robbed()
        born += rung.moved
    if due.backfills:
        born += await backfill(store, names, holding, due.now)
    await _let_go(store, due)
    return born


async def _let_go(store: Store, due: Due) -> None:
    """What was held goes on, where nothing holds it any more, and workflow runs that are to stop do."""
    if due.undecided:
        await queue.decide(store, MOST)
    if due.frozen:
        await queue.thaw(store, MOST)
    if due.stuck:
        await queue.sweep(store, MOST)
        await queue.free_orphans(store, (EPOCH, UUID(int=0)), MOST)
    if due.stops:
        await stop_flows(store)


def _robbed() -> Conflict:
    return Conflict("the test's engine lost its shards", hint="let no other scheduler use this database")
