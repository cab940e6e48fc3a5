"""Creates the day partitions ahead, drops those past retention, and deletes rows that nothing refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from bellringer.store import (
    audit,
    checkins,
    egress,
    leases,
    notifications,
    operations,
    partitions,
    usage,
    webhooks,
    workers,
    workflows,
)
from bellringer.store import retention as retention_rules
from bellringer.store.connection_pool import Store

JOBS_PER_PASS: Final = 1_000
MAX_JOB_PASSES: Final = 200  # enough for an hour of a busy installation
SCHEDULES_PER_PASS: Final = 500
MAX_SCHEDULE_PASSES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long each kind of record is kept."""

    runs: timedelta = timedelta(days=30)
    dead_letters: timedelta = timedelta(days=30)
    gaps: timedelta = timedelta(days=90)
    events: timedelta = timedelta(days=30)
    usage: timedelta = timedelta(days=30)
    operations: timedelta = timedelta(days=90)
    audit: timedelta = timedelta(days=365)
    jobs: timedelta = timedelta(days=30)  # jobs that were deleted or are done


async def create_partitions(store: Store, now: datetime, ahead: int = 3) -> None:
    """Creates the partitions of today and the days ahead."""
    await partitions.ensure_days(store, {(now + timedelta(days=n)).date() for n in range(ahead)})


async def prune(store: Store, now: datetime, retention: Retention, *, archives: bool = False) -> int:
    """Drops days past retention and returns how many. A day with unfinished runs or dead letters is kept. With
    `archives`, days are taken out of the history and kept until they are in the archive.
    """
    await partitions.prune_expired(store, now, retention.dead_letters, retention.gaps, retention.events)
    await webhooks.prune_deliveries(store, now - retention.events)
    await notifications.prune(store, now - retention.events)
    await checkins.prune_pings(store, now - retention.events)
    await egress.prune_breakers(store, now - retention.events)
    await egress.prune_secrets(store, now - retention.runs - retention.dead_letters)
    await audit.prune(store, now - retention.audit)
    await workers.prune(store)
    await usage.prune(store, now - retention.usage)
    await leases.prune_nodes(store)
    await leases.prune_moves(store)
    await operations.prune(store, now - retention.operations)
    await workflows.prune(store, now - retention.runs)
    await workflows.prune_graphs(store)
    dropped = await _drop_old_days(store, now, retention.runs, archives=archives)
    # A job is kept at least as long as its runs: deleting it earlier would fail in every pass.
    before = now - max(retention.jobs, retention.runs + timedelta(days=1))
    for _ in range(MAX_JOB_PASSES):
        if await partitions.delete_old_jobs(store, before, JOBS_PER_PASS) < JOBS_PER_PASS:
            break
    for _ in range(MAX_SCHEDULE_PASSES):
        if await partitions.delete_unused_schedules(store, SCHEDULES_PER_PASS) < SCHEDULES_PER_PASS:
            break
    return dropped


async def _drop_old_days(store: Store, now: datetime, kept: timedelta, *, archives: bool) -> int:
    """Drops the days that no rule of a tenant keeps longer, and days past retention whose runs were all deleted."""
    rules = await retention_rules.list_rules(store)
    longest = max([kept, *(timedelta(seconds=value) for tenant in rules for value in tenant.seconds)])
    days = await partitions.list_days(store)
    old = [day for day in days if day < (now - longest).date()]
    kept_longer = [day for day in days if day not in old and day < (now - kept).date()]
    empty = [day for day in kept_longer if await retention_rules.is_empty(store, day)]
    await retention_rules.forget_passes(store, (now - longest).date())
    return await partitions.drop_days(store, old, archives=archives) + await partitions.drop_days(store, empty)


async def delete_empty_cohorts(store: Store, shards: Sequence[int]) -> None:
    """Deletes cohorts without jobs."""
    for shard in await partitions.shards_with_empty_cohorts(store, shards):
        await partitions.delete_empty_cohorts(store, shard)
