"""The agenda: when jobs are due, for a calendar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.endpoints.forecast import read_window_instant
from bellringer.api.http.operation import Query, choice, operation, string
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import MAX_RUN_AT_DISTANCE
from bellringer.durations import parse_duration
from bellringer.engine import agenda
from bellringer.engine.agenda import TenantAgenda
from bellringer.errors import InvalidInput
from bellringer.forecast import AgendaCell, AgendaEntry, AgendaRepeats, AgendaWindow, midnight
from bellringer.schedule.time_zones import check_zone
from bellringer.store.forecast import SpanOutcome
from bellringer.store.jobs import JobFilter
from bellringer.wire import agenda as wire
from bellringer.wire.calendars import encode_freeze
from bellringer.wire.routes import Routes

DEFAULT_SPAN_DAYS: Final = 7
ENTRIES: Final = range(1, 201)
DEFAULT_ENTRIES: Final = 12
MAX_FREQUENT_LISTED: Final = 50
Outcomes = Mapping[tuple[UUID, datetime], SpanOutcome]
_DATE: Final = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


@operation(
    Routes.agenda,
    role=Role.VIEWER,
    query=(
        string("from", "the start: an instant, or a date in the time zone; today if omitted"),
        string("to", "the end: an instant, a date, or a duration after `from`; seven days after it if omitted"),
        string("tz", "the time zone of days and hours; UTC if omitted"),
        choice("cell", "the length of a cell; hour for up to eight days if omitted", ["hour", "day"]),
        string("pool", "only jobs of this pool"),
        string("tag", "only jobs with this tag"),
        string("task", "only jobs of this task"),
        Query(
            "limit",
            {"type": "integer", "minimum": ENTRIES[0], "maximum": ENTRIES[-1], "default": DEFAULT_ENTRIES},
            "maximum number of jobs listed per cell",
        ),
    ),
)
async def get(call: RequestContext) -> Response:
    """Returns when jobs are due, by hour or day of a time zone, with holidays, freezes and changes of the clocks."""
    query = call.query()
    window = _window(query, await call.store.now())
    wanted = JobFilter(state="enabled", pool=query.get("pool"), tag=query.get("tag"), task=query.get("task"))
    found = await agenda.load_agenda(
        call.reads, call.catalog, window, wanted, _limit(query.get("limit")), tenant_id=call.tenant_id
    )
    return reply(_document(found, window))


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_ENTRIES
    found = int(text) if re.fullmatch("[0-9]{1,3}", text, re.ASCII) else 0
    if found not in ENTRIES:
        raise InvalidInput(f"limit must be a number from {ENTRIES[0]} to {ENTRIES[-1]}", code="limit_range")
    return found


def _window(query: Mapping[str, str], now: datetime) -> AgendaWindow:
    tz = check_zone(query.get("tz", "UTC"))
    zone = ZoneInfo(tz)
    today = now.astimezone(zone).date()
    start = _read(query["from"], "from", zone, now) if "from" in query else midnight(zone, today)
    if "to" not in query:
        end = midnight(zone, start.astimezone(zone).date() + timedelta(days=DEFAULT_SPAN_DAYS))
    elif re.match("[0-9]{4}-", query["to"]):
        end = _read(query["to"], "to", zone, now)
    else:
        end = start + min(parse_duration(query["to"], what="to"), MAX_RUN_AT_DISTANCE)
    cell = query.get("cell")
    if cell not in {None, "hour", "day"}:
        raise InvalidInput("unknown cell", hint="use hour or day", code="choice")
    return AgendaWindow.of(tz, start, end, by_hour=None if cell is None else cell == "hour")


def _read(text: str, what: str, zone: ZoneInfo, now: datetime) -> datetime:
    """Reads an instant, or the beginning of a date in the time zone."""
    if _DATE.fullmatch(text):
        try:
            found = midnight(zone, date.fromisoformat(text))
        except (ValueError, OverflowError):
            hint = 'write it like "2026-12-25"'
            raise InvalidInput(f"{what} is not a date", hint=hint, code="date_invalid") from None
        text = found.isoformat()
    return read_window_instant(text, what, now)


def _document(found: TenantAgenda, window: AgendaWindow) -> wire.Agenda:
    changes = window.clock_changes()
    is_by_hour = len(window.cells) != len(window.days)
    frequent = found.agenda.frequent
    return wire.Agenda(
        start=window.start,
        end=window.end,
        tz=window.zone,
        cell="hour" if is_by_hour else "day",
        days=[
            wire.AgendaDay(
                date=day.date,
                start=day.start,
                end=day.end,
                fires=None if found.fires is None else found.fires[number],
                repeats=_repeats(found.agenda.repeats[number], found.outcomes),
                holidays=list(found.holidays.get(day.date, ())),
                clock_changes=[
                    wire.ClockChange(at=one.at, seconds=round(one.by.total_seconds()), text=one.describe())
                    for one in changes
                    if day.start <= one.at < day.end
                ],
            )
            for number, day in enumerate(window.days)
        ],
        cells=[_cell(cell, found.outcomes) for cell in found.agenda.cells],
        frequent=wire.FrequentJobs(
            jobs=len(frequent),
            items=[wire.AgendaJobName(job_id=str(job.job_id), job=job.name) for job in frequent[:MAX_FREQUENT_LISTED]],
        ),
        freezes=[
            wire.AgendaFreeze(
                freeze_id=encode_freeze(freeze.freeze_id),
                name=freeze.name,
                start=freeze.from_at,
                end=freeze.to_at,
                policy=freeze.policy,
                tags=list(freeze.tags),
            )
            for freeze in found.freezes
        ],
        jobs=found.jobs,
        left_out=found.left_out,
        truncated=not found.is_all or found.left_out > 0,
    )


def _cell(cell: AgendaCell, outcomes: Outcomes) -> wire.AgendaCell:
    return wire.AgendaCell(
        start=cell.start,
        end=cell.end,
        fires=cell.fires,
        jobs=cell.jobs,
        entries=[_entry(entry, outcomes.get((entry.job.job_id, entry.at))) for entry in cell.entries],
    )


def _entry(entry: AgendaEntry, outcome: SpanOutcome | None) -> wire.AgendaEntry:
    return wire.AgendaEntry(
        job_id=str(entry.job.job_id),
        job=entry.job.name,
        at=entry.at,
        times=entry.times,
        runs=outcome and outcome.runs,
        failed=outcome and outcome.failed,
    )


def _repeats(repeats: AgendaRepeats, outcomes: Outcomes) -> wire.AgendaRepeats:
    items = []
    for entry in repeats.entries:
        outcome = outcomes.get((entry.job.job_id, entry.at))
        items.append(
            wire.AgendaRepeat(
                job_id=str(entry.job.job_id),
                job=entry.job.name,
                times=entry.times,
                failed=outcome and outcome.failed,
            )
        )
    return wire.AgendaRepeats(fires=repeats.fires, jobs=repeats.jobs, items=items)
