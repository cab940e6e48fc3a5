"""Prometheus metrics: counters of this process, and gauges read from the database when they are scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import Endpoint, operation
from bellringer.api.http.request import AppState, RequestContext
from bellringer.core.loop_progress import create_registry
from bellringer.store import (
    apps,
    cohorts,
    leases,
    load,
    pools,
    queue,
    runs,
    server_stats,
    task_pauses,
    usage,
    workers,
)
from bellringer.store.connection_pool import DATABASE_ERRORS, Store, measure_pools
from bellringer.telemetry import (
    DATABASE_BYTES,
    DATABASE_DISK_BYTES,
    DATABASE_DISK_FREE,
    DATABASE_UP,
    DEAD_LETTERS,
    DEAD_LETTERS_STORED,
    EXPECTED_OCCURRENCES,
    HEARTBEAT_AGE,
    MISSED_RATIO,
    ORPHANED_JOBS,
    OVERDUE,
    PARTITIONS_MISSING,
    PAUSED_TASKS,
    POOL_CONCURRENCY,
    POOL_OLDEST,
    POOL_OLDEST_READY,
    POOL_RUNS,
    POOL_SLOTS,
    POOL_WORKERS,
    QUEUE_DEPTH,
    SATURATION,
    SERVER_CONNECTIONS,
    SHARD_DUE,
    SHARD_FIRED,
    SHARD_SKEW,
    SHARDS_FREE,
    SILENT_CLAIMS,
    TENANT_RETRIED,
    TENANT_RUNS,
    UNKNOWN_TASKS,
)
from bellringer.wire.routes import Route

REQUESTS: Final = Counter("bellringer_api_requests_total", "Requests answered", ["route", "method", "status"])
SECONDS: Final = Histogram(
    "bellringer_api_request_seconds",
    "Time to respond",
    ["route", "method"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)

GAUGES_TTL_SECONDS: Final = 1.0  # gauges are read again after this time, so many scrapers cost as much as one
GAUGES_TIMEOUT_SECONDS: Final = 5.0
MISSED_WINDOW: Final = timedelta(hours=1)
LOADS_TTL_SECONDS: Final = 15.0
RETRIES_WINDOW: Final = timedelta(minutes=5)
MAX_TENANT_LABELS: Final = 50
OTHER_TENANTS: Final = "other"
LATE_AFTER: Final = timedelta(seconds=10)
NODE_GONE_SECONDS: Final = 300.0  # a node that is silent for longer counts as gone, not as late


class Gauges:
    """Reads the gauges from the database, and keeps them for a moment."""

    def __init__(self, service: AppState) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._read_at: float | None = None
        self._labels: dict[Gauge, set[tuple[str, ...]]] = {}
        self._loads_read_at: float | None = None
        self._tenants: set[str] = set()

    async def render(self) -> bytes:
        """Returns all metrics in the Prometheus format, with gauges that are at most a second old."""
        async with self._lock:
            moment = self._service.clock.monotonic()
            if self._read_at is None or moment - self._read_at >= GAUGES_TTL_SECONDS:
                await self._refresh()
                self._read_at = moment
        return generate_latest(create_registry())

    async def _refresh(self) -> None:
        """Reads the gauges again. If the database does not respond, one gauge reports that."""
        measure_pools()
        try:
            async with asyncio.timeout(GAUGES_TIMEOUT_SECONDS):
                await self._read(self._service.store)
        except DATABASE_ERRORS:
            DATABASE_UP.set(0)
        else:
            DATABASE_UP.set(1)

    async def _read(self, store: Store) -> None:
        depths = await queue.depths(store)
        states = ("ready", "running", "blocked")
        self._set(QUEUE_DEPTH, {(d["pool"], state): d[state] for d in depths for state in states})
        await self._signal(store)
        OVERDUE.set(await cohorts.count_overdue(store, LATE_AFTER))
        dead = await runs.dead_count(store)
        self._set(DEAD_LETTERS, {(task,): count for task, count in dead.items()})
        DEAD_LETTERS_STORED.set(sum(dead.values()))
        connections = await server_stats.count_connections(store)
        self._set(SERVER_CONNECTIONS, {("used",): connections.used, ("max",): connections.max})
        PARTITIONS_MISSING.set(await server_stats.count_missing_partitions(store, await store.now()))
        ORPHANED_JOBS.set(await apps.count_orphans(store))
        table = await leases.list_leases(store)
        SHARDS_FREE.set(sum(row.holder is None or row.seconds_left <= 0 for row in table))
        present = [w for w in await workers.list_all(store) if w.state in {"live", "draining"}]
        nodes = [node.age for node in await leases.list_nodes(store) if node.age < NODE_GONE_SECONDS]
        ages: dict[tuple[str, ...], float]
        ages = {("node",): max(nodes, default=0.0), ("worker",): max((w.age for w in present), default=0.0)}
        self._set(HEARTBEAT_AGE, ages)
        await self._read_incidents(store)

    async def _read_incidents(self, store: Store) -> None:
        """Sets the share of missed occurrences of the last hour, and the number of paused tasks."""
        now = await store.now()
        [last_hour] = await usage.all_starts_since(store, [now - MISSED_WINDOW], now)
        expected = last_hour.occurrences + last_hour.missed
        EXPECTED_OCCURRENCES.set(expected)
        MISSED_RATIO.set(last_hour.missed / expected if expected else 0.0)
        PAUSED_TASKS.set(await task_pauses.count_pauses(store))
        SILENT_CLAIMS.set(await load.count_silent_claims(store))
        moment = self._service.clock.monotonic()
        if self._loads_read_at is None or moment - self._loads_read_at >= LOADS_TTL_SECONDS:
            await self._read_loads(store, now)
            await self._read_sizes(store)
            self._loads_read_at = moment

    async def _read_loads(self, store: Store, now: datetime) -> None:
        """Sets the load of tenants and shards. Read rarely, because it counts runs."""
        by_tenant = {row.tenant: row for row in await load.tenant_loads(store)}
        runs_by_state: dict[tuple[str, ...], float] = {}
        for state in ("ready", "retrying", "running", "held"):
            sums = self._bounded({name: getattr(row, state) for name, row in by_tenant.items()})
            runs_by_state |= {(name, state): value for name, value in sums.items()}
        self._set(TENANT_RUNS, runs_by_state)
        retried = await load.tenant_retries(store, now - RETRIES_WINDOW)
        sums = self._bounded({row.tenant: row.retried for row in retried if row.retried})
        self._set(TENANT_RETRIED, {(name,): value for name, value in sums.items()})
        shards = await load.shard_loads(store)
        self._set(SHARD_FIRED, {(str(row.shard),): row.fired for row in shards.values()})
        self._set(SHARD_DUE, {(str(row.shard),): row.due_per_minute for row in shards.values()})
        SHARD_SKEW.labels("fired").set(load.skew([row.fired for row in shards.values()]))
        SHARD_SKEW.labels("due").set(load.skew([row.due_per_minute for row in shards.values()]))

    async def _read_sizes(self, store: Store) -> None:
        sizes = await server_stats.read_sizes(store)
        DATABASE_BYTES.labels("database").set(sizes.database)
        if sizes.wal is not None:
            DATABASE_BYTES.labels("wal").set(sizes.wal)
        if sizes.disk is not None and sizes.disk_free is not None:
            DATABASE_DISK_BYTES.set(sizes.disk)
            DATABASE_DISK_FREE.set(sizes.disk_free)

    def _bounded(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums up tenants without a label of their own. The first MAX_TENANT_LABELS tenants that have a load get one
        for the life of the process, so that the number of series is bounded.
        """
        sums: dict[str, float] = {}
        for name, value in sorted(values.items(), key=lambda item: -item[1]):
            if value and name not in self._tenants and len(self._tenants) < MAX_TENANT_LABELS:
                self._tenants.add(name)
            label = name if name in self._tenants else OTHER_TENANTS
            sums[label] = sums.get(label, 0.0) + value
        return sums

    async def _signal(self, store: Store) -> None:
        """Sets the gauges for autoscalers. The utilization of a pool comes from the queue, because a worker with
        several pools reports only its total.
        """
        found = await pools.autoscaling_signals(store)
        states = ("ready", "sent", "busy", "unknown")
        self._set(POOL_RUNS, {(s.pool, state): getattr(s, state) for s in found for state in states})
        self._set(POOL_OLDEST, {(s.pool,): s.oldest for s in found})
        self._set(POOL_OLDEST_READY, {(s.pool,): s.oldest_ready for s in found})
        self._set(UNKNOWN_TASKS, {(s.pool,): s.unknown_tasks for s in found})
        self._set(POOL_SLOTS, {(s.pool,): s.slots for s in found})
        self._set(POOL_WORKERS, {(s.pool,): s.workers for s in found})
        self._set(SATURATION, {(s.pool,): s.busy / s.slots for s in found if s.slots})
        self._set(POOL_CONCURRENCY, {(s.pool,): (s.busy + s.sent) / s.concurrency for s in found if s.concurrency})

    def _set(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Sets a gauge's children; children that are gone become 0, because shared files cannot remove them."""
        gone = self._labels.get(gauge, set()) - values.keys()
        for labels, value in [*values.items(), *((labels, 0.0) for labels in gone)]:
            gauge.labels(*labels).set(value)
        self._labels[gauge] = set(values)


def metrics_endpoint(gauges: Gauges) -> Endpoint:
    """Returns the endpoint that Prometheus scrapes."""

    @operation(
        Route("service", "GET", "/metrics", str, responses={200: "text/plain"}, prefix=""),
        role=Role.VIEWER,
        everywhere=True,
    )
    async def scrape(_call: RequestContext) -> Response:
        """Returns metrics in the Prometheus format."""
        return Response(await gauges.render(), media_type=CONTENT_TYPE_LATEST)

    return scrape
