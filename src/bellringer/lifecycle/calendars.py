"""Calendars: make one what is given, and let the jobs that use it follow. Each change of a job is a revision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from bellringer.errors import Conflict, InvalidInput, NotFound, Unavailable
from bellringer.jobs import check_name
from bellringer.lifecycle import register
from bellringer.schedule import Calendar
from bellringer.store import calendars, jobs
from bellringer.store.names import Names
from bellringer.store.pool import Store
from bellringer.telemetry import log

CHUNK: Final = 500  # jobs that are changed in one call
TRIES: Final = 5
SHOWN: Final = 5


async def put(store: Store, calendar: Calendar, *, tenant_id: int, who: str) -> int:
    """Make a calendar what is given; answers its version, a new one only if the content differs."""
    check_name(calendar.name)
    return await calendars.keep(store, tenant_id, calendar.checked(), who)


async def follow(store: Store, names: Names, name: str, *, tenant_id: int, who: str, most: int) -> int:
    """Bring jobs that use a calendar to its present version; answers how many, `most` at most.

    Who is behind is found by what is stored with each job, so whoever repeats it after a crash goes on from there.
    """
    kept = await calendars.get(store, tenant_id, name)
    if kept is None:
        raise NotFound("there is no such calendar")
    behind = sorted(await calendars.outdated(store, tenant_id, name, most))
    why = f"calendar {name}, version {kept.version}"
    for start in range(0, len(behind), CHUNK):
        await _change(store, names, behind[start : start + CHUNK], tenant_id, who, why)
    return len(behind)


async def _change(store: Store, names: Names, job_ids: Sequence[UUID], tenant_id: int, who: str, why: str) -> None:
    """Register jobs as they are: that binds them to the present content. One that is refused is left as it is."""
    for _ in range(TRIES):
        stored = await jobs.some(store, job_ids, tenant_id)
        try:
            await register.change_all(
                store, names, [(job, job.definition()) for job in stored], tenant_id=tenant_id, who=who, why=why
            )
        except Conflict:
            continue  # one of them was changed meanwhile: read them again
        except InvalidInput as error:
            if len(job_ids) > 1:
                for job_id in job_ids:
                    await _change(store, names, [job_id], tenant_id, who, why)
            else:
                log.error("a job cannot follow its calendar", job_id=str(job_ids[0]), why=why, error=str(error))
        return
    raise Unavailable("the jobs change too often to follow the calendar right now", hint="try again in a moment")


async def drop(store: Store, name: str, *, tenant_id: int) -> None:
    """Delete a calendar, unless jobs use it. One that comes to use it at this very moment keeps its content."""
    if await calendars.drop(store, tenant_id, name):
        return
    if await calendars.get(store, tenant_id, name) is None:
        raise NotFound("there is no such calendar")
    using = await calendars.users(store, tenant_id, name, SHOWN + 1)
    shown = ", ".join(using[:SHOWN]) + (" and more" if len(using) > SHOWN else "")
    raise Conflict(
        f"jobs use this calendar: {shown}", hint="give them another calendar, or none, first", code="calendar_in_use"
    )
