"""Day partitions of runs, attempts and logs, and the deletion of expired rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

import asyncpg

from bellringer.core.advisory_locks import AdvisoryLock
from bellringer.store import idempotency
from bellringer.store.connection_pool import Store
from bellringer.store.dead_letters import DISCARDS_KEPT
from bellringer.store.queries import load

_SQL = load("partitions")
PARTITIONED_TABLES = ("runs", "attempts", "logs")


async def ensure_days(store: Store, days: Iterable[date]) -> None:
    """Creates the partitions of these days. Each day is requested once per process."""
    if missing := sorted(set(days) - store.days):
        await store.pool.execute(_SQL.ensure_days, missing)
        store.days.update(missing)


async def list_days(store: Store) -> list[date]:
    """Returns the days that have partitions."""
    names = [row["name"] for row in await store.pool.fetch(_SQL.days)]
    return [datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC).date() for name in names]


async def drop_day(store: Store, day: date, *, archives: bool = False) -> bool:
    """Drops a day, unless unfinished runs or dead letters refer to it. With `archives`, the day becomes a batch of the
    archive.
    """
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute("set local lock_timeout = '1s'")
        if await connection.fetchval(_SQL.in_use, start, start + timedelta(days=1)):
            return False
        try:
            await connection.execute(_SQL.detach_day if archives else _SQL.drop_day, day)
        except asyncpg.LockNotAvailableError:
            raise _DayLocked from None
    return True


class _DayLocked(Exception):
    pass


async def drop_days(store: Store, old: Sequence[date], *, archives: bool = False) -> int:
    """Drops days and returns how many; a day that is locked is left to the next pass."""
    dropped = 0
    for day in old:
        try:
            dropped += await drop_day(store, day, archives=archives)
        except _DayLocked:
            continue
    return dropped


async def prune_expired(store: Store, now: datetime, dead: timedelta, gaps: timedelta, events: timedelta) -> None:
    """Deletes dead letters, gaps, events and send keys past their retention, and discarded dead letters that can no
    longer be restored.
    """
    await store.pool.execute(_SQL.forget_dead, now, dead.total_seconds())
    await store.pool.execute(_SQL.forget_discarded, now - DISCARDS_KEPT)
    await store.pool.execute(_SQL.forget_gaps, now - gaps)
    await store.pool.execute(_SQL.forget_events, now - events)
    await store.pool.execute(_SQL.forget_keys)
    await idempotency.prune(store)


async def shards_with_empty_cohorts(store: Store, shards: Sequence[int]) -> list[int]:
    """Returns the shards that have a cohort without jobs."""
    return [row["shard"] for row in await store.pool.fetch(_SQL.shards_with_empty_cohorts, shards)]


async def delete_empty_cohorts(store: Store, shard: int) -> None:
    """Deletes the cohorts of a shard that have no jobs."""
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1, $2)", AdvisoryLock.SHARD, shard)
        await connection.execute(_SQL.forget_cohorts, shard)


async def delete_old_jobs(store: Store, before: datetime, limit: int) -> int:
    """Removes jobs that were deleted or done before a time, unless a run or unfinished work refers to them."""
    count: int = await store.pool.fetchval(_SQL.forget_jobs, before, limit)
    return count


async def delete_unused_schedules(store: Store, limit: int) -> int:
    """Checks schedules that may have lost their last job, and deletes the unused ones; returns how many it checked."""
    count: int = await store.pool.fetchval(_SQL.forget_schedules, limit)
    return count
