"""Day partitions and what is kept in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

import asyncpg

from bellringer.store import idempotency
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("history")
_PARENTS = ("runs", "attempts", "logs")


async def ensure_days(store: Store, days: Iterable[date]) -> None:
    """Make sure that runs of these days have a place; a day is asked for once in a process."""
    if missing := sorted(set(days) - store.days):
        await store.pool.execute(_SQL.ensure_days, missing)
        store.days.update(missing)


async def days(store: Store) -> list[date]:
    """The days that have partitions."""
    names = [row["name"] for row in await store.pool.fetch(_SQL.days)]
    return [datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC).date() for name in names]


async def drop_day(store: Store, day: date) -> bool:
    """Drop a day, unless something that has not ended, or a dead letter, still refers to it."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute("set local lock_timeout = '1s'")
        if await connection.fetchval(_SQL.in_use, start, start + timedelta(days=1)):
            return False
        try:
            for parent in _PARENTS:
                await connection.execute(f"drop table if exists bellringer.{parent}_{day:%Y%m%d}")
        except asyncpg.LockNotAvailableError:
            raise _Busy from None
    return True


class _Busy(Exception):
    pass


async def drop_days(store: Store, old: Sequence[date]) -> int:
    """Drop old days; one that is locked just now waits for the next pass."""
    dropped = 0
    for day in old:
        try:
            dropped += await drop_day(store, day)
        except _Busy:
            continue
    return dropped


async def forget(store: Store, now: datetime, dead: timedelta, gaps: timedelta, events: timedelta) -> None:
    """Delete what has a retention of its own."""
    await store.pool.execute(_SQL.forget_dead, now - dead)
    await store.pool.execute(_SQL.forget_gaps, now - gaps)
    await store.pool.execute(_SQL.forget_events, now - events)
    await store.pool.execute(_SQL.forget_keys)
    await idempotency.forget(store)


async def forget_cohorts(store: Store, shard: int) -> None:
    """Delete hands that have no members left."""
    async with store.pool.acquire() as connection, connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(77, $1)", shard)
        await connection.execute(_SQL.forget_cohorts, shard)
