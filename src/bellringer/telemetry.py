"""Structured logging and Prometheus metrics. The values of all metric labels are bounded."""

from __future__ import annotations

import logging
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import structlog
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.samples import Sample

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger("bellringer")


class MeasuredGauge(Gauge):
    """A gauge without labels that is exported once it is set. An ordinary one exports 0 before, which rules would take
    for a measurement: that of a server that still waits for its database, or of a process that never measures it.
    """

    def _metric_init(self) -> None:
        """Creates the value later: in several processes, an unset value is in the shared file too."""

    def set(self, value: float) -> None:
        if not self._is_set():
            super()._metric_init()
        super().set(value)

    def _child_samples(self) -> Iterable[Sample]:
        return super()._child_samples() if self._is_set() else ()

    def _is_set(self) -> bool:
        return hasattr(self, "_value")


_LATENESS_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 3600)
_SHORT_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_RUN_BUCKETS_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300, 1800, 7200)

FIRES = Counter("bellringer_fires_total", "Runs created by schedules and timers")
MISSED = Counter("bellringer_missed_total", "Occurrences that did not fire in time and will not run; recorded as gaps")
DUPLICATES = Counter("bellringer_duplicates_total", "Attempts that may repeat a side effect", ["cause"])
FIRE_LATENESS = Histogram(
    "bellringer_fire_lateness_seconds",
    "Time from scheduled_for to the creation of the run",
    buckets=_LATENESS_BUCKETS_SECONDS,
)
START_LATENESS = Histogram(
    "bellringer_start_lateness_seconds",
    "Time from when a run may start to its start",
    ["pool"],
    buckets=_LATENESS_BUCKETS_SECONDS,
)
TICK_SECONDS = Histogram(
    "bellringer_tick_seconds", "Duration of one tick of the scheduler", buckets=_SHORT_BUCKETS_SECONDS
)
POLL_SECONDS = Histogram(
    "bellringer_poll_seconds", "Duration of one query for due cohorts and timers", buckets=_SHORT_BUCKETS_SECONDS
)
CLAIM_SECONDS = Histogram("bellringer_claim_seconds", "Duration of one claim", buckets=_SHORT_BUCKETS_SECONDS)
SETTLE_SECONDS = Histogram(
    "bellringer_settle_seconds", "Duration of settling one batch of attempts", buckets=_SHORT_BUCKETS_SECONDS
)
RUN_SECONDS = Histogram(
    "bellringer_run_seconds", "Execution time of an attempt", ["task"], buckets=_RUN_BUCKETS_SECONDS
)
CLAIMS = Counter("bellringer_claims_total", "Attempts claimed", ["pool"])
SENT = Counter("bellringer_dispatch_sent_total", "Runs that the broker accepted", ["pool"])
RESENT = Counter(
    "bellringer_dispatch_resent_total", "Runs sent to the broker again because no worker had taken them", ["pool"]
)
REBALANCES = Counter("bellringer_kafka_rebalances_total", "Rebalances of Kafka partitions", ["pool"])
ATTEMPTS = Counter("bellringer_attempts_total", "Attempts settled", ["task", "outcome"])
RETRIES = Counter("bellringer_retries_total", "Attempts that are followed by a retry", ["task"])
DEAD = Counter("bellringer_dead_total", "Runs that failed permanently", ["task"])
EXPIRED = Counter(
    "bellringer_expired_total",
    "Runs that ended because their deadline had passed, by the process that found them",
    ["found_by"],
)
STALE = Counter("bellringer_stale_writes_refused_total", "Writes refused because of a stale fencing token", ["writer"])
STARTS = Counter("bellringer_starts_total", "Starts of runs to which the start objective applies")
LATE_STARTS = Counter("bellringer_late_starts_total", "Starts that were later than the start objective of their tenant")
TAKEOVERS = Counter("bellringer_lease_takeovers_total", "Shard leases acquired")
LOST_LEASES = Counter("bellringer_leases_lost_total", "Shard leases lost without being released")
RENEWAL_FAILURES = Counter("bellringer_lease_renewal_failures_total", "Lease renewals that failed or came too late")
RETURNED = Counter(
    "bellringer_returned_total",
    "Attempts that a worker returned unstarted: the response to its claim was lost or stale, or its tenant is unknown",
    ["cause"],
)
REAPED = Counter("bellringer_reaped_total", "Attempts of lost workers that were settled as lost")
LATE = Counter(
    "bellringer_late_total", "Runs that are late to start; kind=not_created: the run has not been created yet", ["kind"]
)
for _writer in ("scheduler", "worker"):
    STALE.labels(_writer)  # from the start, because `increase` does not see the first value of a new series
for _kind in ("waiting", "not_created"):
    LATE.labels(_kind)
