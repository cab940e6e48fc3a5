"""Jobs whose pool nobody named: which may be moved, and how they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("routes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A job that goes by how long its runs take; `served`: a live worker of the other pool knows its task."""

    job_id: UUID
    tenant_id: int
    revision: int
    is_long: bool
    served: bool


async def under_way(store: Store, pool_id: int, before: datetime, most: int) -> list[UUID]:
    """Jobs with a run in this pool that was claimed before then; a sample, where there are more."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.under_way, pool_id, before, most)]


async def learned(store: Store, after: UUID, most: int) -> list[UUID]:
    """Jobs behind this one that their runs have brought to the pool for long ones."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.learned, after, most)]


async def routed(store: Store, job_ids: Sequence[UUID], short: int, long: int) -> list[Routed]:
    """Those of these jobs that are in one of the two pools because of how long they take, or might."""
    return [Routed(**dict(row)) for row in await store.pool.fetch(_SQL.routed, job_ids, short, long)]


async def reroute(store: Store, job: Routed, pool_id: int, *, learned: bool, who: str, why: str) -> int | None:
    """Move a job, if it still is as it was read; answers its new revision."""
    asked = (job.job_id, job.revision, pool_id, learned, who, why)
    revision: int | None = await store.pool.fetchval(_SQL.reroute, *asked)
    return revision
