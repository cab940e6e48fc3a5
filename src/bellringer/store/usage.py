"""Usage per minute, pool and tenant: runs started, runs late, and busy time of slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("usage")
WHOLE_POOL_TENANT_ID: Final = 0  # the row of the pool itself


class UsageDelta(NamedTuple):
    """The amounts to add to one row."""

    minute: datetime
    pool_id: int
    tenant_id: int
    started: int = 0
    late: int = 0
    busy_ms: int = 0
    slots_ms: int = 0
    occurrences: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveRow:
    """A tenant's objective; `now` is when it was read."""

    tenant: str
    target: float | None
    within: float | None
    now: datetime
    max_missed: float | None = None  # the largest share of occurrences that may be missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Runs due since a moment: how many started, how many of them late, and how many were missed.

    `occurrences` counts the first starts of runs that schedules created, `retried` the starts of later attempts.
    """

    since: datetime
    started: int
    late: int
    missed: int = 0
    occurrences: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMinute:
    """The usage of a pool in one minute, in milliseconds of slots; `others` by name for callers who may see them."""

    minute: datetime
    pool: str
    own_ms: int
    others_ms: int
    slots_ms: int
    others: Mapping[str, int]


async def add(store: Store, used: Sequence[UsageDelta]) -> dict[int, float | None]:
    """Adds to the rows; returns the start deadlines in seconds of these tenants."""
    columns = zip(*used, strict=True)
    rows = await store.pool.fetch(_SQL.add, *(list(column) for column in columns))
    return {row["tenant_id"]: row["within"] for row in rows}


async def start_deadlines(store: Store) -> dict[int, float]:
    """Returns the start deadline in seconds of each tenant that has one."""
    return {row["tenant_id"]: row["within"] for row in await store.pool.fetch(_SQL.within)}


async def prune(store: Store, before: datetime) -> None:
    await store.pool.execute(_SQL.forget, before)


async def load_objective(store: Store, tenant_id: int) -> ObjectiveRow | None:
    row = await store.pool.fetchrow(_SQL.objective, tenant_id)
    if row is None:
        return None
    return ObjectiveRow(
        tenant=row["name"],
        target=row["target"],
        within=row["within"],
        max_missed=row["max_missed"],
        now=row["now"],
    )


async def starts_since(store: Store, tenant_id: int, spans: Sequence[datetime], until: datetime) -> list[Starts]:
    """Returns the sums of each span, ordered by start."""
    rows = await store.pool.fetch(_SQL.sums, tenant_id, spans, until)
    return [_starts(row, "start") for row in rows]


async def all_starts_since(store: Store, spans: Sequence[datetime], until: datetime) -> list[Starts]:
    """Returns the sums of each span over all tenants, ordered by start."""
    return [_starts(row, "start") for row in await store.pool.fetch(_SQL.sums_of_all, spans, until)]


async def worst_minutes(store: Store, tenant_id: int, since: datetime, until: datetime, limit: int) -> list[Starts]:
    """Returns the minutes with the most late or missed runs."""
    rows = await store.pool.fetch(_SQL.worst, tenant_id, since, until, limit)
    return [_starts(row, "minute") for row in rows]


async def pool_minutes(store: Store, tenant_id: int, minutes: Sequence[datetime], *, named: bool) -> list[PoolMinute]:
    """Returns the usage of pools in the minutes in which the tenant's runs were late."""
    return [
        PoolMinute(
            minute=row["minute"],
            pool=row["pool"],
            own_ms=row["own_ms"],
            others_ms=row["others_ms"],
            slots_ms=row["slots_ms"],
            others=dict(zip(row["names"] or (), row["shares"] or (), strict=True)),
        )
        for row in await store.pool.fetch(_SQL.around, tenant_id, minutes, named)
    ]


def _starts(row: asyncpg.Record, since: str) -> Starts:
    names = ("started", "late", "missed", "occurrences", "retried")
    return Starts(since=row[since], **{name: row[name] for name in names})
