"""Recurrence rules (the RRULE of RFC 5545), evaluated in a time zone.

dateutil expands one calendar year at a time, and the result is cached. Asked for a whole rule, it would search up to
the year 9999 if no day matches."""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final, Literal

from dateutil import rrule as dateutil

from bellringer.errors import InvalidSchedule
from bellringer.schedule import dst, rrule_parser, wall_clock
from bellringer.schedule.describe import describe_rule
from bellringer.schedule.dst import DstFold, DstGap, parse_dst_policy
from bellringer.schedule.holiday_calendars import DaysOff, HolidayCalendar, Shift, WorkingDays, require_calendar
from bellringer.schedule.rrule_exceptions import (
    RuleExceptions,
    apply_exceptions,
    parse_exceptions,
    read_properties,
)
from bellringer.schedule.rrule_parser import RecurrenceRule
from bellringer.schedule.time_zones import MIN_INSTANT, PROBE_SECONDS, check_zone
from bellringer.schedule.wall_clock import WallClockPattern, bit_set
from bellringer.schedule.zoned_schedule import ZonedSchedule, apply_hours, parse_days_off

_PATTERN_CACHE_SIZE: Final = 4096
_YEAR_CACHE_SIZE: Final = 16_384
_ONE_PERIOD_INTERVAL: Final = 12 * 9999  # so large that dateutil expands a single period
_LAST_CIVIL_TIME: Final = datetime(9999, 12, 31)  # noqa: DTZ001 - a wall-clock time has no zone
_CIVIL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
_LOCAL: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rrule(ZonedSchedule):
    """A recurrence rule, created by `rrule`. `rule` is canonical. `start` is a local time: it gives the time of day,
    anchors the interval, and no occurrence is before it. `exceptions` are single times and days that the rule leaves
    out or has in addition.
    """

    kind: ClassVar[Literal["rrule"]] = "rrule"
    rule: str
    start: datetime
    exceptions: RuleExceptions | None = None

    def pattern(self) -> WallClockPattern:
        """The wall-clock days and times of the rule, after its days off and its exceptions were applied."""
        if self.exceptions is not None:
            return _except_cached(self)
        return _compile_cached(self.rule, self.start, self.timezone, self.gap, self.fold, self.days_off)

    def describe(self) -> str:
        rule = rrule_parser.parse_rrule(self.rule)
        return describe_rule(rule, self.start, self.timezone, exceptions=self.exceptions, days_off=self.days_off)


def rrule(
    rule: str,
    *,
    start: datetime | str | None = None,
    tz: str | None = None,
    exdate: Iterable[datetime | date | str] | str | None = None,
    rdate: Iterable[datetime | str] | str | None = None,
    gap: DstGap | str | None = None,
    fold: DstFold | str | None = None,
    calendar: str | None = None,
    shift: Shift | str | None = None,
    calendar_digest: str = "",
) -> Rrule:
    """Create a schedule from a recurrence rule. `start` is a local time in the time zone, such as "2026-01-02T09:00".

    Every second Friday: `rrule("FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", start="2026-01-02T09:00")`. The last workday of the
    month: `rrule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", start="2026-01-01T09:00")`.

    `exdate` lists local times, or whole days, that the rule leaves out; `rdate` lists local times that it has in
    addition. The text may also have the lines DTSTART, RRULE, EXDATE and RDATE of an iCalendar event.
    """
    text = read_properties(rule)
    if text.start is not None and start is not None:
        raise rrule_parser.rrule_error("the start is given as DTSTART and as start", hint="give one of them")
    if text.zone is not None and tz is not None and text.zone != tz:
        message = f"DTSTART names the time zone {text.zone}, but tz is {tz}"
        raise InvalidSchedule(message, code="timezone_conflict", pointer="/tz", hint="remove one of them")
    begin, zone = _parse_start(text.start if start is None else start), check_zone(text.zone or tz or "UTC")
    read = rrule_parser.parse_rrule(text.rule)
    if read.bysecond == (begin.second,):
        read = replace(read, bysecond=())
    chosen_gap, chosen_fold = parse_dst_policy(gap, fold, fixed_time=True)
    made = Rrule(
        rule=read.text,
        start=begin,
        timezone=zone,
        gap=chosen_gap,
        fold=chosen_fold,
        exceptions=parse_exceptions(exdate, rdate, text.exdate, text.rdate),
    )
    if dst.first_occurrence(made.pattern(), zone, MIN_INSTANT, chosen_gap, chosen_fold) is None:
        raise _never_fires()
    return replace(made, days_off=parse_days_off(calendar, shift, calendar_digest))


@lru_cache(maxsize=_PATTERN_CACHE_SIZE)
def _except_cached(schedule: Rrule) -> WallClockPattern:
    assert schedule.exceptions is not None, "only a rule with exceptions is changed by them"
    pattern = replace(schedule, exceptions=None).pattern()
    return apply_exceptions(pattern, schedule.exceptions, schedule.timezone, schedule.gap, schedule.fold)


def format_start(start: datetime) -> str:
    """Format a local time. Seconds are omitted if they are zero."""
    return start.isoformat(timespec="seconds" if start.second else "minutes")


