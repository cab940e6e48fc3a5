"""Usage rows: what was started, how late, and what the workers' time went to, by minute, pool and tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("usage")
POOL: Final = 0  # stands for the pool itself, where a tenant stands otherwise


class Used(NamedTuple):
    """What is to be added to one row."""

    minute: datetime
    pool_id: int
    tenant_id: int
    started: int = 0
    late: int = 0
    busy_ms: int = 0
    slots_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a tenant has set out to reach, as far as it has said so; `now` is when this was read."""

    tenant: str
    target: float | None
    within: float | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """How many runs that were due since a moment have started, and how many of them too late."""

    since: datetime
    started: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a pool did in a minute, in milliseconds of its slots; the others by name, where one may know them."""

    minute: datetime
    pool: str
    own_ms: int
    others_ms: int
    slots_ms: int
    others: Mapping[str, int]


async def add(store: Store, used: Sequence[Used]) -> dict[int, float | None]:
    """Add to the rows; answers within how many seconds these tenants' runs are to start, where they say so."""
    columns = zip(*used, strict=True)
    rows = await store.pool.fetch(_SQL.add, *(list(column) for column in columns))
    return {row["tenant_id"]: row["within"] for row in rows}


async def within(store: Store) -> dict[int, float]:
    """Within how many seconds the runs of each tenant are to start that says so."""
    return {row["tenant_id"]: row["within"] for row in await store.pool.fetch(_SQL.within)}


async def forget(store: Store, before: datetime) -> None:
    await store.pool.execute(_SQL.forget, before)


async def goal(store: Store, tenant_id: int) -> Goal | None:
    row = await store.pool.fetchrow(_SQL.objective, tenant_id)
    if row is None:
        return None
    return Goal(tenant=row["name"], target=row["target"], within=row["within"], now=row["now"])


async def sums(store: Store, tenant_id: int, spans: Sequence[datetime], until: datetime) -> list[Starts]:
    """One for each span, in the order of their beginnings."""
    rows = await store.pool.fetch(_SQL.sums, tenant_id, spans, until)
    return [Starts(since=row["start"], started=row["started"], late=row["late"]) for row in rows]


async def worst(store: Store, tenant_id: int, since: datetime, until: datetime, most: int) -> list[Starts]:
    """The minutes in which most runs were due that started too late."""
    rows = await store.pool.fetch(_SQL.worst, tenant_id, since, until, most)
    return [Starts(since=row["minute"], started=row["started"], late=row["late"]) for row in rows]


async def around(store: Store, tenant_id: int, minutes: Sequence[datetime], *, named: bool) -> list[Around]:
    """What the pools did in these minutes in which the tenant's runs were late."""
    return [
        Around(
            minute=row["minute"],
            pool=row["pool"],
            own_ms=row["own_ms"],
            others_ms=row["others_ms"],
            slots_ms=row["slots_ms"],
            others=dict(zip(row["names"] or (), row["shares"] or (), strict=True)),
        )
        for row in await store.pool.fetch(_SQL.around, tenant_id, minutes, named)
    ]
