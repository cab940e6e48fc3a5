"""The load of tenants and shards, and claims of silent workers. All counts are bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("load")

MAX_PAIRS: Final = 1_000  # of tenant and pool
MAX_COUNTED: Final = 10_000  # runs of a pair, of a worker, or of a tenant
SHARD_SPAN: Final = timedelta(minutes=5)
HEARTBEAT_LATE_AFTER: Final = timedelta(seconds=10)  # a live worker sends one every two seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLoadRow:
    """Runs of a tenant: ready (the first since `oldest`), waiting for a retry, running, and held by a paused task."""

    tenant_id: int
    tenant: str
    ready: int = 0
    retrying: int = 0
    running: int = 0
    held: int = 0
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRetries:
    """Attempts of a tenant that started: second and later ones, and all."""

    tenant_id: int
    tenant: str
    retried: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLoad:
    """The occurrences a minute of a shard's schedules, and its runs of the last SHARD_SPAN."""

    shard: int
    due_per_minute: float
    fired: int


async def tenant_loads(store: Store, tenant_id: int | None = None) -> list[TenantLoadRow]:
    """Returns the load of one tenant, or of those that have any; the largest backlog first."""
    rows = await store.pool.fetch(_SQL.tenants, tenant_id, MAX_PAIRS, MAX_COUNTED)
    return [TenantLoadRow(**dict(row)) for row in rows]


async def tenant_retries(
    store: Store, since: datetime, tenant_id: int | None = None, limit: int = MAX_PAIRS
) -> list[TenantRetries]:
    """Returns the tenants that retried most since a moment, or one of them."""
    return [TenantRetries(**dict(row)) for row in await store.pool.fetch(_SQL.retried, since, tenant_id, limit)]


async def shard_loads(store: Store) -> Mapping[int, ShardLoad]:
    rows = await store.pool.fetch(_SQL.shards, SHARD_SPAN, MAX_COUNTED)
    return {row["shard"]: ShardLoad(**dict(row)) for row in rows}


async def count_silent_claims(store: Store) -> int:
    """Returns how many claimed runs belong to workers without a recent heartbeat."""
    count: int = await store.pool.fetchval(_SQL.silent_claims, HEARTBEAT_LATE_AFTER, MAX_COUNTED)
    return count


def skew(values: Sequence[float]) -> float:
    """Returns the largest value as a multiple of the mean: 1 is an even distribution, 0 no load at all."""
    total = sum(values)
    return max(values) * len(values) / total if total else 0.0
