"""Compares a map with fan-in with as many plain runs, and measures the hops of a chain of no-op nodes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import msgspec

from bellringer.bench.processes import running
from bellringer.clock import SystemClock
from bellringer.core.jobs import DEFAULT_POOL, WORKFLOW_TASK, Definition
from bellringer.core.runs import RunKey
from bellringer.engine.register import create
from bellringer.engine.send import trigger
from bellringer.errors import Unavailable
from bellringer.sdk.app import App
from bellringer.store import partitions
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.queries import load

_SQL = load("workflow", "bellringer.bench")
_CLOCK: Final = SystemClock()
SAME: Final = "bench.same"
TRIES: Final = 3
WARM: Final = 200  # elements, nodes and runs before the measurement, to fill caches and plans
JOIN_LIMIT: Final = 60.0
MEASUREMENT_TIMEOUT_SECONDS: Final = 600.0

app = App(name="bench workflow")


@app.task(name="bench.digits")
async def digits(count: int) -> list[int]:
    return _digits(count)


@app.task(name=SAME)
async def same(n: int) -> int:
    return n


@app.task(name="bench.total")
async def total(values: list[int]) -> int:
    return sum(values)


@app.task(name="bench.link")
async def link() -> float:
    """Return the start time by the worker's clock; a chain has one worker, so its times are comparable."""
    return _CLOCK.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflows:
    """Seconds of each try, alternating; ratios compare the best tries, because other load only adds time.

    `ratio` compares the map with plain runs that were ready at the start. The time of the map includes the creation of
    its runs; `ratio_with_births` also includes the creation of the plain runs. A hop is the time from the start of one
    node to the start of the next.
    """

    nodes: int
    slots: int
    map_seconds: list[float]
    plain_seconds: list[float]
    plain_birth_seconds: list[float]
    ratio: float
    ratio_with_births: float
    map_nodes_per_second: float
    chain: int
    chain_seconds: float
    hop_ms: dict[str, float]


async def workflows(dsn: str, nodes: int, chain: int, slots: int) -> Workflows:
    store = await Store.open(dsn, size=4)
    try:
        with running(dsn, ("scheduler",), ("worker", f"{__name__}:app", "--pool", f"{DEFAULT_POOL}={slots}")):
            await _joined(store)
            bench = _WorkflowMeasurements(store)
            await bench.mapped(WARM)
            await bench.plain(WARM)
            await bench.chained(WARM)
            maps, plains = [], []
            for _ in range(TRIES):
                maps.append(await bench.mapped(nodes))
                plains.append(await bench.plain(nodes))
            starts = await bench.chained(chain)
    finally:
        await store.close()
    ready, whole = min(after for _, after in plains), min(sum(both) for both in plains)
    return Workflows(
        nodes=nodes,
        slots=slots,
        map_seconds=_rounded(maps),
        plain_seconds=_rounded([after for _, after in plains]),
        plain_birth_seconds=_rounded([birth for birth, _ in plains]),
        ratio=round(min(maps) / ready, 3),
        ratio_with_births=round(min(maps) / whole, 3),
        map_nodes_per_second=round(nodes / min(maps), 1),
        chain=chain,
        chain_seconds=round(starts[-1] - starts[0], 3),
        hop_ms=_hops(starts),
    )


class _WorkflowMeasurements:
    """The measurements, in one database with one worker; each leaves the queue empty."""

    def __init__(self, store: Store) -> None:
        self._store, self._catalog = store, Catalog(store)

    async def mapped(self, nodes: int) -> float:
        """Returns the seconds from the request of a workflow run to its end."""
        document = {
            "nodes": [
                {"name": "list", "task": "bench.digits", "kwargs": {"count": nodes}},
                {
                    "name": "each",
                    "task": SAME,
                    "over": {"node": "list"},
                    "takes": {"n": {"item": True}},
                    "max_items": nodes,
                },
                {"name": "total", "task": "bench.total", "takes": {"values": {"node": "each"}}},
            ],
            "output": "total",
        }
        key, seconds = await self._run(document)
        result = await self._store.pool.fetchval(_SQL.result, key.job_id, key.scheduled_for, key.slot)
        if result is None or msgspec.json.decode(result) != sum(_digits(nodes)):
            raise AssertionError(f"a map of {nodes} elements has the result {result}")
        return seconds

    async def chained(self, length: int) -> list[float]:
        """Returns the start time of each node of a chain."""
        nodes: list[dict[str, Any]] = [{"name": f"n{number}", "task": "bench.link"} for number in range(length)]
        for before, node in pairwise(nodes):
            node["after"] = [before["name"]]
        key, _ = await self._run({"nodes": nodes})
        starts = [row[0] for row in await self._store.pool.fetch(_SQL.starts, key.job_id, key.scheduled_for, key.slot)]
        if len(starts) != length or starts != sorted(starts):
            raise AssertionError(f"a chain of {length} has {len(starts)} links, or not one after another")
        return starts

    async def plain(self, runs: int) -> tuple[float, float]:
        """Returns the seconds to create this many runs in one statement, and from then until all of them have ended."""
        task_id = (await self._catalog.task_ids([SAME]))[SAME]
        pool_id = (await self._catalog.pool_ids([DEFAULT_POOL]))[DEFAULT_POOL]
        await self._tidy()
        at = await self._store.now()
        await partitions.ensure_days(self._store, {at.date(), (at + timedelta(days=1)).date()})
        began = _CLOCK.monotonic()
        await self._store.pool.execute(_SQL.ready, at, runs, task_id, pool_id)
        born = _CLOCK.monotonic()
        await _until(self._store, _SQL.empty)
        ended = _CLOCK.monotonic()
        if (done := await self._store.pool.fetchval(_SQL.succeeded, at)) != runs:
            raise AssertionError(f"{runs} runs, {done} succeeded")
        return born - began, ended - born

    async def _run(self, document: dict[str, Any]) -> tuple[RunKey, float]:
        definition = Definition(name=f"flow {_CLOCK.monotonic()}", task=WORKFLOW_TASK, workflow=document)
        [job] = await create(self._store, self._catalog, [definition], tenant_id=1, who="bench")
        await self._tidy()
        began = _CLOCK.monotonic()
        key = await trigger(self._store, job.job_id, tenant_id=1)
        await _until(self._store, _SQL.empty)
        return key, _CLOCK.monotonic() - began

    async def _tidy(self) -> None:
        """Remove what an earlier measurement left behind."""
        for table in ("queue", "flow_nodes"):
            await self._store.pool.execute(f"vacuum analyze {table}")


def _digits(count: int) -> list[int]:
    """Small values, so that the list for the largest map stays below the size limit of results."""
    return [number % 10 for number in range(count)]


def _hops(starts: list[float]) -> dict[str, float]:
    gaps = sorted((after - before) * 1000 for before, after in pairwise(starts))
    last = len(gaps) - 1
    return {name: round(gaps[int(last * part)], 2) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def _rounded(seconds: list[float]) -> list[float]:
    return [round(each, 3) for each in seconds]


async def _joined(store: Store) -> None:
    try:
        await _until(store, _SQL.joined, JOIN_LIMIT)
    except TimeoutError:
        hint = f"see what `bellringer worker {__name__}:app` says"
        raise Unavailable(f"no worker has joined within {JOIN_LIMIT:.0f} s", hint=hint) from None


async def _until(store: Store, query: str, limit: float = MEASUREMENT_TIMEOUT_SECONDS) -> None:
    async with asyncio.timeout(limit):
        while not await store.pool.fetchval(query):
            await asyncio.sleep(0.01)
