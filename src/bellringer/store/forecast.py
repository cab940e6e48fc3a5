"""Data for forecasts: how many jobs follow each schedule, and the pending timers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("forecast")
MAX_COUNT_AGE: Final = timedelta(minutes=1)  # an older count is renewed
SMALL_TABLE_BYTES: Final = 10 * 1024 * 1024  # about 100,000 members, which are counted during the request
MAX_FIRST_JOBS: Final = 5_000  # counted during the request if no complete count exists
MAX_LEFT_OUT_COUNTED: Final = 50_000  # jobs beyond MAX_FIRST_JOBS that are counted as left out
MAX_SIZES: Final = 20_000
MAX_TIMERS_PER_SHARD: Final = 2_000
MAX_SPAN_RUNS: Final = 20
MAX_SPAN_FAILED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortSize:
    """The number of a tenant's jobs in a pool that follow a schedule; `jittered` of them start up to `jitter` later."""

    schedule_id: int
    pool: str
    members: int
    jittered: int
    jitter: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortSizes:
    """The largest groups of jobs first; `total` also counts the groups beyond MAX_SIZES."""

    sizes: Sequence[CohortSize]
    total: int
    counted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTimers:
    """Pending timers by pool and second; `until`: later timers were too many to count."""

    fires: Mapping[tuple[str, datetime], int]
    until: datetime | None


async def recount_oldest_shard(store: Store, shards: Sequence[int], age: timedelta = MAX_COUNT_AGE) -> int | None:
    """Recounts the shard with the oldest count, if that is too old; returns how many figures changed."""
    changed: int | None = await store.pool.fetchval(_SQL.recount, shards, age)
    return changed


async def load_sizes(store: Store, tenant_id: int) -> CohortSizes:
    """Returns the group sizes of a tenant.

    A small installation is counted now; a large one uses the last count. Before the first count of all shards is
    complete, only the tenant's first jobs are counted.
    """
    state = await store.pool.fetchrow(_SQL.state, SMALL_TABLE_BYTES)
    assert state is not None
    counted_at: datetime = state["now"]
    if state["small"]:
        rows = await store.pool.fetch(_SQL.count_members, tenant_id, MAX_SIZES)
    elif state["counted_at"] is None:
        rows = await store.pool.fetch(_SQL.count_first_jobs, tenant_id, MAX_SIZES, MAX_FIRST_JOBS, MAX_LEFT_OUT_COUNTED)
    else:
        rows, counted_at = await store.pool.fetch(_SQL.stored_counts, tenant_id, MAX_SIZES), state["counted_at"]
    found = [
        CohortSize(schedule_id=number, pool=pool, members=members, jittered=jittered, jitter=timedelta(milliseconds=by))
        for number, pool, members, jittered, by, _ in rows
    ]
    total = rows[0]["total"] if rows else 0
    return CohortSizes(sizes=found, total=total, counted_at=counted_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgendaJobRow:
    """What is needed to compute when a job is due. `starts_at` is not before the job was created; `at` is the time of a
    one-shot, or the next one of a fixed delay.
    """

    job_id: UUID
    name: str
    schedule_ids: tuple[int, ...]
    starts_at: datetime | None
    ends_at: datetime | None
    at: datetime | None


async def load_agenda_jobs(store: Store, tenant_id: int, job_ids: Sequence[UUID]) -> list[AgendaJobRow]:
    """Returns the jobs that exist, in the given order."""
    rows = await store.pool.fetch(_SQL.agenda_jobs, tenant_id, job_ids)
    return [AgendaJobRow(**{**dict(row), "schedule_ids": tuple(row["schedule_ids"])}) for row in rows]


class Span(NamedTuple):
    """The occurrences of a job from `start` up to, but not including, `end`."""

    job_id: UUID
    start: datetime
    end: datetime


class SpanOutcome(NamedTuple):
    """How many occurrences of a span got a run, and how many of these runs are dead, each up to a maximum."""

    runs: int
    failed: int


async def load_span_outcomes(store: Store, tenant_id: int, spans: Sequence[Span]) -> list[SpanOutcome]:
    """Returns the outcome of each span; zeros if the job does not exist."""
    columns = list(zip(*spans, strict=True)) or [(), (), ()]
    rows = await store.pool.fetch(_SQL.span_outcomes, tenant_id, *columns, MAX_SPAN_RUNS, MAX_SPAN_FAILED)
    found = {row["number"]: SpanOutcome(row["runs"], row["failed"]) for row in rows}
    return [found.get(number, SpanOutcome(0, 0)) for number in range(1, len(spans) + 1)]


async def load_timers(store: Store, tenant_id: int, start: datetime, end: datetime) -> PendingTimers:
    """Returns the timers of first attempts between two instants."""
    rows = await store.pool.fetch(_SQL.timers, tenant_id, start, end, MAX_TIMERS_PER_SHARD)
    return PendingTimers(
        fires={(row["pool"], row["at"]): row["fires"] for row in rows if row["pool"]}, until=rows[0]["until"]
    )
