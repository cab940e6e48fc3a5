"""Tenants in the database: what each may have, and what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from bellringer.access.quotas import Quotas
from bellringer.errors import Conflict
from bellringer.payload import LIMIT
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("tenants")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant, with its share of the claims and its quotas."""

    tenant_id: int
    name: str
    weight: float
    quotas: Quotas
    objective: Mapping[str, Any]
    suspended_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a tenant has of what quotas count."""

    jobs: int
    fires_per_minute: float
    in_flight: int


async def by_name(store: Store, name: str) -> Tenant | None:
    row = await store.pool.fetchrow(_SQL.by_name, name)
    return _tenant(row) if row else None


async def by_id(store: Store, tenant_id: int) -> Tenant | None:
    row = await store.pool.fetchrow(_SQL.by_id, tenant_id)
    return _tenant(row) if row else None


async def listing(store: Store, after: str | None, most: int) -> list[Tenant]:
    return [_tenant(row) for row in await store.pool.fetch(_SQL.list, after, most)]


async def add(store: Store, name: str, *, weight: float, quotas: Quotas, objective: Mapping[str, Any]) -> Tenant:
    terms = (weight, _json(quotas), _json(objective))
    try:
        row = await store.pool.fetchrow(_SQL.add, name, *terms)
    except asyncpg.UniqueViolationError as error:
        raise Conflict("a tenant of that name exists already", hint="choose another name", code="name_taken") from error
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
) -> Tenant | None:
    """Change what is given; what is None stays as it is."""
    terms = (weight, None if quotas is None else _json(quotas), None if objective is None else _json(objective))
    row = await store.pool.fetchrow(_SQL.change, tenant_id, *terms, suspended)
    return _tenant(row) if row else None


async def payload_limit(store: Store, tenant_id: int) -> int:
    """How many bytes arguments may have: as many as anyone's, or fewer."""
    quota: int | None = await store.pool.fetchval(_SQL.payload_limit, tenant_id)
    return LIMIT if quota is None else min(quota, LIMIT)


async def used(store: Store, tenant_id: int) -> Used:
    row = await store.pool.fetchrow(_SQL.used, tenant_id)
    assert row is not None
    return Used(**dict(row))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _tenant(row: asyncpg.Record) -> Tenant:
    quotas = msgspec.json.decode(row["quotas"], type=Quotas)
    return Tenant(**{**dict(row), "quotas": quotas, "objective": msgspec.json.decode(row["objective"])})
