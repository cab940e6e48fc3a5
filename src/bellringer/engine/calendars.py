"""Creates, changes and deletes calendars, and updates the jobs that use them. Each update is a revision of the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from bellringer.core.jobs import check_name
from bellringer.engine import register
from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.schedule import HolidayCalendar
from bellringer.store import calendars, jobs
from bellringer.store.connection_pool import Store
from bellringer.store.interned_names import Catalog
from bellringer.telemetry import log

JOBS_PER_CHANGE: Final = 500
MAX_TRIES: Final = 5
MAX_SHOWN_JOBS: Final = 5


async def put_calendar(store: Store, calendar: HolidayCalendar, *, tenant_id: int, who: str) -> int:
    """Creates or replaces a calendar; returns its version, which is new only if the content differs."""
    check_name(calendar.name)
    return await calendars.save(store, tenant_id, calendar.validate(), who)


async def update_jobs(store: Store, catalog: Catalog, name: str, *, tenant_id: int, who: str, limit: int) -> int:
    """Updates up to `limit` jobs to the present version of a calendar; returns how many.

    Outdated jobs are found by the version stored with each job, so a repeated call continues after a crash.
    """
    kept = await calendars.get(store, tenant_id, name)
    if kept is None:
        raise NotFound("there is no such calendar")
    outdated = sorted(await calendars.outdated_jobs(store, tenant_id, name, limit))
    why = f"calendar {name}, version {kept.version}"
    for start in range(0, len(outdated), JOBS_PER_CHANGE):
        await _reregister(store, catalog, outdated[start : start + JOBS_PER_CHANGE], tenant_id, who, why)
    return len(outdated)


async def _reregister(
    store: Store, catalog: Catalog, job_ids: Sequence[UUID], tenant_id: int, who: str, why: str
) -> None:
    """Registers the jobs unchanged, which binds them to the calendar's present content. A job that is refused is
    skipped.
    """
    for _ in range(MAX_TRIES):
        stored = await jobs.get_many(store, job_ids, tenant_id)
        try:
            await register.change_all(
                store, catalog, [(job, job.definition()) for job in stored], tenant_id=tenant_id, who=who, why=why
            )
        except Conflict:
            continue  # a job was changed meanwhile: read the jobs again
        except InvalidInput as error:
            if len(job_ids) > 1:
                for job_id in job_ids:
                    await _reregister(store, catalog, [job_id], tenant_id, who, why)
            else:
                log.error("job not updated to its calendar", job_id=str(job_ids[0]), why=why, error=str(error))
        return
    raise Unavailable("the jobs are being changed too often to update their calendar", hint="try again in a moment")


async def delete_calendar(store: Store, name: str, *, tenant_id: int) -> None:
    """Deletes a calendar, unless jobs use it. A job that begins to use it at the same moment keeps the content."""
    if await calendars.delete_unused(store, tenant_id, name):
        return
    if await calendars.get(store, tenant_id, name) is None:
        raise NotFound("there is no such calendar")
    using = await calendars.names_of_jobs_using(store, tenant_id, name, MAX_SHOWN_JOBS + 1)
    shown = ", ".join(using[:MAX_SHOWN_JOBS]) + (" and more" if len(using) > MAX_SHOWN_JOBS else "")
    raise Conflict(
        f"jobs use this calendar: {shown}", hint="remove the calendar from these jobs first", code="calendar_in_use"
    )
