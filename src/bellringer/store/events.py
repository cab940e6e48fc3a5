"""Events about runs and jobs (late, slow, dead, recovered …). Each event is recorded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("events")
_MAX_EVENT_ID: Final = (1 << 63) - 1


class EventKind(StrEnum):
    """The kinds of events."""

    FAILED = "failed"  # an attempt that will be retried
    DEAD = "dead"  # a run that failed for good; it is in the dead letters
    RECOVERED = "recovered"  # a job that was late, missed or dead and has succeeded since
    LATE = "late"  # a run that has not started long after its time
    MISSED = "missed"  # occurrences that did not run and will not run
    EXPIRED = "expired"  # runs that had not started by their deadline and will not run
    SLOW = "slow"  # a run that takes far longer than usual for its job
    OUTGROWN = "outgrown"  # a job whose runs usually take longer than its interval
    BLOCKED_LOOP = "blocked_loop"  # a coroutine that blocks the event loop of other runs
    STRANDED = "stranded"  # a claimed run that no live worker confirms to execute
    SKIPPING = "skipping"  # a job whose run does not end while many occurrences are skipped
    PAUSED = "paused"  # a job that was paused because its last runs died
    UNKNOWN_TASK = "unknown_task"  # runs wait for a task that no live worker of their pool knows
    UNSTARTED = "unstarted"  # runs wait long, and their pool has no live worker or only busy ones
    TASK_PAUSED = "task_paused"  # an operator paused all runs of a task
    TASK_RESUMED = "task_resumed"  # an operator resumed a paused task
    ORPHANED = "orphaned"  # the code of its app no longer declares a job
    ADOPTED = "adopted"  # an app declares an orphan, or the job of another app
    OVERRIDDEN = "overridden"  # the code of an app undid an operator's change of a job
    CHECKIN_MISSED = "checkin_missed"  # a job that runs elsewhere has not reported in time
    CHECKIN_FAILED = "checkin_failed"  # a job that runs elsewhere has reported a failure
    CHECKIN_RECOVERED = "checkin_recovered"  # a job that runs elsewhere reports in time again


# Events about a job, a task or a check-in that no run belongs to.
EVENTS_WITHOUT_RUN: Final = frozenset(
    {
        EventKind.MISSED,
        EventKind.OUTGROWN,
        EventKind.TASK_PAUSED,
        EventKind.TASK_RESUMED,
        EventKind.ORPHANED,
        EventKind.ADOPTED,
        EventKind.OVERRIDDEN,
        EventKind.CHECKIN_MISSED,
        EventKind.CHECKIN_FAILED,
        EventKind.CHECKIN_RECOVERED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A stored event; durations in `data` are seconds."""

    event_id: int
    at: datetime
    kind: str
    job: str | None
    key: RunKey
    attempt: int
    data: Mapping[str, Any]

    @property
    def run(self) -> RunKey | None:
        """The run that the event is about; None for late occurrences without a run, and events of a job or task."""
        has_run = not (self.kind == EventKind.LATE and self.data.get("not_created"))
        return self.key if has_run and self.kind not in EVENTS_WITHOUT_RUN else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to record, unless it was recorded before."""

    tenant_id: int
    kind: EventKind
    key: RunKey
    attempt: int = 0
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttemptRow:
    """A running attempt."""

    key: RunKey
    attempt: int
    claimed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationHistory:
    """The durations in seconds of a job's last successful attempts, newest first, and the ids of its schedules."""

    job_id: UUID
    tenant_id: int
    schedule_ids: Sequence[int]
    durations: Sequence[float]


async def record_late_runs(store: Store, now: datetime, limit: int) -> tuple[int, int]:
    """Records runs that should have started; returns how many were scanned and how many events are new."""
    row = await store.pool.fetchrow(_SQL.report_late_runs, now, limit)
    assert row is not None
    return row["checked"], row["reported"]


async def record_late_occurrences(store: Store, now: datetime, limit: int) -> int:
    """Records occurrences that are late before they have a run, because their cohort is late."""
    recorded: int = await store.pool.fetchval(_SQL.report_late_occurrences, now, limit)
    return recorded


async def record_stranded_runs(store: Store, now: datetime, after: timedelta, limit: int) -> dict[str, int]:
    """Records claimed runs that no live worker confirms to execute; returns their number by reason."""
    rows = await store.pool.fetch(_SQL.report_stranded, now, after, limit)
    return {row["reason"]: row["count"] for row in rows}


async def record_unknown_tasks(store: Store, now: datetime, before: datetime, limit: int) -> tuple[int, int]:
    """Records tasks that runs wait for since before a moment and that no worker knows, and tasks that are known
    again.
    """
    row = await store.pool.fetchrow(_SQL.report_unknown_tasks, now, before, limit)
    assert row is not None
    return row["reported"], row["recovered"]


async def record_unstarted_runs(
    store: Store, now: datetime, before: datetime, recovered: datetime, limit: int
) -> tuple[int, int]:
    """Records pools without a free worker in which runs wait since before a moment, and those in which none has waited
    since before `recovered`.
    """
    row = await store.pool.fetchrow(_SQL.report_unstarted, now, before, recovered, limit)
    assert row is not None
    return row["reported"], row["recovered"]


async def record_skipping_jobs(store: Store, now: datetime, series: int, limit: int) -> int:
    """Records jobs that skipped `series` occurrences because one run does not end; returns how many."""
    recorded: int = await store.pool.fetchval(_SQL.report_skips, now, series, limit)
    return recorded


