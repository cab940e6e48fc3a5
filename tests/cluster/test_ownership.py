"""Worker processes of several versions of one app: which jobs it has, which are orphans, and how a rollback works."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellringer.store import apps, events, jobs
from bellringer.store.connection_pool import Store
from bellringer.store.jobs import JobFilter

from .conftest import Processes, until

pytestmark = pytest.mark.cluster

APP = """
import os

from bellringer import App, every

app = App(name="billing", orphans=os.environ["ORPHANS"])

for name in os.environ["JOBS"].split(","):
    app.schedule(every("1h"))(app.task(name=name)(lambda: None))
"""


class Deployment:
    """Workers of an app whose jobs and version are given by the environment."""

    def __init__(self, folder: Path, store: Store, processes: Processes) -> None:
        self._app = folder / "billing.py"
        self._app.write_text(APP)
        self._store = store
        self._processes = processes

    async def start(self, version: str, *names: str, orphans: str = "keep", count: int = 1) -> list[int]:
        """Start workers, wait until they have joined, and return their process ids."""
        joined = "select count(*) from workers where state = 'live' and pid = any ($1)"
        variables = {"BELLRINGER_APP_VERSION": version, "JOBS": ",".join(names), "ORPHANS": orphans}
        started = [self._processes.worker(f"v{version}", self._app, **variables) for _ in range(count)]
        pids = [process.pid for process in started]
        await until(lambda: self._is(joined, pids, count), 60, "workers have joined")
        return pids

    async def _is(self, query: str, argument: object, expected: int) -> bool:
        return bool(await self._store.pool.fetchval(query, argument) == expected)

    async def orphans(self) -> list[str]:
        found, _ = await jobs.page(self._store, 1, JobFilter(orphaned=True), most=10)
        return sorted(job.name for job in found)

    async def events(self) -> list[tuple[str, str | None]]:
        return [(event.kind, event.job) for event in reversed(await events.newest(self._store, 1, None, 50))]


@pytest.fixture
def deployment(tmp_path: Path, store: Store, processes: Processes) -> Deployment:
    return Deployment(tmp_path, store, processes)


async def test_a_job_is_declared_removed_and_declared_again(deployment: Deployment, store: Store) -> None:
    await deployment.start("1", "report", "sync")
    assert await deployment.orphans() == []
    await deployment.start("2", "report", orphans="pause")
    assert await deployment.orphans() == ["sync"]
    await deployment.start("1", "report", "sync")  # a process of the old version starts again
    assert await deployment.orphans() == ["sync"]
    await deployment.start("3", "report", "sync", orphans="pause")
    assert await deployment.orphans() == []
    assert await deployment.events() == [("orphaned", "sync"), ("adopted", "sync")]
    assert await store.pool.fetchval("select count(*) from jobs where paused_at is not null") == 0
    who = await store.pool.fetch("select who from audit where action = any ($1) order by audit_id",
                                 ["job.paused", "job.resumed"])  # fmt: skip
    assert [row["who"] for row in who] == ["app billing 2", "app billing 3"]
    assert [v.version for v in await apps.versions(store, 1, "billing")] == ["3", "2", "1"]


async def test_a_rolling_deploy_with_old_and_new_processes_does_not_flap(deployment: Deployment) -> None:
    await deployment.start("1", "report", "sync", count=2)
    await deployment.start("2", "report", "mail")
    for _ in range(2):
        await deployment.start("1", "report", "sync")
        await deployment.start("2", "report", "mail")
    assert await deployment.orphans() == ["sync"]
    assert await deployment.events() == [("orphaned", "sync")]


async def test_workers_of_a_version_that_is_activated_declare_their_jobs(deployment: Deployment, store: Store) -> None:
    await deployment.start("1", "report", "sync")
    await deployment.start("2", "report")
    await deployment.start("1", "report", "sync")  # the rollback: these workers start while version 2 is current
    assert await deployment.orphans() == ["sync"]
    assert await apps.activate(store, 1, "billing", "1", "alice")

    async def is_adopted() -> bool:
        return await deployment.orphans() == []

    await until(is_adopted, 40, "the job is declared again")
    assert (await deployment.events())[-1] == ("adopted", "sync")
