"""Filters of runs, replays, groups of dead letters and operations on the command line, against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bellringer.api.endpoints import dead_letters as endpoint
from bellringer.core.jobs import Definition
from bellringer.core.policies import Overlap
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import Ending, Outcome
from bellringer.engine import send
from bellringer.engine.claim import ClaimSpec, TenantCursor, claim
from bellringer.engine.operations import OperationCursor, run_operations
from bellringer.engine.register import create
from bellringer.engine.settle import decide, settle
from bellringer.store import workers
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.workers import WorkerRegistration

Ask = Callable[..., Awaitable[tuple[str, str]]]
FAILED = Ending(outcome=Outcome.FAILED, error={"type": "KeyError", "message": "no 7"})


@pytest.fixture
async def dead(store: Store, catalog: Catalog) -> list[str]:
    """The ids of three runs of `demo` that died of the same."""
    order = send.SendSpec(task="demo", retry=Retry.parse(1))
    made = [(await send.send(store, catalog, order, tenant_id=1)).key.id for _ in range(3)]
    task, pool = await catalog.task_ids(["demo"]), await catalog.pool_ids(["short"])
    who = WorkerRegistration(name="w", host="h", pid=1, version="1", pools={"short": 4}, task_ids=[task["demo"]])
    seat = ClaimSpec(worker_id=await workers.join(store, who), pool_id=pool["short"], task_ids=[task["demo"]])
    taken, _ = await claim(store, seat, 10, TenantCursor())
    assert (await settle(store, seat.worker_id, [decide(c, FAILED) for c in taken])).written == 3
    return made


@asynccontextmanager
async def working(store: Store, catalog: Catalog) -> AsyncIterator[None]:
    """A scheduler that works off operations."""

    async def work() -> None:
        turn = OperationCursor()
        while True:
            await run_operations(store, catalog, turn)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()


async def test_runs_are_listed_by_filters_and_replayed(ask: Ask, dead: list[str]) -> None:
    shown, _ = await ask("runs", "list", "--state", "dead,cancelled", "--task", "demo", "-o", "name")
    assert set(shown.split()) == set(dead)
    assert (await ask("runs", "list", "--state", "waiting"))[1] == "no runs\n"
    wrong = (await ask("runs", "list", "--state", "ded", code=2))[1]
    assert wrong == "error: unknown state 'ded'\nhint: did you mean dead?\n"
    again = json.loads((await ask("runs", "replay", dead[0], "--arg", "a=7", "--reason", "fixed", "-o", "json"))[0])
    assert (again["cause"], again["kwargs"], again["replay_of"]) == ("replay", {"a": 7}, dead[0])
    assert "replays" in (await ask("runs", "get", again["run_id"]))[0]
    waited, _ = await ask("runs", "wait", dead[1], "-o", "name", code=3)
    assert waited.strip() == dead[1]


async def test_dead_letters_are_shown_in_groups_and_redriven_by_an_operation(
    ask: Ask, dead: list[str], store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, group = (await ask("dead", "groups"))[0].splitlines()
    assert head.split() == ["COUNT", "ERROR", "LAST", "FIRST", "JOBS", "FINGERPRINT"]
    assert group.startswith("3      KeyError: no 7")
    monkeypatch.setattr(endpoint, "MAX_APPLIED_AT_ONCE", 2)
    async with working(store, catalog):
        shown, beside = await ask("dead", "redrive", "--fingerprint", group.split()[-1])
    assert (shown, "bellringer ops abort op_1" in beside) == ("redriven: 3\n", True)
    assert (await ask("runs", "list", "--state", "dead", "-o", "name"))[0] == ""


async def test_an_operation_is_planned_started_watched_and_aborted(ask: Ask, store: Store, catalog: Catalog) -> None:
    jobs = [Definition(name=f"job {n}", task="demo", tags=("books",), overlap=Overlap.ALLOW) for n in range(3)]
    await create(store, catalog, jobs, tenant_id=1, who="me")
    start = ("ops", "start", "jobs.pause", "--filter", "tag=books")
    assert (await ask(*start, "--dry-run"))[0] == "jobs.pause: 3\n"
    assert "confirmation is required" in (await ask(*start, code=2))[1]
    assert "3 match, but 9 were expected" in (await ask(*start, "--expect", "9", "--yes", code=5))[1]
    slow = (await ask(*start, "--rate", "1", "--yes", "-o", "name"))[0].strip()
    assert "aborted" in (await ask("ops", "abort", slow))[0]
    async with working(store, catalog):
        done = json.loads((await ask(*start, "--yes", "--wait", "--reason", "audit", "-o", "json"))[0])
    assert (done["state"], done["done"], done["reason"]) == ("done", 3, "audit")
    head, newest, oldest = (await ask("ops", "list"))[0].splitlines()
    assert head.split()[:3] == ["OPERATION", "STATE", "ACTION"]
    assert (newest.split()[:3], oldest.split()[1]) == ([done["operation_id"], "done", "jobs.pause"], "aborted")
    assert "3 of 3" in (await ask("ops", "get", done["operation_id"]))[0]
    assert "exactly one way" in (await ask("ops", "start", "jobs.pause", "--yes", code=2))[1]
    assert "there is no operation 'op_99'" in (await ask("ops", "get", "op_99", code=4))[1]
