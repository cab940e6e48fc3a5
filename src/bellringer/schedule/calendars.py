"""The calendars of schedules: looked up by name when a schedule is registered, by content ever after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches

from bellringer.errors import InvalidSchedule
from bellringer.schedule import occurrences
from bellringer.schedule.daysoff import Calendar, heeded, know, known
from bellringer.schedule.instants import EPOCH, seconds_until
from bellringer.schedule.rows import Schedule
from bellringer.schedule.timetable import Timetable

__all__ = ["know", "known", "missing", "resolved", "why_off"]


def missing(schedules: Iterable[Schedule]) -> set[str]:
    """The digests of calendars that these schedules need and this process does not know."""
    digests = {s.days_off.digest for s in schedules if isinstance(s, Timetable) and s.days_off is not None}
    return {digest for digest in digests if digest and known(digest) is None}


def resolved(schedule: Schedule, calendars: Mapping[str, Calendar]) -> Schedule:
    """Bind a schedule to the present content of the calendar that it names; whatever it was bound to before."""
    if not isinstance(schedule, Timetable) or schedule.days_off is None:
        return schedule
    name = schedule.days_off.name
    if name not in calendars:
        near = get_close_matches(name, calendars, n=1)
        hint = f"did you mean {near[0]}?" if near else "create it first, or leave the calendar out"
        message = f"there is no calendar {name[:40]!r}"
        raise InvalidSchedule(message, code="calendar_unknown", pointer="/calendar", hint=hint)
    calendar = know(calendars[name].checked())
    return replace(schedule, days_off=replace(schedule.days_off, digest=calendar.digest))


def why_off(schedule: Schedule, at: datetime) -> str | None:
    """Why an instant that the schedule names without its calendar is not one of its occurrences, or moved."""
    if not isinstance(schedule, Timetable) or schedule.days_off is None:
        return None
    bare, days_off = replace(schedule, days_off=None), schedule.days_off
    if bare.last_at_or_before(at, not_before=at) != at:
        return None
    shown = occurrences.showing(bare.plan(), bare.timezone, seconds_until(at), bare.gap)
    if shown is None:
        return None
    day = (EPOCH + timedelta(seconds=shown)).date()
    calendar = heeded(days_off)
    if not calendar.is_off(day):
        return None
    moved = calendar.moved(day, days_off.shift)
    fate = "it is left out" if moved is None else f"it moved to {moved}"
    return f"{day} is a day off in calendar {days_off.name}; {fate}"
