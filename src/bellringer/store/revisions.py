"""The revisions of jobs: what was changed, by whom and why, and what a job was after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from bellringer.store import jobs
from bellringer.store.connection_pool import Store
from bellringer.store.jobs import JobRow
from bellringer.store.queries import load

_SQL = load("revisions")
_TOLD: Final = ("revision", "effective_at", "what", "who", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """One change of a job."""

    revision: int
    effective_at: datetime
    what: str
    who: str
    why: str | None


async def before(store: Store, job_id: UUID, number: int | None, most: int) -> list[RevisionRow]:
    """The newest changes of a job, those before the given one."""
    return [RevisionRow(**dict(row)) for row in await store.pool.fetch(_SQL.before, job_id, number, most)]


async def one(store: Store, job_id: UUID, tenant_id: int, number: int) -> tuple[RevisionRow, JobRow] | None:
    """One change, and the job as it was after it; raises InvalidInput where that cannot be read any more."""
    row = await store.pool.fetchrow(_SQL.one, job_id, number, tenant_id)
    if row is None:
        return None
    [job] = await jobs.read(store, [row])
    return RevisionRow(**{name: row[name] for name in _TOLD}), job


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRevision:
    """A job as it was after its app declared it, and the latest change of its definition since then, if any."""

    job: JobRow
    edited_by: str | None
    edited_at: datetime | None


async def declared(store: Store, tenant_id: int, changed: Sequence[JobRow]) -> dict[UUID, DeclaredRevision]:
    """Returns the declared revisions of jobs. Raises InvalidInput if one of them cannot be read any more."""
    ids, numbers = [job.job_id for job in changed], [job.declared_revision for job in changed]
    rows = await store.pool.fetch(_SQL.many, ids, numbers, tenant_id)
    found = await jobs.read(store, rows)
    return {
        job.job_id: DeclaredRevision(job=job, edited_by=row["edited_by"], edited_at=row["edited_at"])
        for job, row in zip(found, rows, strict=True)
    }


async def newest(store: Store, job_id: UUID, most: int) -> list[Mapping[str, Any]]:
    """The newest changes, each with the document of what the job was after it."""
    rows = await store.pool.fetch(_SQL.newest, job_id, most)
    return [{**dict(row), "definition": msgspec.json.decode(row["definition"])} for row in rows]
