"""Retention by tenant, job and state: the rules, and the passes that delete runs before their day is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec

from bellringer.store.connection_pool import Store
from bellringer.store.queries import load

_SQL = load("retention")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """Seconds by state, `runs` for all states; `jobs` has the same by name of a job."""

    tenant_id: int
    name: str
    rules: dict[str, Any]

    @property
    def seconds(self) -> list[int]:
        own = [value for key, value in self.rules.items() if key != "jobs"]
        return own + [value for job in self.rules.get("jobs", {}).values() for value in job.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPass:
    """A pass over a day, and the position that it has reached."""

    day: date
    rules: str
    is_open: bool
    after_job: UUID | None
    after_at: datetime | None
    after_slot: int | None
    batch_id: int | None


async def list_rules(store: Store) -> list[TenantRules]:
    """Returns the tenants that have rules."""
    return [
        TenantRules(tenant_id=row["tenant_id"], name=row["name"], rules=msgspec.json.decode(row["retention"]))
        for row in await store.pool.fetch(_SQL.rules)
    ]


async def set_rules(store: Store, tenant: str, rules: dict[str, Any]) -> bool:
    """Replaces the rules of a tenant; returns whether it exists."""
    return await store.pool.fetchval(_SQL.set, tenant, msgspec.json.encode(rules).decode()) is not None


async def list_passes(store: Store, days: Sequence[date]) -> dict[date, TrimPass]:
    return {row["day"]: TrimPass(**dict(row)) for row in await store.pool.fetch(_SQL.progress, days)}


async def begin_pass(store: Store, day: date, rules: str, *, archives: bool) -> TrimPass:
    async with store.pool.acquire() as connection, connection.transaction():
        batch_id = await connection.fetchval(_SQL.open_batch, day) if archives else None
        await connection.execute(_SQL.begin, day, rules, batch_id)
    return (await list_passes(store, [day]))[day]


async def trim(store: Store, begun: TrimPass, now: datetime, seconds: int, limit: int) -> tuple[bool, int]:
    """Deletes expired runs among the next `limit`; returns whether the pass has ended, and how many were deleted."""
    position = (begun.after_job, begun.after_at, begun.after_slot)
    async with store.pool.acquire() as connection, connection.transaction():
        row = await connection.fetchrow(_SQL.trim, begun.day, now, seconds, begun.batch_id, *position, limit)
        assert row is not None
        is_over = row["o_read"] < limit
        if is_over:
            await connection.execute(_SQL.finish, begun.day)
        else:
            await connection.execute(_SQL.move, begun.day, row["o_job"], row["o_at"], row["o_slot"])
    return is_over, row["o_deleted"]


async def forget_passes(store: Store, before: date) -> None:
    await store.pool.execute(_SQL.forget, before)


async def is_empty(store: Store, day: date) -> bool:
    start = datetime.combine(day, time.min, UTC)
    found: bool = await store.pool.fetchval(_SQL.is_empty, start, start + timedelta(days=1))
    return found