SLOW = Counter("bellringer_slow_total", "Runs that took far longer than usual for their job")
OUTGROWN = Counter(
    "bellringer_outgrown_total", "Jobs that usually take longer than their interval; each job counts once a day"
)
UNSTARTED = Counter(
    "bellringer_unstarted_total", "Pools in which runs of a tenant waited long, without a live worker or a free slot"
)
SKIPPING = Counter("bellringer_skipping_total", "Jobs that skipped many occurrences because a run has not finished")
UNKNOWN_REPORTED = Counter(
    "bellringer_unknown_task_reports_total", "Reports of tasks that have waiting runs but that no worker knows"
)
ROUTED = Counter(
    "bellringer_routed_total", "Jobs moved to another pool because of the duration of their runs", ["pool"]
)
TZ_MOVES = Counter("bellringer_tz_moves_total", "Cohorts moved by an update of the time zone database")
ANNOUNCED = Counter("bellringer_announced_total", "Events sent to webhook endpoints")
NOTIFICATIONS = Counter("bellringer_notifications_total", "Notification messages created")
MISSED_CHECKINS = Counter("bellringer_missed_checkins_total", "Check-ins of jobs elsewhere that were not made in time")
HEARTBEATS = Counter(
    "bellringer_heartbeats_total", "Heartbeats to the external URL: sent, failed, or withheld (unhealthy)", ["outcome"]
)
CACHE_READS = Counter(
    "bellringer_cache_reads_total", "Reads of a run or a job, by the source of the response", ["kind", "source"]
)
LOOKS = Counter("bellringer_looks_total", "Queries for upcoming due times, by source", ["source"])
CACHE_FAILURES = Counter(
    "bellringer_cache_failures_total", "Redis failures, each followed by a pause in which Redis is not used"
)
EGRESS = Counter("bellringer_egress_total", "Calls of HTTP targets, by status class or failure", ["answer"])
AUTH_FAILURES = Counter("bellringer_auth_failures_total", "Requests without a valid key or token", ["reason"])
BLOCKED_LOOP = Counter(
    "bellringer_blocked_loop_total", "Attempts whose coroutine blocked the event loop for a second", ["task"]
)
ARCHIVED = Counter("bellringer_archived_total", "Batches of runs past retention that were archived")
ARCHIVE_FAILURES = Counter("bellringer_archive_failures_total", "Steps of the archive that failed; the runs are kept")
ERRORS = Counter("bellringer_step_errors_total", "Failed iterations of background loops", ["step"])

