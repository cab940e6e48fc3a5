"""A scheduler in which nothing happens polls and checks less often, and still fires on time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import cast
from unittest.mock import AsyncMock, create_autospec

import pytest

from bellringer.clock import SystemClock
from bellringer.core.background_loops import Wake, run_every
from bellringer.core.broker import BrokerBackend
from bellringer.engine.send import SendSpec, send
from bellringer.scheduler import service
from bellringer.scheduler.service import Scheduler, SchedulerSettings
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.leases import PostgresLeases


def unused_broker() -> BrokerBackend:
    """A broker through which no pool is dispatched."""
    backend = create_autospec(BrokerBackend, instance=True)
    backend.name = "kafka"
    backend.broker.return_value = AsyncMock()
    return cast(BrokerBackend, backend)


@asynccontextmanager
async def idle_scheduler(
    store: Store, monkeypatch: pytest.MonkeyPatch, broker: BrokerBackend | None = None
) -> AsyncIterator[Scheduler]:
    """A running scheduler that is idle from the first second on, with steps that are then very rare."""
    monkeypatch.setattr(service, "IDLE_AFTER_SECONDS", 1.0)
    monkeypatch.setattr(service, "IDLE_SLOWDOWN", 1_000.0)
    node = Scheduler(store, PostgresLeases(store), SystemClock(), SchedulerSettings(), broker)
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(stop))
    try:
        await asyncio.sleep(3)
        assert node._is_idle()
        yield node
    finally:
        stop.set()
        await asyncio.wait_for(running, 20)


async def test_a_timer_that_was_not_announced_is_fired_ahead_of_its_time(
    store: Store, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with idle_scheduler(store, monkeypatch) as node:
        due_at: datetime = await store.now() + timedelta(seconds=6)
        await send(store, catalog, SendSpec(task="greet", at=due_at), tenant_id=1)
        assert node._is_idle(), "timers that are due later are found by polling"
        async with asyncio.timeout(20):
            while (fired_at := await store.pool.fetchval("select fired_at from runs")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert fired_at < due_at


@pytest.mark.parametrize("broker", [None, unused_broker()], ids=["database", "broker"])
async def test_a_notification_ends_the_idleness_and_wakes_the_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch, broker: BrokerBackend | None
) -> None:
    async with idle_scheduler(store, monkeypatch, broker) as node:
        passes = asyncio.Semaphore(0)

        async def step() -> None:
            passes.release()

        watched = asyncio.create_task(node._unless_idle(1.0, step, name="watched"))
        await asyncio.wait_for(passes.acquire(), 5)  # the next pass is a quarter of an hour away
        await store.pool.execute("select pg_notify('bellringer_work', '')")
        await asyncio.wait_for(passes.acquire(), 5)
        watched.cancel()


async def test_a_slowdown_lengthens_the_pause_and_a_wake_ends_it() -> None:
    wake, passes = Wake(), asyncio.Semaphore(0)

    async def step() -> None:
        passes.release()

    loop = asyncio.create_task(run_every(0.01, step, name="step", wake=wake, slowdown=lambda: 10_000.0))
    await asyncio.wait_for(passes.acquire(), 5)
    await asyncio.sleep(0.2)
    assert passes.locked()
    wake.set()
    await asyncio.wait_for(passes.acquire(), 5)
    loop.cancel()