async def record(store: Store, now: datetime, new_events: Sequence[NewEvent]) -> Counter[EventKind]:
    """Records the events that are new; returns how many of each kind."""
    if not new_events:
        return Counter()
    rows = await store.pool.fetch(
        _SQL.add,
        now,
        [n.tenant_id for n in new_events],
        [n.kind.value for n in new_events],
        [n.key.job_id for n in new_events],
        [n.key.scheduled_for for n in new_events],
        [n.key.slot for n in new_events],
        [n.attempt for n in new_events],
        [msgspec.json.encode(n.data).decode() for n in new_events],
    )
    return Counter(EventKind(row["kind"]) for row in rows)


async def record_loop_block(store: Store, now: datetime, new_events: NewEvent) -> None:
    """Records a coroutine that blocks its event loop, or updates how long it has blocked it."""
    key, data = new_events.key, msgspec.json.encode(new_events.data).decode()
    await store.pool.execute(
        _SQL.add_blocked_loop,
        now,
        new_events.tenant_id,
        key.job_id,
        key.scheduled_for,
        key.slot,
        new_events.attempt,
        data,
    )


async def loop_blocks(store: Store, tenant_id: int, key: RunKey, limit: int = 3) -> list[EventRow]:
    """Returns what blocked the event loop of a run: the run itself, or other runs of its tenant. Newest first."""
    rows = await store.pool.fetch(_SQL.blocked_loops, tenant_id, key.job_id, key.scheduled_for, key.slot, key.id, limit)
    return [_event(row) for row in rows]


async def record_recoveries(store: Store, limit: int) -> tuple[int, int, int]:
    """Records jobs in trouble and jobs that recovered; returns how many events were scanned, noted and recovered."""
    row = await store.pool.fetchrow(_SQL.recover, limit)
    assert row is not None
    return row["checked"], row["recorded"], row["recovered"]


async def running_attempts(store: Store, before: datetime, limit: int, silent: timedelta) -> list[RunningAttemptRow]:
    """Returns attempts claimed before a moment that have no slow event; a random sample if there are more than
    `limit`.

    Attempts of workers without a heartbeat for `silent` are left out.
    """
    rows = await store.pool.fetch(_SQL.slow_candidates, before, limit, silent)
    return [
        RunningAttemptRow(key=RunKey(job_id, scheduled_for, slot), attempt=attempt, claimed_at=claimed_at)
        for job_id, scheduled_for, slot, attempt, claimed_at in rows
    ]


async def duration_histories(store: Store, job_ids: Sequence[UUID], scan: int, limit: int) -> list[DurationHistory]:
    """Returns the last `limit` durations of each job, among its newest `scan` attempts."""
    return [DurationHistory(**dict(row)) for row in await store.pool.fetch(_SQL.recent_durations, job_ids, scan, limit)]


async def newest(
    store: Store,
    tenant_id: int,
    before: int | None,
    limit: int,
    *,
    kind: str | None = None,
    job_id: UUID | None = None,
) -> list[EventRow]:
    """Returns a tenant's newest events, or those before an event."""
    bounds = (tenant_id, _MAX_EVENT_ID if before is None else before, limit)
    if job_id is not None:
        rows = await store.pool.fetch(_SQL.newest_of_job, *bounds, job_id, kind)
    elif kind is not None:
        rows = await store.pool.fetch(_SQL.newest_of_kind, *bounds, kind)
    else:
        rows = await store.pool.fetch(_SQL.newest, *bounds)
    return [_event(row) for row in rows]


MAX_EVENTS_PER_TENANT: Final = 500  # per read


class CommitPosition(NamedTuple):
    """A reader's position. The transaction comes first, because event ids are assigned before the commit."""

    tx: int
    event_id: int


START_POSITION: Final = CommitPosition(0, 0)


class EventBatch(NamedTuple):
    """The next events, and the position to continue from: after the last event, or the horizon if these are all."""

    events: list[tuple[CommitPosition, EventRow]]
    position: CommitPosition
    is_all: bool


async def events_after(store: Store, positions: Mapping[int, CommitPosition]) -> dict[int, EventBatch]:
    """Returns the events of each tenant after its position, in one query."""
    columns = (list(positions), [str(p.tx) for p in positions.values()], [p.event_id for p in positions.values()])
    rows = await store.pool.fetch(_SQL.after_positions, *columns, MAX_EVENTS_PER_TENANT)
    horizon = CommitPosition(rows[0]["horizon"], 0)
    found: dict[int, list[tuple[CommitPosition, EventRow]]] = {tenant_id: [] for tenant_id in positions}
    for row in rows:
        if row["event_id"] is not None:
            found[row["tenant_id"]].append((CommitPosition(row["tx"], row["event_id"]), _event(row)))
    batches = {}
    for tenant_id, events in found.items():
        is_all = len(events) < MAX_EVENTS_PER_TENANT
        batches[tenant_id] = EventBatch(events, horizon if is_all else events[-1][0], is_all)
    return batches


async def commit_horizon(store: Store) -> CommitPosition:
    """Returns the position for a reader who wants only future events."""
    rows = await store.pool.fetch(_SQL.after_positions, [], [], [], 0)
    return CommitPosition(rows[0]["horizon"], 0)


def _event(row: asyncpg.Record) -> EventRow:
    return EventRow(
        **{name: row[name] for name in ("event_id", "at", "kind", "job", "attempt")},
        key=RunKey(row["job_id"], row["scheduled_for"], row["slot"]),
        data=msgspec.json.decode(row["data"]),
    )
