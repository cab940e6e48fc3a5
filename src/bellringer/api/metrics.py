"""Prometheus metrics: this process's own counts, and gauges read from the database when they are scraped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, Service
from bellringer.api.operations import Operation, operation
from bellringer.store import cohorts, installation, leases, queue, runs, workers
from bellringer.store.pool import FAILURES, Store
from bellringer.telemetry import (
    DB_CONNECTIONS,
    DEAD_LETTERS,
    HEARTBEAT_AGE,
    OVERDUE,
    POOL_CONCURRENCY,
    POOL_OLDEST,
    POOL_RUNS,
    POOL_SLOTS,
    POOL_WORKERS,
    QUEUE_DEPTH,
    SATURATION,
    SHARDS_FREE,
)

REQUESTS: Final = Counter("bellringer_api_requests_total", "Requests answered", ["route", "method", "status"])
SECONDS: Final = Histogram(
    "bellringer_api_request_seconds",
    "Time to answer",
    ["route", "method"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
DATABASE_UP: Final = Gauge(
    "bellringer_database_up",
    "Whether the last scrape could read the database",
    multiprocess_mode="livemostrecent",
)

FRESH: Final = 1.0  # seconds for which the gauges hold: many scrapers cost as much as one
PATIENCE: Final = 5.0
LATE: Final = timedelta(seconds=10)
FORGOTTEN: Final = 300.0  # seconds after which a silent node is taken for gone, not for late


class Gauges:
    """Reads the database's gauges, at most once in a while."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._read_at: float | None = None
        self._labels: dict[Gauge, set[tuple[str, ...]]] = {}

    async def scrape(self, _call: Call) -> Response:
        async with self._lock:
            moment = self._service.clock.monotonic()
            if self._read_at is None or moment - self._read_at >= FRESH:
                await self._refresh()
                self._read_at = moment
        return Response(generate_latest(_registry()), media_type=CONTENT_TYPE_LATEST)

    async def _refresh(self) -> None:
        """A database that does not answer is a fact to be told, not a reason to tell nothing."""
        pool = self._service.store.pool
        DB_CONNECTIONS.labels("open").set(pool.get_size())
        DB_CONNECTIONS.labels("idle").set(pool.get_idle_size())
        try:
            async with asyncio.timeout(PATIENCE):
                await self._read(self._service.store)
        except FAILURES:
            DATABASE_UP.set(0)
        else:
            DATABASE_UP.set(1)

    async def _read(self, store: Store) -> None:
        depths = await queue.depths(store)
        states = ("ready", "running", "blocked")
        self._set(QUEUE_DEPTH, {(d["pool"], state): d[state] for d in depths for state in states})
        await self._signal(store)
        OVERDUE.set(await cohorts.overdue(store, LATE))
        self._set(DEAD_LETTERS, {(task,): count for task, count in (await runs.dead_count(store)).items()})
        table = await leases.table(store)
        SHARDS_FREE.set(sum(row.holder is None or row.seconds_left <= 0 for row in table))
        present = [w for w in await workers.listing(store) if w.state in {"live", "draining"}]
        nodes = [node.age for node in await leases.nodes(store) if node.age < FORGOTTEN]
        ages: dict[tuple[str, ...], float]
        ages = {("node",): max(nodes, default=0.0), ("worker",): max((w.age for w in present), default=0.0)}
        self._set(HEARTBEAT_AGE, ages)

    async def _signal(self, store: Store) -> None:
        """What those go by who decide how many workers there are to be. How busy a pool is, the queue tells, and not
        the workers: one of several pools tells only how busy it is in all of them.
        """
        found = await installation.signals(store)
        states = ("ready", "sent", "busy")
        self._set(POOL_RUNS, {(s.pool, state): getattr(s, state) for s in found for state in states})
        self._set(POOL_OLDEST, {(s.pool,): s.oldest for s in found})
        self._set(POOL_SLOTS, {(s.pool,): s.slots for s in found})
        self._set(POOL_WORKERS, {(s.pool,): s.workers for s in found})
        self._set(SATURATION, {(s.pool,): s.busy / s.slots for s in found if s.slots})
        self._set(POOL_CONCURRENCY, {(s.pool,): (s.busy + s.sent) / s.concurrency for s in found if s.concurrency})

    def _set(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge's children; those that are gone become 0, since shared files cannot forget them."""
        gone = self._labels.get(gauge, set()) - values.keys()
        for labels, value in [*values.items(), *((labels, 0.0) for labels in gone)]:
            gauge.labels(*labels).set(value)
        self._labels[gauge] = set(values)


def _registry() -> CollectorRegistry:
    """With several processes, what all of them wrote; they share a folder that the environment names."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def scraping(service: Service) -> Operation:
    """The endpoint that Prometheus reads."""
    gauges = Gauges(service)

    @operation("service", role=Role.VIEWER, everywhere=True, answers={200: "text/plain"})
    async def scrape(call: Call) -> Response:
        """Metrics, as Prometheus reads them."""
        return await gauges.scrape(call)

    return scrape
