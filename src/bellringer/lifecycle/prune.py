"""Prune: make the days to come, drop those past retention, and forget what nothing refers to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bellringer.store import audit, egress, flows, history, leases, operations, usage, webhooks, workers
from bellringer.store.pool import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long things are kept."""

    runs: timedelta = timedelta(days=30)
    dead_letters: timedelta = timedelta(days=30)
    gaps: timedelta = timedelta(days=90)
    events: timedelta = timedelta(days=30)
    usage: timedelta = timedelta(days=30)
    operations: timedelta = timedelta(days=90)
    audit: timedelta = timedelta(days=365)


async def make_days(store: Store, now: datetime, ahead: int = 3) -> None:
    """Give today and the days to come their partitions."""
    await history.ensure_days(store, {(now + timedelta(days=n)).date() for n in range(ahead)})


async def prune(store: Store, now: datetime, retention: Retention) -> int:
    """Drop days past retention; answers how many went. A day with unended runs or dead letters stays."""
    await history.forget(store, now, retention.dead_letters, retention.gaps, retention.events)
    await webhooks.forget(store, now - retention.events)
    await egress.forget(store, now - retention.events)
    await egress.forget_secrets(store, now - retention.runs - retention.dead_letters)
    await audit.forget(store, now - retention.audit)
    await workers.forget(store)
    await usage.forget(store, now - retention.usage)
    await leases.forget(store)
    await operations.forget(store, now - retention.operations)
    await flows.forget(store, now - retention.runs)
    horizon = (now - retention.runs).date()
    return await history.drop_days(store, [day for day in await history.days(store) if day < horizon])


async def tidy(store: Store, shards: Iterable[int]) -> None:
    """Delete hands that no job needs any more."""
    for shard in shards:
        await history.forget_cohorts(store, shard)
