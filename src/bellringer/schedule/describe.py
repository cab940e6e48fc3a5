"""Describes schedules in plain English."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from bellringer.schedule.cron_ast import (
    DayMatch,
    Expression,
    Hashed,
    Item,
    LastDay,
    NearestWeekday,
    NthWeekday,
    RangeItem,
    RangeToLastDay,
    covers_all,
    leads_with_star,
    match_both,
)
from bellringer.schedule.holiday_calendars import DaysOff, Shift
from bellringer.schedule.repeat_count import RepeatCount
from bellringer.schedule.rrule_exceptions import RuleExceptions
from bellringer.schedule.rrule_parser import RecurrenceRule, RuleWeekday

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
_MAX_TIMES_LISTED: Final = 6
_UNIT_OF: Final = {"YEARLY": "year", "MONTHLY": "month", "WEEKLY": "week", "DAILY": "day"}


def describe_every(interval: timedelta, shift: timedelta, repeat: RepeatCount | None = None) -> str:
    length = _format_length(interval)
    text = f"Every {length.removeprefix('1 ') if _is_one_unit(interval) else length}"
    text += f", shifted by {_format_length(shift)}" if shift else ""
    return text + _describe_repeat(repeat)


def _describe_repeat(repeat: RepeatCount | None) -> str:
    if repeat is None:
        return ""
    count = f", {repeat.times:,} time{'s' * (repeat.times > 1)}"
    return count if repeat.start is None else f"{count} from {repeat.start.astimezone(UTC):%Y-%m-%d %H:%M} UTC on"


def describe_delay(interval: timedelta) -> str:
    return f"{_format_length(interval)} after the previous run ends"


def describe_at(instant: datetime) -> str:
    return f"Once at {instant.astimezone(UTC).replace(tzinfo=None)} UTC"


def describe_cron(
    expression: Expression,
    timezone: str,
    *,
    spread: bool = False,
    day_match: DayMatch | None = None,
    repeat: RepeatCount | None = None,
    days_off: DaysOff | None = None,
) -> str:
    """Describe times, days and time zone, then `H`, the repeat count and days off. The zone is omitted where it makes
    no difference.
    """
    expression = _without_wide_steps(expression)
    times = _list_times(expression)
    time = f"at {_join(times)}" if times else _describe_time_pattern(expression)
    days = _describe_days(expression, day_match) or ("every day" if times else "")
    text = f"{time} {days}".strip()
    text = text[0].upper() + text[1:]
    if expression.year:
        years = [_describe_range(item, str) for item in expression.year if isinstance(item, RangeItem)]
        text += f", only in {_join(years)}"
    same_everywhere = timezone == "UTC" and covers_all(expression.hour) and not days and days_off is None
    if not same_everywhere:
        text += f" ({timezone})"
    return f"{text}{', spread by a hash' * spread}{_describe_repeat(repeat)}{_describe_days_off(days_off)}"


def describe_rule(
    rule: RecurrenceRule,
    start: datetime,
    timezone: str,
    *,
    exceptions: RuleExceptions | None = None,
    days_off: DaysOff | None = None,
) -> str:
    """Describe frequency, days, times, bounds, exceptions and time zone."""
    unit = _UNIT_OF[rule.freq]
    parts = [f"Every {unit}" if rule.interval == 1 else f"Every {rule.interval} {unit}s", *_rule_days(rule, start)]
    parts.append(f"{_rule_times(rule, start)} from {start:%Y-%m-%d} on")
    text = " ".join(part for part in parts if part)
    if rule.count is not None:
        text += f", {rule.count} time{'s' * (rule.count > 1)}"
    if rule.until is not None:
        text += f", until {rule.until:%Y-%m-%d %H:%M}{' UTC' * rule.until_utc}"
    if exceptions is not None:
        text += _describe_exceptions("except", "exceptions", [str(one) for one in exceptions.excluded])
        text += _describe_exceptions("and also", "additions", [str(one) for one in exceptions.added])
    return f"{text} ({timezone}){_describe_days_off(days_off)}"


def _describe_exceptions(word: str, noun: str, texts: list[str]) -> str:
    if not texts:
        return ""
    if len(texts) > _MAX_TIMES_LISTED:
        return f", with {len(texts)} {noun}"
    return f", {word} {_join([text.removesuffix(':00') for text in texts])}"


def _rule_days(rule: RecurrenceRule, start: datetime) -> list[str]:
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


def _rule_weekday(day: RuleWeekday) -> str:
    name = _WEEKDAYS[(day.day + 1) % 7]
    return name if day.nth is None else f"{_from_end(day.nth, '')} {name}"


def _from_end(place: int, noun: str) -> str:
    """Format a position as "the 3rd", "the last" or "the 2nd last", followed by the noun if there is one."""
    ordinal = _ordinal(abs(place))
    text = f"the {ordinal}" if place > 0 else "the last" if place == -1 else f"the {ordinal} last"
    return f"{text} {noun}".rstrip()


def _rule_times(rule: RecurrenceRule, start: datetime) -> str:
    hours, minutes = rule.byhour or (start.hour,), rule.byminute or (start.minute,)
    seconds = [f":{second:02}" for second in rule.bysecond or (start.second,)]
    if seconds == [":00"]:
        seconds = [""]
    times = [f"{hour:02}:{minute:02}{second}" for hour in hours for minute in minutes for second in seconds]
    return f"at {_join(times)}" if len(times) <= _MAX_TIMES_LISTED else f"at {len(times)} times of day"


def _describe_days_off(days_off: DaysOff | None) -> str:
    if days_off is None:
        return ""
    calendar = f"calendar {days_off.name}"
    if days_off.shift is Shift.SKIP:
        return f", not on days off of {calendar}"
    where = "next working day" if days_off.shift is Shift.NEXT else "working day before"
    return f", moved to the {where} from days off of {calendar}"


def _without_wide_steps(expression: Expression) -> Expression:
    """Replaces steps that leave a single value, such as `*/90`, by that value. The day fields stay: whether they begin
    with a star matters.
    """

    def narrow(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            RangeItem(first=item.first, last=item.first)
            if isinstance(item, RangeItem) and item.step > 1 and len(item.values()) == 1
            else item
            for item in items
        )

    return replace(
        expression,
        second=narrow(expression.second),
        minute=narrow(expression.minute),
        hour=narrow(expression.hour),
        month=narrow(expression.month),
    )


def _list_times(expression: Expression) -> list[str]:
    """Returns the times of day if the expression lists a few single times, else an empty list."""
    fields = (expression.hour, expression.minute, expression.second)
    if not all(isinstance(item, RangeItem) and item.first == item.last for items in fields for item in items):
        return []
    hours, minutes, seconds = (sorted(set(_values(items))) for items in fields)
    if len(hours) * len(minutes) * len(seconds) > _MAX_TIMES_LISTED:
        return []
    on_the_minute = seconds == [0]
    return [
        f"{hour:02}:{minute:02}" if on_the_minute else f"{hour:02}:{minute:02}:{second:02}"
        for hour in hours
        for minute in minutes
        for second in seconds
    ]


def _describe_time_pattern(expression: Expression) -> str:
    second, minute, hour = expression.second, expression.minute, expression.hour
    if _values(second) != [0]:
        text = _describe_frequency("second", second)
        if covers_all(minute) and covers_all(hour):
            return text if leads_with_star(second) else f"{text} of every minute"
        return f"{text} of {_describe_values('minute', minute)} of {_describe_values('hour', hour)}"
    if _values(minute) == [0] and len(hour) == 1 and leads_with_star(hour):
        return _describe_frequency("hour", hour)
    text = _describe_frequency("minute", minute)
    if covers_all(hour):
        return text if leads_with_star(minute) else f"{text} of every hour"
    if leads_with_star(minute) and len(hour) == 1 and isinstance(hour[0], RangeItem) and hour[0].step == 1:
        return f"{text} from {hour[0].first:02}:00 to {hour[0].last:02}:59"
    return f"{text} of {_describe_values('hour', hour)}"


def _describe_frequency(unit: str, items: tuple[Item, ...]) -> str:
    """Describe `*` and `*/15` as a frequency, and anything else by its values."""
    first = items[0]
    if len(items) > 1 or not isinstance(first, RangeItem) or not first.star:
        return f"at {_describe_values(unit, items)}"
    if first.step == 1:
        return f"every {unit}"
    whole = {"hour": 24}.get(unit, 60)
    # `*/7` restarts in every hour, because 7 does not divide 60; the text must not suggest an even interval.
    frame = {"second": "minute", "minute": "hour", "hour": "day"}[unit]
    return f"every {first.step} {unit}s{f' of each {frame}' * (whole % first.step > 0)}"


def _describe_values(unit: str, items: tuple[Item, ...]) -> str:
    if covers_all(items):
        return f"every {unit}"
    first = items[0]
    if len(items) == 1 and isinstance(first, RangeItem) and first.star:
        return f"every {_ordinal(first.step)} {unit}"
    parts = [_describe_range(item, str) for item in items if isinstance(item, RangeItem)]
    return f"{unit}{'s' * (len(_values(items)) > 1)} {_join(parts)}"


def _describe_days(expression: Expression, day_match: DayMatch | None) -> str:
    day, weekday, month = expression.day, expression.weekday, expression.month
    months = _join([_describe_range(item, _MONTHS.__getitem__) for item in month if isinstance(item, RangeItem)])
    both = match_both(day, weekday, day_match)
    # If either field may match, a star after a comma matches every day, whatever the other field contains.
    every_day = not both and (covers_all(day) or covers_all(weekday))
    if covers_all(day) or every_day:
        parts = [] if covers_all(weekday) or every_day else [_on_weekdays(weekday)]
        if not covers_all(month):
            parts.append(f"in {months}" if parts else f"every day in {months}")
        return " ".join(parts)
    dates = f"on {_join([_describe_date(item) for item in day])} of {'every month' if covers_all(month) else months}"
    if covers_all(weekday):
        return dates
    return f"{dates}{', if also ' if both else ' or '}{_on_weekdays(weekday)}"


def _on_weekdays(items: tuple[Item, ...]) -> str:
    parts = []
    for item in items:
        if isinstance(item, NthWeekday):
            parts.append(f"the {_NTH[item.nth]} {_WEEKDAYS[item.weekday]} of the month")
        elif isinstance(item, RangeItem) and item.step > 1:
            parts.extend(_WEEKDAYS[value % 7] for value in item.values())
        elif isinstance(item, RangeItem):
            parts.append(_describe_range(item, lambda value: _WEEKDAYS[value % 7]))
    return f"on {_join(parts)}"


def _describe_date(item: Item) -> str:
    match item:
        case LastDay(before=before):
            return f"the day {before} day{'s' * (before > 1)} before the last" if before else "the last day"
        case NearestWeekday(day=None, before=before) if before:
            return f"the weekday nearest the day {before} day{'s' * (before > 1)} before the last"
        case NearestWeekday(day=day):
            return "the last weekday" if day is None else f"the weekday nearest the {_ordinal(day)}"
        case RangeToLastDay(first=first, step=step):
            text = f"the {_ordinal(first)} to the last day"
            return text if step == 1 else f"{text} in steps of {step}"
        case RangeItem(star=True, step=step) if len(item.values()) > 1:
            return f"every {_ordinal(step)} day"
        case RangeItem():
            return _describe_range(item, lambda value: f"the {_ordinal(value)}")
        case NthWeekday() | Hashed():
            raise AssertionError("the parser does not allow this item in the day of month")


def _describe_range(item: RangeItem, name: Callable[[int], str]) -> str:
    if item.step > 1 and (item.star or len(item.values()) <= _MAX_TIMES_LISTED):
        return _join([name(value) for value in item.values()])
    if item.first == item.last:
        return name(item.first)
    text = f"{name(item.first)} to {name(item.last)}"
    return text if item.step == 1 else f"{text} in steps of {item.step}"


def _values(items: tuple[Item, ...]) -> list[int]:
    return [value for item in items if isinstance(item, RangeItem) for value in item.values()]


def _is_one_unit(length: timedelta) -> bool:
    return any(length == unit for _, unit in _UNITS)


def _format_length(length: timedelta) -> str:
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
