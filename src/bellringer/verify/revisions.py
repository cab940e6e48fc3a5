"""Reads the revisions, schedule ids and catch-ups of a page of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg

from bellringer.errors import InvalidSchedule
from bellringer.schedule import (
    At,
    Delay,
    HolidayCalendar,
    Schedule,
    ScheduleRow,
    cache_calendar,
    missing_calendar_digests,
    parse_hours,
    parse_schedule,
    to_row,
)
from bellringer.store.queries import load
from bellringer.verify.expected import ALL_SCHEDULES, ExpectedCatchup, RevisionSpan

_SQL = load("history", "bellringer.verify")
_NEVER_STORED: Final = -1  # a schedule that was never stored has no gaps

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]


async def read_spans(
    connection: Connection, jobs: Sequence[UUID], start: datetime
) -> Mapping[UUID, list[RevisionSpan]]:
    """Returns the revisions of these jobs since `start`. Jobs with a schedule that this version cannot parse are
    left out.
    """
    found: dict[UUID, list[tuple[asyncpg.Record, tuple[Schedule, ...]]]] = {}
    for job_id, rows in groupby(await connection.fetch(_SQL.revisions, jobs, start), key=lambda row: row[0]):
        try:
            found[job_id] = [(row, parse_schedules(row["schedules"])) for row in rows]
        except InvalidSchedule:
            continue
    schedules = {schedule for spans in found.values() for _, of in spans for schedule in of}
    await _load_calendars(connection, missing_calendar_digests(schedules))
    numbers = await _schedule_ids(connection, schedules)
    return {
        job_id: [_span(row, of, numbers) for row, of in spans]
        for job_id, spans in found.items()
        if all(schedule in numbers for _, of in spans for schedule in of)
    }


def _span(row: asyncpg.Record, schedules: tuple[Schedule, ...], numbers: Mapping[Schedule, int]) -> RevisionSpan:
    return RevisionSpan(
        revision=row["revision"],
        since=row["since"],
        until=row["until"],
        active=row["lives"] and not row["paused"],
        paused=row["lives"] and row["paused"],
        schedules=schedules,
        numbers=tuple(numbers[schedule] for schedule in schedules),
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
    )


@lru_cache(maxsize=4096)
def parse_schedules(text: str) -> tuple[Schedule, ...]:
    """Parses the schedules of a revision. Cached, because many jobs share a few."""
    return tuple(parse_schedule(document) for document in json.loads(text))


async def _schedule_ids(connection: Connection, schedules: Iterable[Schedule]) -> Mapping[Schedule, int]:
    """Returns the ids of the schedules that this version can evaluate."""
    rows: dict[Schedule, ScheduleRow] = {}
    for schedule in schedules:
        if not missing_calendar_digests([schedule]):
            try:
                rows[schedule] = to_row(schedule)
            except InvalidSchedule:
                continue
    columns = list(zip(*set(rows.values()), strict=True))
    found = await connection.fetch(_SQL.schedules, *columns) if columns else []
    known = {tuple(row)[1:]: row[0] for row in found}
    return {
        schedule: ALL_SCHEDULES if isinstance(schedule, At | Delay) else known.get(row, _NEVER_STORED)
        for schedule, row in rows.items()
    }


async def _load_calendars(connection: Connection, digests: set[str]) -> None:
    for row in await connection.fetch(_SQL.days_off, sorted(digests)) if digests else ():
        cache_calendar(
            HolidayCalendar(
                name=row["digest"],
                dates=frozenset(row["dates"]),
                weekend=frozenset(row["weekend"]),
                hours=parse_hours(row["hours"]),
            )
        )


async def read_catchups(
    connection: Connection, jobs: Sequence[UUID], start: datetime, end: datetime
) -> Mapping[UUID, list[ExpectedCatchup]]:
    """Returns the catch-ups by job. Must be called before the runs are read: a catch-up that proceeds in between is
    then counted as pending, never as missing.
    """
    found: dict[UUID, list[ExpectedCatchup]] = {}
    for job_id, *columns in await connection.fetch(_SQL.catchups, jobs, start, end):
        found.setdefault(job_id, []).append(ExpectedCatchup(*columns))
    return found
