"""A real worker with a coroutine that blocks: its neighbours are on time, and everybody can see who it was."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from bellringer.clock import SystemClock
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import FINAL_STATES, RunKey, State
from bellringer.core.tasks import Registry, make_task
from bellringer.engine import explain
from bellringer.engine.send import SendSpec, send
from bellringer.store import events, runs
from bellringer.store.connection_pool import Store
from bellringer.store.events import EventKind
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import BLOCKED_LOOP
from bellringer.worker.service import Worker, WorkerSettings


async def test_quick_coroutines_beside_one_that_sleeps_for_30_seconds(store: Store, catalog: Catalog) -> None:
    started: Counter[int] = Counter()
    lateness: list[float] = []

    async def nap() -> None:
        time.sleep(30)  # noqa: ASYNC251 - that is what is tested

    async def patient() -> str:
        await asyncio.sleep(0.5)
        return "went on"

    async def quick(ctx: Any, number: int) -> int:
        started[number] += 1
        lateness.append(ctx.lateness.total_seconds())
        await asyncio.sleep(0.05)
        return number

    registry = Registry()
    for function in (nap, patient, quick):
        registry.add(make_task(function, name=function.__name__))
    settings = WorkerSettings(pools={"short": 40}, block_limit=timedelta(seconds=3), grace=timedelta(0))
    worker = Worker(store, registry, SystemClock(), settings)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    async def sent(task: str, *args: Any, attempts: int = 3) -> RunKey:
        order = SendSpec(task=task, args=list(args), retry=Retry(attempts=attempts))
        return (await send(store, catalog, order, tenant_id=1)).key

    async def ended(key: RunKey) -> runs.RunRow:
        for _ in range(400):
            run = await runs.get(store, key, 1)
            if run is not None and run.state in FINAL_STATES:
                return run
            await asyncio.sleep(0.05)
        raise AssertionError(f"it never ended: {run}")

    before = BLOCKED_LOOP.labels("nap")._value.get()
    beside = await sent("patient")
    await asyncio.sleep(0.2)
    blocking = await sent("nap", attempts=1)
    keys = []
    for batch in range(5):
        keys += [await sent("quick", batch * 10 + number) for number in range(10)]
        await asyncio.sleep(0.4)
    found = [await ended(key) for key in keys]
    assert [(run.state, run.attempt, run.result) for run in found] == [(State.SUCCEEDED, 1, n) for n in range(50)]
    assert set(started.values()) == {1}
    assert max(lateness) < 2.0

    whys = (await explain.load_run_explanation(store, beside, tenant_id=1)).reasons
    assert any("is blocked for" in why.text and f"by task nap (run {blocking.id})" in why.text for why in whys)
    dead = await ended(blocking)
    assert dead.state is State.DEAD
    assert dead.error["type"] == "BlockedEventLoop"
    assert "time.sleep(30)" in dead.error["traceback"]
    [event] = await events.newest(store, 1, None, 10, kind=EventKind.BLOCKED_LOOP)
    assert (event.key, event.attempt, event.data["task"]) == (blocking, 1, "nap")
    assert event.data["beside"] == [beside.id]
    assert "time.sleep(30)" in event.data["stack"]
    assert BLOCKED_LOOP.labels("nap")._value.get() == before + 1
    text = " ".join(
        reason.text for reason in (await explain.load_run_explanation(store, blocking, tenant_id=1)).reasons
    )
    assert "the handler is blocking the event loop of its worker" in text
    state = await store.pool.fetchval("select state from workers where worker_id = $1", worker.worker_id)
    assert state == "live"
    stop.set()
    await running
