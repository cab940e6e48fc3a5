"""Counters that change whenever data of a tenant changes. Only inequality has a meaning; the values are not counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("change_counters")


class ChangeCounters(NamedTuple):
    """Counters of a tenant's runs, jobs, dead letters and events, and of the workers and schedulers."""

    runs: int
    jobs: int
    dead: int
    workers: int
    events: int


async def load_counters(store: Store, tenants: Collection[int]) -> dict[int, ChangeCounters]:
    """Returns the counters of these tenants in one query."""
    rows = await store.pool.fetch(_SQL.change_counters, list(tenants))
    return {row["tenant_id"]: ChangeCounters(*(row[name] for name in ChangeCounters._fields)) for row in rows}
