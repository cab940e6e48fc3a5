"""Calendars: named days off, which schedules may refer to."""

from __future__ import annotations

import re
from datetime import date
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.http.operation import CURSOR_PARAMETER, LIMIT_PARAMETER, operation
from bellringer.api.http.request import RequestContext, reply
from bellringer.core.jobs import check_name
from bellringer.engine import calendars as lifecycle
from bellringer.errors import InvalidInput
from bellringer.schedule import HolidayCalendar, format_hours, parse_hours, parse_ics
from bellringer.schedule.open_hours import HourRange
from bellringer.store import calendars
from bellringer.store.wakeups import COHORTS_CHANNEL
from bellringer.wire import calendars as wire
from bellringer.wire.calendars import CalendarRequest, no_calendar
from bellringer.wire.decode import Gathering
from bellringer.wire.routes import Routes

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
UPCOMING_DATES: Final = 10
MAX_JOBS_UPDATED: Final = 2_000  # jobs that are updated while the caller waits


class CalendarMark(msgspec.Struct, frozen=True, array_like=True):
    """The position of a calendar in a list."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)  # a forged cursor may contain text that the database cannot store


@operation(Routes.put_calendar, role=Role.EDITOR)
async def put(call: RequestContext) -> Response:
    """Creates or replaces a calendar: 200. If some jobs still use the old dates, repeat the request to update more of
    them.
    """
    request = await call.body(CalendarRequest)
    name, tenant_id = check_name(call.part("name"), pointer=""), call.tenant_id
    calendar = _calendar(name, request, (await call.store.now()).date())
    await lifecycle.put_calendar(call.store, calendar, tenant_id=tenant_id, who=call.who)
    if await lifecycle.update_jobs(
        call.store, call.catalog, name, tenant_id=tenant_id, who=call.who, limit=MAX_JOBS_UPDATED
    ):
        await call.service.wake(COHORTS_CHANNEL)
    return await _reply(call, name)


@operation(Routes.calendars, role=Role.VIEWER, query=(LIMIT_PARAMETER, CURSOR_PARAMETER))
async def listing(call: RequestContext) -> Response:
    """Lists calendars by name."""
    call.query()
    limit = call.limit()
    mark = call.cursor("calendars", CalendarMark)
    found = await calendars.list_page(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = None
    if len(found) > limit:
        following = call.cursor_to("calendars", CalendarMark(found[limit - 1].calendar.name))
    today = (await call.store.now()).date()
    items = [wire.CalendarItem(**_fields(kept, today)) for kept in found[:limit]]
    return reply(wire.CalendarPage(items=items, next_cursor=following))


@operation(Routes.calendar, role=Role.VIEWER)
async def get(call: RequestContext) -> Response:
    """Returns a calendar with its dates."""
    call.query()
    return await _reply(call, _name(call))


@operation(Routes.delete_calendar, role=Role.EDITOR, problems=(409,))
async def delete(call: RequestContext) -> Response:
    """Deletes a calendar: 409 while jobs use it."""
    await lifecycle.delete_calendar(call.store, _name(call), tenant_id=call.tenant_id)
    return Response(status_code=204)


def _name(call: RequestContext) -> str:
    """Returns the name in the path; raises NotFound if it cannot be a calendar's name."""
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise no_calendar() from None


def _calendar(name: str, request: CalendarRequest, today: date) -> HolidayCalendar:
    g = Gathering()
    if request.dates is not None and request.ics is not None:
        message = "dates and ics are both given"
        g.add(InvalidInput(message, hint="give one of them", pointer="/ics", code="conflicting_fields"))
    dates: set[date] = set()
    for place, text in enumerate(request.dates or ()):
        dates |= g.take(f"/dates/{place}", lambda t=text: {_date(t)}, set())  # type: ignore[misc]
    if request.ics is not None:
        ics = request.ics
        dates |= g.take("/ics", lambda: parse_ics(ics, today=today), set())
    weekend = {
        g.take(f"/weekend/{place}", lambda t=text: _weekday(t), 0)  # type: ignore[misc]
        for place, text in enumerate(request.weekend)
    }
    no_hours: tuple[HourRange, ...] = ()
    hours = g.take("/hours", lambda: parse_hours(request.hours), no_hours)
    g.done()
    return HolidayCalendar(name=name, dates=frozenset(dates), weekend=frozenset(weekend), hours=hours)


def _date(text: str) -> date:
    try:
        if _DATE.fullmatch(text) and (day := date.fromisoformat(text)).year >= 1970:
            return day
    except ValueError:
        pass
    message = f"{text[:40]!r} is not a date from 1970 on"
    raise InvalidInput(message, hint='write it like "2026-12-25"', code="date_invalid")


def _weekday(text: str) -> int:
    if text.upper() in DAYS:
        return DAYS.index(text.upper())
    raise InvalidInput(f"{text[:40]!r} is not a day of the week", hint=f"use {', '.join(DAYS)}", code="unknown_word")


async def _reply(call: RequestContext, name: str) -> Response:
    kept = await calendars.get(call.store, call.tenant_id, name)
    if kept is None:
        raise no_calendar()
    today = (await call.store.now()).date()
    return reply(wire.Calendar(**_fields(kept, today), dates=sorted(kept.calendar.dates)))


def _fields(kept: calendars.CalendarRow, today: date) -> dict[str, Any]:
    dates = kept.calendar.dates
    return {
        "name": kept.calendar.name,
        "version": kept.version,
        "weekend": [DAYS[day] for day in sorted(kept.calendar.weekend)],
        "hours": format_hours(kept.calendar.hours),
        "days": len(dates),
        "coming": sorted(day for day in dates if day >= today)[:UPCOMING_DATES],
        "jobs": kept.jobs,
        "outdated": kept.outdated,
        "changed_at": kept.changed_at,
        "changed_by": kept.changed_by,
    }
