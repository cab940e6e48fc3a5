"""Days off from an iCalendar file: its all-day events, and nothing else of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from bellringer.errors import InvalidInput, InvalidSchedule
from bellringer.schedule.daysoff import MOST_DATES
from bellringer.schedule.recurrence import rrule

LARGEST: Final = 1_000_000
MOST_RECURRING: Final = 500
YEARS_BACK: Final = 1
YEARS_AHEAD: Final = 10
_DAY: Final = timedelta(days=1)
_LINE: Final = re.compile(r"(?P<name>[A-Za-z0-9-]+)(?P<parameters>(?:;[^=:;]+=(?:\"[^\"]*\"|[^\":;]*))*):(?P<value>.*)")
_DATE: Final = re.compile(r"[0-9]{8}")
_DURATION: Final = re.compile(r"\+?P(?:(?P<weeks>[0-9]{1,3})W|(?P<days>[0-9]{1,4})D)")


class _Line(NamedTuple):
    """A line after unfolding, and the number of its first part."""

    name: str
    parameters: str
    value: str
    number: int

    @property
    def is_date(self) -> bool:
        return "VALUE=DATE" in self.parameters.upper().split(";") or bool(_DATE.fullmatch(self.value))


@dataclass(slots=True)
class _Event:
    """What is being read of a VEVENT."""

    lines: dict[str, _Line] = field(default_factory=dict)
    excluded: set[date] = field(default_factory=set)


def read_ics(text: str, *, today: date) -> set[date]:
    """The dates of all-day events; one that recurs, from a year before today to ten years after it."""
    if len(text.encode()) > LARGEST:
        raise _refusal(1, f"the file is larger than {LARGEST // 1_000_000} MB", hint="split it, or drop old events")
    dates: set[date] = set()
    event: _Event | None = None
    inside: list[str] = []
    recurring = 0
    for line in _lines(text):
        if line.name == "BEGIN":
            inside.append(line.value.upper())
            event = _Event() if inside[-1] == "VEVENT" else event
        elif line.name == "END":
            if not inside or inside.pop() != line.value.upper():
                raise _refusal(line.number, f"END:{line.value[:40]} ends nothing", hint="is a part of it missing?")
            if line.value.upper() == "VEVENT" and event is not None:
                dates |= _dates(event, today)
                event = None
        elif event is not None and inside[-1] == "VEVENT":
            _take(event, line)
            recurring += line.name == "RRULE"
        if len(dates) > MOST_DATES or recurring > MOST_RECURRING:
            message = f"there are more than {MOST_DATES} dates or {MOST_RECURRING} recurring events"
            raise _refusal(line.number, message, hint="drop old events")
    if inside:
        raise _refusal(text.count("\n") + 1, f"{inside[-1][:40]} does not end", hint="is the file cut off?")
    return dates


def _lines(text: str) -> Iterator[_Line]:
    """Unfold: a line that begins with a space goes on with the one before it."""
    whole: list[tuple[int, str]] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), start=1):
        if raw[:1] in (" ", "\t") and whole:
            whole[-1] = (whole[-1][0], whole[-1][1] + raw[1:])
        elif raw.strip():
            whole.append((number, raw))
    if not whole or whole[0][1].strip().upper() != "BEGIN:VCALENDAR":
        raise _refusal(1, "the file does not begin with BEGIN:VCALENDAR", hint="give an iCalendar file (.ics)")
    for number, content in whole:
        match = _LINE.fullmatch(content)
        if match is None:
            raise _refusal(number, f"{content[:40]!r} is not a property", hint="write NAME:value")
        yield _Line(match["name"].upper(), match["parameters"], match["value"].strip(), number)


def _take(event: _Event, line: _Line) -> None:
    if line.name in ("DTSTART", "DTEND", "DURATION", "RRULE", "STATUS"):
        event.lines[line.name] = line
    elif line.name == "EXDATE" and line.is_date:
        event.excluded.update(_read_date(line, part) for part in line.value.split(","))


def _dates(event: _Event, today: date) -> set[date]:
    """The dates of one event; of one that has a time of day, or was cancelled, none."""
    start, status = event.lines.get("DTSTART"), event.lines.get("STATUS")
    if start is None or not start.is_date or (status is not None and status.value.upper() == "CANCELLED"):
        return set()
    first = _read_date(start, start.value)
    length = _length(event, first)
    firsts = {first} if "RRULE" not in event.lines else _recurring(event.lines["RRULE"], first, today)
    if len(firsts) * length > MOST_DATES:
        raise _refusal(start.number, f"the event has more than {MOST_DATES} dates", hint="make it shorter")
    return {day + n * _DAY for day in firsts - event.excluded for n in range(length)}


def _length(event: _Event, first: date) -> int:
    if end := event.lines.get("DTEND"):
        days = (_read_date(end, end.value) - first).days
        if not 0 <= days <= MOST_DATES:
            raise _refusal(end.number, f"DTEND {end.value} is before its start or too far", hint="it is the day after")
        return max(days, 1)
    if duration := event.lines.get("DURATION"):
        match = _DURATION.fullmatch(duration.value.upper())
        if match is None:
            raise _refusal(
                duration.number, f"DURATION {duration.value[:40]!r} is not in days", hint="write it like P3D"
            )
        return max(min(int(match["weeks"] or 0) * 7 + int(match["days"] or 0), MOST_DATES), 1)
    return 1


def _recurring(line: _Line, first: date, today: date) -> set[date]:
    start = datetime(today.year - YEARS_BACK, 1, 1, tzinfo=UTC)
    end = datetime(today.year + YEARS_AHEAD + 1, 1, 1, tzinfo=UTC)
    try:
        rule = rrule(line.value, start=datetime.combine(first, datetime.min.time()))
        return {at.date() for at in rule.between(start - timedelta(seconds=1), end - timedelta(seconds=1))}
    except InvalidSchedule as error:
        raise _refusal(line.number, f"RRULE {error.message}", hint=error.hint) from None


def _read_date(line: _Line, text: str) -> date:
    try:
        if not _DATE.fullmatch(text) or not 1900 <= int(text[:4]) <= 9000:
            raise ValueError
        return date(int(text[:4]), int(text[4:6]), int(text[6:]))
    except ValueError:
        raise _refusal(line.number, f"{line.name} {text[:40]!r} is no date", hint="write it like 20261225") from None


def _refusal(line: int, message: str, *, hint: str) -> InvalidInput:
    return InvalidInput(f"line {line}: {message}", code="ics_invalid", hint=hint)
