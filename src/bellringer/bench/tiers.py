"""Tiers: many short runs, alone and beside long ones that hold every slot of their own pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from bellringer.bench.processes import running
from bellringer.jobs import DEFAULT_POOL, LONG_POOL
from bellringer.sdk.app import App
from bellringer.store import history
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("tiers", "bellringer.bench")
PATIENCE: Final = 300.0  # seconds that one try may take
HELD: Final = 1_800  # seconds that a long run takes: half an hour
NAP: Final = "bench.nap"
HOLD: Final = "bench.hold"

app = App(name="bench tiers")


@app.task(name=NAP)
async def nap(seconds: float) -> None:
    """A short run, which takes its time and no processor."""
    await asyncio.sleep(seconds)


@app.task(name=HOLD, expected_duration=HELD)
async def hold() -> None:
    await asyncio.sleep(HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The waits of the short runs from when they might have started, try by try; `ratio` is that of the best p99s,
    since what else goes on in a machine only ever adds to one."""

    runs: int
    short_slots: int
    long_slots: int
    alone_ms: list[dict[str, float]]
    beside_ms: list[dict[str, float]]
    ratio: float


async def tiers(dsn: str, runs: int, short: int, long: int, nap_ms: float = 100.0, tries: int = 3) -> Tiers:
    """Try by try, in turn: the short runs alone, then beside as many long ones as there are slots for."""
    store = await Store.open(dsn, size=4)
    alone, beside = [], []
    try:
        for _ in range(tries):
            async with _worker(store, short, long):
                alone.append(await _measure(store, runs, nap_ms))
                await _occupy(store, long)
                beside.append(await _measure(store, runs, nap_ms))
    finally:
        await store.close()
    ratio = min(waits["p99"] for waits in beside) / min(waits["p99"] for waits in alone)
    return Tiers(runs=runs, short_slots=short, long_slots=long, alone_ms=alone, beside_ms=beside, ratio=round(ratio, 3))


async def _measure(store: Store, runs: int, nap_ms: float) -> dict[str, float]:
    names = Names(store)
    pool_id = (await names.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    task_id = (await names.task_ids([NAP]))[NAP]
    await store.pool.execute("vacuum analyze queue")
    at = await store.now()
    await history.ensure_days(store, {at.date(), (at + timedelta(days=1)).date()})
    await store.pool.execute(_SQL.fill, at, runs, task_id, pool_id, f'{{"kwargs": {{"seconds": {nap_ms / 1000}}}}}')
    async with asyncio.timeout(PATIENCE):
        while await store.pool.fetchval(_SQL.unended, pool_id):
            await asyncio.sleep(0.1)
    waits = await store.pool.fetchval(_SQL.waits, at)
    return {name: round(wait, 1) for name, wait in zip(("p50", "p99", "max"), waits, strict=True)}


async def _occupy(store: Store, slots: int) -> None:
    """Long runs for every slot, which are under way when this returns."""
    names = Names(store)
    pool_id = (await names.pool_ids([LONG_POOL]))[LONG_POOL]
    task_id = (await names.task_ids([HOLD]))[HOLD]
    await store.pool.execute(_SQL.fill, await store.now(), slots, task_id, pool_id, "{}")
    async with asyncio.timeout(PATIENCE):
        while await store.pool.fetchval(_SQL.under_way, pool_id) < slots:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _worker(store: Store, short: int, long: int) -> AsyncIterator[None]:
    """A worker of both pools, which has joined; what it holds when it is stopped is nobody's business any more."""
    pools = f"{DEFAULT_POOL}={short},{LONG_POOL}={long}"
    with running(store.dsn, ("worker", f"{__name__}:app", "--pools", pools, "--grace", "0s")):
        async with asyncio.timeout(PATIENCE):
            while not await store.pool.fetchval(_SQL.joined):
                await asyncio.sleep(0.1)
        yield
    await store.pool.execute("delete from queue")