def _parse_start(value: datetime | str | None) -> datetime:
    if value is None:
        hint = 'add the local time of the first day, for example "2026-01-02T09:00"'
        raise InvalidSchedule("an rrule schedule needs 'start'", code="start_invalid", pointer="/start", hint=hint)
    hint = 'write a local time without an offset, for example "2026-01-02T09:00"; pass the time zone as tz='
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value) if _LOCAL.fullmatch(value) else value
        if isinstance(value, datetime) and value.tzinfo is None and 1900 <= value.year <= 9000:
            return value.replace(microsecond=0, fold=0)
    except ValueError:
        pass
    message = f"start {str(value)[:40]!r} is not a local time in the years 1900 to 9000"
    raise InvalidSchedule(message, code="start_invalid", pointer="/start", hint=hint)


def _civil_seconds(at: datetime) -> int:
    return (at - _CIVIL_EPOCH) // timedelta(seconds=1)


@lru_cache(maxsize=_PATTERN_CACHE_SIZE)
def _compile_cached(
    text: str, start: datetime, zone: str, gap: DstGap, fold: DstFold, days_off: DaysOff | None
) -> WallClockPattern:
    rule = rrule_parser.parse_rrule(text)
    days = _RuleDays(_fill_in_from_start(rule, start), start.date(), date.max)
    pattern = WallClockPattern(
        seconds=bit_set(rule.bysecond or (start.second,)),
        minutes=bit_set(rule.byminute or (start.minute,)),
        hours=bit_set(rule.byhour or (start.hour,)),
        months=bit_set(range(1, 13)),
        days=(),
        fixed_time=True,
        days_of_month=days,
        bounds=(_civil_seconds(start), _civil_seconds(_LAST_CIVIL_TIME)),
    )
    if rule.until is not None and not rule.until_utc:
        pattern = replace(pattern, bounds=(_civil_seconds(start), _civil_seconds(rule.until)))
    elif rule.until is not None:
        pattern = replace(pattern, last_instant=_civil_seconds(rule.until))
    elif rule.count is not None:
        pattern = replace(pattern, last_instant=_instant_of_nth(pattern, zone, gap, fold, rule.count))
    return pattern if days_off is None else _apply_days_off(pattern, days, zone, gap, fold, days_off)


def _apply_days_off(
    pattern: WallClockPattern, days: _RuleDays, zone: str, gap: DstGap, fold: DstFold, days_off: DaysOff
) -> WallClockPattern:
    """Applies days off to a pattern. The bounds of the rule limit the days that it names; a day that moves may lie
    outside of them, so the bounds are widened.
    """
    assert pattern.bounds is not None, "a rule has a start"
    calendar, shift, bounds = require_calendar(days_off), days_off.shift, pattern.bounds
    if pattern.last_instant is not None:
        ends = dst.last_occurrence(pattern, zone, pattern.last_instant, gap, fold, not_before=MIN_INSTANT)
        shown = None if ends is None else dst.wall_clock_time(pattern, zone, ends, gap)
        bounds = (bounds[0], bounds[0] - 1 if shown is None else shown)
    first, last = (_shift_moment(moment, calendar, shift) for moment in bounds)
    shifted = replace(
        pattern,
        days_of_month=WorkingDays(replace(days, last=_date(bounds[1])), calendar, shift),
        bounds=(min(first, bounds[0]), max(last, bounds[1])),
        last_instant=pattern.last_instant if last == bounds[1] else None,
    )
    return apply_hours(shifted, days_off)


def _shift_moment(moment: int, calendar: HolidayCalendar, shift: Shift) -> int:
    day = _date(moment)
    moved = calendar.shift_date(day, shift) or day
    return moment + (moved - day).days * wall_clock.SECONDS_PER_DAY


def _date(moment: int) -> date:
    return (_CIVIL_EPOCH + timedelta(seconds=moment)).date()


def _instant_of_nth(pattern: WallClockPattern, zone: str, gap: DstGap, fold: DstFold, count: int) -> int:
    """Returns the instant of the last of `count` occurrences."""
    assert pattern.bounds is not None, "a rule has a start"
    if dst.first_occurrence(pattern, zone, MIN_INSTANT, gap, fold) is None:
        raise _never_fires()
    found = dst.nth_occurrence(pattern, zone, pattern.bounds[0] - PROBE_SECONDS, gap, fold, count)
    if found is None:
        message = f"COUNT={count} is not reached within {wall_clock.SEARCH_YEARS} years"
        raise rrule_parser.rrule_error(message, code="rrule_range", hint="remove COUNT, or use a smaller number")
    return found


def _never_fires() -> InvalidSchedule:
    message = f"the rule never fires: no day within {wall_clock.SEARCH_YEARS} years after its start matches"
    hint = "check that the days exist in the months given, and that the end is after the start"
    return rrule_parser.rrule_error(message, code="rrule_never_fires", hint=hint)


