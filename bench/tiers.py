"""Measures whether short runs wait longer while long runs hold every slot of the long pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from bellringer.bench.processes import running
from bellringer.core.jobs import DEFAULT_POOL, LONG_POOL
from bellringer.sdk.app import App
from bellringer.store import partitions
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load

_SQL = load("tiers", "bench")
TRY_TIMEOUT_SECONDS: Final = 300.0
LONG_RUN_SECONDS: Final = 1_800
NAP: Final = "bench.nap"
HOLD: Final = "bench.hold"

app = App(name="bench tiers")


@app.task(name=NAP)
async def nap(seconds: float) -> None:
    """A short run that only sleeps."""
    await asyncio.sleep(seconds)


@app.task(name=HOLD, expected_duration=LONG_RUN_SECONDS)
async def hold() -> None:
    await asyncio.sleep(LONG_RUN_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """The waits of the short runs in each try, from when they could have started; `ratio` compares the best p99s,
    because other load only adds time."""

    runs: int
    short_slots: int
    long_slots: int
    alone_ms: list[dict[str, float]]
    beside_ms: list[dict[str, float]]
    ratio: float


async def tiers(dsn: str, runs: int, short: int, long: int, nap_ms: float = 100.0, tries: int = 3) -> TierFigures:
    """In each try, measure the short runs alone, then with a long run in every long slot."""
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
    return TierFigures(
        runs=runs, short_slots=short, long_slots=long, alone_ms=alone, beside_ms=beside, ratio=round(ratio, 3)
    )


async def _measure(store: Store, runs: int, nap_ms: float) -> dict[str, float]:
    catalog = Catalog(store)
    pool_id = (await catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
    task_id = (await catalog.task_ids([NAP]))[NAP]
    await store.pool.execute("vacuum analyze queue")
    at = await store.now()
    await partitions.ensure_days(store, {at.date(), (at + timedelta(days=1)).date()})
    await store.pool.execute(_SQL.fill, at, runs, task_id, pool_id, f'{{"kwargs": {{"seconds": {nap_ms / 1000}}}}}')
    async with asyncio.timeout(TRY_TIMEOUT_SECONDS):
        while await store.pool.fetchval(_SQL.unended, pool_id):
            await asyncio.sleep(0.1)
    waits = await store.pool.fetchval(_SQL.waits, at)
    return {name: round(wait, 1) for name, wait in zip(("p50", "p99", "max"), waits, strict=True)}


async def _occupy(store: Store, slots: int) -> None:
    """Start a long run in every slot."""
    catalog = Catalog(store)
    pool_id = (await catalog.pool_ids([LONG_POOL]))[LONG_POOL]
    task_id = (await catalog.task_ids([HOLD]))[HOLD]
    await store.pool.execute(_SQL.fill, await store.now(), slots, task_id, pool_id, "{}")
    async with asyncio.timeout(TRY_TIMEOUT_SECONDS):
        while await store.pool.fetchval(_SQL.under_way, pool_id) < slots:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def _worker(store: Store, short: int, long: int) -> AsyncIterator[None]:
    """Run a worker for both pools; its claims are deleted at the end."""
    pools = f"{DEFAULT_POOL}={short},{LONG_POOL}={long}"
    with running(store.dsn, ("worker", f"{__name__}:app", "--pools", pools, "--grace", "0s")):
        async with asyncio.timeout(TRY_TIMEOUT_SECONDS):
            while not await store.pool.fetchval(_SQL.joined):
                await asyncio.sleep(0.1)
        yield
    await store.pool.execute("delete from queue")
