"""What became of jobs' occurrences: runs, gaps, skips to come, and how the last attempts went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final
from uuid import UUID

from bellringer.runs import RunKey
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("job_history")

START: Final = datetime(1, 1, 1, tzinfo=UTC)
END: Final = datetime(9999, 12, 31, tzinfo=UTC)
HIGHEST: Final = (1 << 63) - 1
SUCCESS_LOOK: Final = 200  # attempts among which the last success is looked for
MOST_OF_A_DAY: Final = 1_000
MOST_GAPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run with where it is; `started_at` and `finished_at` are of its last attempt."""

    key: RunKey
    cause: str
    state: str
    reason: str
    first_started_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Occurrences that got no run: `into_at` ran in their place."""

    from_at: datetime
    to_at: datetime
    schedule_id: int
    count: int | None
    reason: str
    into_at: datetime | None


@dataclass(frozen=True, slots=True)
class Skip:
    """An occurrence that will not run."""

    at: datetime
    who: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a job; attempt 0 is an end without a try."""

    scheduled_for: datetime
    attempt: int
    outcome: str | None
    ends_as: str | None
    started_at: datetime | None
    finished_at: datetime


async def last_runs(
    store: Store,
    tenant_id: int,
    jobs: Sequence[UUID],
    most: int,
    *,
    start: datetime = START,
    before: tuple[datetime, int] = (END, 0),
) -> list[PastRun]:
    """The newest runs of each of these jobs before (instant, slot), the newest first."""
    rows = await store.pool.fetch(_SQL.last_runs, tenant_id, jobs, start, *before, most)
    return [PastRun(RunKey(job_id, at, slot), *others) for job_id, at, slot, *others in rows]


async def known(store: Store, tenant_id: int, jobs: Sequence[UUID]) -> set[UUID]:
    """Those of these jobs that there are."""
    return {row["job_id"] for row in await store.pool.fetch(_SQL.known, tenant_id, jobs)}


async def last_successes(store: Store, tenant_id: int, jobs: Sequence[UUID]) -> Mapping[UUID, datetime]:
    """When the last run that succeeded was scheduled for, of each job with one among its newest attempts."""
    rows = await store.pool.fetch(_SQL.last_successes, tenant_id, jobs, SUCCESS_LOOK)
    return {row["job_id"]: row["at"] for row in rows}


async def last_tries(store: Store, tenant_id: int, job_id: UUID, most: int) -> list[Try]:
    """The newest attempts of a job."""
    return [Try(*row) for row in await store.pool.fetch(_SQL.last_tries, tenant_id, job_id, most)]


async def gaps(
    store: Store, job_id: UUID, start: datetime, before: tuple[datetime, datetime, int], most: int
) -> list[Gap]:
    """The newest gaps before (its beginning, its end, its schedule)."""
    return [Gap(*row) for row in await store.pool.fetch(_SQL.gaps, job_id, start, *before, most)]


async def skips(store: Store, tenant_id: int, job_id: UUID, start: datetime, before: datetime, most: int) -> list[Skip]:
    """Skips to come, the farthest first."""
    return [Skip(*row) for row in await store.pool.fetch(_SQL.skips, job_id, tenant_id, start, before, most)]


async def days(store: Store, tenant_id: int, job_id: UUID, wanted: Sequence[date]) -> Mapping[date, tuple[int, int]]:
    """Runs of each day, and how many of them gave up; one more than MOST_OF_A_DAY stands for more."""
    rows = await store.pool.fetch(_SQL.days, tenant_id, job_id, wanted, MOST_OF_A_DAY + 1)
    return {row["day"]: (row["runs"], row["failed"]) for row in rows}


async def gap_days(store: Store, job_id: UUID, start: datetime, end: datetime) -> Mapping[date, int]:
    """Occurrences without a run by the day on which their gap begins; a gap that was not counted counts as one."""
    rows = await store.pool.fetch(_SQL.gap_days, job_id, start, end, MOST_GAPS)
    return {row["day"]: row["count"] for row in rows}
