"""Reads days off from an iCalendar file: the dates of its all-day events. Everything else is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.holiday_calendars import MAX_CALENDAR_DATES
from bellringer.schedule.rrule_schedule import rrule

MAX_ICS_BYTES: Final = 1_000_000
MAX_RECURRING_EVENTS: Final = 500
YEARS_BACK: Final = 1
YEARS_AHEAD: Final = 10
_DAY: Final = timedelta(days=1)
_LINE: Final = re.compile(r"(?P<name>[A-Za-z0-9-]+)(?P<parameters>(?:;[^=:;]+=(?:\"[^\"]*\"|[^\":;]*))*):(?P<value>.*)")
_DATE: Final = re.compile(r"[0-9]{8}")
_DURATION: Final = re.compile(r"\+?P(?:(?P<weeks>[0-9]{1,3})W|(?P<days>[0-9]{1,4})D)")


class _UnfoldedLine(NamedTuple):
    """A line after unfolding, and the number of its first physical line."""

    name: str
    parameters: str
    value: str
    number: int

    @property
    def is_date(self) -> bool:
        return "VALUE=DATE" in self.parameters.upper().split(";") or bool(_DATE.fullmatch(self.value))


@dataclass(slots=True)
class _IcsEvent:
    """The properties of a VEVENT that were read so far."""

    lines: dict[str, _UnfoldedLine] = field(default_factory=dict)
    excluded: set[date] = field(default_factory=set)


def parse_ics(text: str, *, today: date) -> set[date]:
    """Returns the dates of the all-day events. Recurring events are expanded from one year before today to ten years
    after.

    Raises InvalidInput.
    """
    if len(text.encode()) > MAX_ICS_BYTES:
        raise _error(
            1, f"the file exceeds {MAX_ICS_BYTES // 1_000_000} MB", hint="split the file, or remove old events"
        )
    dates: set[date] = set()
    event: _IcsEvent | None = None
    inside: list[str] = []
    recurring = 0
    for line in _unfold_lines(text):
        if line.name == "BEGIN":
            inside.append(line.value.upper())
            event = _IcsEvent() if inside[-1] == "VEVENT" else event
        elif line.name == "END":
            if not inside or inside.pop() != line.value.upper():
                raise _error(line.number, f"END:{line.value[:40]} has no matching BEGIN", hint="is the file complete?")
            if line.value.upper() == "VEVENT" and event is not None:
                dates |= _event_dates(event, today)
                event = None
        elif event is not None and inside[-1] == "VEVENT":
            _add_property(event, line)
            recurring += line.name == "RRULE"
        if len(dates) > MAX_CALENDAR_DATES or recurring > MAX_RECURRING_EVENTS:
            message = f"the file has more than {MAX_CALENDAR_DATES} dates or {MAX_RECURRING_EVENTS} recurring events"
            raise _error(line.number, message, hint="remove old events")
    if inside:
        raise _error(text.count("\n") + 1, f"{inside[-1][:40]} has no END", hint="is the file complete?")
    return dates


def _unfold_lines(text: str) -> Iterator[_UnfoldedLine]:
    """Unfolds the lines: a line that begins with a space continues the line before it."""
    whole: list[tuple[int, str]] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), start=1):
        if raw[:1] in (" ", "\t") and whole:
            whole[-1] = (whole[-1][0], whole[-1][1] + raw[1:])
        elif raw.strip():
            whole.append((number, raw))
    if not whole or whole[0][1].strip().upper() != "BEGIN:VCALENDAR":
        raise _error(1, "the file does not begin with BEGIN:VCALENDAR", hint="use an iCalendar file (.ics)")
    for number, content in whole:
        match = _LINE.fullmatch(content)
        if match is None:
            raise _error(number, f"{content[:40]!r} is not a property", hint="a property has the form NAME:value")
        yield _UnfoldedLine(match["name"].upper(), match["parameters"], match["value"].strip(), number)


def _add_property(event: _IcsEvent, line: _UnfoldedLine) -> None:
    if line.name in ("DTSTART", "DTEND", "DURATION", "RRULE", "STATUS"):
        event.lines[line.name] = line
    elif line.name == "EXDATE" and line.is_date:
        event.excluded.update(_parse_date(line, part) for part in line.value.split(","))


def _event_dates(event: _IcsEvent, today: date) -> set[date]:
    """Returns the dates of one event. Events with a time of day and cancelled events have none."""
    start, status = event.lines.get("DTSTART"), event.lines.get("STATUS")
    if start is None or not start.is_date or (status is not None and status.value.upper() == "CANCELLED"):
        return set()
    first = _parse_date(start, start.value)
    length = _event_days(event, first)
    firsts = {first} if "RRULE" not in event.lines else _recurrence_dates(event.lines["RRULE"], first, today)
    if len(firsts) * length > MAX_CALENDAR_DATES:
        raise _error(start.number, f"the event covers more than {MAX_CALENDAR_DATES} dates", hint="shorten it")
    return {day + n * _DAY for day in firsts - event.excluded for n in range(length)}


def _event_days(event: _IcsEvent, first: date) -> int:
    if end := event.lines.get("DTEND"):
        days = (_parse_date(end, end.value) - first).days
        if not 0 <= days <= MAX_CALENDAR_DATES:
            raise _error(
                end.number, f"DTEND {end.value} is before DTSTART or too late", hint="it is the day after the last"
            )
        return max(days, 1)
    if duration := event.lines.get("DURATION"):
        match = _DURATION.fullmatch(duration.value.upper())
        if match is None:
            raise _error(
                duration.number, f"DURATION {duration.value[:40]!r} is not a number of days", hint="example: P3D"
            )
        return max(min(int(match["weeks"] or 0) * 7 + int(match["days"] or 0), MAX_CALENDAR_DATES), 1)
    return 1


def _recurrence_dates(line: _UnfoldedLine, first: date, today: date) -> set[date]:
    start = datetime(today.year - YEARS_BACK, 1, 1, tzinfo=UTC)
    end = datetime(today.year + YEARS_AHEAD + 1, 1, 1, tzinfo=UTC)
    try:
        rule = rrule(line.value, start=datetime.combine(first, datetime.min.time()))
        return {at.date() for at in rule.between(start - timedelta(seconds=1), end - timedelta(seconds=1))}
    except InvalidSchedule as error:
        raise _error(line.number, f"RRULE {error.message}", hint=error.hint) from None


def _parse_date(line: _UnfoldedLine, text: str) -> date:
    try:
        if not _DATE.fullmatch(text) or not 1900 <= int(text[:4]) <= 9000:
            raise ValueError
        return date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        raise _error(line.number, f"{line.name} {text[:40]!r} is not a date", hint="example: 20261225") from None


def _error(line: int, message: str, *, hint: str) -> InvalidInput:
    return InvalidInput(f"line {line}: {message}", code="ics_invalid", hint=hint)
