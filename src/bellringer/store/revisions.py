"""The revisions of jobs: what was changed, by whom and why, and what a job was after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.store import jobs
from bellringer.store.jobs import Job
from bellringer.store.pool import Store
from bellringer.store.queries import load

_SQL = load("revisions")
_TOLD: Final = ("revision", "effective_at", "what", "who", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One change of a job."""

    revision: int
    effective_at: datetime
    what: str
    who: str
    why: str | None


async def before(store: Store, job_id: UUID, number: int | None, most: int) -> list[Revision]:
    """The newest changes of a job, those before the given one."""
    return [Revision(**dict(row)) for row in await store.pool.fetch(_SQL.before, job_id, number, most)]


async def one(store: Store, job_id: UUID, tenant_id: int, number: int) -> tuple[Revision, Job] | None:
    """One change, and the job as it was after it; raises InvalidInput where that cannot be read any more."""
    row = await store.pool.fetchrow(_SQL.one, job_id, number, tenant_id)
    if row is None:
        return None
    [job] = await jobs.read(store, [row])
    return Revision(**{name: row[name] for name in _TOLD}), job


async def newest(store: Store, job_id: UUID, most: int) -> list[Mapping[str, Any]]:
    """The newest changes, each with the document of what the job was after it."""
    rows = await store.pool.fetch(_SQL.newest, job_id, most)
    return [{**dict(row), "definition": msgspec.json.decode(row["definition"])} for row in rows]
