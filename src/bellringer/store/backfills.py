"""Backfills and catch-ups: past occurrences that still need a run. Reads them and creates their runs under the
leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.core.leases import Holding
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("backfills")
MAX_RUNNING_COUNTED: Final = 1_000
MAX_ENDINGS_SCANNED: Final = 20_000
OPEN_STATES: Final = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBackfill:
    """A backfill that has not ended, with the facts that decide how it continues."""

    backfill_id: int
    shard: int
    tenant_id: int
    job_id: UUID
    cause: str
    state: str
    schedule_ids: tuple[int, ...]
    from_at: datetime
    to_at: datetime
    cursor: datetime | None
    newest_first: bool
    reprocess: str
    parallelism: int
    rate: float | None
    most: int | None
    horizon: timedelta | None
    total: int | None
    made_at: datetime | None
    revision: int
    starts_at: datetime | None
    ends_at: datetime | None
    overlap: str
    job_paused: bool
    job_deleted: bool
    unfinished: int
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchupRange:
    """Where a catch-up starts, how many occurrences it has, and how many before the start were cut off."""

    start: datetime
    total: int
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillBatch:
    """The next instants of a backfill; `is_last`: no instants follow."""

    backfill: OpenBackfill
    max_runs: int
    instants: Sequence[datetime]
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FillResult:
    """The result of one call: runs created, and backfills that advanced; both 0 if a lease was lost."""

    created: int
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBackfill:
    """A backfill to create; `total` counts the occurrences in its range."""

    job_id: UUID
    revision: int
    from_at: datetime
    to_at: datetime
    newest_first: bool
    reprocess: str
    parallelism: int
    rate: float | None
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRow:
    """A backfill as the API shows it."""

    backfill_id: int
    job_id: UUID
    job: str
    cause: str
    state: str
    from_at: datetime
    to_at: datetime
    cursor: datetime | None
    newest_first: bool
    reprocess: str
    parallelism: int
    rate: float | None
    total: int | None
    made: int
    passed: int
    who: str
    why: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillCounts:
    """The states of a backfill's runs."""

    running: int
    succeeded: int
    dead: int
    cancelled: int


async def list_open(store: Store, shards: Sequence[int], after: int, limit: int) -> list[OpenBackfill]:
    """Returns the backfills of these shards that have not ended, ordered by id."""
    rows = await store.pool.fetch(_SQL.open, shards, after, limit)
    return [OpenBackfill(**{**dict(row), "schedule_ids": tuple(row["schedule_ids"])}) for row in rows]


async def ensure_days_uncached(store: Store, days: Iterable[date]) -> None:
    """Creates the partitions of these days. Not cached, because past days may be dropped again."""
    await store.pool.execute(_SQL.ensure_days, sorted(set(days)))


async def save_catchup_ranges(store: Store, holding: Holding, found: Mapping[OpenBackfill, CatchupRange]) -> int | None:
    """Stores the ranges of catch-ups; returns how many occurrences were cut off, or None if a lease was lost."""
    shards, tokens = holding.tokens_for([b.shard for b in found])
    row = await store.pool.fetchrow(
        _SQL.set_totals,
        holding.holder,
        shards,
        tokens,
        [b.backfill_id for b in found],
        [m.start for m in found.values()],
        [m.total for m in found.values()],
        [m.cut for m in found.values()],
    )
    assert row is not None
    return None if row["refused"] else row["missed"]


async def create_runs(store: Store, holding: Holding, batches: Sequence[BackfillBatch]) -> FillResult:
    """Creates runs for the instants and advances the backfills' cursors."""
    shards, tokens = holding.tokens_for([f.backfill.shard for f in batches])
    instants = [instant for f in batches for instant in f.instants]
    first, last, place = [], [], 0
    for f in batches:
        first.append(place + 1)
        place += len(f.instants)
        last.append(place)
    row = await store.pool.fetchrow(
        _SQL.create_runs,
        holding.holder,
        shards,
        tokens,
        [f.backfill.backfill_id for f in batches],
        [f.backfill.cursor for f in batches],
        [f.backfill.revision for f in batches],
        [f.max_runs for f in batches],
        first,
        last,
        [f.is_last for f in batches],
        instants,
        min(instants, default=None),
        max(instants, default=None),
    )
    assert row is not None
    return FillResult(created=row["made"], moved=row["moved"])


async def create(store: Store, a: NewBackfill, tenant_id: int, who: str) -> int | None:
    """Creates a backfill and returns its id; None if the job has another revision or was deleted."""
    number: int | None = await store.pool.fetchval(
        _SQL.create,
        a.job_id,
        tenant_id,
        a.revision,
        a.from_at,
        a.to_at,
        a.newest_first,
        a.reprocess,
        a.parallelism,
        a.rate,
        a.total,
        who,
    )
    return number


async def get(store: Store, backfill_id: int, tenant_id: int) -> BackfillRow | None:
    row = await store.pool.fetchrow(_SQL.get, backfill_id, tenant_id)
    return BackfillRow(**dict(row)) if row else None


async def list_page(
    store: Store, tenant_id: int, job_id: UUID | None, before: int | None, limit: int
) -> list[BackfillRow]:
    """Returns the newest backfills of all jobs or of one."""
    if job_id is None:
        rows = await store.pool.fetch(_SQL.list, tenant_id, before, limit)
    else:
        rows = await store.pool.fetch(_SQL.of_job, tenant_id, before, limit, job_id)
    return [BackfillRow(**dict(row)) for row in rows]


async def count_runs(store: Store, b: BackfillRow, tenant_id: int) -> BackfillCounts:
    """Counts the runs by state. Ended runs that did not fail are taken to have succeeded."""
    running: int = await store.pool.fetchval(_SQL.running, b.backfill_id, MAX_RUNNING_COUNTED)
    rows = await store.pool.fetch(_SQL.failed, b.backfill_id, tenant_id, MAX_ENDINGS_SCANNED)
    failed = {row["ends_as"]: row["count"] for row in rows}
    succeeded = max(b.made - running - sum(failed.values()), 0)
    cancelled = failed.get("cancelled", 0) + failed.get("skipped", 0)
    return BackfillCounts(running=running, succeeded=succeeded, dead=failed.get("dead", 0), cancelled=cancelled)


async def pause(store: Store, backfill_id: int, tenant_id: int) -> bool:
    command_tag: str = await store.pool.execute(_SQL.pause, backfill_id, tenant_id)
    return command_tag != "UPDATE 0"


async def resume(store: Store, backfill_id: int, tenant_id: int) -> bool:
    command_tag: str = await store.pool.execute(_SQL.resume, backfill_id, tenant_id)
    return command_tag != "UPDATE 0"


async def end(store: Store, backfill_id: int, tenant_id: int, reason: str, why: str | None) -> str | None:
    """Ends a backfill early; returns its previous state, None if there is no such backfill."""
    state: str | None = await store.pool.fetchval(_SQL.end, backfill_id, tenant_id, reason, why)
    return state


async def instants_with_runs(
    store: Store, job_id: UUID, tenant_id: int, after: datetime, before: datetime, limit: int
) -> list[tuple[datetime, bool]]:
    """Returns instants at which the job has runs, and whether one of the runs succeeded or is unfinished."""
    rows = await store.pool.fetch(_SQL.instants_with_runs, job_id, tenant_id, after, before, limit)
    return [(row["at"], row["good"]) for row in rows]
