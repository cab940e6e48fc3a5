"""Reads schedules from plain English, such as "every weekday at 9:30 in Berlin".

A small grammar: each phrase that it knows is taken out of the text, and text that remains is an error. A phrase that
people read in two ways is refused, with the unambiguous ways to write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from bellringer.errors import InvalidSchedule
from bellringer.schedule import phrases
from bellringer.schedule.instants import write_instant
from bellringer.schedule.phrases import MONTHS, PLAIN_DAYS, UNITS, WEEKDAYS, ClockTime
from bellringer.schedule.time_zones import check_zone

MAX_TEXT_LENGTH: Final = 300
_EXAMPLES: Final = 'examples: "every weekday at 9:30 in Berlin", "every 15 minutes", "last day of the month at 18:00"'
_FILLERS: Final = re.compile(r"\b(?:and|on|the|of|at|in|run|please|a|each|every|once|then|starting)\b|[.,;!]")
_TIME: Final = r"(?:noon|midnight|[0-9]{1,2}(?::[0-9]{2})?\s*(?:am|pm|a\.m\.|p\.m\.|o'clock)?)"
_AND: Final = r"(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s*&\s*)"
_DAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:days?)?"
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)"
)
_NTH: Final = r"(?:first|1st|second|2nd|third|3rd|fourth|4th|fifth|5th|last)"
_IN_MONTH: Final = r"(?:\s+(?:of|in)\s+(?:the|each|every)?\s*month|\s+(?:each|every)\s+month)"
_PLACE: Final = (
    r"\b(?:in|for)\s+((?!the\b|every\b|each\b)[A-Za-z][A-Za-z .'-]*?)(?:\s+time)?"
    r"(?=$|[,;]|\s+(?:at|on|every|from|between|in)\b)"
)
_UNIT: Final = r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?)"


class Understood(NamedTuple):
    """A part of the text, and its meaning."""

    text: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSchedule:
    """A schedule document that was read from a text, and how each part of the text was understood."""

    document: Mapping[str, object]
    understood: tuple[Understood, ...]


@dataclass(slots=True)
class _Reading:
    """The text that remains, and the phrases that were found so far."""

    rest: str
    zone: str
    now: datetime
    understood: list[Understood] = field(default_factory=list)
    times: list[ClockTime] = field(default_factory=list)
    interval: tuple[int, str] | None = None
    weekdays: list[str] = field(default_factory=list)
    dates: list[str] = field(default_factory=list)
    nth_weekdays: list[str] = field(default_factory=list)
    months: list[str] = field(default_factory=list)
    window: tuple[ClockTime, ClockTime] | None = None
    minute: int | None = None
    every_day: bool = False
    date: datetime | None = None
    after: timedelta | None = None
    count: int | None = None

    def take(self, pattern: str) -> re.Match[str] | None:
        """Take the first match of a pattern out of the text."""
        match = re.search(pattern, self.rest)
        if match is not None:
            self.rest = f"{self.rest[: match.start()]} ; {self.rest[match.end() :]}"
        return match

    def note(self, match: re.Match[str], meaning: str) -> None:
        self.understood.append(Understood(" ".join(match[0].split()).strip(" ,"), meaning))


def read_schedule(text: str, *, now: datetime, tz: str | None = None) -> ReadSchedule:
    """Read a schedule from a text. `tz` is the time zone if the text names none. Raises InvalidSchedule."""
    if not isinstance(text, str) or not text.strip():
        raise _error("the text is empty", hint=_EXAMPLES)
    if len(text) > MAX_TEXT_LENGTH:
        raise _error(f"the text has more than {MAX_TEXT_LENGTH} characters", hint=_EXAMPLES)
    reading = _Reading(rest=" ".join(text.split()), zone=check_zone(tz or "UTC"), now=now)
    _read_zone(reading, explicit=tz is not None)
    reading.rest = reading.rest.lower()
    for step in (_read_count, _read_window, _read_date, _read_days_of_month, _read_interval, _read_weekdays):
        step(reading)
    for step in (_read_months, _read_minute, _read_times):
        step(reading)
    _check_rest(reading)
    return ReadSchedule(document=_build(reading), understood=tuple(reading.understood))


def _read_zone(reading: _Reading, *, explicit: bool) -> None:
    if match := reading.take(
        r"\(?\b(?:(?:in|time ?zone)\s+)?([A-Za-z]+/[A-Za-z_]+(?:/[A-Za-z_]+)?|UTC|GMT|utc|gmt)\b\)?"
    ):
        zone = "UTC" if match[1].upper() in ("UTC", "GMT") else match[1]
        reading.zone = check_zone(zone)
        reading.note(match, f"time zone {reading.zone}")
        return
    for match in re.finditer(_PLACE, reading.rest):
        name = match[1].lower().strip(" .")
        if re.fullmatch(rf"{_MONTH}(?:{_AND}{_MONTH})*(?:\s+(?:to|through|until)\s+{_MONTH})?", name):
            continue
        if re.fullmatch(rf"(?:an?|one)\s+{_UNIT}", name):
            continue
        zones = phrases.zones_of_place(name)
        if len(zones) > 1:
            raise _error(f"{match[1]!r} may be {' or '.join(zones)}", hint="write the name of the time zone")
        if not zones:
            raise _error(f"{match[1]!r} is not a place with a known time zone", hint=phrases.hint_for_place(name))
        reading.zone = zones[0]
        reading.rest = f"{reading.rest[: match.start()]} ; {reading.rest[match.end() :]}"
        reading.note(match, f"time zone {reading.zone}")
        return
    if not explicit:
        reading.understood.append(Understood("", "time zone UTC, because the text names none"))


def _read_count(reading: _Reading) -> None:
    if match := reading.take(r"\b(?:for\s+)?([0-9]{1,7}) times\b(?!\s+(?:a|an|per|each|every))"):
        reading.count = int(match[1])
        reading.note(match, f"ends after {reading.count:,} occurrences")


def _read_window(reading: _Reading) -> None:
    if match := reading.take(rf"\b(?:between|from)\s+({_TIME})\s*(?:and|to|until|till|-)\s*({_TIME})(?![a-z0-9])"):
        start, end = (phrases.parse_clock(text) or _parse_time(text) for text in (match[1], match[2]))
        if end.hour <= 12 or start.hour >= end.hour:  # "from 9 to 17" is clear, "from 9 to 5" is not
            start, end = (_parse_time(text) for text in (match[1], match[2]))
        if start.minute or end.minute:
            hint = "use whole hours, for example between 9:00 and 17:00"
            raise _error(f"{match[0]!r} does not begin and end at a whole hour", hint=hint)
        reading.window = start, end
        last = (end.hour - 1) % 24
        reading.note(match, f"from {start} to {last:02}:59")


def _read_date(reading: _Reading) -> None:
    today = reading.now.astimezone(ZoneInfo(reading.zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    if match := reading.take(rf"\bin\s+([0-9]+|an?|one)\s+({_UNIT})\b"):
        count = 1 if match[1] in ("a", "an", "one") else int(match[1])
        unit = UNITS[match[2].rstrip("s")]
        if unit in ("months", "years"):
            raise _error(f"{match[0]!r} is not an exact length of time", hint="write a date, such as 2026-12-24")
        reading.after = timedelta(**{unit: count})
        reading.note(match, f"once, {count} {unit} from now")
    elif match := reading.take(r"\b(today|tomorrow|tonight)\b"):
        if match[1] == "tonight":
            raise _error("'tonight' has no exact time", hint='write "today at 20:00"')
        reading.date = today + timedelta(days=match[1] == "tomorrow")
        reading.note(match, f"once, on {reading.date:%Y-%m-%d}")
    elif match := reading.take(r"\b(?:on\s+)?([0-9]{4}-[0-9]{2}-[0-9]{2})\b"):
        try:
            reading.date = datetime.fromisoformat(match[1]).replace(tzinfo=ZoneInfo(reading.zone))
        except ValueError:
            raise _error(f"the date {match[1]} does not exist", hint="check the month and the day") from None
        reading.note(match, f"once, on {match[1]}")
    elif match := reading.take(rf"\bnext\s+({_DAY})\b"):
        days = (_weekday_number(match[1]) - today.isoweekday()) % 7 or 7
        reading.date = today + timedelta(days=days)
        reading.note(match, f"once, on {reading.date:%A, %Y-%m-%d}")


def _read_days_of_month(reading: _Reading) -> None:
    ordinals = rf"({_NTH}(?:{_AND}{_NTH})*)"
    monthly = re.search(r"\b(?:(?:every|each)\s+month|monthly)\b", reading.rest)
    in_month = f"(?:{_IN_MONTH})?\\b" if monthly else _IN_MONTH
    if match := reading.take(rf"\b(?:on\s+)?(?:the\s+|every\s+|each\s+)?{ordinals}\s+({_DAY}){in_month}"):
        day = _weekday(match[2])
        places = [phrases.NTH[word] for word in re.split(_AND, match[1])]
        reading.nth_weekdays += [f"{day}L" if nth == 0 else f"{day}#{nth}" for nth in places]
        reading.note(match, f"the {match[1]} {match[2]} of each month")
        return
    if match := reading.take(
        rf"\b(?:on\s+)?(?:the\s+)?(first|1st|last)\s+(day|weekday|work(?:ing)?\s?day|business day){_IN_MONTH}"
    ):
        last = match[1] == "last"
        is_any = match[2] == "day"
        reading.dates.append(("L" if is_any else "LW") if last else ("1" if is_any else "1W"))
        reading.note(match, f"the {match[1]} {match[2]} of each month")
        return
    number = r"([0-9]{1,2})(?:st|nd|rd|th)"
    if match := reading.take(
        rf"\b(?:on\s+)?(?:the\s+)?({number}(?:{_AND}(?:the\s+)?{number})*)(?:{_IN_MONTH}|\b)(?!\s*{_DAY})"
    ):
        for day in re.findall("[0-9]+", match[1]):
            reading.dates.append(str(_check_day(int(day), match[0])))
        of_month = reading.take(rf"\bof\s+({_MONTH})\b")
        if of_month:
            reading.months.append(_month(of_month[1]))
        reading.note(match, f"day {', '.join(reading.dates)} of {'each month' if not of_month else of_month[1]}")
    elif match := reading.take(
        rf"\b(?:on\s+)?(?:({_MONTH})\s+([0-9]{{1,2}})|([0-9]{{1,2}})\s+(?:of\s+)?({_MONTH}))\b(?!:)"
    ):
        reading.months.append(_month(match[1] or match[4]))
        reading.dates.append(str(_check_day(int(match[2] or match[3]), match[0])))
        reading.note(match, f"each year on {match[1] or match[4]} {match[2] or match[3]}")


def _read_interval(reading: _Reading) -> None:
    if match := reading.take(rf"\b(?:every|each)\s+(second|third|2nd|3rd|fourth|4th)\s+({_DAY})\b"):
        plain = match[2].removesuffix("s")
        hint = f'write "every other {plain}" (every 2 weeks) or "the {match[1]} {plain} of the month"'
        raise _error(f"{match[0]!r} has two meanings", hint=hint)
    if match := reading.take(rf"\b(?:every|each)\s+(?:([0-9]+|other)\s+)({_UNIT})\b"):
        unit = UNITS[match[2].rstrip("s")]
        reading.interval = (2 if match[1] == "other" else int(match[1]), unit)
        if reading.interval[0] < 1:
            raise _error(f"{match[0]!r} never happens", hint="use a number from 1 on")
        reading.note(match, f"every {reading.interval[0]} {unit}")
    elif match := reading.take(rf"\b(?:every|each)\s+other\s+(?={_DAY}\b)"):
        reading.interval = (2, "weeks")
        reading.note(match, "every 2 weeks")
    elif match := reading.take(
        rf"\b(?:(?:every|each|once an?|once every)\s+({_UNIT})|(hourly|daily|weekly|monthly|yearly|annually))\b"
    ):
        word = match[1] or match[2]
        unit = UNITS[word.rstrip("s")]
        if unit == "days":
            reading.every_day = True
        else:
            reading.interval = (1, unit)
        reading.note(match, f"every {unit.removesuffix('s')}")


def _read_weekdays(reading: _Reading) -> None:
    lead = r"\b(?:(?:every|each|on)\s+)?(?:the\s+)?"
    if match := reading.take(rf"{lead}(weekdays?|work(?:ing)?\s?days?|business days?)\b"):
        reading.weekdays.append("MON-FRI")
        reading.note(match, "Monday to Friday; a calendar can leave out holidays")
    if match := reading.take(rf"{lead}weekends?\b"):
        reading.weekdays.append("SAT,SUN")
        reading.note(match, "Saturday and Sunday")
    if match := reading.take(rf"{lead}({_DAY})\s*(?:to|through|thru|until|-|–)\s*({_DAY})\b"):
        reading.weekdays.append(f"{_weekday(match[1])}-{_weekday(match[2])}")
        reading.note(match, f"{_weekday(match[1])} to {_weekday(match[2])}")
    if match := reading.take(rf"{lead}({_DAY}(?:{_AND}(?:on\s+|every\s+)?{_DAY})*)\b"):
        days = [_weekday(day) for day in re.findall(_DAY, match[1])]
        reading.weekdays += days
        reading.note(match, ", ".join(days))


def _read_months(reading: _Reading) -> None:
    if match := reading.take(rf"\b(?:in|from|of)\s+({_MONTH})\s*(?:to|through|until|-)\s*({_MONTH})\b"):
        reading.months.append(f"{_month(match[1])}-{_month(match[2])}")
        reading.note(match, f"{_month(match[1])} to {_month(match[2])}")
    if match := reading.take(rf"\b(?:every|in|of|each)\s+({_MONTH}(?:{_AND}{_MONTH})*)\b"):
        months = [_month(month) for month in re.findall(_MONTH, match[1])]
        reading.months += months
        reading.note(match, ", ".join(months))


def _read_minute(reading: _Reading) -> None:
    if match := reading.take(
        r"\bat\s+(?:minute\s+([0-9]{1,2})|:([0-9]{2})|([0-9]{1,2}) minutes? past(?:\s+the\s+hour)?)\b"
    ):
        reading.minute = int(match[1] or match[2] or match[3])
        if reading.minute > 59:
            raise _error(f"minute {reading.minute} is out of range 0 to 59", hint="use 0 to 59")
        reading.note(match, f"at minute {reading.minute}")


def _read_times(reading: _Reading) -> None:
    while match := reading.take(rf"\bat\s+({_TIME}(?:{_AND}(?:at\s+)?{_TIME})*)(?![a-z0-9:])"):
        found = [_parse_time(text) for text in re.findall(_TIME, match[1])]
        reading.times += found
        reading.note(match, "at " + " and ".join(map(str, found)))
    if not reading.times and (
        match := reading.take(r"\b([0-9]{1,2}:[0-9]{2}|[0-9]{1,2}\s*(?:am|pm)|noon|midnight)(?![a-z0-9:])")
    ):
        reading.times.append(_parse_time(match[1]))
        reading.note(match, f"at {reading.times[0]}")


def _parse_time(text: str) -> ClockTime:
    found = phrases.parse_clock(text)
    if found is None:
        raise _error(f"{text.strip()!r} is not a time of day", hint="write it like 9:30, 17:00 or 5pm")
    if found.ambiguous:
        hour = found.hour
        hint = f"write {hour}:00 for the morning or {hour % 12 + 12}:00 for the afternoon, or {hour}am and {hour}pm"
        raise _error(f"'{text.strip()}' may be in the morning or in the afternoon", hint=hint)
    return found


def _check_rest(reading: _Reading) -> None:
    left = " ".join(_FILLERS.sub(" ", reading.rest).split())
    if left:
        near = phrases.nearest_word(left)
        hint = f"did you mean {near!r}? {_EXAMPLES}" if near else _EXAMPLES
        raise _error(f"the part {left[:60]!r} was not understood", hint=hint, code="text_not_understood")


def _build(reading: _Reading) -> dict[str, object]:
    """Build the schedule document from the phrases."""
    count = {} if reading.count is None else {"times": reading.count}
    once = reading.date is not None or reading.after is not None
    repeats = reading.interval or reading.weekdays or reading.dates or reading.nth_weekdays or reading.every_day
    if once:
        if repeats or reading.count or reading.window:
            raise _error("the text names both a single time and a repetition", hint="write one of them")
        return _build_once(reading)
    if reading.interval is not None and reading.interval[1] in ("seconds", "minutes", "hours"):
        return _build_interval(reading, *reading.interval) | count
    if not repeats and not reading.times:
        raise _error("the text names no time", hint=_EXAMPLES)
    if not repeats and not reading.months:
        hint = 'write "every day at 9:30", "tomorrow at 9:30" or another day'
        raise _error("the text names a time of day, but no day", hint=hint)
    if reading.window is not None or reading.minute is not None:
        raise _error("hours from … to … need an interval", hint='write "every 15 minutes between 9:00 and 17:00"')
    if not reading.times:
        raise _error("the text names no time of day", hint='add one, for example "at 09:00"')
    if reading.interval is not None and reading.interval[0] > 1:
        if count:
            raise _error("a number of times needs a simpler repetition", hint="use an rrule with COUNT=")
        return _build_rule(reading, *reading.interval)
    return _build_cron(reading) | count


def _build_once(reading: _Reading) -> dict[str, object]:
    if reading.after is not None:
        if reading.times:
            raise _error("the text names a length of time and a time of day", hint="write one of them")
        return {"at": write_instant((reading.now + reading.after).replace(microsecond=0))}
    assert reading.date is not None, "a single time has a date"
    if len(reading.times) != 1:
        message = "the text names no time of day" if not reading.times else "the text names several times of day"
        raise _error(message, hint='add one, for example "tomorrow at 17:00"')
    at = reading.date.replace(hour=reading.times[0].hour, minute=reading.times[0].minute)
    if at <= reading.now:
        raise _error(f"{at:%Y-%m-%d %H:%M} is in the past", hint="choose a later time")
    return {"at": write_instant(at)}


def _build_interval(reading: _Reading, count: int, unit: str) -> dict[str, object]:
    days = _day_fields(reading)
    limited = reading.window is not None or reading.minute is not None or days != ("*", "*", "*")
    if reading.times:
        raise _error("the text names an interval and a time of day", hint='write "every day at 9:30", or the interval')
    if not limited:
        return {"every": f"{count}{unit[0]}"}
    size = {"seconds": 60, "minutes": 60, "hours": 24}[unit]
    if size % count:
        hint = f"use a number that divides {size}, or the interval alone"
        raise _error(f"every {count} {unit} does not fit into fixed hours", hint=hint)
    hours = "*"
    if reading.window is not None:
        start, end = reading.window
        last = (end.hour - 1) % 24
        hours = f"{start.hour}-{last}" if start.hour != last else str(start.hour)
    step = "" if count == 1 else f"/{count}"
    if unit == "hours":
        fields = (str(reading.minute or 0), f"{hours}{step}")
    elif reading.minute is not None:
        raise _error(f"every {count} {unit} has no fixed minute", hint='write "every hour at minute 15"')
    else:
        fields = (f"*{step}", hours)
    expression = " ".join((*fields, *days))
    seconds = {"cron": f"*{step} * {hours} {' '.join(days)}", "seconds": True}
    return (seconds if unit == "seconds" else {"cron": expression}) | _zone(reading)


def _build_cron(reading: _Reading) -> dict[str, object]:
    unit = reading.interval[1] if reading.interval else None
    missing = {"weeks": reading.weekdays, "months": reading.dates or reading.nth_weekdays, "years": reading.dates}
    if unit in missing and not missing[unit]:
        day = {"weeks": "on monday", "months": "on the 1st", "years": "on january 1"}[unit]
        raise _error(f"every {unit.removesuffix('s')} needs a day", hint=f'add one, for example "{day}"')
    minutes = {time.minute for time in reading.times}
    if len(minutes) > 1:
        hint = "use a schedule for each time: a job may have several"
        raise _error("the times have different minutes, which one schedule cannot express", hint=hint)
    hours = ",".join(str(hour) for hour in sorted({time.hour for time in reading.times}))
    return {"cron": f"{minutes.pop()} {hours} {' '.join(_day_fields(reading))}"} | _zone(reading)


def _build_rule(reading: _Reading, count: int, unit: str) -> dict[str, object]:
    if len(reading.times) > 1:
        raise _error("the text names several times of day", hint="use a schedule for each time")
    at = reading.times[0]
    local = reading.now.astimezone(ZoneInfo(reading.zone)).replace(tzinfo=None)
    start = local.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    start += timedelta(days=start <= local)
    rule = (
        f"FREQ={ {'days': 'DAILY', 'weeks': 'WEEKLY', 'months': 'MONTHLY', 'years': 'YEARLY'}[unit] };INTERVAL={count}"
    )
    if reading.nth_weekdays or reading.months or (reading.dates and unit != "months"):
        raise _error(f"every {count} {unit} cannot be combined with these days", hint="use an rrule")
    if reading.dates and not all(day.isdigit() for day in reading.dates):
        raise _error(f"every {count} {unit} cannot be combined with these days", hint="use an rrule")
    if unit == "weeks" and reading.weekdays:
        rule += f";BYDAY={','.join(phrases.rule_days(reading.weekdays))}"
    elif reading.weekdays:
        raise _error(
            f"every {count} {unit} cannot be combined with days of the week", hint='write "every 2 weeks on …"'
        )
    elif unit == "months" and reading.dates:
        rule += f";BYMONTHDAY={','.join(reading.dates)}"
    elif unit != "days":
        raise _error(f"every {count} {unit} needs a day", hint='add one, for example "on monday" or "on the 1st"')
    reading.understood.append(Understood("", f"counted from {start:%Y-%m-%d}"))
    return {"rrule": rule, "start": start.isoformat(timespec="minutes")} | _zone(reading)


def _day_fields(reading: _Reading) -> tuple[str, str, str]:
    """Returns the fields day of month, month and day of week."""
    weekdays = [*reading.weekdays, *reading.nth_weekdays]
    if reading.dates and weekdays:
        hint = 'use cron with day_match="both" or "either"'
        raise _error("the text names days of the month and days of the week", hint=hint)
    return ",".join(reading.dates) or "*", ",".join(reading.months) or "*", ",".join(weekdays) or "*"


def _zone(reading: _Reading) -> dict[str, object]:
    return {} if reading.zone == "UTC" else {"tz": reading.zone}


def _weekday(text: str) -> str:
    return WEEKDAYS[text[:3]]


def _weekday_number(text: str) -> int:
    return PLAIN_DAYS.index(text[:3]) + 1


def _month(text: str) -> str:
    return MONTHS[text[:3]]


def _check_day(day: int, text: str) -> int:
    if not 1 <= day <= 31:
        raise _error(
            f"{text.strip()!r}: no month has a day {day}", hint="use 1st to 31st, or the last day of the month"
        )
    return day


def _error(message: str, *, hint: str, code: str = "text_ambiguous") -> InvalidSchedule:
    return InvalidSchedule(message, code=code, pointer="/text", hint=hint)
