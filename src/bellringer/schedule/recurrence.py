"""Recurrence rules: RFC 5545's RRULE, read in a time zone.

dateutil expands the days of one period at a time. Left to itself it walks on until it finds a day, to the year
9999 if there is none, so each civil year is asked for alone, and kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final, Literal

from dateutil import rrule as dateutil

from bellringer.errors import InvalidSchedule
from bellringer.schedule import civil, rules
from bellringer.schedule.daysoff import Calendar, DaysOff, Shift, Worked, heeded
from bellringer.schedule.english import describe_rule
from bellringer.schedule.plan import Plan
from bellringer.schedule.readings import Fold, Gap, read_readings
from bellringer.schedule.rules import Rule
from bellringer.schedule.timetable import Timetable, read_days_off
from bellringer.schedule.zones import check_zone, stretch_at

_PLANS: Final = 4096
_YEARS: Final = 16_384
_ONCE: Final = 12 * 9999  # an interval that leaves the calendar, so that one period is all there is
_FOREVER: Final = datetime(9999, 12, 31)  # noqa: DTZ001 - civil time has no zone
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
_LOCAL: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rrule(Timetable):
    """Made by `rrule`; `rule` is canonical. `start` is civil time: it gives the time of day, anchors the interval,
    and nothing happens before it.
    """

    kind: ClassVar[Literal["rrule"]] = "rrule"
    rule: str
    start: datetime

    def plan(self) -> Plan:
        """The days and times that it names, after its days off."""
        return _plan(self.rule, self.start, self.timezone, self.days_off)

    def describe(self) -> str:
        return describe_rule(rules.read(self.rule), self.start, self.timezone, days_off=self.days_off)


def rrule(
    rule: str,
    *,
    start: datetime | str,
    tz: str = "UTC",
    gap: Gap | str | None = None,
    fold: Fold | str | None = None,
    calendar: str | None = None,
    shift: Shift | str | None = None,
    calendar_digest: str = "",
) -> Rrule:
    """Read a recurrence rule; `start` is a local time of the zone, such as "2026-01-02T09:00".

    Every second Friday: `rrule("FREQ=WEEKLY;INTERVAL=2;BYDAY=FR", start="2026-01-02T09:00")`.
    The last workday of the month: `rrule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", start="2026-01-01T09:00")`.
    """
    read, begin, zone = rules.read(rule), _read_start(start), check_zone(tz)
    if civil.first_from(_plan(read.text, begin, zone, None), _moment(begin)) is None:
        message = f"the rule never fires: no day within {civil.HORIZON} years of its start matches it"
        hint = "check its days against its months, and its end against its start"
        raise rules.refusal(message, code="rrule_never_fires", hint=hint)
    chosen_gap, chosen_fold = read_readings(gap, fold, fixed_time=True)
    days_off = read_days_off(calendar, shift, calendar_digest)
    return Rrule(rule=read.text, start=begin, timezone=zone, gap=chosen_gap, fold=chosen_fold, days_off=days_off)


def write_start(start: datetime) -> str:
    """A local time as text; with seconds only where there are some."""
    return start.isoformat(timespec="seconds" if start.second else "minutes")


def _read_start(value: datetime | str) -> datetime:
    hint = 'write a local time without an offset, such as "2026-01-02T09:00"; the zone is tz='
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value) if _LOCAL.fullmatch(value) else value
        if isinstance(value, datetime) and value.tzinfo is None and 1900 <= value.year <= 9000:
            return value.replace(microsecond=0, fold=0)
    except ValueError:
        pass
    message = f"the start {str(value)[:40]!r} is no local time of the years 1900–9000"
    raise InvalidSchedule(message, code="start_invalid", pointer="/start", hint=hint)


def _moment(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(seconds=1)


@lru_cache(maxsize=_PLANS)
def _plan(text: str, start: datetime, zone: str, days_off: DaysOff | None) -> Plan:
    rule = rules.read(text)
    days = _RuleDays(_complete(rule, start), start.date(), date.max)
    plan = Plan(
        seconds=1 << start.second,
        minutes=_bits(rule.byminute or (start.minute,)),
        hours=_bits(rule.byhour or (start.hour,)),
        months=_bits(range(1, 13)),
        days=(),
        fixed_time=True,
        chosen=days,
        within=(_moment(start), _moment(_FOREVER)),
    )
    bounds = (_moment(start), _end(rule, plan, zone))
    if days_off is None:
        return replace(plan, within=bounds)
    # The bounds are those of the days that the rule names; one that moves may leave them.
    calendar, shift = heeded(days_off), days_off.shift
    named = replace(days, last=_date(bounds[1]))
    first, last = (_moved(moment, calendar, shift) for moment in bounds)
    within = (min(first, bounds[0]), max(last, bounds[1]))
    return replace(plan, chosen=Worked(named, calendar, shift), within=within)


def _moved(moment: int, calendar: Calendar, shift: Shift) -> int:
    day = _date(moment)
    moved = calendar.moved(day, shift) or day
    return moment + (moved - day).days * civil.SECONDS_A_DAY


def _date(moment: int) -> date:
    return (_EPOCH + timedelta(seconds=moment)).date()


def _end(rule: Rule, plan: Plan, zone: str) -> int:
    """The last civil moment of a rule."""
    assert plan.within is not None, "a rule has a start"
    if rule.until is not None:
        end = _moment(rule.until)
        if rule.until_utc:
            stretch = stretch_at(zone, end)
            end += stretch.offset if stretch is not None else 0
        return end
    if rule.count is None:
        return plan.within[1]
    return _nth(plan, rule.count)


def _nth(plan: Plan, count: int) -> int:
    """The moment of the last of so many occurrences; year by year, then by halves."""
    assert plan.within is not None, "a rule has a start"
    begin = plan.within[0]
    low = high = begin
    for _ in range(civil.HORIZON):
        high += 366 * civil.SECONDS_A_DAY
        if civil.count(plan, begin, high) >= count:
            break
        low = high
    else:
        message = f"COUNT={count} is not used up within {civil.HORIZON} years"
        raise rules.refusal(message, code="rrule_range", hint="leave COUNT out, or give a smaller one")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if civil.count(plan, begin, middle) >= count else (middle, high)
    return low


def _complete(rule: Rule, start: datetime) -> Rule:
    """Say what a rule takes from its start, so that nothing but the phase of the interval depends on it."""
    if rule.byday or rule.bymonthday or rule.byyearday or rule.byweekno:
        return rule
    if rule.freq == "DAILY":
        return rule
    if rule.freq == "WEEKLY":
        return replace(rule, byday=(rules.Weekday(start.weekday()),))
    if rule.freq == "YEARLY" and not rule.bymonth:
        return replace(rule, bymonth=(start.month,), bymonthday=(start.day,))
    return replace(rule, bymonthday=(start.day,))


@dataclass(frozen=True, slots=True, eq=False)
class _RuleDays:
    """The days of a rule, month by month; compared by identity, as the key of what is kept."""

    rule: Rule
    start: date
    last: date

    def __call__(self, year: int, month: int) -> int:
        return _year(self, year)[month] if self.start.year <= year <= self.last.year else 0


@lru_cache(maxsize=_YEARS)
def _year(days: _RuleDays, year: int) -> tuple[int, ...]:
    months = [0] * 13
    for day in _days_of(days.rule, days.start, year):
        if days.start <= day.date() <= days.last:
            months[day.month] |= 1 << day.day
    return tuple(months)


def _days_of(rule: Rule, start: date, year: int) -> Iterable[datetime]:
    """The days of one civil year."""
    if rule.freq == "YEARLY":
        return [] if (year - start.year) % rule.interval else _expand(rule, year, rule.bymonth)
    if rule.freq == "MONTHLY":
        phase = (year - start.year) * 12 - start.month
        months = [m for m in rule.bymonth or range(1, 13) if (phase + m) % rule.interval == 0]
        if not rule.bysetpos:
            return _expand(rule, year, months) if months else []
        return [day for month in months for day in _expand(rule, year, [month])]
    length = 7 if rule.freq == "WEEKLY" else 1
    # Weeks begin with WKST; day 1 of the calendar was a Monday.
    shift = 1 + rule.wkst if rule.freq == "WEEKLY" else 0
    first = (start.toordinal() - shift) // length
    return [
        day
        for day in _expand(rule, year, rule.bymonth)
        if ((day.toordinal() - shift) // length - first) % rule.interval == 0
    ]


def _expand(rule: Rule, year: int, months: Iterable[int]) -> Iterable[datetime]:
    """All days of a year, or of some of its months, that match the rule, whatever its interval."""
    weekdays = rule.byday or ((rules.Weekday(day) for day in range(7)) if rule.freq == "DAILY" else ())
    return dateutil.rrule(
        dateutil.YEARLY,
        dtstart=datetime(year, 1, 1),  # noqa: DTZ001
        interval=_ONCE,
        wkst=rule.wkst,
        bymonth=tuple(months) or None,
        byweekno=rule.byweekno or None,
        byyearday=rule.byyearday or None,
        bymonthday=rule.bymonthday or None,
        byweekday=[dateutil.weekday(day.day, day.nth) for day in weekdays] or None,
        bysetpos=rule.bysetpos or None,
    )


def _bits(values: Iterable[int]) -> int:
    bits = 0
    for value in values:
        bits |= 1 << value
    return bits
