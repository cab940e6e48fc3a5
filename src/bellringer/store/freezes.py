"""Freezes, during which a tenant's schedules do not start runs, and suspended tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("freezes")
MAX_OPEN_FREEZES: Final = 200  # per tenant
MAX_JOBS_SCANNED: Final = 10_000  # to count the jobs that a freeze covers


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeRow:
    """A stored freeze over [from_at, to_at). Without tags it covers all jobs."""

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
) -> FreezeRow | None:
    """Creates a freeze; returns None if the tenant has reached its limit."""
    values = (tenant_id, name, from_at, to_at, policy, list(tags), reason, who, MAX_OPEN_FREEZES)
    row = await store.pool.fetchrow(_SQL.add, *values)
    return _freeze(row) if row else None


async def get(store: Store, tenant_id: int, freeze_id: int) -> FreezeRow | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, freeze_id)
    return _freeze(row) if row else None


async def find_by_name(store: Store, tenant_id: int, name: str) -> list[FreezeRow]:
    """Returns the open freezes of a name, two at most: enough to tell whether the name is unique."""
    return [_freeze(row) for row in await store.pool.fetch(_SQL.by_name, tenant_id, name)]


async def list_page(store: Store, tenant_id: int, before: tuple[datetime, int] | None, limit: int) -> list[FreezeRow]:
    """Returns freezes ordered by end, latest first, so that open ones come before past ones."""
    to_at, freeze_id = before or (None, None)
    return [_freeze(row) for row in await store.pool.fetch(_SQL.list, tenant_id, to_at, freeze_id, limit)]


async def list_between(store: Store, tenant_id: int, start: datetime, end: datetime) -> list[FreezeRow]:
    """Returns the freezes that overlap [start, end), among the first MAX_OPEN_FREEZES that end after `start`."""
    return [_freeze(row) for row in await store.pool.fetch(_SQL.between, tenant_id, start, end, MAX_OPEN_FREEZES)]


async def amend(store: Store, tenant_id: int, freeze_id: int, to_at: datetime, reason: str | None) -> FreezeRow | None:
    """Changes the end and reason of a freeze that is not over."""
    row = await store.pool.fetchrow(_SQL.change, tenant_id, freeze_id, to_at, reason)
    await store.pool.execute(_SQL.recheck_frozen, tenant_id)
    return _freeze(row) if row else None


async def count_covered_jobs(store: Store, tenant_id: int, tags: Sequence[str]) -> int | None:
    """Counts the jobs that a freeze with these tags covers; None if there are too many to scan."""
    row = await store.pool.fetchrow(_SQL.covered, tenant_id, list(tags), MAX_JOBS_SCANNED + 1)
    assert row is not None
    return row["covered"] if row["scanned"] <= MAX_JOBS_SCANNED else None


async def lift(store: Store, tenant_id: int, freeze_id: int) -> bool:
    """Ends a freeze now; returns whether it was still open."""
    lifted: bool = await store.pool.fetchval(_SQL.end, tenant_id, freeze_id)
    await store.pool.execute(_SQL.recheck_frozen, tenant_id)
    return lifted


async def suspend(store: Store, tenant_id: int) -> bool:
    """Suspends a tenant; returns whether it was active."""
    return await store.pool.execute(_SQL.suspend, tenant_id) == "UPDATE 1"


async def unsuspend(store: Store, tenant_id: int) -> bool:
    return await store.pool.execute(_SQL.unsuspend, tenant_id) == "UPDATE 1"


def _freeze(row: asyncpg.Record) -> FreezeRow:
    return FreezeRow(**{**dict(row), "tags": tuple(row["tags"])})
