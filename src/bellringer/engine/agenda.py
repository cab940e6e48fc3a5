"""The agenda of a tenant: named occurrences of its jobs, holidays, freezes and clock changes. Reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from heapq import nlargest
from operator import attrgetter
from typing import Final
from uuid import UUID

from bellringer.forecast import Agenda, AgendaJob, AgendaWindow, build_agenda, count_by_day
from bellringer.schedule import HolidayCalendar, Schedule
from bellringer.store import calendars, freezes, jobs
from bellringer.store import forecast as stored
from bellringer.store.connection_pool import Store
from bellringer.store.forecast import AgendaJobRow, Span, SpanOutcome
from bellringer.store.freezes import FreezeRow
from bellringer.store.interned_names import Catalog
from bellringer.store.jobs import JobFilter

MAX_JOBS: Final = 1_000  # jobs that are named in one agenda
MAX_CALENDARS: Final = 100
MAX_OUTCOMES: Final = 2_000  # entries whose runs are looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantAgenda:
    """An agenda of `jobs` jobs, the first by name. `is_all`: no other job matches the filter.

    `fires` has the occurrences of each day, of all jobs that match; None if those of the other jobs are not known.
    `left_out` jobs are in no figure. `outcomes` has those of entries that began in the past, by job and first time; the
    latest MAX_OUTCOMES of them.
    """

    agenda: Agenda
    jobs: int
    is_all: bool
    fires: Sequence[int] | None
    left_out: int
    holidays: Mapping[date, Sequence[str]]  # the calendars that have the day off
    freezes: Sequence[FreezeRow]
    outcomes: Mapping[tuple[UUID, datetime], SpanOutcome]


async def load_agenda(
    store: Store, catalog: Catalog, window: AgendaWindow, wanted: JobFilter, limit: int, *, tenant_id: int
) -> TenantAgenda:
    """Returns the agenda of a tenant's active jobs. Ignores jitter, and does not apply freezes.

    If there are more than MAX_JOBS jobs, the occurrences of the others are counted by day, unless a filter by tag or
    task hides which of them match.
    """
    ids, is_all = await jobs.list_ids(store, tenant_id, wanted, MAX_JOBS)
    rows = await stored.load_agenda_jobs(store, tenant_id, ids)
    sizes = None
    if not is_all and wanted.tag is None and wanted.task is None:
        sizes = (await stored.load_sizes(store, tenant_id)).sizes
    numbers = {number for row in rows for number in row.schedule_ids} | {size.schedule_id for size in sizes or ()}
    known = await catalog.schedules(numbers)
    crowds: dict[int, int] = {}
    for size in sizes or ():
        if wanted.pool in {None, size.pool}:
            crowds[size.schedule_id] = crowds.get(size.schedule_id, 0) + size.members
    readable = [(known[number], members) for number, members in crowds.items() if number in known]
    # In a thread, because the scheduler may share the event loop.
    agenda, totals = await asyncio.to_thread(_compute, _jobs(rows, known), window, limit, readable)
    listed = _listed_by_day(agenda, window)
    fires: list[int] | None = listed if is_all else None
    if sizes is not None:
        fires = [max(pair) for pair in zip(totals[0], listed, strict=True)]
    found = await calendars.list_current(store, tenant_id, MAX_CALENDARS)
    return TenantAgenda(
        agenda=agenda,
        jobs=len(rows),
        is_all=is_all,
        fires=fires,
        left_out=agenda.left_out + totals[1],
        holidays=_holidays(found, window),
        freezes=await freezes.list_between(store, tenant_id, window.start, window.end),
        outcomes=await _load_outcomes(store, tenant_id, agenda, window),
    )


async def _load_outcomes(
    store: Store, tenant_id: int, agenda: Agenda, window: AgendaWindow
) -> Mapping[tuple[UUID, datetime], SpanOutcome]:
    now = await store.now()
    entries = [(entry, cell.end) for cell in agenda.cells for entry in cell.entries]
    entries += [
        (entry, day.end) for day, repeats in zip(window.days, agenda.repeats, strict=True) for entry in repeats.entries
    ]
    spans = [Span(entry.job.job_id, entry.at, min(end, now)) for entry, end in entries if entry.at < now]
    spans = nlargest(MAX_OUTCOMES, spans, key=attrgetter("start"))
    found = await stored.load_span_outcomes(store, tenant_id, spans)
    return {(span.job_id, span.start): outcome for span, outcome in zip(spans, found, strict=True)}


def _compute(
    found: Sequence[AgendaJob], window: AgendaWindow, limit: int, crowds: Sequence[tuple[Schedule, int]]
) -> tuple[Agenda, tuple[list[int], int]]:
    return build_agenda(found, window, limit), count_by_day(crowds, window)


def _jobs(rows: Sequence[AgendaJobRow], known: Mapping[int, Schedule]) -> list[AgendaJob]:
    """Returns the jobs whose schedules this version can read."""
    return [
        AgendaJob(
            job_id=row.job_id,
            name=row.name,
            key=row.schedule_ids,
            schedules=tuple(known[number] for number in row.schedule_ids),
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            at=row.at,
        )
        for row in rows
        if all(number in known for number in row.schedule_ids)
    ]


def _listed_by_day(agenda: Agenda, window: AgendaWindow) -> list[int]:
    counts = [repeats.fires for repeats in agenda.repeats]
    place = 0
    for cell in agenda.cells:
        while cell.start >= window.days[place].end:
            place += 1
        counts[place] += cell.fires
    return counts


def _holidays(found: Sequence[HolidayCalendar], window: AgendaWindow) -> Mapping[date, Sequence[str]]:
    days = [day.date for day in window.days]
    named = {day: [calendar.name for calendar in found if day in calendar.dates] for day in days}
    return {day: names for day, names in named.items() if names}
