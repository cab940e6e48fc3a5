"""A worker whose steps a test calls, for tests of workflows over the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from bellringer.core.jobs import SIGNAL_TASK, WAIT_TASK, WORKFLOW_TASK
from bellringer.core.runs import Ending, Outcome
from bellringer.engine import settle
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun
from bellringer.store.workers import WorkerRegistration
from bellringer.store.workflows import load_node_arguments

API = "/api/v1"


def ok(result: Any = None) -> Ending:
    return Ending(outcome=Outcome.OK, result=result)


def failed() -> Ending:
    return Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no"}, final="for good")


class ManualWorker:
    """Executes ready runs. `acts` maps node names to their ending, or to a function that returns it."""

    def __init__(self, store: Store, catalog: Catalog, seat: ClaimSpec) -> None:
        self.store, self.catalog, self.seat = store, catalog, seat
        self.acts: Mapping[str, Any] = {}
        self.held: list[ClaimedRun] = []

    async def step(self, *, hold: bool = False) -> int:
        """Claim once and settle the claimed runs; with `hold`, runs of tasks are left running."""
        taken = await load_node_arguments(self.store, (await claim(self.store, self.seat, 500, TenantCursor()))[0])
        tasks = await self.catalog.task_names({c.task_id for c in taken})
        held = [c for c in taken if hold and tasks[c.task_id] not in (WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)]
        self.held += held
        ended = [(c, self._end(c, tasks[c.task_id])) for c in taken if c not in held]
        await self.end(*ended)
        return len(taken)

    async def end(self, *ended: tuple[ClaimedRun, Ending]) -> None:
        if ended:
            batch = [settle.decide(claimed, ending) for claimed, ending in ended]
            assert (await settle.settle(self.store, self.seat.worker_id, batch)).written == len(batch)

    async def all(self) -> None:
        for _ in range(200):
            if not await self.step():
                return
        raise AssertionError("there are still ready runs after 200 steps")

    def _end(self, claimed: ClaimedRun, task: str) -> Ending:
        if task == WORKFLOW_TASK:
            return Ending(outcome=Outcome.OK, opened=True)
        if task == SIGNAL_TASK:
            return failed()
        act = self.acts.get(claimed.spec.node or "", ok())
        ending: Ending = act(claimed) if callable(act) else act
        return ending


async def join_worker(store: Store, catalog: Catalog, *tasks: str) -> ManualWorker:
    """Join a worker for `demo` and these tasks."""
    every = ("demo", *tasks, WORKFLOW_TASK, WAIT_TASK, SIGNAL_TASK)
    task_ids, pools = await catalog.task_ids(every), await catalog.pool_ids(["short"])
    numbers = [task_ids[task] for task in every]
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=numbers)
    seat = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pools["short"], task_ids=numbers)
    return ManualWorker(store, catalog, seat)


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A workflow document; nodes without another kind run the task `demo`."""
    other = {"wait", "signal", "workflow", "task"}
    return {"nodes": [n if other & n.keys() else {"task": "demo", **n} for n in nodes], **more}


async def start(api: httpx2.AsyncClient, *nodes: dict[str, Any], name: str = "etl", **more: Any) -> str:
    """Create a workflow of these nodes and start it; returns the id of the run."""
    made = await api.post(f"{API}/jobs", json={"name": name, "workflow": document(*nodes, **more)})
    assert made.status_code == 202, made.text
    run = await api.post(f"{API}/jobs/{name}/run")
    assert run.status_code == 202, run.text
    run_id: str = run.json()["run_id"]
    return run_id
