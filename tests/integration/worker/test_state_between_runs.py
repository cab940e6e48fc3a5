"""A real worker: progress details, last results and deadlines, in all three lanes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bellringer.clock import SystemClock
from bellringer.core.jobs import Definition
from bellringer.core.retry_policy import Retry
from bellringer.core.runs import RunKey, State
from bellringer.core.tasks import Registry, Task, make_task
from bellringer.engine import register
from bellringer.engine.send import SendSpec, send, trigger
from bellringer.store import runs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.worker.app_loader import load_target
from bellringer.worker.context import Context
from bellringer.worker.service import Worker, WorkerSettings

LANES = ("resume_async", "resume_thread", "resume_process")
APP = """
from typing import Any

from bellringer import App, Context

app = App()


def work(ctx: Context) -> Any:
    ctx.progress(ctx.attempt, details={"attempt": ctx.attempt, "from": ctx.resume_from})
    if ctx.attempt < 3:
        raise ValueError("again")
    return ctx.resume_from


@app.task(name="resume_async")
async def resume_async(ctx: Context) -> Any:
    return work(ctx)


@app.task(name="resume_thread")
def resume_thread(ctx: Context) -> Any:
    return work(ctx)


@app.task(name="resume_process", isolation="process")
def resume_process(ctx: Context) -> Any:
    return work(ctx)


@app.task(name="count_async", keep_result=True)
async def count_async(ctx: Context) -> Any:
    return (ctx.last_result or 0) + 1


@app.task(name="count_thread", keep_result=True)
def count_thread(ctx: Context) -> Any:
    return (ctx.last_result or 0) + 1


@app.task(name="count_process", keep_result=True, isolation="process")
def count_process(ctx: Context) -> Any:
    return (ctx.last_result or 0) + 1
"""


@pytest.fixture(scope="session")
def app_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("app") / "app_with_state.py"
    path.write_text(APP)
    return path


@asynccontextmanager
async def working(
    store: Store, registry: Registry, *, target: str | None = None, slots: int = 4, grace: float = 5
) -> AsyncIterator[Worker]:
    stop = asyncio.Event()
    settings = WorkerSettings(pools={"short": slots}, target=target, grace=timedelta(seconds=grace))
    worker = Worker(store, registry, SystemClock(), settings)
    running = asyncio.create_task(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        await asyncio.wait_for(running, 20)


async def ended(store: Store, key: RunKey) -> Any:
    for _ in range(1000):
        run = await runs.get(store, key, 1)
        assert run is not None
        if run.state in (State.SUCCEEDED, State.DEAD, State.SKIPPED, State.CANCELLED):
            return run
        await asyncio.sleep(0.02)
    raise AssertionError(f"the run has not ended: {run}")


async def test_details_reported_right_before_an_error_reach_the_next_attempt(
    store: Store, catalog: Catalog, app_file: Path
) -> None:
    retry = Retry(3, delays=[0.01])
    keys = [(await send(store, catalog, SendSpec(task=lane, retry=retry), tenant_id=1)).key for lane in LANES]
    async with working(store, load_target(str(app_file)).registry, target=str(app_file)):
        results = [(await ended(store, key)).result for key in keys]
    assert results == [{"attempt": 2, "from": {"attempt": 1, "from": None}}] * 3


@pytest.mark.parametrize("task", ["count_async", "count_thread", "count_process"])
async def test_each_run_of_a_job_reads_the_result_of_the_one_before(
    store: Store, catalog: Catalog, app_file: Path, task: str
) -> None:
    definition = Definition(name="counter", task=task, keep_result=True)
    [job] = await register.create(store, catalog, [definition], tenant_id=1, who="me")
    found = []
    async with working(store, load_target(str(app_file)).registry, target=str(app_file)):
        for _ in range(3):
            key = await trigger(store, job.job_id, tenant_id=1)
            found.append((await ended(store, key)).result)
    assert found == [1, 2, 3]


async def test_a_job_that_keeps_no_results_says_so(store: Store, catalog: Catalog, app_file: Path) -> None:
    definition = Definition(name="counter", task="count_thread", retry=Retry(1))
    [job] = await register.create(store, catalog, [definition], tenant_id=1, who="me")
    async with working(store, load_target(str(app_file)).registry, target=str(app_file)):
        run = await ended(store, await trigger(store, job.job_id, tenant_id=1))
    assert run.error["message"].startswith("the job counter does not keep the results of its runs")


async def test_a_run_that_expires_while_it_waits_for_a_slot_is_never_executed(store: Store, catalog: Catalog) -> None:
    release, calls = asyncio.Event(), []

    async def slow() -> None:
        while not release.is_set():  # noqa: ASYNC110 - it is set on another loop
            await asyncio.sleep(0.01)

    def urgent() -> None:
        calls.append(1)

    registry = Registry()
    registry.add(make_task(slow, name="slow"))
    registry.add(make_task(urgent, name="urgent"))
    first = await send(store, catalog, SendSpec(task="slow", priority=9), tenant_id=1)
    second = await send(store, catalog, SendSpec(task="urgent", expires_in=timedelta(seconds=1)), tenant_id=1)
    async with working(store, registry, slots=1):
        await asyncio.sleep(1.2)
        release.set()
        assert (await ended(store, second.key)).state is State.SKIPPED
        assert (await ended(store, first.key)).state is State.SUCCEEDED
    assert calls == []


async def test_a_worker_that_stops_leaves_the_last_details(store: Store, catalog: Catalog) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def endless(ctx: Context) -> None:
        await ctx.progress(1, details={"page": 7})
        loop.call_soon_threadsafe(begun.set)
        await asyncio.sleep(300)

    registry = Registry()
    registry.add(_task(endless))
    await send(store, catalog, SendSpec(task="endless"), tenant_id=1)
    async with working(store, registry, grace=0):
        await asyncio.wait_for(begun.wait(), 20)
    assert await store.pool.fetchval("select resume_from ->> 'page' from queue") == "7"


def _task(function: Any) -> Task:
    return make_task(function, name=function.__name__)
