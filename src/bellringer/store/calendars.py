"""Calendars of tenants; their contents are stored once by digest and never change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from bellringer.schedule import (
    HolidayCalendar,
    Schedule,
    ZonedSchedule,
    cache_calendar,
    cached_calendar,
    format_hours,
    missing_calendar_digests,
    parse_hours,
)
from bellringer.store.connection_pool import Store
from bellringer.store.queries import load as load_queries

_SQL = load_queries("calendars")
MAX_JOBS_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarRow:
    """A stored calendar and the number of jobs that use it, up to MAX_JOBS_COUNTED; `outdated` of them use an older
    version.
    """

    calendar: HolidayCalendar
    version: int
    changed_at: datetime
    changed_by: str
    jobs: int
    outdated: int


async def load_contents(store: Store, schedules: Iterable[Schedule]) -> None:
    """Loads the calendars that these schedules refer to, without which they cannot be evaluated."""
    await _load_by_digest(store, missing_calendar_digests(schedules))


async def save(store: Store, tenant_id: int, calendar: HolidayCalendar, who: str) -> int:
    """Creates or replaces a calendar; returns its version."""
    dates, weekend = sorted(calendar.dates), sorted(calendar.weekend)
    hours = format_hours(calendar.hours)
    version: int = await store.pool.fetchval(
        _SQL.store, tenant_id, calendar.name, calendar.digest, dates, weekend, who, hours
    )
    return version


async def current(store: Store, tenant_id: int, schedules: Iterable[Schedule]) -> Mapping[str, HolidayCalendar]:
    """Returns a tenant's present calendars by name, or none if no schedule refers to a calendar."""
    if not any(isinstance(schedule, ZonedSchedule) and schedule.days_off is not None for schedule in schedules):
        return {}
    digests = {row["name"]: row["digest"] for row in await store.pool.fetch(_SQL.current, tenant_id)}
    contents = await _load_by_digest(store, digests.values())
    return {name: _with_name(name, contents[digest]) for name, digest in digests.items()}


async def list_current(store: Store, tenant_id: int, limit: int) -> list[HolidayCalendar]:
    """Returns a tenant's present calendars by name."""
    rows = (await store.pool.fetch(_SQL.current, tenant_id))[:limit]
    contents = await _load_by_digest(store, {row["digest"] for row in rows})
    found = [_with_name(row["name"], contents[row["digest"]]) for row in rows]
    return sorted(found, key=lambda calendar: calendar.name)


async def get(store: Store, tenant_id: int, name: str) -> CalendarRow | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, name, MAX_JOBS_COUNTED)
    return (await _rows(store, [row]))[0] if row else None


async def list_page(store: Store, tenant_id: int, after: str | None, limit: int) -> list[CalendarRow]:
    return await _rows(store, await store.pool.fetch(_SQL.list, tenant_id, after, limit, MAX_JOBS_COUNTED))


async def outdated_jobs(store: Store, tenant_id: int, name: str, limit: int) -> list[UUID]:
    """Returns jobs that use an older version of a calendar."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.outdated, tenant_id, name, limit)]


async def names_of_jobs_using(store: Store, tenant_id: int, name: str, limit: int) -> list[str]:
    """Returns the names of some jobs that use a calendar."""
    return [row["job"] for row in await store.pool.fetch(_SQL.jobs_with_calendar, tenant_id, name, limit)]


async def delete_unused(store: Store, tenant_id: int, name: str) -> bool:
    """Deletes a calendar that no job uses. Its content stays for the history."""
    return await store.pool.execute(_SQL.delete, tenant_id, name) == "UPDATE 1"


async def _load_by_digest(store: Store, digests: Collection[str]) -> Mapping[str, HolidayCalendar]:
    """Returns calendar contents by digest; each is read once per process, because contents never change."""
    if strange := [digest for digest in digests if cached_calendar(digest) is None]:
        for digest, dates, weekend, hours in await store.pool.fetch(_SQL.contents, strange):
            content = HolidayCalendar(
                name=digest, dates=frozenset(dates), weekend=frozenset(weekend), hours=parse_hours(hours)
            )
            cache_calendar(content)
    return {digest: calendar for digest in digests if (calendar := cached_calendar(digest)) is not None}


async def _rows(store: Store, rows: Sequence[asyncpg.Record]) -> list[CalendarRow]:
    contents = await _load_by_digest(store, {row["digest"] for row in rows})
    return [
        CalendarRow(
            calendar=_with_name(row["name"], contents[row["digest"]]),
            version=row["version"],
            changed_at=row["changed_at"],
            changed_by=row["changed_by"],
            jobs=row["jobs"],
            outdated=row["outdated"],
        )
        for row in rows
    ]


def _with_name(name: str, content: HolidayCalendar) -> HolidayCalendar:
    return HolidayCalendar(name=name, dates=content.dates, weekend=content.weekend, hours=content.hours)
