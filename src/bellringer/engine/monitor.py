"""Reports late, slow, stranded and stuck runs as events, and jobs whose runs take longer than their interval.

One scheduler runs these scans for the whole cluster. Claims and settlements write nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final
from uuid import UUID

from bellringer.core.runs import RunKey
from bellringer.explain import WORKER_SILENT_AFTER
from bellringer.schedule import Schedule
from bellringer.store import events
from bellringer.store.connection_pool import Store
from bellringer.store.events import DurationHistory, EventKind, NewEvent, RunningAttemptRow
from bellringer.store.interned_names import Catalog

MAX_LATE_RUNS_PER_PASS: Final = 1_000
MAX_RUNS_COMPARED: Final = 500
BASELINE_ATTEMPTS: Final = 20  # newest successful attempts that form a baseline
MIN_BASELINE_ATTEMPTS: Final = 5  # with fewer there is no baseline
BASELINE_SCAN_ATTEMPTS: Final = 200  # newest attempts that are scanned for successful ones
MIN_RUN_INTERVAL: Final = timedelta(
    seconds=1
)  # no schedule fires more often, so a shorter run cannot outgrow its interval
MIN_SLOW_DURATION: Final = timedelta(seconds=10)
STRANDED_AFTER: Final = timedelta(seconds=30)  # workers confirm their runs every few seconds
STRANDED_REASONS: Final = ("worker_gone", "unconfirmed", "not_taken", "cancelled_unasked")
UNKNOWN_TASK_AFTER: Final = timedelta(seconds=30)  # during a deployment, new tasks are unknown for a while
MAX_UNKNOWN_TASKS_PER_PASS: Final = 1_000
UNSTARTED_AFTER: Final = timedelta(minutes=5)  # as in `verify`
STARTED_AGAIN_AFTER: Final = timedelta(minutes=1)  # no run waits longer: the pool has recovered
MAX_TENANTS_PER_POOL: Final = 500
SKIPS_IN_A_ROW: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LatenessPass:
    """The events of one pass: runs that wait too long, and late occurrences without a run. `more`: the pass hit its
    limit.
    """

    waiting: int
    not_created: int
    more: bool


async def report_late_runs(store: Store, now: datetime) -> LatenessPass:
    """Records an event for each run and each occurrence that should have started by now."""
    scanned, waiting = await events.record_late_runs(store, now, MAX_LATE_RUNS_PER_PASS)
    not_created = await events.record_late_occurrences(store, now, MAX_LATE_RUNS_PER_PASS)
    return LatenessPass(waiting=waiting, not_created=not_created, more=MAX_LATE_RUNS_PER_PASS in {scanned, not_created})


async def report_stranded_runs(store: Store, now: datetime) -> dict[str, int]:
    """Records claimed runs that no live worker confirms to execute; returns their number by reason."""
    found = await events.record_stranded_runs(store, now, STRANDED_AFTER, MAX_LATE_RUNS_PER_PASS)
    return {reason: found.get(reason, 0) for reason in STRANDED_REASONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPass:
    """The events of one pass: tasks without a worker, tasks that have one again, jobs that keep skipping, pools without
    a free worker, and pools that have one again.
    """

    unknown: int = 0
    known_again: int = 0
    skipping: int = 0
    unstarted: int = 0
    started_again: int = 0


async def report_stuck_jobs(store: Store, now: datetime) -> StuckPass:
    """Records runs whose task no worker knows, runs whose pool has no free worker, and jobs that skipped many
    occurrences in a row.
    """
    unknown, known_again = await events.record_unknown_tasks(
        store, now, now - UNKNOWN_TASK_AFTER, MAX_UNKNOWN_TASKS_PER_PASS
    )
    skipping = await events.record_skipping_jobs(store, now, SKIPS_IN_A_ROW, MAX_RUNS_COMPARED)
    unstarted, started_again = await events.record_unstarted_runs(
        store, now, now - UNSTARTED_AFTER, now - STARTED_AGAIN_AFTER, MAX_TENANTS_PER_POOL
    )
    return StuckPass(
        unknown=unknown,
        known_again=known_again,
        skipping=skipping,
        unstarted=unstarted,
        started_again=started_again,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBaseline:
    """The usual duration of a job's successful attempts, and the interval between its next two occurrences."""

    runs: int = 0
    median: timedelta | None = None
    longest: timedelta | None = None
    interval: timedelta | None = None

    @property
    def slow_after(self) -> timedelta | None:
        """The duration from which on a run counts as slow; None while too few attempts are known."""
        if self.runs < MIN_BASELINE_ATTEMPTS or self.median is None or self.longest is None:
            return None
        return max(2 * self.longest, 3 * self.median, MIN_SLOW_DURATION)

    @property
    def outgrown(self) -> bool:
        """Whether the job usually takes longer than its interval."""
        known = self.runs >= MIN_BASELINE_ATTEMPTS and self.median is not None and self.interval is not None
        return known and self.median > self.interval  # type: ignore[operator] # both are known


