"""When a worker claims: at notifications of its pool, and when the end of a run may let another one start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bellringer.clock import SystemClock
from bellringer.core.tasks import Registry, make_task
from bellringer.engine.claim import ClaimSpec
from bellringer.engine.send import SendSpec, send
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queue import ClaimedRun
from bellringer.worker import service
from bellringer.worker.service import Worker, WorkerSettings
from bellringer.worker.work_source import DatabaseSource


class RecordingSource(DatabaseSource):
    """Records the pools for which the worker claims."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.claimed: list[int] = []

    async def take(self, spec: ClaimSpec, most: int, *, behind: int) -> tuple[list[ClaimedRun], bool]:
        self.claimed.append(spec.pool_id)
        return await super().take(spec, most, behind=behind)


@pytest.fixture(autouse=True)
def _without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS", "IDLE_POLL_SECONDS"):
        monkeypatch.setattr(service, name, 300.0)


@asynccontextmanager
async def working(store: Store, registry: Registry, *pools: str) -> AsyncIterator[tuple[Worker, RecordingSource]]:
    """A worker that has claimed once for each of its pools and waits."""
    source, stop = RecordingSource(store), asyncio.Event()
    worker = Worker(store, registry, SystemClock(), WorkerSettings(pools=dict.fromkeys(pools, 4)), source)
    running = asyncio.create_task(worker.run(stop))
    try:
        async with asyncio.timeout(20):
            while len(source.claimed) < len(pools):  # noqa: ASYNC110 - the worker has no event for it
                await asyncio.sleep(0.01)
        yield worker, source
    finally:
        stop.set()
        await asyncio.wait_for(running, 20)


async def test_a_notification_that_names_a_pool_causes_claims_for_it_only(store: Store, catalog: Catalog) -> None:
    pools = await catalog.pool_ids(["short", "long"])
    async with working(store, Registry(), "short", "long") as (worker, source):
        source.claimed.clear()
        worker._hint(f"{(await store.now()).isoformat()};1000,-{pools['long']}")
        await asyncio.sleep(2)
        assert source.claimed == [pools["long"]] * 2, "now, and a second later"
        source.claimed.clear()
        worker._hint("")
        await asyncio.sleep(0.2)
        assert sorted(source.claimed) == sorted(pools.values())


async def test_runs_that_wait_for_a_place_in_their_pool_start_when_an_ending_is_written(
    store: Store, catalog: Catalog
) -> None:
    async def quick() -> None:
        pass

    registry = Registry()
    registry.add(make_task(quick, name="quick"))
    await catalog.pool_ids(["short"])
    await store.pool.execute("update pools set concurrency = 1 where name = 'short'")
    for _ in range(20):
        await send(store, catalog, SendSpec(task="quick"), tenant_id=1)
    async with working(store, registry, "short"), asyncio.timeout(20):
        succeeded = "select count(*) from attempts where ends_as = 'succeeded'"
        while await store.pool.fetchval(succeeded) < 20:  # noqa: ASYNC110 - the database has no event for it
            await asyncio.sleep(0.05)
