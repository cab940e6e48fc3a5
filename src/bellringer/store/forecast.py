"""What a forecast is made of: how many jobs follow which schedule, and the timers that are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("forecast")
AGE: Final = timedelta(minutes=1)  # how old a count may grow before it is made anew
FEW: Final = 10 * 1024 * 1024  # bytes of members, about 100,000: they are counted while somebody waits
FIRST: Final = 5_000  # jobs that are looked at while somebody waits, where all are too many and were never counted
MOST_LEFT_OUT: Final = 50_000  # jobs beyond those that are told of
MOST_SIZES: Final = 20_000
MOST_TIMERS: Final = 2_000  # of each shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many of a tenant's jobs in a pool follow a schedule; `jittered` of them start up to `jitter` later."""

    schedule_id: int
    pool: str
    members: int
    jittered: int
    jitter: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The largest crowds first; `total` is the members of all, those beyond the bound too."""

    sizes: Sequence[Size]
    total: int
    counted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers by pool and second; `until`: those from there on were too many to be counted."""

    fires: Mapping[tuple[str, datetime], int]
    until: datetime | None


async def recount(store: Store, shards: Sequence[int], age: timedelta = AGE) -> int | None:
    """Count the members of one of these shards anew, if one's count is too old; answers how many figures changed."""
    changed: int | None = await store.pool.fetchval(_SQL.recount, shards, age)
    return changed


async def sizes(store: Store, tenant_id: int) -> Sizes:
    """The crowds of a tenant: of a small installation as they are now, of a large one as they were counted last, and,
    before its schedulers have come to all shards for the first time, those of the tenant's first jobs."""
    state = await store.pool.fetchrow(_SQL.state, FEW)
    assert state is not None
    counted_at: datetime = state["now"]
    if state["small"]:
        rows = await store.pool.fetch(_SQL.counted, tenant_id, MOST_SIZES)
    elif state["counted_at"] is None:
        rows = await store.pool.fetch(_SQL.first, tenant_id, MOST_SIZES, FIRST, MOST_LEFT_OUT)
    else:
        rows, counted_at = await store.pool.fetch(_SQL.kept, tenant_id, MOST_SIZES), state["counted_at"]
    found = [
        Size(schedule_id=number, pool=pool, members=members, jittered=jittered, jitter=timedelta(milliseconds=by))
        for number, pool, members, jittered, by, _ in rows
    ]
    total = rows[0]["total"] if rows else 0
    return Sizes(sizes=found, total=total, counted_at=counted_at)


async def timers(store: Store, tenant_id: int, start: datetime, end: datetime) -> Timers:
    """What waits for its time between two instants, for the first time."""
    rows = await store.pool.fetch(_SQL.timers, tenant_id, start, end, MOST_TIMERS)
    return Timers(fires={(row["pool"], row["at"]): row["fires"] for row in rows if row["pool"]}, until=rows[0]["until"])
