"""What this program tells about itself: log lines with the ids, and metrics with bounded labels."""

from __future__ import annotations

import logging
import sys
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import structlog
from prometheus_client import Counter, Gauge, Histogram

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("bellringer")

_LATENESS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600)
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_DURATION = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 7200)

FIRES = Counter("bellringer_fires_total", "Runs born of schedules and timers")
MISSED = Counter("bellringer_missed_total", "Occurrences that nobody fired in time; their gaps say which")
DUPLICATES = Counter("bellringer_duplicates_total", "Attempts that may repeat an effect", ["cause"])
FIRE_LATENESS = Histogram(
    "bellringer_fire_lateness_seconds", "From scheduled_for to the birth of the run", buckets=_LATENESS
)
START_LATENESS = Histogram(
    "bellringer_start_lateness_seconds", "From when a run may start to its start", ["pool"], buckets=_LATENESS
)
TICK_SECONDS = Histogram("bellringer_tick_seconds", "One pass of a tick", buckets=_QUICK)
CLAIM_SECONDS = Histogram("bellringer_claim_seconds", "One claim", buckets=_QUICK)
SETTLE_SECONDS = Histogram("bellringer_settle_seconds", "One batch settled", buckets=_QUICK)
RUN_SECONDS = Histogram("bellringer_run_seconds", "Execution of an attempt", ["task"], buckets=_DURATION)
CLAIMS = Counter("bellringer_claims_total", "Attempts claimed", ["pool"])
SENT = Counter("bellringer_dispatch_sent_total", "Runs that the broker took", ["pool"])
RESENT = Counter("bellringer_dispatch_resent_total", "Runs that nobody had taken, sent again", ["pool"])
REBALANCES = Counter("bellringer_kafka_rebalances_total", "Partitions that changed hands, in rounds", ["pool"])
ATTEMPTS = Counter("bellringer_attempts_total", "Attempts settled", ["task", "outcome"])
RETRIES = Counter("bellringer_retries_total", "Attempts that are followed by another", ["task"])
DEAD = Counter("bellringer_dead_total", "Runs that gave up", ["task"])
STALE = Counter("bellringer_stale_writes_refused_total", "Writes that a fence refused", ["writer"])
TAKEOVERS = Counter("bellringer_lease_takeovers_total", "Shard leases taken")
LOST_LEASES = Counter("bellringer_leases_lost_total", "Shard leases lost otherwise than by letting go")
RENEWAL_FAILURES = Counter("bellringer_lease_renewal_failures_total", "Renewals that failed or came too late")
REAPED = Counter("bellringer_reaped_total", "Attempts settled as lost")
LATE = Counter("bellringer_late_total", "Runs that were late to start; unborn: before they were even born", ["kind"])
SLOW = Counter("bellringer_slow_total", "Runs that took far longer than is usual for their job")
OUTGROWN = Counter("bellringer_outgrown_total", "Jobs that usually take longer than their interval, once a day each")
ROUTED = Counter("bellringer_routed_total", "Jobs that their runs have brought to another pool", ["pool"])
TZ_MOVES = Counter("bellringer_tz_moves_total", "Hands that new rules of the time zones have moved")
ANNOUNCED = Counter("bellringer_announced_total", "Events sent to webhook endpoints")
CACHE_READS = Counter(
    "bellringer_cache_reads_total", "Reads of a run or a job, by where they were answered from", ["kind", "source"]
)
LOOKS = Counter("bellringer_looks_total", "Looks for what strikes soon, by who answered them", ["source"])
CACHE_FAILURES = Counter("bellringer_cache_failures_total", "Times that Redis failed and was left alone for a moment")
EGRESS = Counter("bellringer_egress_total", "Calls of HTTP targets, by what came back", ["answer"])
ERRORS = Counter("bellringer_step_errors_total", "Passes that failed", ["step"])

_LIVE = {"multiprocess_mode": "livemostrecent"}
QUEUE_DEPTH = Gauge("bellringer_queue_depth", "Runs in the queue", ["pool", "state"], **_LIVE)  # type: ignore[arg-type]
OVERDUE = Gauge("bellringer_overdue", "Hands and timers that are late by 10 s", **_LIVE)  # type: ignore[arg-type]
DEAD_LETTERS = Gauge("bellringer_dead_letters", "Runs on the dead letters", ["task"], **_LIVE)  # type: ignore[arg-type]
SHARDS_HELD = Gauge("bellringer_shards_held", "Shards that this node holds", multiprocess_mode="livesum")
SHARDS_FREE = Gauge("bellringer_shards_free", "Shards that nobody holds", **_LIVE)  # type: ignore[arg-type]
HEARTBEAT_AGE = Gauge("bellringer_heartbeat_age_seconds", "Oldest heartbeat of a live kind", ["kind"], **_LIVE)  # type: ignore[arg-type]
SATURATION = Gauge("bellringer_pool_saturation", "Busy slots of all slots", ["pool"], **_LIVE)  # type: ignore[arg-type]
POOL_CONCURRENCY = Gauge(
    "bellringer_pool_concurrency_used",
    "Runs under way of those that the pool's own bound allows; of pools with a bound",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_OLDEST = Gauge(
    "bellringer_pool_oldest_waiting_seconds",
    "For how long the first run has waited that only waits for a worker",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_RUNS = Gauge(
    "bellringer_pool_runs",
    "Runs that only wait for a slot (ready), that a broker has (sent; both up to 10,000), and that run (busy)",
    ["pool", "state"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_SLOTS = Gauge("bellringer_pool_slots", "Slots of its workers", ["pool"], **_LIVE)  # type: ignore[arg-type]
POOL_WORKERS = Gauge("bellringer_pool_workers", "Workers that serve it", ["pool"], **_LIVE)  # type: ignore[arg-type]
DISPATCH_LAG = Gauge(
    "bellringer_dispatch_lag", "Messages that this worker is still to read", ["pool"], multiprocess_mode="livesum"
)
CLOCK_SKEW = Gauge(
    "bellringer_clock_skew_seconds", "This host ahead of the database", multiprocess_mode="livemostrecent"
)
TZ_BEHIND = Gauge(
    "bellringer_tz_behind", "Whether this process has old rules of the time zones", multiprocess_mode="livemax"
)
DB_CONNECTIONS = Gauge(
    "bellringer_db_connections", "Connections of this process", ["state"], multiprocess_mode="livesum"
)


@lru_cache(maxsize=10_000)
def one_of(metric: _Metric, *labels: str) -> _Metric:
    """The child of a metric, looked up once: `labels()` costs as much as the rest of a short run's accounting."""
    return metric.labels(*labels)


_levels = {"now": logging.INFO}


def tells_all() -> bool:
    """Whether debug lines are wanted; asked on the hot path, where even a line that is filtered out costs too much."""
    return _levels["now"] <= logging.DEBUG


def configure(style: str = "json", level: str = "info") -> None:
    """Lines as JSON for programs, or readable for a person who watches."""
    _levels["now"] = getattr(logging, level.upper())
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer(serializer=_serialize)
    if style == "text":
        renderer = _readable
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever that is when a line is written
        cache_logger_on_first_use=False,
    )


def _serialize(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _readable(_logger: object, _method: str, event: Any) -> str:
    moment = str(event.pop("at", ""))[11:23]
    level = event.pop("level", "info")
    text = event.pop("event", "")
    rest = " ".join(f"{key}={value}" for key, value in event.items())
    sign = {"warning": "! ", "error": "✕ "}.get(level, "")
    return f"  {moment}  {sign}{text}" + (f"   {rest}" if rest else "")
