"""Jobs and runs for tests, made by the real steps: their rows are always consistent with their state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from bellringer.errors import InvalidInput
from bellringer.jobs import Definition
from bellringer.lifecycle import control, register
from bellringer.lifecycle import send as sending
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.lifecycle.send import Order
from bellringer.lifecycle.settle import decide, settle
from bellringer.policies import Retry
from bellringer.runs import Ending, Outcome, RunKey, State
from bellringer.schedule import cron
from bellringer.store import jobs, queue, runs, workers
from bellringer.store.jobs import Job
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed
from bellringer.store.runs import Run
from bellringer.store.workers import Introduction

TENANT: Final = "default"
WHO: Final = "a test"
MOST: Final = 1_000

_number = count(1)


def make_definition(**overrides: Any) -> Definition:
    """A nightly job with a name of its own."""
    number = next(_number)
    chosen: dict[str, Any] = {
        "name": f"job-{number}",
        "task": f"tests.task_{number}",
        "schedules": (cron("30 2 * * *"),),
        **overrides,
    }
    return Definition(**chosen)


async def make_job(store: Store, names: Names, **overrides: Any) -> Job:
    """A registered job."""
    tenant_id = await names.tenant_id(TENANT)
    definition = make_definition(**overrides)
    registered = (await register.register(store, names, [definition], tenant_id=tenant_id, who=WHO))[0]
    job = await jobs.get(store, registered.job_id, tenant_id)
    assert job is not None
    return job


async def make_worker(store: Store, *, task_ids: list[int], pool: str = "short") -> int:
    """A worker that has just joined; answers its number."""
    about = Introduction(name="test", host="test", pid=0, version="test", pools={pool: 1}, task_ids=task_ids)
    return await workers.join(store, about)


async def make_run(store: Store, names: Names, *, state: State | str = State.QUEUED, **overrides: Any) -> Run:
    """A run that has come to this state; `overrides` are those of an order, as `task` and `kwargs`."""
    wanted = State(state)
    lead = _LEADS.get(wanted)
    if lead is None:
        raise InvalidInput(f"no step makes a run {wanted}", hint=f"choose from {', '.join(_LEADS)}")
    tenant_id = await names.tenant_id(TENANT)
    # Tried once, a run can be shown to retry or to be dead.
    tries = {State.RETRYING: Retry(delays=["1h"]), State.DEAD: Retry(1)}
    order = Order(
        **{
            "task": f"tests.task_{next(_number)}",
            **({"retry": tries[wanted]} if wanted in tries else {}),
            **overrides,
        }
    )
    if wanted is State.BLOCKED:
        key = await _triggered(store, names, order, tenant_id)
    else:
        key = (await sending.send(store, names, order, tenant_id=tenant_id)).key
    await lead(_Case(store, names, order, key, tenant_id))
    run = await runs.get(store, key, tenant_id)
    assert run is not None
    return run


async def _triggered(store: Store, names: Names, order: Order, tenant_id: int) -> RunKey:
    """Only a job can be paused, so what a pause holds is a job's run."""
    job = await make_job(
        store, names, task=order.task, args=order.args, kwargs=order.kwargs, pool=order.pool, schedules=()
    )
    return await sending.trigger(store, job.job_id, tenant_id=tenant_id)


@dataclass(frozen=True, slots=True)
class _Case:
    """A run that was just made, and what it takes to lead it on."""

    store: Store
    names: Names
    order: Order
    key: RunKey
    tenant_id: int


async def _leave(_case: _Case) -> None:
    """It is queued as it is."""


async def _pause(case: _Case) -> None:
    await control.pause(case.store, case.key.job_id, tenant_id=case.tenant_id, who=WHO)


async def _cancel(case: _Case) -> None:
    await control.cancel(case.store, case.key, tenant_id=case.tenant_id, reason="a test wants it")


async def _begin(case: _Case) -> tuple[int, Claimed]:
    """Claim it, and give back what else was ready of its task."""
    task, pool = case.order.task, case.order.pool
    task_id = (await case.names.task_ids([task]))[task]
    pool_id = (await case.names.pool_ids([pool]))[pool]
    worker_id = await make_worker(case.store, task_ids=[task_id], pool=pool)
    seat = Seat(worker_id=worker_id, pool_id=pool_id, task_ids=[task_id])
    taken, _ = await claim(case.store, seat, MOST, Turn())
    others = [(claimed.key, claimed.attempt) for claimed in taken if claimed.key != case.key]
    if others:
        await queue.give_back(case.store, worker_id, others)
    return worker_id, next(claimed for claimed in taken if claimed.key == case.key)


def _end(ending: Ending) -> Callable[[_Case], Awaitable[object]]:
    async def end(case: _Case) -> None:
        worker_id, claimed = await _begin(case)
        await settle(case.store, worker_id, [decide(claimed, ending)])

    return end


_FAILURE: Final = Ending(
    outcome=Outcome.FAILED,
    error={"type": "ValueError", "message": "a test wants it", "traceback": "", "lineage": ["ValueError"]},
    ran=0.1,
)
_LEADS: Final[Mapping[State, Callable[[_Case], Awaitable[object]]]] = {
    State.QUEUED: _leave,
    State.BLOCKED: _pause,
    State.RUNNING: _begin,
    State.RETRYING: _end(_FAILURE),
    State.SUCCEEDED: _end(Ending(outcome=Outcome.OK, result={"done": True}, ran=0.1)),
    State.DEAD: _end(_FAILURE),
    State.CANCELLED: _cancel,
}
