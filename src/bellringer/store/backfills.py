"""Backfills: occurrences of the past that are still to be run; reading them, and working them off under the fence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final
from uuid import UUID

from bellringer.leases import Holding
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("backfills")
MOST_RUNNING: Final = 1_000  # unfinished runs are counted no further
MOST_FAILED: Final = 20_000  # endings are looked through no further
UNENDED: Final = frozenset({"running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A backfill that has not ended, with what decides how it goes on."""

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
class Measured:
    """Where a catch-up really starts, how many occurrences it holds, and how many were cut off before."""

    start: datetime
    total: int
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The next instants of a backfill in its order; `ends`: nothing follows them."""

    backfill: Open
    room: int
    instants: Sequence[datetime]
    ends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What one call did: runs born, and backfills that came further; none of either where the fence refused it."""

    made: int
    moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A backfill that somebody asks for; `total` counts the occurrences in its range."""

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
class Backfill:
    """A backfill as a person reads it."""

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
class Counts:
    """What became of a backfill's runs."""

    running: int
    succeeded: int
    dead: int
    cancelled: int


async def unended(store: Store, shards: Sequence[int], after: int, most: int) -> list[Open]:
    """Those that have not ended, by their numbers."""
    rows = await store.pool.fetch(_SQL.open, shards, after, most)
    return [Open(**{**dict(row), "schedule_ids": tuple(row["schedule_ids"])}) for row in rows]


async def ensure_days(store: Store, days: Iterable[date]) -> None:
    """Make sure that these days have a place, asked anew every time: days of the past may be dropped again."""
    await store.pool.execute(_SQL.ensure_days, sorted(set(days)))


async def measure(store: Store, holding: Holding, found: Mapping[Open, Measured]) -> bool:
    """Keep what catch-ups were found to be; False if the fence refused it."""
    shards, tokens = holding.within([b.shard for b in found])
    row = await store.pool.fetchrow(
        _SQL.measure,
        holding.holder,
        shards,
        tokens,
        [b.backfill_id for b in found],
        [m.start for m in found.values()],
        [m.total for m in found.values()],
        [m.cut for m in found.values()],
    )
    assert row is not None
    return not row["refused"]


async def fill(store: Store, holding: Holding, fillings: Sequence[Filling]) -> Filled:
    """Let instants become runs, and move the cursors."""
    shards, tokens = holding.within([f.backfill.shard for f in fillings])
    instants = [instant for f in fillings for instant in f.instants]
    first, last, place = [], [], 0
    for f in fillings:
        first.append(place + 1)
        place += len(f.instants)
        last.append(place)
    row = await store.pool.fetchrow(
        _SQL.fill,
        holding.holder,
        shards,
        tokens,
        [f.backfill.backfill_id for f in fillings],
        [f.backfill.cursor for f in fillings],
        [f.backfill.revision for f in fillings],
        [f.room for f in fillings],
        first,
        last,
        [f.ends for f in fillings],
        instants,
        min(instants, default=None),
        max(instants, default=None),
    )
    assert row is not None
    return Filled(made=row["made"], moved=row["moved"])


async def create(store: Store, a: Asked, tenant_id: int, who: str) -> int | None:
    """The number of a new backfill; None where the job has another revision by now, or is gone."""
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


async def get(store: Store, backfill_id: int, tenant_id: int) -> Backfill | None:
    row = await store.pool.fetchrow(_SQL.get, backfill_id, tenant_id)
    return Backfill(**dict(row)) if row else None


async def listing(store: Store, tenant_id: int, job_id: UUID | None, before: int | None, most: int) -> list[Backfill]:
    """The newest, of all jobs or of one."""
    if job_id is None:
        rows = await store.pool.fetch(_SQL.list, tenant_id, before, most)
    else:
        rows = await store.pool.fetch(_SQL.of_job, tenant_id, before, most, job_id)
    return [Backfill(**dict(row)) for row in rows]


async def counts(store: Store, b: Backfill, tenant_id: int) -> Counts:
    """What became of its runs, as far as they are counted: of those that ended, most ended well."""
    running: int = await store.pool.fetchval(_SQL.running, b.backfill_id, MOST_RUNNING)
    rows = await store.pool.fetch(_SQL.failed, b.backfill_id, tenant_id, MOST_FAILED)
    failed = {row["ends_as"]: row["count"] for row in rows}
    succeeded = max(b.made - running - sum(failed.values()), 0)
    cancelled = failed.get("cancelled", 0) + failed.get("skipped", 0)
    return Counts(running=running, succeeded=succeeded, dead=failed.get("dead", 0), cancelled=cancelled)


async def pause(store: Store, backfill_id: int, tenant_id: int) -> bool:
    answer: str = await store.pool.execute(_SQL.pause, backfill_id, tenant_id)
    return answer != "UPDATE 0"


async def resume(store: Store, backfill_id: int, tenant_id: int) -> bool:
    answer: str = await store.pool.execute(_SQL.resume, backfill_id, tenant_id)
    return answer != "UPDATE 0"


async def end(store: Store, backfill_id: int, tenant_id: int, reason: str, why: str | None) -> str | None:
    """End it before its time; answers the state that it was in, None if there is none."""
    state: str | None = await store.pool.fetchval(_SQL.end, backfill_id, tenant_id, reason, why)
    return state


async def ran(
    store: Store, job_id: UUID, tenant_id: int, after: datetime, before: datetime, most: int
) -> list[tuple[datetime, bool]]:
    """Instants at which the job has runs, and whether one of them succeeded or has not ended."""
    rows = await store.pool.fetch(_SQL.ran, job_id, tenant_id, after, before, most)
    return [(row["at"], row["good"]) for row in rows]
