"""What a page of jobs was asked to do: their revisions, with the numbers of their schedules, and their catch-ups."""

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
from bellringer.schedule import At, Calendar, Delay, Row, Schedule, know, missing, parse, to_row
from bellringer.store.queries import load
from bellringer.verify.expected import ALL, Catchup, Span

_SQL = load("history", "bellringer.verify")
_UNKNOWN: Final = -1  # a schedule that was never interned has no gaps of its own

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]


async def read_spans(connection: Connection, jobs: Sequence[UUID], start: datetime) -> Mapping[UUID, list[Span]]:
    """The revisions of these jobs from this moment on; a job that this version cannot read is not among them."""
    found: dict[UUID, list[tuple[asyncpg.Record, tuple[Schedule, ...]]]] = {}
    for job_id, rows in groupby(await connection.fetch(_SQL.revisions, jobs, start), key=lambda row: row[0]):
        try:
            found[job_id] = [(row, read_schedules(row["schedules"])) for row in rows]
        except InvalidSchedule:
            continue
    schedules = {schedule for spans in found.values() for _, of in spans for schedule in of}
    await _learn_calendars(connection, missing(schedules))
    numbers = await _numbers(connection, schedules)
    return {
        job_id: [_span(row, of, numbers) for row, of in spans]
        for job_id, spans in found.items()
        if all(schedule in numbers for _, of in spans for schedule in of)
    }


def _span(row: asyncpg.Record, schedules: tuple[Schedule, ...], numbers: Mapping[Schedule, int]) -> Span:
    return Span(
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
def read_schedules(text: str) -> tuple[Schedule, ...]:
    """Schedules as a revision keeps them; remembered, because many jobs share few."""
    return tuple(parse(document) for document in json.loads(text))


async def _numbers(connection: Connection, schedules: Iterable[Schedule]) -> Mapping[Schedule, int]:
    """The numbers of those that can be worked out here."""
    rows: dict[Schedule, Row] = {}
    for schedule in schedules:
        if not missing([schedule]):
            try:
                rows[schedule] = to_row(schedule)
            except InvalidSchedule:
                continue
    columns = list(zip(*set(rows.values()), strict=True))
    found = await connection.fetch(_SQL.schedules, *columns) if columns else []
    known = {tuple(row)[1:]: row[0] for row in found}
    return {
        schedule: ALL if isinstance(schedule, At | Delay) else known.get(row, _UNKNOWN)
        for schedule, row in rows.items()
    }


async def _learn_calendars(connection: Connection, digests: set[str]) -> None:
    for row in await connection.fetch(_SQL.days_off, sorted(digests)) if digests else ():
        know(Calendar(name=row["digest"], dates=frozenset(row["dates"]), weekend=frozenset(row["weekend"])))


async def read_catchups(
    connection: Connection, jobs: Sequence[UUID], start: datetime, end: datetime
) -> Mapping[UUID, list[Catchup]]:
    """To be read before the runs: what a catch-up does meanwhile is then awaited at worst, never missed."""
    found: dict[UUID, list[Catchup]] = {}
    for job_id, *columns in await connection.fetch(_SQL.catchups, jobs, start, end):
        found.setdefault(job_id, []).append(Catchup(*columns))
    return found
