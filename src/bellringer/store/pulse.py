"""Marks: numbers that differ when something has changed for a tenant. They are no counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("pulse")


class Marks(NamedTuple):
    """Of a tenant's runs, jobs, dead letters and events, and of who works and fires."""

    runs: int
    jobs: int
    dead: int
    workers: int
    events: int


async def marks(store: Store, tenants: Collection[int]) -> dict[int, Marks]:
    """Those of some tenants, in one statement."""
    rows = await store.pool.fetch(_SQL.marks, list(tenants))
    return {row["tenant_id"]: Marks(*(row[name] for name in Marks._fields)) for row in rows}
