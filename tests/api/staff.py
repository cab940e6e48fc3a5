"""One worker by hand, for tests of workflows over the API: it executes nodes as a test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from bellringer.jobs import SIGNAL, WAIT, WORKFLOW
from bellringer.lifecycle import settle
from bellringer.lifecycle.claim import Seat, Turn, claim
from bellringer.lifecycle.fill import fill
from bellringer.runs import Ending, Outcome
from bellringer.store import workers
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queue import Claimed
from bellringer.store.workers import Introduction

API = "/api/v1"


def ok(result: Any = None) -> Ending:
    return Ending(outcome=Outcome.OK, result=result)


def failed() -> Ending:
    return Ending(outcome=Outcome.FAILED, error={"type": "ValueError", "message": "no"}, final="for good")


class Staff:
    """Executes what is ready; `acts` says how nodes end, by their names: an ending, or what makes one."""

    def __init__(self, store: Store, names: Names, seat: Seat) -> None:
        self.store, self.names, self.seat = store, names, seat
        self.acts: Mapping[str, Any] = {}
        self.held: list[Claimed] = []

    async def step(self, *, hold: bool = False) -> int:
        """Claim once, and end what was claimed; with `hold` tasks are left running."""
        taken = await fill(self.store, (await claim(self.store, self.seat, 500, Turn()))[0])
        tasks = await self.names.task_names({c.task_id for c in taken})
        held = [c for c in taken if hold and tasks[c.task_id] not in (WORKFLOW, WAIT, SIGNAL)]
        self.held += held
        ended = [(c, self._end(c, tasks[c.task_id])) for c in taken if c not in held]
        await self.end(*ended)
        return len(taken)

    async def end(self, *ended: tuple[Claimed, Ending]) -> None:
        if ended:
            batch = [settle.decide(claimed, ending) for claimed, ending in ended]
            assert await settle.settle(self.store, self.seat.worker_id, batch) == len(batch)

    async def all(self) -> None:
        for _ in range(200):
            if not await self.step():
                return
        raise AssertionError("it never came to rest")

    def _end(self, claimed: Claimed, task: str) -> Ending:
        if task == WORKFLOW:
            return Ending(outcome=Outcome.OK, opened=True)
        if task == SIGNAL:
            return failed()
        act = self.acts.get(claimed.spec.node or "", ok())
        ending: Ending = act(claimed) if callable(act) else act
        return ending


async def hire(store: Store, names: Names, *tasks: str) -> Staff:
    """A worker that knows these tasks, `demo` among them."""
    every = ("demo", *tasks, WORKFLOW, WAIT, SIGNAL)
    task_ids, pools = await names.task_ids(every), await names.pool_ids(["short"])
    numbers = [task_ids[task] for task in every]
    who = Introduction(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=numbers)
    seat = Seat(worker_id=await workers.join(store, who), pool_id=pools["short"], task_ids=numbers)
    return Staff(store, names, seat)


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A workflow of nodes that run `demo`, if they do nothing else."""
    other = {"wait", "signal", "workflow", "task"}
    return {"nodes": [n if other & n.keys() else {"task": "demo", **n} for n in nodes], **more}


async def start(api: httpx2.AsyncClient, *nodes: dict[str, Any], name: str = "etl", **more: Any) -> str:
    """Make a workflow of these nodes, and a run of it; answers the id of the run."""
    made = await api.post(f"{API}/jobs", json={"name": name, "workflow": document(*nodes, **more)})
    assert made.status_code == 202, made.text
    run = await api.post(f"{API}/jobs/{name}/run")
    assert run.status_code == 202, run.text
    run_id: str = run.json()["run_id"]
    return run_id
