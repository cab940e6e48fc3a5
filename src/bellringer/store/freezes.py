"""Freezes in the database: times in which a tenant's schedules rest; and tenants that rest altogether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("freezes")
MOST: Final = 200  # of a tenant that are not over
MOST_LOOKED: Final = 10_000  # jobs, to say how many of them a freeze covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A freeze as it is stored: from_at is in it, to_at is not. Without tags it covers all jobs."""

    freeze_id: int
    name: str
    from_at: datetime
    to_at: datetime
    policy: str
    tags: tuple[str, ...]
    reason: str | None
    made_by: str
    made_at: datetime


async def add(
    store: Store,
    tenant_id: int,
    *,
    name: str,
    from_at: datetime,
    to_at: datetime,
    policy: str,
    tags: Sequence[str],
    reason: str | None,
    who: str,
) -> Freeze | None:
    """None: the tenant has as many as it may have."""
    values = (tenant_id, name, from_at, to_at, policy, list(tags), reason, who, MOST)
    row = await store.pool.fetchrow(_SQL.add, *values)
    return _freeze(row) if row else None


async def get(store: Store, tenant_id: int, freeze_id: int) -> Freeze | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, freeze_id)
    return _freeze(row) if row else None


async def named(store: Store, tenant_id: int, name: str) -> list[Freeze]:
    """Those of a name that are not over, two at most: enough to tell whether the name means one."""
    return [_freeze(row) for row in await store.pool.fetch(_SQL.named, tenant_id, name)]


async def listing(store: Store, tenant_id: int, before: tuple[datetime, int] | None, most: int) -> list[Freeze]:
    """By their ends, the latest first: so what is to come and what holds stand before what is over."""
    to_at, freeze_id = before or (None, None)
    return [_freeze(row) for row in await store.pool.fetch(_SQL.list, tenant_id, to_at, freeze_id, most)]


async def amend(store: Store, tenant_id: int, freeze_id: int, to_at: datetime, reason: str | None) -> Freeze | None:
    """Give a freeze another end and reason, unless it is over."""
    row = await store.pool.fetchrow(_SQL.amend, tenant_id, freeze_id, to_at, reason)
    await store.pool.execute(_SQL.rouse, tenant_id)
    return _freeze(row) if row else None


async def covered(store: Store, tenant_id: int, tags: Sequence[str]) -> int | None:
    """How many jobs a freeze with these tags covers; None where there are too many to look at."""
    row = await store.pool.fetchrow(_SQL.covered, tenant_id, list(tags), MOST_LOOKED + 1)
    assert row is not None
    return row["covered"] if row["looked"] <= MOST_LOOKED else None


async def lift(store: Store, tenant_id: int, freeze_id: int) -> bool:
    """End a freeze now; answers whether it was not over before."""
    lifted: bool = await store.pool.fetchval(_SQL.lift, tenant_id, freeze_id)
    await store.pool.execute(_SQL.rouse, tenant_id)
    return lifted


async def suspend(store: Store, tenant_id: int) -> bool:
    """Let a tenant rest; answers whether it did not before."""
    return await store.pool.execute(_SQL.suspend, tenant_id) == "UPDATE 1"


async def unsuspend(store: Store, tenant_id: int) -> bool:
    return await store.pool.execute(_SQL.unsuspend, tenant_id) == "UPDATE 1"


def _freeze(row: asyncpg.Record) -> Freeze:
    return Freeze(**{**dict(row), "tags": tuple(row["tags"])})
