"""Workflows under fire: workers are killed in the middle of their nodes, and the only scheduler too."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from bellringer.cli import cli
from bellringer.core.jobs import WORKFLOW_TASK, Definition
from bellringer.core.policies import Overlap
from bellringer.engine.register import create
from bellringer.schedule import every
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog

from .conftest import Processes, until
from .workflow_node import ELEMENTS

NODE = Path(__file__).with_name("workflow_node.py")
JOBS, SECONDS, KILLS = 6, 10, 4
RUNS = JOBS * SECONDS
DOCUMENT = {  # a diamond, a map, and what they all come to
    "output": "sum",
    "nodes": [
        {"name": "split", "task": "split"},
        {"name": "left", "task": "work", "after": ["split"]},
        {"name": "right", "task": "work", "after": ["split"]},
        {"name": "each", "task": "work", "over": {"node": "split"}, "takes": {"x": {"item": True}}, "max_parallel": 12},
        {"name": "sum", "task": "gather",
         "takes": {"xs": {"node": "each"}, "left": {"node": "left"}, "right": {"node": "right"}}},
    ],
}  # fmt: skip
HELD = """
    select count(*) > 3 from queue q join workers w using (worker_id) where w.name = $1 and q.cause = 'workflow'"""
NODES = 4 + ELEMENTS  # runs of them


class Workers:
    """Workers that write down what they execute."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn, self._folder = dsn, folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, str(NODE), self._dsn, name, str(self._folder)]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._started.append(process)
        return process

    def executed(self) -> Counter[tuple[str, int]]:
        """How often each attempt of each run was begun."""
        lines = [line.split() for file in self._folder.iterdir() for line in file.read_text().splitlines()]
        return Counter((run_id, int(attempt)) for run_id, attempt in lines)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def workers(dsn: str, tmp_path: Path) -> Iterator[Workers]:
    started = Workers(dsn, tmp_path)
    yield started
    started.end()


async def kill_one_after_another(store: Store, workers: Workers) -> None:
    """A worker that has nodes under way is killed, and another takes its place, while there is work."""
    for number in range(KILLS):
        name = f"victim {number}"
        victim = workers.start(name)

        async def busy_or_over(name: str = name) -> bool:
            return bool(await store.pool.fetchval(HELD, name)) or await all_ended(store)

        await until(busy_or_over, 60, f"{name} has nodes under way")
        victim.kill()
        await asyncio.sleep(2)


async def all_ended(store: Store) -> bool:
    return bool(await store.pool.fetchval("select count(*) from flows where finished_at is not null") == RUNS)


@pytest.mark.cluster
async def test_every_workflow_run_succeeds_though_workers_and_the_scheduler_are_killed(
    store: Store, catalog: Catalog, processes: Processes, workers: Workers, dsn: str
) -> None:
    scheduler = processes.start("scheduler", "first")
    workers.start("steady")
    starts = (await store.now()).replace(microsecond=0) + timedelta(seconds=4)
    terms = {"task": WORKFLOW_TASK, "workflow": DOCUMENT, "overlap": Overlap.ALLOW, "schedules": (every("1s"),)}
    last = starts + timedelta(seconds=SECONDS - 1)
    jobs = [Definition(name=f"flow {n}", starts_at=starts, ends_at=last, **terms) for n in range(JOBS)]  # type: ignore[arg-type]
    await create(store, catalog, jobs, tenant_id=1, who="me")

    async def some_opened() -> bool:
        return bool(await store.pool.fetchval("select count(*) from flows") >= JOBS)

    await until(some_opened, 30, "the first runs are opened")
    killing = asyncio.ensure_future(kill_one_after_another(store, workers))
    scheduler.kill()
    processes.start("scheduler", "second")
    await killing
    await until(lambda: all_ended(store), 90, "all workflow runs have ended")
    await judge(store, workers)
    processes.end()
    workers.end()
    await found_clean(store, dsn)


async def judge(store: Store, workers: Workers) -> None:
    pool = store.pool
    assert (
        await pool.fetchval("select count(*) from flows where state <> 'succeeded' or busy <> 0 or unfinished <> 0")
        == 0
    )
    assert await pool.fetchval("select (select count(*) from queue) + (select count(*) from timers)") == 0
    results = await pool.fetch("select result::text from attempts join jobs using (job_id) where ends_as = 'succeeded'")
    assert [row[0] for row in results] == [str(sum(range(ELEMENTS)))] * RUNS, "each once, out of all its elements"
    told = await pool.fetch(
        "select job_id, scheduled_for, slot, array_agg(outcome::text order by attempt) as outcomes from attempts a"
        " where exists (select 1 from flows f where f.flow_id = a.job_id) group by 1, 2, 3"
    )
    assert len(told) == RUNS * NODES
    assert all(row["outcomes"][-1] == "ok" and set(row["outcomes"][:-1]) <= {"lost"} for row in told), (
        "only losses double"
    )
    lost = sum(len(row["outcomes"]) - 1 for row in told)
    executed = workers.executed()
    assert lost > 0, "the kills struck in the middle"
    assert set(executed.values()) == {1}, "no attempt was executed twice"
    assert RUNS * NODES <= len(executed) <= RUNS * NODES + lost


async def found_clean(store: Store, dsn: str) -> None:
    """`bellringer verify`, a while later: it does not judge what may still be on its way."""
    await store.pool.execute(
        "create or replace function bellringer.now() returns timestamptz language sql stable as"
        " 'select pg_catalog.now() + interval ''90 s'''"
    )
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["verify"], None, {"BELLRINGER_DSN": dsn})
    assert result.exit_code == 0, result.output
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert (lines["created"], lines["verdict"]) == (str(RUNS), "clean"), result.output
