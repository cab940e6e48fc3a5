"""Creates jobs and runs for tests through the real engine steps, so their rows are always consistent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from bellringer.core.jobs import Definition
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome, RunKey, State
from bellringer.engine import job_and_run_commands as commands
from bellringer.engine import register
from bellringer.engine import send as sending
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.send import SendSpec
from bellringer.engine.settle import decide, settle
from bellringer.errors import InvalidInput
from bellringer.schedule import cron
from bellringer.store import jobs, queue, runs, workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow
from bellringer.store.queue import ClaimedRun
from bellringer.store.runs import RunRow
from bellringer.store.workers import WorkerRegistration

TEST_TENANT: Final = "default"
TEST_ACTOR: Final = "a test"
MAX_CLAIMED: Final = 1_000

_number = count(1)


def make_definition(**overrides: Any) -> Definition:
    """Returns a definition of a nightly job with a unique name."""
    number = next(_number)
    chosen: dict[str, Any] = {
        "name": f"job-{number}",
        "task": f"tests.task_{number}",
        "schedules": (cron("30 2 * * *"),),
        **overrides,
    }
    return Definition(**chosen)


async def make_job(store: Store, catalog: Catalog, **overrides: Any) -> JobRow:
    """Creates a job."""
    tenant_id = await catalog.tenant_id(TEST_TENANT)
    definition = make_definition(**overrides)
    registered = (await register.create(store, catalog, [definition], tenant_id=tenant_id, who=TEST_ACTOR))[0]
    job = await jobs.get(store, registered.job_id, tenant_id)
    assert job is not None
    return job


async def make_worker(store: Store, *, task_ids: list[int], pool: str = "short") -> int:
    """Registers a worker and returns its id."""
    about = WorkerRegistration(name="test", host="test", pid=0, version="test", pools={pool: 1}, task_ids=task_ids)
    return await workers.join(store, about)


async def make_run(store: Store, catalog: Catalog, *, state: State | str = State.QUEUED, **overrides: Any) -> RunRow:
    """Creates a run and brings it to this state. `overrides` are fields of SendSpec, such as `task` and `kwargs`."""
    wanted = State(state)
    lead = _STEPS_BY_STATE.get(wanted)
    if lead is None:
        raise InvalidInput(f"no step makes a run {wanted}", hint=f"choose from {', '.join(_STEPS_BY_STATE)}")
    tenant_id = await catalog.tenant_id(TEST_TENANT)
    # Tried once, a run can be shown to retry or to be dead.
    tries = {State.RETRYING: Retry(delays=["1h"]), State.DEAD: Retry(1)}
    order = SendSpec(
        **{
            "task": f"tests.task_{next(_number)}",
            **({"retry": tries[wanted]} if wanted in tries else {}),
            **overrides,
        }
    )
    if wanted is State.BLOCKED:
        key = await _triggered(store, catalog, order, tenant_id)
    else:
        key = (await sending.send(store, catalog, order, tenant_id=tenant_id)).key
    await lead(_Case(store, catalog, order, key, tenant_id))
    run = await runs.get(store, key, tenant_id)
    assert run is not None
    return run


async def _triggered(store: Store, catalog: Catalog, order: SendSpec, tenant_id: int) -> RunKey:
    """Creates a job's run: only a job can be paused, so a run that a pause holds belongs to a job."""
    job = await make_job(
        store, catalog, task=order.task, args=order.args, kwargs=order.kwargs, pool=order.pool, schedules=()
    )
    return await sending.trigger(store, job.job_id, tenant_id=tenant_id)


@dataclass(frozen=True, slots=True)
class _Case:
    """A new run, and what the steps that change its state need."""

    store: Store
    catalog: Catalog
    order: SendSpec
    key: RunKey
    tenant_id: int


async def _leave(_case: _Case) -> None:
    """The run stays queued."""


async def _pause(case: _Case) -> None:
    await commands.pause(case.store, case.key.job_id, tenant_id=case.tenant_id, who=TEST_ACTOR)


async def _cancel(case: _Case) -> None:
    await commands.cancel(case.store, case.key, tenant_id=case.tenant_id, reason="a test wants it")


async def _begin(case: _Case) -> tuple[int, ClaimedRun]:
    """Claims the run, and gives back other ready runs of its task."""
    task, pool = case.order.task, case.order.pool
    task_id = (await case.catalog.task_ids([task]))[task]
    pool_id = (await case.catalog.pool_ids([pool]))[pool]
    worker_id = await make_worker(case.store, task_ids=[task_id], pool=pool)
    seat = ClaimSpec(worker_id=worker_id, pool_id=pool_id, task_ids=[task_id])
    taken, _ = await claim(case.store, seat, MAX_CLAIMED, TenantCursor())
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
_STEPS_BY_STATE: Final[Mapping[State, Callable[[_Case], Awaitable[object]]]] = {
    State.QUEUED: _leave,
    State.BLOCKED: _pause,
    State.RUNNING: _begin,
    State.RETRYING: _end(_FAILURE),
    State.SUCCEEDED: _end(Ending(outcome=Outcome.OK, result={"done": True}, ran=0.1)),
    State.DEAD: _end(_FAILURE),
    State.CANCELLED: _cancel,
}
