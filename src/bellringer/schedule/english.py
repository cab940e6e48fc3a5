"""Schedules in plain English."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.schedule.daysoff import DaysOff, Shift
from bellringer.schedule.items import (
    Expression,
    Hashed,
    Item,
    LastDay,
    NearestWeekday,
    NthWeekday,
    Span,
    leads_with_star,
)
from bellringer.schedule.rules import Rule, Weekday

_UNITS: Final = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
    ("millisecond", timedelta(milliseconds=1)),
    ("microsecond", timedelta(microseconds=1)),
)
_MONTHS: Final = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NTH: Final = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", None: "last"}
_MOST_TIMES: Final = 6
_UNIT_OF: Final = {"YEARLY": "year", "MONTHLY": "month", "WEEKLY": "week", "DAILY": "day"}


def describe_every(interval: timedelta, shift: timedelta) -> str:
    length = _length(interval)
    text = f"Every {length.removeprefix('1 ') if _is_one_unit(interval) else length}"
    return f"{text}, shifted by {_length(shift)}" if shift else text


def describe_delay(interval: timedelta) -> str:
    return f"{_length(interval)} after the previous run ends"


def describe_at(instant: datetime) -> str:
    return f"Once at {instant.astimezone(UTC).replace(tzinfo=None)} UTC"


def describe_cron(
    expression: Expression, timezone: str, *, spread: bool = False, days_off: DaysOff | None = None
) -> str:
    """The time, the days, and the zone wherever it matters; then who chose the time, and what days off do."""
    times = _times(expression)
    time = f"at {_join(times)}" if times else _rhythm(expression)
    days = _days(expression) or ("every day" if times else "")
    text = f"{time} {days}".strip()
    text = text[0].upper() + text[1:]
    same_everywhere = timezone == "UTC" and _is_star(expression.hour) and not days and days_off is None
    if not same_everywhere:
        text += f" ({timezone})"
    return f"{text}{', spread by a hash' * spread}{_resting(days_off)}"


def describe_rule(rule: Rule, start: datetime, timezone: str, *, days_off: DaysOff | None = None) -> str:
    """The rhythm, the days, the times, the bounds and the zone."""
    unit = _UNIT_OF[rule.freq]
    parts = [f"Every {unit}" if rule.interval == 1 else f"Every {rule.interval} {unit}s", *_rule_days(rule, start)]
    parts.append(f"{_rule_times(rule, start)} from {start:%Y-%m-%d} on")
    text = " ".join(part for part in parts if part)
    if rule.count is not None:
        text += f", {rule.count} time{'s' * (rule.count > 1)}"
    if rule.until is not None:
        text += f", until {rule.until:%Y-%m-%d %H:%M}{' UTC' * rule.until_utc}"
    return f"{text} ({timezone}){_resting(days_off)}"


def _rule_days(rule: Rule, start: datetime) -> list[str]:
    parts = []
    if rule.byday:
        parts.append(_join([_rule_weekday(day) for day in rule.byday]))
    if rule.bymonthday:
        parts.append(f"{_join([_from_end(day, 'day') for day in rule.bymonthday])} of the month")
    if rule.byyearday:
        parts.append(f"{_join([_from_end(day, 'day') for day in rule.byyearday])} of the year")
    if rule.byweekno:
        parts.append(f"{_join([_from_end(week, 'week') for week in rule.byweekno])} of the year")
    if not parts and rule.freq == "WEEKLY":
        parts.append(_WEEKDAYS[start.isoweekday() % 7])
    elif not parts and rule.freq == "MONTHLY":
        parts.append(f"the {_ordinal(start.day)}")
    elif not parts and rule.freq == "YEARLY":
        parts.append(f"the {_ordinal(start.day)}{'' if rule.bymonth else f' of {_MONTHS[start.month]}'}")
    text = ", if also ".join(parts)
    if rule.bysetpos:
        text = f"{_join([_from_end(place, '') for place in rule.bysetpos])} of {text}"
    months = f"in {_join([_MONTHS[month] for month in rule.bymonth])}" if rule.bymonth else ""
    return [f"on {text}" if text else "", months]


def _rule_weekday(day: Weekday) -> str:
    name = _WEEKDAYS[(day.day + 1) % 7]
    return name if day.nth is None else f"{_from_end(day.nth, '')} {name}"


def _from_end(place: int, noun: str) -> str:
    """The 3rd, the last, the 2nd last; with its noun behind, if it has one."""
    ordinal = _ordinal(abs(place))
    text = f"the {ordinal}" if place > 0 else "the last" if place == -1 else f"the {ordinal} last"
    return f"{text} {noun}".rstrip()


def _rule_times(rule: Rule, start: datetime) -> str:
    hours, minutes = rule.byhour or (start.hour,), rule.byminute or (start.minute,)
    times = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    return f"at {_join(times)}" if len(times) <= _MOST_TIMES else f"at {len(times)} times of day"


def _resting(days_off: DaysOff | None) -> str:
    """What the days off do."""
    if days_off is None:
        return ""
    calendar = f"calendar {days_off.name}"
    if days_off.shift is Shift.SKIP:
        return f", not on days off of {calendar}"
    where = "next working day" if days_off.shift is Shift.NEXT else "working day before"
    return f", moved to the {where} from days off of {calendar}"


def _times(expression: Expression) -> list[str]:
    """The times of day, if they are few and each is written out."""
    fields = (expression.hour, expression.minute, expression.second)
    if not all(isinstance(item, Span) and item.first == item.last for items in fields for item in items):
        return []
    hours, minutes, seconds = (sorted(set(_values(items))) for items in fields)
    if len(hours) * len(minutes) * len(seconds) > _MOST_TIMES:
        return []
    on_the_minute = seconds == [0]
    return [
        f"{hour:02}:{minute:02}" if on_the_minute else f"{hour:02}:{minute:02}:{second:02}"
        for hour in hours
        for minute in minutes
        for second in seconds
    ]


def _rhythm(expression: Expression) -> str:
    second, minute, hour = expression.second, expression.minute, expression.hour
    if _values(second) != [0]:
        text = _beat("second", second)
        if _is_star(minute) and _is_star(hour):
            return text if leads_with_star(second) else f"{text} of every minute"
        return f"{text} of {_noun('minute', minute)} of {_noun('hour', hour)}"
    if _values(minute) == [0] and len(hour) == 1 and leads_with_star(hour):
        return _beat("hour", hour)
    text = _beat("minute", minute)
    if _is_star(hour):
        return text if leads_with_star(minute) else f"{text} of every hour"
    if leads_with_star(minute) and len(hour) == 1 and isinstance(hour[0], Span) and hour[0].step == 1:
        return f"{text} from {hour[0].first:02}:00 to {hour[0].last:02}:59"
    return f"{text} of {_noun('hour', hour)}"


def _beat(unit: str, items: tuple[Item, ...]) -> str:
    """`*` and `*/15` as a rhythm, anything else as the places where it falls."""
    first = items[0]
    if len(items) > 1 or not isinstance(first, Span) or not first.star:
        return f"at {_noun(unit, items)}"
    if first.step == 1:
        return f"every {unit}"
    whole = {"hour": 24}.get(unit, 60)
    # Seven minutes do not divide the hour: the count begins anew with each, which is worth saying.
    frame = {"second": "minute", "minute": "hour", "hour": "day"}[unit]
    return f"every {first.step} {unit}s{f' of each {frame}' * (whole % first.step > 0)}"


def _noun(unit: str, items: tuple[Item, ...]) -> str:
    if _is_star(items):
        return f"every {unit}"
    first = items[0]
    if len(items) == 1 and isinstance(first, Span) and first.star:
        return f"every {_ordinal(first.step)} {unit}"
    parts = [_span(item, str) for item in items if isinstance(item, Span)]
    return f"{unit}{'s' * (len(_values(items)) > 1)} {_join(parts)}"


def _days(expression: Expression) -> str:
    day, weekday, month = expression.day, expression.weekday, expression.month
    months = _join([_span(item, _MONTHS.__getitem__) for item in month if isinstance(item, Span)])
    if _is_star(day):
        parts = [] if _is_star(weekday) else [_on_weekdays(weekday)]
        if not _is_star(month):
            parts.append(f"in {months}" if parts else f"every day in {months}")
        return " ".join(parts)
    dates = f"on {_join([_date(item) for item in day])} of {'every month' if _is_star(month) else months}"
    if _is_star(weekday):
        return dates
    both = leads_with_star(day) or leads_with_star(weekday)
    return f"{dates}{', if also ' if both else ' or '}{_on_weekdays(weekday)}"


def _on_weekdays(items: tuple[Item, ...]) -> str:
    parts = []
    for item in items:
        if isinstance(item, NthWeekday):
            parts.append(f"the {_NTH[item.nth]} {_WEEKDAYS[item.weekday]} of the month")
        elif isinstance(item, Span) and item.step > 1:
            parts.extend(_WEEKDAYS[value % 7] for value in item.values())
        elif isinstance(item, Span):
            parts.append(_span(item, lambda value: _WEEKDAYS[value % 7]))
    return f"on {_join(parts)}"


def _date(item: Item) -> str:
    match item:
        case LastDay(before=before):
            return f"the day {before} day{'s' * (before > 1)} before the last" if before else "the last day"
        case NearestWeekday(day=day):
            return "the last weekday" if day is None else f"the weekday nearest the {_ordinal(day)}"
        case Span(star=True, step=step):
            return f"every {_ordinal(step)} day"
        case Span():
            return _span(item, lambda value: f"the {_ordinal(value)}")
        case NthWeekday() | Hashed():
            raise AssertionError("neither the grammar nor the hash leaves it in the day of month")


def _span(item: Span, name: Callable[[int], str]) -> str:
    if item.step > 1 and (item.star or len(item.values()) <= _MOST_TIMES):
        return _join([name(value) for value in item.values()])
    if item.first == item.last:
        return name(item.first)
    text = f"{name(item.first)} to {name(item.last)}"
    return text if item.step == 1 else f"{text} in steps of {item.step}"


def _values(items: tuple[Item, ...]) -> list[int]:
    return [value for item in items if isinstance(item, Span) for value in item.values()]


def _is_star(items: tuple[Item, ...]) -> bool:
    return any(isinstance(item, Span) and item.star and item.step == 1 for item in items)


def _is_one_unit(length: timedelta) -> bool:
    return any(length == unit for _, unit in _UNITS)


def _length(length: timedelta) -> str:
    parts = []
    for name, unit in _UNITS:
        count, length = divmod(length, unit)
        if count:
            parts.append(f"{count} {name}{'s' * (count > 1)}")
    return " ".join(parts)


def _ordinal(value: int) -> str:
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{ending}"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
