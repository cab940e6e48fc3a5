"""Skips in the database: single occurrences that somebody does not want."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("skips")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """An occurrence that is not to run, who said so, and why."""

    job_id: UUID
    at: datetime
    who: str
    reason: str | None
    made_at: datetime


async def skip(
    store: Store, job_id: UUID, tenant_id: int, at: datetime, revision: int, who: str, reason: str | None
) -> str | None:
    """What the database did: `skipped`, `fired` or `changed`; None: there is no such job."""
    done: str | None = await store.pool.fetchval(_SQL.skip, job_id, tenant_id, at, revision, who, reason)
    return done


async def unskip(store: Store, job_id: UUID, tenant_id: int, at: datetime) -> str | None:
    """`wanted` or `fired`; None: it was not skipped."""
    done: str | None = await store.pool.fetchval(_SQL.unskip, job_id, tenant_id, at)
    return done


async def coming(store: Store, job_id: UUID, tenant_id: int, after: datetime | None, most: int) -> list[Skip]:
    """A job's skips to come, the next first."""
    return [Skip(**dict(row)) for row in await store.pool.fetch(_SQL.list, job_id, tenant_id, after, most)]
