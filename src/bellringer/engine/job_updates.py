"""Changes one job of a bulk operation, takes such a change back, and previews what an operation would change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from bellringer.core.jobs import Definition
from bellringer.engine import register
from bellringer.errors import Conflict, NotFound, Unavailable
from bellringer.store import jobs, revisions
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobRow
from bellringer.wire.job_changes import JobChanges, apply_changes, changed_fields, differences, restore_fields

MAX_TRIES: Final = 5  # while others change the same job
MAX_REVISIONS_SEARCHED: Final = 200
SAMPLE_SIZE: Final = 5


@dataclass(slots=True)
class FieldPreview:
    """One field that a change would set: in how many jobs, and its values in the first of them."""

    jobs: int = 0
    sample: list[tuple[str, Any, Any]] = field(default_factory=list)  # job, before, after


async def update_job(
    store: Store, catalog: Catalog, job_id: UUID, changes: JobChanges, *, tenant_id: int, who: str, why: str
) -> None:
    """Changes a job. Raises Conflict if it has these values already."""
    await _change(store, catalog, job_id, lambda job: apply_changes(job, changes), tenant_id, who, why)


async def revert_job(
    store: Store, catalog: Catalog, job_id: UUID, changes: JobChanges, marker: str, *, tenant_id: int, who: str
) -> None:
    """Takes back what the operation `marker` has changed, except for fields that were changed again since then.

    Raises Conflict if nothing is left to take back.
    """
    changed = await _revision_of(store, job_id, marker)
    before = await _definition(store, job_id, tenant_id, changed - 1)
    after = await _definition(store, job_id, tenant_id, changed)
    fields = changed_fields(changes)
    why = f"reverts {marker}"
    await _change(store, catalog, job_id, lambda job: restore_fields(job, before, after, fields), tenant_id, who, why)


async def _change(
    store: Store,
    catalog: Catalog,
    job_id: UUID,
    change: Callable[[Definition], Definition],
    tenant_id: int,
    who: str,
    why: str,
) -> None:
    for _ in range(MAX_TRIES):
        job = await jobs.get(store, job_id, tenant_id)
        if job is None:
            raise NotFound("there is no such job")
        wanted = change(job.definition())
        if register.is_same(job, wanted):
            raise Conflict("the job has these values already")
        try:
            await register.change(store, catalog, job_id, job.revision, wanted, tenant_id=tenant_id, who=who, why=why)
        except Conflict:  # changed by another request meanwhile
            continue
        return
    raise Unavailable("the job is changed too often", hint="try again in a moment")


async def _revision_of(store: Store, job_id: UUID, marker: str) -> int:
    """Returns the newest revision that an operation has made."""
    for revision in await revisions.before(store, job_id, None, MAX_REVISIONS_SEARCHED):
        if revision.why is not None and revision.why.partition(":")[0] == marker:
            return revision.revision
    raise Conflict("the operation did not change this job, or its revision is not kept any more")


async def _definition(store: Store, job_id: UUID, tenant_id: int, number: int) -> Definition:
    found = await revisions.one(store, job_id, tenant_id, number)
    if found is None:
        raise Conflict(f"revision {number} of the job is not kept any more")
    return found[1].definition()


def preview_changes(found: Sequence[JobRow], changes: JobChanges) -> dict[str, FieldPreview]:
    """Returns what the changes would set in these jobs, by field."""
    previews: dict[str, FieldPreview] = {}
    for job in found:
        definition = job.definition()
        for name, (before, after) in differences(definition, apply_changes(definition, changes)).items():
            preview = previews.setdefault(name, FieldPreview())
            preview.jobs += 1
            if len(preview.sample) < SAMPLE_SIZE:
                preview.sample.append((job.name, before, after))
    return previews
