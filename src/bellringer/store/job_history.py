"""The past occurrences of jobs: runs, gaps, skips, and the outcomes of their last attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.core.runs import RunKey
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("job_history")

MIN_INSTANT: Final = datetime(1, 1, 1, tzinfo=UTC)
MAX_INSTANT: Final = datetime(9999, 12, 31, tzinfo=UTC)
MAX_SLOT: Final = (1 << 63) - 1
SUCCESS_SCAN_ATTEMPTS: Final = 200  # newest attempts that are scanned for a success
MAX_RUNS_PER_DAY: Final = 1_000
MAX_ATTEMPTS_PER_SPAN: Final = 200
MAX_GAPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run with its state; `started_at` and `finished_at` are of its last attempt."""

    key: RunKey
    cause: str
    state: str
    reason: str
    first_started_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class MissedRow:
    """Occurrences without a run; the run at `into_at` stands for them."""

    from_at: datetime
    to_at: datetime
    schedule_id: int
    count: int | None
    reason: str
    into_at: datetime | None


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A skipped future occurrence."""

    at: datetime
    who: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt of a job; attempt 0 is an end without an attempt."""

    scheduled_for: datetime
    attempt: int
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatistics:
    """The attempts of a job that were due in a span from `at` on. `durations` are the percentiles 50, 95 and 99 in
    seconds, `lateness` 50 and 99; None without attempts that have one.
    """

    at: datetime
    attempts: int
    retries: int
    failed: int
    durations: Sequence[float] | None
    lateness: Sequence[float] | None


async def last_runs(
    store: Store,
    tenant_id: int,
    jobs: Sequence[UUID],
    limit: int,
    *,
    start: datetime = MIN_INSTANT,
    before: tuple[datetime, int] = (MAX_INSTANT, 0),
) -> list[PastRun]:
    """Returns the newest runs of each job before (instant, slot), newest first."""
    rows = await store.pool.fetch(_SQL.last_runs, tenant_id, jobs, start, *before, limit)
    return [PastRun(RunKey(job_id, at, slot), *others) for job_id, at, slot, *others in rows]


async def existing_jobs(store: Store, tenant_id: int, jobs: Sequence[UUID]) -> set[UUID]:
    """Returns those ids that are jobs of the tenant."""
    return {row["job_id"] for row in await store.pool.fetch(_SQL.known, tenant_id, jobs)}


async def last_successes(store: Store, tenant_id: int, jobs: Sequence[UUID]) -> Mapping[UUID, datetime]:
    """Returns when the last successful run of each job was scheduled, among the job's newest attempts."""
    rows = await store.pool.fetch(_SQL.last_successes, tenant_id, jobs, SUCCESS_SCAN_ATTEMPTS)
    return {row["job_id"]: row["at"] for row in rows}


async def last_attempts(store: Store, tenant_id: int, job_id: UUID, limit: int) -> list[AttemptRecord]:
    """Returns the newest attempts of a job."""
    return [AttemptRecord(*row) for row in await store.pool.fetch(_SQL.last_attempts, tenant_id, job_id, limit)]


async def attempt_statistics(
    store: Store, tenant_id: int, job_id: UUID, starts: Sequence[datetime], length: timedelta
) -> list[AttemptStatistics]:
    """Returns the statistics of a job's attempts in the span of this length from each start, in order.

    Of each span the newest MAX_ATTEMPTS_PER_SPAN + 1 attempts are read, so the cost does not depend on the history;
    MAX_ATTEMPTS_PER_SPAN + 1 attempts stand for more.
    """
    ends = [at + length for at in starts]
    rows = await store.pool.fetch(
        _SQL.attempt_statistics, tenant_id, job_id, list(starts), ends, MAX_ATTEMPTS_PER_SPAN + 1
    )
    return [AttemptStatistics(**dict(row)) for row in rows]


async def list_gaps(
    store: Store, job_id: UUID, start: datetime, before: tuple[datetime, datetime, int], limit: int
) -> list[MissedRow]:
    """Returns the newest gaps before (start, end, schedule)."""
    return [MissedRow(*row) for row in await store.pool.fetch(_SQL.gaps, job_id, start, *before, limit)]


async def list_skips(
    store: Store, tenant_id: int, job_id: UUID, start: datetime, before: datetime, limit: int
) -> list[SkippedRow]:
    """Returns skips of future occurrences, the most distant first."""
    return [SkippedRow(*row) for row in await store.pool.fetch(_SQL.skips, job_id, tenant_id, start, before, limit)]


async def runs_by_day(
    store: Store, tenant_id: int, job_id: UUID, wanted: Sequence[date]
) -> Mapping[date, tuple[int, int]]:
    """Returns (runs, failed runs) per day; MAX_RUNS_PER_DAY + 1 stands for more."""
    rows = await store.pool.fetch(_SQL.daily_counts, tenant_id, job_id, wanted, MAX_RUNS_PER_DAY + 1)
    return {row["day"]: (row["runs"], row["failed"]) for row in rows}


async def gaps_by_day(store: Store, job_id: UUID, start: datetime, end: datetime) -> Mapping[date, int]:
    """Returns the occurrences without a run by the day their gap begins; an uncounted gap counts as one."""
    rows = await store.pool.fetch(_SQL.gap_days, job_id, start, end, MAX_GAPS)
    return {row["day"]: row["count"] for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRow:
    """A skipped occurrence, who skipped it, and why."""

    job_id: UUID
    at: datetime
    who: str
    reason: str | None
    made_at: datetime


async def skip(
    store: Store, job_id: UUID, tenant_id: int, at: datetime, revision: int, who: str, reason: str | None
) -> str | None:
    """Returns `skipped`, `fired` or `changed`; None if there is no such job."""
    done: str | None = await store.pool.fetchval(_SQL.skip, job_id, tenant_id, at, revision, who, reason)
    return done


async def unskip(store: Store, job_id: UUID, tenant_id: int, at: datetime) -> str | None:
    """Returns `wanted` or `fired`; None if the occurrence was not skipped."""
    done: str | None = await store.pool.fetchval(_SQL.unskip, job_id, tenant_id, at)
    return done


async def upcoming_skips(
    store: Store, job_id: UUID, tenant_id: int, after: datetime | None, limit: int
) -> list[SkipRow]:
    """Returns the upcoming skips of a job, the next first."""
    return [
        SkipRow(**dict(row)) for row in await store.pool.fetch(_SQL.upcoming_skips, job_id, tenant_id, after, limit)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedCounts:
    """Occurrences of a job that got a run, and those that were missed; `more`: counting stopped at its limit.

    `uncounted` gaps have no count.
    """

    fired: int
    missed: int
    uncounted: int
    more: bool


async def count_missed(
    store: Store, tenant_id: int, job_id: UUID, start: datetime, end: datetime, limit: int
) -> MissedCounts:
    row = await store.pool.fetchrow(_SQL.missed, job_id, tenant_id, start, end, limit)
    assert row is not None
    return MissedCounts(
        fired=row["fired"],
        missed=row["missed"],
        uncounted=row["uncounted"],
        more=row["fired"] >= limit or row["gaps"] >= limit,
    )
