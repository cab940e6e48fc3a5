"""Calendars: days off by name, which schedules heed."""

from __future__ import annotations

import re
from datetime import date
from typing import Any, Final

import msgspec
from starlette.responses import Response

from bellringer.access import Role
from bellringer.api.calls import Call, reply
from bellringer.api.operations import CURSOR, LIMIT, operation
from bellringer.errors import InvalidInput
from bellringer.jobs import check_name
from bellringer.lifecycle import calendars as lifecycle
from bellringer.schedule import Calendar, read_ics
from bellringer.store import calendars
from bellringer.store.wakeups import HANDS
from bellringer.wire import calendars as wire
from bellringer.wire.calendars import CalendarRequest, no_calendar
from bellringer.wire.reading import Gathering

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DAYS: Final = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
COMING: Final = 10
FOLLOWING: Final = 2_000  # jobs that follow while the caller waits


class CalendarMark(msgspec.Struct, frozen=True, array_like=True):
    """The last calendar of a page."""

    name: str

    def __post_init__(self) -> None:
        check_name(self.name)  # a forged one may hold what the database cannot


@operation("calendars", role=Role.EDITOR, answers={200: wire.Calendar}, body=CalendarRequest)
async def put(call: Call) -> Response:
    """200 with the calendar; while some of its jobs are outdated, whoever repeats the call lets more of them follow."""
    request = await call.body(CalendarRequest)
    name, tenant_id = check_name(call.part("name"), pointer=""), call.tenant_id
    calendar = _calendar(name, request, (await call.store.now()).date())
    await lifecycle.put(call.store, calendar, tenant_id=tenant_id, who=call.who)
    if await lifecycle.follow(call.store, call.names, name, tenant_id=tenant_id, who=call.who, most=FOLLOWING):
        await call.service.wake(HANDS)
    return await _reply(call, name)


@operation("calendars", role=Role.VIEWER, answers={200: wire.CalendarPage}, query=(LIMIT, CURSOR))
async def listing(call: Call) -> Response:
    """All calendars by their names."""
    call.query()
    limit = call.limit()
    mark = call.cursor("calendars", CalendarMark)
    found = await calendars.listing(call.store, call.tenant_id, mark.name if mark else None, limit + 1)
    following = None
    if len(found) > limit:
        following = call.cursor_to("calendars", CalendarMark(found[limit - 1].calendar.name))
    today = (await call.store.now()).date()
    items = [wire.CalendarItem(**_fields(kept, today)) for kept in found[:limit]]
    return reply(wire.CalendarPage(items=items, next_cursor=following))


@operation("calendars", role=Role.VIEWER, answers={200: wire.Calendar})
async def get(call: Call) -> Response:
    """A calendar with its dates."""
    call.query()
    return await _reply(call, _name(call))


@operation("calendars", role=Role.EDITOR, answers={204: None}, problems=(409,))
async def delete(call: Call) -> Response:
    """409 while jobs use it."""
    await lifecycle.drop(call.store, _name(call), tenant_id=call.tenant_id)
    return Response(status_code=204)


def _name(call: Call) -> str:
    """The calendar that the path names; what is no name is, as any unknown one, not found."""
    try:
        return check_name(call.part("name"))
    except InvalidInput:
        raise no_calendar() from None


def _calendar(name: str, request: CalendarRequest, today: date) -> Calendar:
    g = Gathering()
    if request.dates is not None and request.ics is not None:
        message = "dates and ics are both given"
        g.add(InvalidInput(message, hint="give one of them", pointer="/ics", code="conflicting_fields"))
    dates: set[date] = set()
    for place, text in enumerate(request.dates or ()):
        dates |= g.take(f"/dates/{place}", lambda t=text: {_date(t)}, set())  # type: ignore[misc]
    if request.ics is not None:
        ics = request.ics
        dates |= g.take("/ics", lambda: read_ics(ics, today=today), set())
    weekend = {
        g.take(f"/weekend/{place}", lambda t=text: _weekday(t), 0)  # type: ignore[misc]
        for place, text in enumerate(request.weekend)
    }
    g.done()
    return Calendar(name=name, dates=frozenset(dates), weekend=frozenset(weekend))


def _date(text: str) -> date:
    try:
        if _DATE.fullmatch(text) and (day := date.fromisoformat(text)).year >= 1970:
            return day
    except ValueError:
        pass
    message = f"{text[:40]!r} is no date from 1970 on"
    raise InvalidInput(message, hint='write it like "2026-12-25"', code="date_invalid")


def _weekday(text: str) -> int:
    if text.upper() in DAYS:
        return DAYS.index(text.upper())
    raise InvalidInput(f"{text[:40]!r} is no day of the week", hint=f"use {', '.join(DAYS)}", code="unknown_word")


async def _reply(call: Call, name: str) -> Response:
    kept = await calendars.get(call.store, call.tenant_id, name)
    if kept is None:
        raise no_calendar()
    today = (await call.store.now()).date()
    return reply(wire.Calendar(**_fields(kept, today), dates=sorted(kept.calendar.dates)))


def _fields(kept: calendars.Kept, today: date) -> dict[str, Any]:
    dates = kept.calendar.dates
    return {
        "name": kept.calendar.name,
        "version": kept.version,
        "weekend": [DAYS[day] for day in sorted(kept.calendar.weekend)],
        "days": len(dates),
        "coming": sorted(day for day in dates if day >= today)[:COMING],
        "jobs": kept.jobs,
        "outdated": kept.outdated,
        "changed_at": kept.changed_at,
        "changed_by": kept.changed_by,
    }