def _fill_in_from_start(rule: RecurrenceRule, start: datetime) -> RecurrenceRule:
    """Adds to the rule the parts that RFC 5545 takes from the start, so that only the phase of the interval depends on
    it.
    """
    if rule.byday or rule.bymonthday or rule.byyearday or rule.byweekno:
        return rule
    if rule.freq == "DAILY":
        return rule
    if rule.freq == "WEEKLY":
        return replace(rule, byday=(rrule_parser.RuleWeekday(start.weekday()),))
    if rule.freq == "YEARLY" and not rule.bymonth:
        return replace(rule, bymonth=(start.month,), bymonthday=(start.day,))
    return replace(rule, bymonthday=(start.day,))


@dataclass(frozen=True, slots=True, eq=False)
class _RuleDays:
    """The days of a rule, month by month. Compared by identity, because it is a cache key."""

    rule: RecurrenceRule
    start: date
    last: date

    def __call__(self, year: int, month: int) -> int:
        return _days_by_month(self, year)[month] if self.start.year <= year <= self.last.year else 0


@lru_cache(maxsize=_YEAR_CACHE_SIZE)
def _days_by_month(days: _RuleDays, year: int) -> tuple[int, ...]:
    months = [0] * 13
    for day in _days_of_year(days.rule, days.start, year):
        if days.start <= day <= days.last:
            months[day.month] |= 1 << day.day
    return tuple(months)


def _days_of_year(rule: RecurrenceRule, start: date, year: int) -> Iterable[date]:
    """Returns the days of one calendar year."""
    if rule.freq == "YEARLY":
        return [] if (year - start.year) % rule.interval else _expand(rule, year, rule.bymonth)
    if rule.freq == "MONTHLY":
        phase = (year - start.year) * 12 - start.month
        months = [m for m in rule.bymonth or range(1, 13) if (phase + m) % rule.interval == 0]
        if not rule.bysetpos:
            return _expand(rule, year, months) if months else []
        return [day for month in months for day in _expand(rule, year, [month])]
    if rule.freq == "WEEKLY" and rule.bysetpos:
        return _chosen_days_of_weeks(rule, start, year)
    length = 7 if rule.freq == "WEEKLY" else 1
    # A week begins on WKST. Ordinal 1 is a Monday.
    shift = 1 + rule.wkst if rule.freq == "WEEKLY" else 0
    first = (start.toordinal() - shift) // length
    return [
        day
        for day in _expand(rule, year, rule.bymonth)
        if ((day.toordinal() - shift) // length - first) % rule.interval == 0
    ]


def _chosen_days_of_weeks(rule: RecurrenceRule, start: date, year: int) -> list[date]:
    """Returns the days that BYSETPOS chooses from each week. A week may extend into a neighbouring year."""
    whole = replace(rule, bysetpos=())
    years = (n for n in (year - 1, year, year + 1) if 1 <= n <= 9999)
    weeks: dict[int, list[date]] = {}
    for day in (day for n in years for day in _expand(whole, n, rule.bymonth)):
        weeks.setdefault((day.toordinal() - 1 - rule.wkst) // 7, []).append(day)
    first = (start.toordinal() - 1 - rule.wkst) // 7
    chosen: set[date] = set()
    for week, days in weeks.items():
        if (week - first) % rule.interval == 0:
            places = (n - 1 if n > 0 else len(days) + n for n in rule.bysetpos)
            chosen |= {days[place] for place in places if 0 <= place < len(days)}
    return sorted(day for day in chosen if day.year == year)


def _expand(rule: RecurrenceRule, year: int, months: Iterable[int]) -> Iterable[date]:
    """Returns all days of a year, or of some of its months, that match the rule, regardless of its interval."""
    bare = replace(rule, interval=1, count=None, until=None, until_utc=False)
    return [date(year, month, day) for month, day in _expand_cached(bare, _year_shape(year), tuple(months))]


def _year_shape(year: int) -> tuple[bool, bool, int]:
    """Returns the properties that determine the days of a year. The previous year affects the number of the first
    week.
    """
    return isleap(year - 1), isleap(year), date(year, 1, 1).weekday()


# Years of the same shape have the same days, and there are 21 shapes: a search over a hundred years without a match
# calls dateutil at most 21 times.
_YEAR_WITH_SHAPE: Final = {_year_shape(year): year for year in range(2000, 2400)}


@lru_cache(maxsize=_YEAR_CACHE_SIZE)
def _expand_cached(
    rule: RecurrenceRule, shape: tuple[bool, bool, int], months: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    weekdays = rule.byday or ((rrule_parser.RuleWeekday(day) for day in range(7)) if rule.freq == "DAILY" else ())
    found = dateutil.rrule(
        dateutil.YEARLY,
        dtstart=datetime(_YEAR_WITH_SHAPE[shape], 1, 1),  # noqa: DTZ001
        interval=_ONE_PERIOD_INTERVAL,
        wkst=rule.wkst,
        bymonth=months or None,
        byweekno=rule.byweekno or None,
        byyearday=rule.byyearday or None,
        bymonthday=rule.bymonthday or None,
        byweekday=[dateutil.weekday(day.day, day.nth) for day in weekdays] or None,
        bysetpos=rule.bysetpos or None,
    )
    return tuple((day.month, day.day) for day in found)