_LIVE = {"multiprocess_mode": "livemostrecent"}
QUEUE_DEPTH = Gauge("bellringer_queue_depth", "Runs in the queue", ["pool", "state"], **_LIVE)  # type: ignore[arg-type]
OVERDUE = MeasuredGauge(
    "bellringer_overdue",
    "Jobs and timers that are overdue by 10 s or more; each kind is counted up to 10,000",
    **_LIVE,  # type: ignore[arg-type]
)
STRANDED = Gauge(
    "bellringer_stranded_runs",
    "Claimed runs that no live worker is known to execute; reason=cancelled_unasked covers the last hour",
    ["reason"],
    **_LIVE,  # type: ignore[arg-type]
)
ARCHIVE_BACKLOG = MeasuredGauge("bellringer_archive_backlog", "Batches of runs that wait for the archive", **_LIVE)  # type: ignore[arg-type]
ARCHIVE_AGE = MeasuredGauge(
    "bellringer_archive_age_seconds",
    "Age of the oldest batch that waits for the archive",
    **_LIVE,  # type: ignore[arg-type]
)
DEAD_LETTERS = Gauge("bellringer_dead_letters", "Dead-lettered runs", ["task"], **_LIVE)  # type: ignore[arg-type]
DEAD_LETTERS_STORED = MeasuredGauge(
    "bellringer_dead_letters_stored",
    "Dead-lettered runs of all tasks; counted up to 100,000",
    **_LIVE,  # type: ignore[arg-type]
)
ORPHANED_JOBS = MeasuredGauge(
    "bellringer_orphaned_jobs",
    "Jobs that the code of their app no longer declares",
    **_LIVE,  # type: ignore[arg-type]
)
SHARDS_HELD = Gauge("bellringer_shards_held", "Shards that this node holds", multiprocess_mode="livesum")
SHARDS_FREE = MeasuredGauge("bellringer_shards_free", "Shards without a lease holder", **_LIVE)  # type: ignore[arg-type]
HEARTBEAT_AGE = Gauge(
    "bellringer_heartbeat_age_seconds",
    "Age of the oldest heartbeat among live nodes or workers",
    ["kind"],
    **_LIVE,  # type: ignore[arg-type]
)
SATURATION = Gauge("bellringer_pool_saturation", "Busy slots divided by all slots", ["pool"], **_LIVE)  # type: ignore[arg-type]
POOL_CONCURRENCY = Gauge(
    "bellringer_pool_concurrency_used",
    "Active runs divided by the pool's concurrency limit; only for pools with a limit",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_OLDEST = Gauge(
    "bellringer_pool_oldest_waiting_seconds",
    "Waiting time of the oldest run that waits only for a worker, or for a worker that knows its task",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_OLDEST_READY = Gauge(
    "bellringer_pool_oldest_ready_seconds",
    "Waiting time of the oldest run that a worker of the pool could take",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
UNKNOWN_TASKS = Gauge(
    "bellringer_unknown_tasks",
    "Tasks with waiting runs that no live worker of the pool knows",
    ["pool"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_RUNS = Gauge(
    "bellringer_pool_runs",
    "Runs by state: waiting for a slot (ready), at the broker (sent), running (busy), of an unknown task (unknown)",
    ["pool", "state"],
    **_LIVE,  # type: ignore[arg-type]
)
POOL_SLOTS = Gauge("bellringer_pool_slots", "Slots of the workers of the pool", ["pool"], **_LIVE)  # type: ignore[arg-type]
POOL_WORKERS = Gauge("bellringer_pool_workers", "Workers that serve the pool", ["pool"], **_LIVE)  # type: ignore[arg-type]
STALLED_LOOPS = Gauge(
    "bellringer_stalled_loops",
    "Event loops of this worker that a handler currently blocks",
    multiprocess_mode="livesum",
)
DISPATCH_LAG = Gauge(
    "bellringer_dispatch_lag", "Messages that this worker has not read yet", ["pool"], multiprocess_mode="livesum"
)
CLOCK_SKEW = MeasuredGauge(
    "bellringer_clock_skew_seconds",
    "Difference of this host's clock and the database's clock; positive if the host is ahead",
    multiprocess_mode="livemostrecent",
)
TZ_BEHIND = MeasuredGauge(
    "bellringer_tz_behind", "1 if the time zone database of this process is outdated", multiprocess_mode="livemax"
)
MISSED_RATIO = MeasuredGauge(
    "bellringer_missed_ratio",
    "Missed occurrences of the last hour divided by the expected ones; the objective is 0.0001 by default",
    **_LIVE,  # type: ignore[arg-type]
)
EXPECTED_OCCURRENCES = MeasuredGauge(
    "bellringer_expected_occurrences",
    "Occurrences of the last hour that ran or were missed",
    **_LIVE,  # type: ignore[arg-type]
)
PAUSED_TASKS = MeasuredGauge("bellringer_paused_tasks", "Tasks that are paused for a tenant", **_LIVE)  # type: ignore[arg-type]
DATABASE_UP = MeasuredGauge(
    "bellringer_database_up",
    "Whether the last scrape could read the database; 0 also while a server waits for it to start",
    **_LIVE,  # type: ignore[arg-type]
)
DB_CONNECTIONS = Gauge(
    "bellringer_db_connections",
    "Database connections of this process by pool: open, idle, and the maximum of the pool (max)",
    ["purpose", "state"],
    multiprocess_mode="livesum",
)
SERVER_CONNECTIONS = Gauge(
    "bellringer_server_connections",
    "Connections of the database server: used by all its clients, and the maximum without reserved ones (max)",
    ["state"],
    **_LIVE,  # type: ignore[arg-type]
)
DATABASE_BYTES = Gauge(
    "bellringer_database_bytes",
    "Size of the database (database) and of the server's write-ahead log (wal, if the role may read it)",
    ["part"],
    **_LIVE,  # type: ignore[arg-type]
)
DATABASE_DISK_BYTES = MeasuredGauge(
    "bellringer_database_disk_bytes",
    "Size of the disk of the database; only if its data directory is on this machine and readable",
    **_LIVE,  # type: ignore[arg-type]
)
DATABASE_DISK_FREE = MeasuredGauge(
    "bellringer_database_disk_free_bytes",
    "Free space on the disk of the database; only if its data directory is on this machine and readable",
    **_LIVE,  # type: ignore[arg-type]
)
PARTITIONS_MISSING = MeasuredGauge(
    "bellringer_partitions_missing",
    "Partitions of today and tomorrow that do not exist",
    **_LIVE,  # type: ignore[arg-type]
)
AUDIT_SEAL_BROKEN = MeasuredGauge(
    "bellringer_audit_seal_broken",
    "1 if a seal of the audit chain does not match its entries; all seals are checked in turn",
    multiprocess_mode="livemax",
)
TENANT_RUNS = Gauge(
    "bellringer_tenant_runs",
    "Runs of a tenant: ready, retrying, running, or held by a paused task; the label `other` sums up small tenants",
    ["tenant", "state"],
    **_LIVE,  # type: ignore[arg-type]
)
TENANT_RETRIED = Gauge(
    "bellringer_tenant_retried_attempts",
    "Second and later attempts that started in the last five minutes; the label `other` sums up small tenants",
    ["tenant"],
    **_LIVE,  # type: ignore[arg-type]
)
SHARD_FIRED = Gauge(
    "bellringer_shard_fired",
    "Runs of the last five minutes by shard",
    ["shard"],
    **_LIVE,  # type: ignore[arg-type]
)
SHARD_DUE = Gauge(
    "bellringer_shard_due_per_minute",
    "Occurrences a minute by the schedules of the jobs of a shard",
    ["shard"],
    **_LIVE,  # type: ignore[arg-type]
)
SHARD_SKEW = Gauge(
    "bellringer_shard_skew",
    "Load of the busiest shard as a multiple of the mean, by due occurrences (due) and by recent runs (fired)",
    ["of"],
    **_LIVE,  # type: ignore[arg-type]
)
SILENT_CLAIMS = MeasuredGauge(
    "bellringer_silent_claims",
    "Claimed runs whose worker has sent no heartbeat for ten seconds",
    **_LIVE,  # type: ignore[arg-type]
)


@lru_cache(maxsize=10_000)
def with_labels(metric: _Metric, *labels: str) -> _Metric:
    """Returns the child of a metric for these label values. Cached, because `labels()` is slow on the hot path."""
    return metric.labels(*labels)


_settings = {"level": logging.INFO, "attempts": logging.DEBUG}
_common_fields: dict[str, Any] = {}
_context: dict[str, Callable[[], Mapping[str, Any] | None]] = {}


def is_debug_enabled() -> bool:
    """Whether debug messages are logged. Hot paths check this first, because even a filtered log call is slow."""
    return _settings["level"] <= logging.DEBUG


def level_of_succeeded_attempts() -> str | None:
    """The level at which succeeded attempts are logged, or None if they are not."""
    level = _settings["attempts"]
    return None if level < _settings["level"] else "info" if level == logging.INFO else "debug"


def set_common_fields(**fields: Any) -> None:
    """Adds these fields to every line that this process logs from now on."""
    _common_fields.update(fields)


def set_context_fields(read: Callable[[], Mapping[str, Any] | None]) -> None:
    """Adds the fields that `read` returns to every line, such as those of the attempt that the code runs in. Fields
    of the line itself have priority."""
    _context["read"] = read


def _add_common_fields(_logger: object, _method: str, event: Any) -> Any:
    context = _context["read"]() if _context else None
    if context:
        event = {**event, **{name: value for name, value in context.items() if name not in event}}
    return {**event, **_common_fields} if _common_fields else event


def uncaptured(stream: Any) -> Any:
    """Returns the real stream behind one that captures the output of handlers."""
    return getattr(stream, "uncaptured", stream)


def configure(style: str = "json", level: str = "info", *, log_attempts: bool = False) -> None:
    """Configures logging to standard error: one JSON object per line, or readable text. With `log_attempts`, attempts
    that succeed are logged at level info instead of debug."""
    _settings["level"] = getattr(logging, level.upper())
    _settings["attempts"] = logging.INFO if log_attempts else logging.DEBUG
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        _add_common_fields,
    ]
    renderer: Any = structlog.processors.JSONRenderer(serializer=_serialize)
    if style == "text":
        renderer = _render_text
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: structlog.PrintLogger(uncaptured(sys.stderr)),  # the current one: tests replace it
        cache_logger_on_first_use=False,
    )


def _serialize(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def _render_text(_logger: object, _method: str, event: Any) -> str:
    moment = str(event.pop("at", ""))[11:23]
    level = event.pop("level", "info")
    text = escape_control_characters(str(event.pop("event", "")))
    trace = str(event.pop("exception", "")).splitlines()
    rest = " ".join(escape_control_characters(f"{key}={value}") for key, value in event.items())
    sign = {"warning": "! ", "error": "✕ "}.get(level, "")
    first = f"  {moment}  {sign}{text}" + (f"   {rest}" if rest else "")
    return "\n".join([first, *(f"    | {escape_control_characters(line)}" for line in trace)])


def escape_control_characters(text: str) -> str:
    """Escapes control and formatting characters, so that a value cannot start a new line or control the terminal."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(sign: str) -> str:
    # `isprintable` is false for some spaces and joiners of letters or emoji, which are harmless.
    if sign.isprintable() or unicodedata.category(sign) == "Zs" or sign in "\u200c\u200d":
        return sign
    return sign.encode("unicode_escape").decode()
