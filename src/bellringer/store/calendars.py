"""Calendars in the database: days off by their content, and the names that tenants give them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg

from bellringer.schedule import Calendar, Schedule, Timetable, know, known, missing
from bellringer.store.pool import Store
from bellringer.store.queries import load as load_queries

_SQL = load_queries("calendars")
MOST_COUNTED: Final = 10_000  # jobs that use a calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A calendar as it is stored, and how many jobs use it, up to MOST_COUNTED; `outdated` follow an older version."""

    calendar: Calendar
    version: int
    changed_at: datetime
    changed_by: str
    jobs: int
    outdated: int


async def load(store: Store, schedules: Iterable[Schedule]) -> None:
    """Know the calendars that these schedules heed: without them, they cannot be evaluated."""
    await _know(store, missing(schedules))


async def keep(store: Store, tenant_id: int, calendar: Calendar, who: str) -> int:
    """Make a calendar what is given; answers its version."""
    dates, weekend = sorted(calendar.dates), sorted(calendar.weekend)
    version: int = await store.pool.fetchval(_SQL.keep, tenant_id, calendar.name, calendar.digest, dates, weekend, who)
    return version


async def current(store: Store, tenant_id: int, schedules: Iterable[Schedule]) -> Mapping[str, Calendar]:
    """A tenant's calendars by their names, as these schedules are resolved with; none where no schedule names one."""
    if not any(isinstance(schedule, Timetable) and schedule.days_off is not None for schedule in schedules):
        return {}
    digests = {row["name"]: row["digest"] for row in await store.pool.fetch(_SQL.current, tenant_id)}
    contents = await _know(store, digests.values())
    return {name: _named(name, contents[digest]) for name, digest in digests.items()}


async def get(store: Store, tenant_id: int, name: str) -> Kept | None:
    row = await store.pool.fetchrow(_SQL.get, tenant_id, name, MOST_COUNTED)
    return (await _kept(store, [row]))[0] if row else None


async def listing(store: Store, tenant_id: int, after: str | None, most: int) -> list[Kept]:
    return await _kept(store, await store.pool.fetch(_SQL.list, tenant_id, after, most, MOST_COUNTED))


async def outdated(store: Store, tenant_id: int, name: str, most: int) -> list[UUID]:
    """Jobs that use a calendar and follow an older version of it."""
    return [row["job_id"] for row in await store.pool.fetch(_SQL.outdated, tenant_id, name, most)]


async def users(store: Store, tenant_id: int, name: str, most: int) -> list[str]:
    """The names of some jobs that use a calendar."""
    return [row["job"] for row in await store.pool.fetch(_SQL.users, tenant_id, name, most)]


async def drop(store: Store, tenant_id: int, name: str) -> bool:
    """Delete a calendar that no job uses; its content stays for the history that was made by it."""
    return await store.pool.execute(_SQL.drop, tenant_id, name) == "UPDATE 1"


async def _know(store: Store, digests: Collection[str]) -> Mapping[str, Calendar]:
    """Calendars by their contents, which are read at most once in a process: they never change."""
    if strange := [digest for digest in digests if known(digest) is None]:
        for digest, dates, weekend in await store.pool.fetch(_SQL.contents, strange):
            know(Calendar(name=digest, dates=frozenset(dates), weekend=frozenset(weekend)))
    return {digest: calendar for digest in digests if (calendar := known(digest)) is not None}


async def _kept(store: Store, rows: Sequence[asyncpg.Record]) -> list[Kept]:
    contents = await _know(store, {row["digest"] for row in rows})
    return [
        Kept(
            calendar=_named(row["name"], contents[row["digest"]]),
            version=row["version"],
            changed_at=row["changed_at"],
            changed_by=row["changed_by"],
            jobs=row["jobs"],
            outdated=row["outdated"],
        )
        for row in rows
    ]


def _named(name: str, content: Calendar) -> Calendar:
    return Calendar(name=name, dates=content.dates, weekend=content.weekend)
