"""Tenants, their quotas, weights and objectives, and their usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from bellringer.access.quotas import Quotas
from bellringer.core.payload import MAX_PAYLOAD_BYTES
from bellringer.errors import Conflict
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("tenants")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant with its weight for claims and its quotas."""

    tenant_id: int
    name: str
    weight: float
    quotas: Quotas
    objective: Mapping[str, Any]
    suspended_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """A tenant's usage of its quotas."""

    jobs: int
    fires_per_minute: float
    in_flight: int


async def get_by_name(store: Store, name: str) -> TenantRow | None:
    row = await store.pool.fetchrow(_SQL.by_name, name)
    return _tenant(row) if row else None


async def get_by_id(store: Store, tenant_id: int) -> TenantRow | None:
    row = await store.pool.fetchrow(_SQL.by_id, tenant_id)
    return _tenant(row) if row else None


async def list_page(store: Store, after: str | None, limit: int) -> list[TenantRow]:
    return [_tenant(row) for row in await store.pool.fetch(_SQL.list, after, limit)]


async def add(store: Store, name: str, *, weight: float, quotas: Quotas, objective: Mapping[str, Any]) -> TenantRow:
    terms = (weight, _json(quotas), _json(objective))
    try:
        row = await store.pool.fetchrow(_SQL.add, name, *terms)
    except asyncpg.UniqueViolationError as error:
        raise Conflict(
            "a tenant with that name already exists", hint="choose another name", code="name_taken"
        ) from error
    assert row is not None
    return _tenant(row)


async def change(
    store: Store,
    tenant_id: int,
    *,
    weight: float | None = None,
    quotas: Quotas | None = None,
    objective: Mapping[str, Any] | None = None,
    suspended: bool | None = None,
) -> TenantRow | None:
    """Changes the given values; None leaves a value unchanged."""
    terms = (weight, None if quotas is None else _json(quotas), None if objective is None else _json(objective))
    row = await store.pool.fetchrow(_SQL.change, tenant_id, *terms, suspended)
    return _tenant(row) if row else None


async def payload_limit(store: Store, tenant_id: int) -> int:
    """Returns the maximum size of arguments in bytes."""
    quota: int | None = await store.pool.fetchval(_SQL.payload_limit, tenant_id)
    return MAX_PAYLOAD_BYTES if quota is None else min(quota, MAX_PAYLOAD_BYTES)


async def load_usage(store: Store, tenant_id: int) -> QuotaUsage:
    row = await store.pool.fetchrow(_SQL.used, tenant_id)
    assert row is not None
    return QuotaUsage(**dict(row))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _tenant(row: asyncpg.Record) -> TenantRow:
    quotas = msgspec.json.decode(row["quotas"], type=Quotas)
    return TenantRow(**{**dict(row), "quotas": quotas, "objective": msgspec.json.decode(row["objective"])})