def compute_baseline(durations: Sequence[float], schedules: Iterable[Schedule], now: datetime) -> JobBaseline:
    """Computes the baseline from durations in seconds and the job's schedules."""
    return JobBaseline(
        runs=len(durations),
        median=timedelta(seconds=median(durations)) if durations else None,
        longest=timedelta(seconds=max(durations)) if durations else None,
        interval=next_interval(schedules, now),
    )


def next_interval(schedules: Iterable[Schedule], now: datetime) -> timedelta | None:
    """Returns the time between the next two occurrences of all schedules together."""
    coming: set[datetime] = set()
    for schedule in schedules:
        first = schedule.next_after(now)
        second = None if first is None else schedule.next_after(first)
        coming |= {moment for moment in (first, second) if moment is not None}
    if len(coming) < 2:
        return None
    earliest, following, *_ = sorted(coming)
    return following - earliest


def slow_run_events(
    run: RunningAttemptRow, history: DurationHistory, baseline: JobBaseline, now: datetime
) -> list[NewEvent]:
    """Returns the events for a running attempt, and for its job at most once a day."""
    new_events = []
    limit, durations = baseline.slow_after, now - run.claimed_at
    if limit is not None and durations > limit:
        data = {"running_for": durations.total_seconds(), "usual": _seconds(baseline.median)}
        data["longest"] = _seconds(baseline.longest)
        new_events.append(
            NewEvent(tenant_id=history.tenant_id, kind=EventKind.SLOW, key=run.key, attempt=run.attempt, data=data),
        )
    if baseline.outgrown:
        day = RunKey(history.job_id, now.replace(hour=0, minute=0, second=0, microsecond=0))
        data = {"usual": _seconds(baseline.median), "interval": _seconds(baseline.interval)}
        new_events.append(NewEvent(tenant_id=history.tenant_id, kind=EventKind.OUTGROWN, key=day, data=data))
    return new_events


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRunPass:
    """The number of events that one pass recorded."""

    slow: int
    outgrown: int


async def report_slow_runs(store: Store, catalog: Catalog, now: datetime) -> SlowRunPass:
    """Compares running attempts of live workers with the baselines of their jobs and records the slow ones."""
    running = await events.running_attempts(store, now - MIN_RUN_INTERVAL, MAX_RUNS_COMPARED, WORKER_SILENT_AFTER)
    known = await load_baselines(store, catalog, sorted({run.key.job_id for run in running}), now)
    new_events = [
        n for run in running if run.key.job_id in known for n in slow_run_events(run, *known[run.key.job_id], now)
    ]
    recorded = await events.record(store, now, new_events)
    return SlowRunPass(slow=recorded[EventKind.SLOW], outgrown=recorded[EventKind.OUTGROWN])


async def load_baseline(
    store: Store, catalog: Catalog, job_id: UUID, now: datetime, *, tenant_id: int
) -> JobBaseline | None:
    """Returns the baseline of one job, or None if the tenant has no such job."""
    known = await load_baselines(store, catalog, [job_id], now)
    if job_id not in known or known[job_id][0].tenant_id != tenant_id:
        return None
    return known[job_id][1]


async def load_baselines(
    store: Store, catalog: Catalog, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, tuple[DurationHistory, JobBaseline]]:
    """Returns the baselines of jobs, each with the durations that it was computed from."""
    if not job_ids:
        return {}
    found = await events.duration_histories(store, job_ids, BASELINE_SCAN_ATTEMPTS, BASELINE_ATTEMPTS)
    schedules = await catalog.schedules({number for history in found for number in history.schedule_ids})
    return {
        h.job_id: (h, compute_baseline(h.durations, [schedules[n] for n in h.schedule_ids if n in schedules], now))
        for h in found
    }


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


MAX_EVENTS_PER_RECOVERY_PASS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPass:
    """The outcome of one pass; `more`: the pass hit its limit."""

    noted: int
    recovered: int
    more: bool


async def report_recoveries(store: Store) -> RecoveryPass:
    """Scans new trouble events, and the troubled jobs that were checked longest ago."""
    scanned, noted, recovered = await events.record_recoveries(store, MAX_EVENTS_PER_RECOVERY_PASS)
    return RecoveryPass(noted=noted, recovered=recovered, more=scanned == MAX_EVENTS_PER_RECOVERY_PASS)
